"""The access log: a line for each of the inference requests that were chosen for it.

A worker puts its observation of a request into a bounded queue of its own, and does no more. The log's thread makes
lines of the observations, some at a time, and pauses after each turn for as long as the turn took. Requests that find
the queue full are counted, and the log says how many there were.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from toutates.infer.observing import Observation
from toutates.system.logs.levels import PACKAGE
from toutates.system.logs.limit import LineLimit
from toutates.system.logs.output import LAST
from toutates.system.logs.rendering import LogFormatter
from toutates.system.logs.setup import Logs

__all__ = ["AccessLog", "AccessSink", "open_access_log"]

AREA: Final = "access"
#: Observations of one worker that wait for their lines, at most.
MAX_WAITING: Final = 4_096
#: Lines made in one turn of the log's thread; then other threads get the interpreter.
AT_ONCE: Final = 20
#: Pause after a turn that has emptied the queues, and the shortest pause after one that has not.
LOOK_NS: Final = 100_000_000
PAUSE_NS: Final = 1_000_000

logger = logging.getLogger(f"{PACKAGE}.{AREA}")


class AccessSink:
    """The queue of one worker, whose thread calls it: so it only appends, or counts what finds no room."""

    __slots__ = ("left_out", "waiting")

    def __init__(self) -> None:
        #: one thread appends, another takes
        self.waiting: deque[Observation] = deque()
        #: requests that found no room; written by the worker alone
        self.left_out = 0

    def __call__(self, request: Observation) -> None:
        """Have a line made of the request."""
        if len(self.waiting) < MAX_WAITING:
            self.waiting.append(request)
        else:
            self.left_out += 1


class AccessLog:
    """Makes lines of observations. ``drain`` runs on the log's thread, everything else on the main thread.

    Args:
        formatter: makes a line of fields.
        put: takes the lines.
    """

    def __init__(self, formatter: LogFormatter, put: Callable[[str], None]) -> None:
        self._formatter = formatter
        self._put = put
        self._sinks: list[AccessSink] = []
        self._told = 0
        self._limit: LineLimit[str] = LineLimit()

    def sink(self) -> AccessSink:
        """A new queue, for one worker."""
        sink = AccessSink()
        self._sinks.append(sink)
        return sink

    @property
    def left_out(self) -> int:
        """Requests without a line, because they came faster than lines are made."""
        return sum(sink.left_out for sink in self._sinks)

    def drain(self, now_ns: int) -> int | None:
        """Make lines of the observations that wait. A ``Chore`` of the log's thread."""
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

    def _line_of(self, request: Observation, offset_ns: int) -> str:
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


def open_access_log(logs: Logs) -> AccessLog | None:
    """An access log that is written with the log of the process; None where that belongs to somebody else."""
    if logs.output is None or logs.formatter is None:
        return None
    access = AccessLog(logs.formatter, logs.output.put)
    logs.output.add_chore(access.drain)
    return access


def _milliseconds(ns: int) -> float:
    return round(ns / 1e6, 3)


def _request_id(request: Observation) -> str:
    try:
        return request.request_id
    except Exception:  # what the client sent is no text
        return ""
