"""A request of a decoupled version from its batch until its last response: none, one or many, at any time."""

from __future__ import annotations

import logging
import threading
import time
from typing import Final

from toutates.engine.response_counters import Kind, ResponseCounters
from toutates.engine.result import BatchResult, Outputs, PendingRequest, Timing
from toutates.engine.servable import Consumer
from toutates.system.errors import ExecutionFailed, RequestError

__all__ = ["OpenRequest"]

logger = logging.getLogger(__name__)

_INTERNAL: Final = ExecutionFailed("internal error")


class OpenRequest:
    """Any thread may answer it; what is sent is delivered in the order in which it was sent.

    Args:
        consumer: of the port that it came by.
        request: as it stands in its batch. Its rows are whole (``SuperTensor.keeps_whole``).
        begun_ns: when its batch was taken, monotonic nanoseconds.
        counters: of the version.
    """

    __slots__ = ("_begun_ns", "_consumer", "_counters", "_is_over", "_last_ns", "_lock", "_request", "_sent")

    def __init__(self, consumer: Consumer, request: PendingRequest, begun_ns: int, counters: ResponseCounters) -> None:
        self._consumer = consumer
        self._counters = counters
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
        """Send a response. Does nothing once the last one was sent.

        Args:
            response: outputs of this request alone, or an error; None with ``final`` for no further response.
            rows: of the outputs.
            final: whether it is the last one.
        """
        outputs = response if isinstance(response, Outputs) else None
        error = response if isinstance(response, RequestError) else None
        context = self._request[0]
        with self._lock:
            if self._is_over:
                return
            self._is_over = final
            now_ns = time.monotonic_ns()
            kind: Kind = "success" if outputs is not None else "fail" if error is not None else "empty"
            if not self._consumer.is_wanted(context, now_ns):
                kind = "cancel"
            self._counters.add(self._sent, kind, now_ns - self._last_ns)
            self._sent += 1
            self._last_ns = now_ns
            timing = Timing(self._begun_ns, self._begun_ns, now_ns, now_ns)
            try:
                self._consumer.finish(BatchResult([(context, 0, rows, None)], outputs, error, timing, not final))
            except Exception:
                logger.exception("handing over a response failed")
                if not final:
                    self._is_over = True
                    self._consumer.finish(BatchResult([(context, 0, 0, None)], None, _INTERNAL, timing))
