"""A request of a decoupled version from its batch until its last response: none, one or many, at any time."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from toutates.engine.response_counters import Kind, ResponseCounters
from toutates.engine.result import BatchResult, Outputs, PendingRequest, Timing
from toutates.engine.servable import Consumer
from toutates.protocol.strings import EncodedStrings
from toutates.system.errors import ExecutionFailed, Overloaded, RequestError, Rescheduled, anew

__all__ = ["MAX_HANDED_OVER", "MAX_UNREAD_BYTES", "OpenRequest", "Patience", "Responses", "unread_of"]

logger = logging.getLogger(__name__)

_INTERNAL: Final = ExecutionFailed("internal error")
#: Bytes of responses of one version that were handed over and that nobody has taken yet; and what each counts at least.
MAX_HANDED_OVER: Final = 16 * 1024 * 1024
LEAST_BYTES: Final = 1_024
#: Bytes of responses of one request that its caller may leave unread.
MAX_UNREAD_BYTES: Final = 64 * 1024 * 1024
#: How long one response waits for a caller that does not read, seconds, and the part of its time that an instance
#: spends so in all: others wait for what it sends meanwhile.
LONGEST_WAIT_S: Final = 1.0
WAITING_PART: Final = 0.1
#: How often such a response looks whether the caller has read.
_READ_LOOK_S: Final = 0.005
#: How often a response that waits looks whether somebody wants it still.
_LOOK_S: Final = 0.05
#: How long it waits if no other is taken meanwhile: maybe what would take them waits for this one.
STUCK_S: Final = 300.0


def unread_of(waiting: int, room: int) -> int:
    """What counts as unread (``Consumer.unread_bytes``) where ``waiting`` bytes wait for the caller of a request.

    Where the server has ``room`` for less than a caller may leave unread, the difference counts too: who reads nothing
    gets no more than there is room for, and who reads everything is not asked.
    """
    return waiting and max(waiting, MAX_UNREAD_BYTES - room)


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

    def taken(self, size: int, request: OpenRequest) -> None:
        """A response is no longer kept for whoever it was handed over to."""
        with self._state:
            request.taken_bytes += size
            self._bytes -= size
            self._taken += 1
            self._state.notify_all()


class Patience:
    """How long an instance may still wait for callers that do not read: a part of the time that passes, a second at
    most. Any thread may use it.

    Args:
        clock_s: tells the time, seconds.
    """

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._lock = threading.Lock()
        self._left_s = LONGEST_WAIT_S
        self._clock_s = clock_s
        self._at = clock_s()

    def take(self) -> float:
        """Take all that is left, seconds. What of it was not waited for is to be given back."""
        with self._lock:
            now = self._clock_s()
            left_s = min(LONGEST_WAIT_S, self._left_s + (now - self._at) * WAITING_PART)
            self._left_s, self._at = 0.0, now
            return left_s

    def give_back(self, seconds: float) -> None:
        """Have this be left again."""
        with self._lock:
            self._left_s = min(LONGEST_WAIT_S, self._left_s + seconds)


def _size(content: object) -> int:
    return len(content.content) if isinstance(content, EncodedStrings) else len(content)  # type: ignore[arg-type]


class OpenRequest:
    """Any thread may answer it; what is sent is delivered in the order in which it was sent.

    Args:
        consumer: of the port that it came by.
        request: as it stands in its batch. Its rows are whole (``SuperTensor.keeps_whole``).
        begun_ns: when its batch was taken, monotonic nanoseconds.
        responses: of the version.
        patience: of the instance with callers that do not read; None for its own.

    Attributes:
        taken_bytes: of its responses, what ``Responses.taken`` was told of; for that alone.
    """

    __slots__ = (
        "_begun_ns",
        "_consumer",
        "_handed_bytes",
        "_is_over",
        "_last_ns",
        "_lock",
        "_patience",
        "_request",
        "_responses",
        "_sent",
        "taken_bytes",
    )

    def __init__(
        self,
        consumer: Consumer,
        request: PendingRequest,
        begun_ns: int,
        responses: Responses,
        patience: Patience | None = None,
    ) -> None:
        self._consumer = consumer
        self._patience = patience
        self._handed_bytes = self.taken_bytes = 0
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
                self._wait_until_read(size)
                size = self._responses.hand_over(size, self)
                self._handed_bytes += size
            except Overloaded as stuck:
                outputs, error, final, size = None, anew(stuck), True, 0
            self._is_over = final
            result = BatchResult([(self._request[0], 0, rows, None)], outputs, error, self._timing(outputs, error))
            result.more = not final
            if size:
                result.taken = lambda: self._responses.taken(size, self)
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

    @property
    def _unread_bytes(self) -> int:
        """Of its responses, what was handed over and not taken, and what was taken and its caller has not read."""
        return self._handed_bytes - self.taken_bytes + self._consumer.unread_bytes(self._request[0])

    def _wait_until_read(self, size: int) -> None:
        """Wait, but not for long, where the caller leaves so much unread that a response does not fit.

        Raises:
            Overloaded: the caller does not read.
        """
        unread = self._unread_bytes
        if not unread or unread + size <= MAX_UNREAD_BYTES:
            return
        patience = self._patience or Patience()
        until = time.monotonic() + patience.take()
        while (unread := self._unread_bytes) and unread + size > MAX_UNREAD_BYTES and self.is_wanted:
            if time.monotonic() >= until:
                raise Overloaded(
                    f"the caller leaves too many responses of this request unread: {MAX_UNREAD_BYTES >> 20} MiB of "
                    "them is the most, and what the server's buffer has room for"
                )
            time.sleep(_READ_LOOK_S)
        patience.give_back(max(0.0, until - time.monotonic()))

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
