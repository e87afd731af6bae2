"""A request of a decoupled version from its batch until its last response: none, one or many, at any time."""

from __future__ import annotations

import logging
import threading
import time
from typing import Final

from toutates.engine.response_counters import Kind, ResponseCounters
from toutates.engine.result import BatchResult, Outputs, PendingRequest, Timing
from toutates.engine.servable import Consumer
from toutates.protocol.strings import EncodedStrings
from toutates.system.errors import ExecutionFailed, Overloaded, RequestError, Rescheduled

__all__ = ["OpenRequest", "Responses"]

logger = logging.getLogger(__name__)

_INTERNAL: Final = ExecutionFailed("internal error")
#: Bytes of responses of one version that were handed over and that nobody has taken yet; and what each counts at least.
MAX_HANDED_OVER: Final = 16 * 1024 * 1024
LEAST_BYTES: Final = 1_024
#: How often a response that waits looks whether somebody wants it still.
_LOOK_S: Final = 0.05
#: How long it waits if no other is taken meanwhile: maybe what would take them waits for this one.
STUCK_S: Final = 300.0


class Responses:
    """What all responses of one version have in common. Any thread may use it.

    A model may send faster than a worker writes. What was handed over and not taken is bounded: the thread that sends
    waits then, as it would if it wrote to a socket.

    Attributes:
        counters: of the version.
    """

    def __init__(self) -> None:
        self.counters = ResponseCounters()
        self._bytes = 0
        self._taken = 0
        self._state = threading.Condition()

    def hand_over(self, size: int, request: OpenRequest) -> int:
        """Count a response, once there is room for it, or nobody wants it; returns what ``taken`` is to be told.

        Raises:
            Overloaded: there has been no room for long, and nothing was taken. It is not counted.
        """
        size = max(size, LEAST_BYTES)
        with self._state:
            taken, since = self._taken, time.monotonic()
            while self._bytes and self._bytes + size > MAX_HANDED_OVER and request.is_wanted:
                self._state.wait(_LOOK_S)
                if self._taken != taken:
                    taken, since = self._taken, time.monotonic()
                elif time.monotonic() - since > STUCK_S:
                    raise Overloaded(
                        f"{self._bytes} bytes of responses of this model were not taken for {STUCK_S:g} s, and there "
                        "is no room for more"
                    )
            self._bytes += size
        return size

    def taken(self, size: int) -> None:
        """A response is no longer kept for whoever it was handed over to."""
        with self._state:
            self._bytes -= size
            self._taken += 1
            self._state.notify_all()


def _size(content: object) -> int:
    return len(content.content) if isinstance(content, EncodedStrings) else len(content)  # type: ignore[arg-type]


class OpenRequest:
    """Any thread may answer it; what is sent is delivered in the order in which it was sent.

    Args:
        consumer: of the port that it came by.
        request: as it stands in its batch. Its rows are whole (``SuperTensor.keeps_whole``).
        begun_ns: when its batch was taken, monotonic nanoseconds.
        responses: of the version.
    """

    __slots__ = ("_begun_ns", "_consumer", "_is_over", "_last_ns", "_lock", "_request", "_responses", "_sent")

    def __init__(self, consumer: Consumer, request: PendingRequest, begun_ns: int, responses: Responses) -> None:
        self._consumer = consumer
        self._responses = responses
        self._last_ns = begun_ns
        self._sent = 0
        self._request = request
        self._begun_ns = begun_ns
        self._lock = threading.Lock()
        self._is_over = False

    @property
    def is_over(self) -> bool:
        """Whether the last response was sent."""
        return self._is_over

    @property
    def is_wanted(self) -> bool:
        """Whether somebody still waits for responses, as far as anybody knows."""
        context, consumer = self._request[0], self._consumer
        if self._is_over or consumer.may_have_left(context):
            return False
        return consumer.is_wanted(context, time.monotonic_ns())

    def respond(self, response: Outputs | RequestError | None, rows: int = 0, *, final: bool) -> None:
        """Send a response; waits where too many were not taken yet. Does nothing once the last one was sent.

        Args:
            response: outputs of this request alone, or an error; None with ``final`` for no further response.
            rows: of the outputs.
            final: whether it is the last one.
        """
        outputs = response if isinstance(response, Outputs) else None
        error = response if isinstance(response, RequestError) else None
        size = 0 if outputs is None else sum(map(_size, outputs.data))
        with self._lock:
            if self._is_over:
                return
            try:
                size = self._responses.hand_over(size, self)
            except Overloaded as stuck:
                outputs, error, final, size = None, stuck, True, 0
            self._is_over = final
            result = BatchResult([(self._request[0], 0, rows, None)], outputs, error, self._timing(outputs, error))
            result.more = not final
            if size:
                result.taken = lambda: self._responses.taken(size)
            try:
                self._consumer.finish(result)
            except Exception:
                logger.exception("handing over a response failed")
                if result.taken is not None:
                    result.taken()
                self._is_over = True
                if not final:
                    timing = self._timing(None, _INTERNAL)
                    self._consumer.finish(BatchResult([(self._request[0], 0, 0, None)], None, _INTERNAL, timing))

    def _timing(self, outputs: Outputs | None, error: RequestError | None) -> Timing:
        """When the response was there; it is counted."""
        now_ns = time.monotonic_ns()
        kind: Kind = "success" if outputs is not None else "fail" if error is not None else "empty"
        if not self._consumer.is_wanted(self._request[0], now_ns):
            kind = "cancel"
        if not isinstance(error, Rescheduled):
            self._responses.counters.add(self._sent, kind, now_ns - self._last_ns)
        self._sent += 1
        self._last_ns = now_ns
        return Timing(self._begun_ns, self._begun_ns, now_ns, now_ns)
