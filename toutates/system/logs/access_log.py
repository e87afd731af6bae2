"""The access log: a line for each of the inference requests that were chosen for it.

A worker only puts what it knows of a request into a bounded queue of its own; the log's thread makes lines of it, some
at a time, and stands back as long as that took. What does not fit is counted, and told.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from enum import IntEnum
from typing import Final, Protocol

from toutates.system.logs.levels import PACKAGE
from toutates.system.logs.limit import LineLimit
from toutates.system.logs.output import LAST
from toutates.system.logs.rendering import LogFormatter

__all__ = ["AccessLog", "AccessSink", "Observed"]

AREA: Final = "access"
#: Requests of one worker that wait for their lines.
MAX_WAITING: Final = 4_096
#: Lines made before other threads get the interpreter.
AT_ONCE: Final = 20
#: How often the thread looks for more where there was none, and how long it pauses at least where there is.
LOOK_NS: Final = 100_000_000
PAUSE_NS: Final = 1_000_000

logger = logging.getLogger(f"{PACKAGE}.{AREA}")


class Version(Protocol):
    """The model version that answers."""

    @property
    def model(self) -> str: ...

    @property
    def number(self) -> int: ...


class Observed(Protocol):
    """What is known of one request: ``toutates.infer.observing.Observation``, where it says what all of it is."""

    arrival_ns: int
    taken_ns: int
    done_ns: int
    answered_ns: int
    rows: int
    batch_rows: int
    text: str
    peer: str

    @property
    def version(self) -> Version | None: ...

    @property
    def status(self) -> IntEnum: ...

    @property
    def request_id(self) -> str: ...


class AccessSink:
    """Takes requests of one worker. Called on the worker's thread, so it does next to nothing."""

    __slots__ = ("left_out", "waiting")

    def __init__(self) -> None:
        #: one thread appends, another takes
        self.waiting: deque[Observed] = deque()
        #: requests that found no room; written by the worker alone
        self.left_out = 0

    def __call__(self, request: Observed) -> None:
        """Have a line made of it."""
        if len(self.waiting) < MAX_WAITING:
            self.waiting.append(request)
        else:
            self.left_out += 1


class AccessLog:
    """See the module.

    Args:
        formatter: makes lines.
        put: takes them.
    """

    def __init__(self, formatter: LogFormatter, put: Callable[[str], None]) -> None:
        self._formatter = formatter
        self._put = put
        self._sinks: list[AccessSink] = []
        self._told = 0
        self._limit: LineLimit[str] = LineLimit()

    def sink(self) -> AccessSink:
        """A new one, for a worker that has none yet."""
        sink = AccessSink()
        self._sinks.append(sink)
        return sink

    @property
    def left_out(self) -> int:
        """Requests without a line, because they came faster than lines are made."""
        return sum(sink.left_out for sink in self._sinks)

    def drain(self, now_ns: int) -> int | None:
        """Make lines of what waits; a chore of the log's thread."""
        is_last = now_ns == LAST
        # Steps of the clock come in, as with every other line.
        offset_ns = time.time_ns() - time.monotonic_ns()
        is_shown = logger.isEnabledFor(logging.INFO)
        began_ns = time.monotonic_ns()
        lines = 0
        for sink in self._sinks:
            while sink.waiting and (is_last or lines < AT_ONCE):
                request = sink.waiting.popleft()
                if is_shown:
                    self._put(self._line_of(request, offset_ns))
                    lines += 1
        self._tell(now_ns)
        if not any(sink.waiting for sink in self._sinks):
            return LOOK_NS
        return max(PAUSE_NS, time.monotonic_ns() - began_ns)

    def _line_of(self, request: Observed, offset_ns: int) -> str:
        fields: dict[str, object] = {}
        if request.version is not None:
            fields.update(model=request.version.model, version=request.version.number, rows=request.rows)
        if request.batch_rows:
            fields["batch_rows"] = request.batch_rows
        fields["status"] = request.status.name
        if request.taken_ns:
            fields["queue_ms"] = _milliseconds(request.taken_ns - request.arrival_ns)
            fields["compute_ms"] = _milliseconds(request.done_ns - request.taken_ns)
        fields["total_ms"] = _milliseconds(request.answered_ns - request.arrival_ns)
        if request_id := _request_id(request):
            fields["request_id"] = request_id
        fields["peer"] = request.peer
        if request.text:
            fields["error"] = request.text
        time_s = (request.answered_ns + offset_ns) / 1e9
        return self._formatter.of_fields(time_s=time_s, level=logging.INFO, area=AREA, event="ModelInfer", **fields)

    def _tell(self, now_ns: int) -> None:
        left_out = self.left_out
        if left_out > self._told and (now_ns == LAST or not self._limit.count("", now_ns)):
            count, self._told = left_out - self._told, left_out
            logger.warning("%d requests have no line in the access log: they came faster than lines are made", count)


def _milliseconds(ns: int) -> float:
    return round(ns / 1e6, 3)


def _request_id(request: Observed) -> str:
    try:
        return request.request_id
    except Exception:  # what the client sent is no text
        return ""
