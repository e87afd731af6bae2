"""A thread that turns the records of traced requests into spans and sends these to a collector.

Workers append to a bounded queue, and never wait. Requests that do not fit, or that the collector does not take, are
lost and counted, and the log says so once a minute at most. The thread looks into the queue once a second. Waking it
would cost the worker a system call. With the GIL, workers also lose more by how often the thread runs than by how long;
so it does not release the GIL while it works.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from typing import Final

import trio
from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource

from toutates.infer.tracing.encoding import SpanEncoder
from toutates.infer.tracing.record import TracedRequest
from toutates.infer.tracing.sending import NotTaken, OtlpSender
from toutates.infer.tracing.spans import SpanMaker
from toutates.system.logs.limit import LineLimit
from toutates.system.text import one_line

__all__ = ["ExporterStatistics", "TraceExporter"]

logger = logging.getLogger(__name__)

#: Requests that wait to be sent; about a kilobyte each.
MAX_WAITING: Final = 4_096
#: Requests sent at once. The spans of one take 0.03 ms, and sending all of them 1.
MAX_BATCH: Final = 64
PAUSE_S: Final = 1.0
#: The thread rests for this many times the CPU time that it has used, until the server ends. Callers can have all of
#: their requests traced, which must not cost the others more than a tenth of a core.
REST: Final = 9
#: How long the server waits at its end for the traces that are left to be sent.
FLUSH_S: Final = 5.0
#: Time between two warnings that traces are lost.
WARNING_PAUSE_S: Final = 60.0
#: Length of the reason in such a warning.
MAX_REASON_CHARS: Final = 300


@dataclass(frozen=True, slots=True)
class ExporterStatistics:
    """Numbers of traced requests.

    Attributes:
        sent: requests that the collector has taken.
        dropped: requests that were not queued, because the queue was full.
        failed: requests that the collector did not take.
        waiting: requests in the queue now.
    """

    sent: int
    dropped: int
    failed: int
    waiting: int


class TraceExporter:
    """Queues traced requests, and sends their spans to a collector from a thread of its own.

    Args:
        endpoint: the collector's whole URL.
        version: the version of this server.
    """

    def __init__(self, endpoint: str, version: str) -> None:
        self._endpoint = endpoint
        self._maker = SpanMaker(_resource(version), version)
        self._encoder: SpanEncoder | None = None
        self._sender = OtlpSender(endpoint, version, os.environ)
        #: guards the queue's length and what was dropped
        self._lock = threading.Lock()
        self._waiting: deque[TracedRequest] = deque()
        self._dropped = 0
        self._sent = 0
        self._failed = 0
        self._taken = 0
        self._reason = ""  # of the last failure
        self._stopping = threading.Event()
        self._losses = _Losses(endpoint)

    def put(self, request: TracedRequest) -> None:
        """Queue a request to have its spans sent, if there is room. Any thread may call it; it never waits."""
        with self._lock:
            if len(self._waiting) < MAX_WAITING:
                self._waiting.append(request)
            else:
                self._dropped += 1

    def statistics(self) -> ExporterStatistics:
        """The counters as they are now. Any thread may call it."""
        return ExporterStatistics(self._sent, self._dropped, self._failed, len(self._waiting))

    @asynccontextmanager
    async def running(
        self, place: Callable[[], AbstractContextManager[None]] = nullcontext, flush_s: float = FLUSH_S
    ) -> AsyncIterator[None]:
        """Run the thread within the block. The block's end waits for unsent traces, ``flush_s`` seconds at most.

        A collector can keep the thread longer than that, and longer than any timeout. The thread is then abandoned: it
        ends when its attempt does, or with the process.

        Args:
            place: the context manager that the thread runs in, such as ``toutates.system.placement.running_on``.
            flush_s: how long to wait for the thread, seconds.
        """

        # Shielded, so that a server that is cancelled sends what is left too.
        flushing = trio.CancelScope(shield=True)

        def run() -> None:
            with place():
                self._run()

        async def own_thread() -> None:
            limiter = trio.CapacityLimiter(1)
            with flushing:
                await trio.to_thread.run_sync(run, thread_name="traces", limiter=limiter, abandon_on_cancel=True)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(own_thread)
            try:
                yield
            finally:
                self._stopping.set()
                flushing.deadline = trio.current_time() + flush_s
        self._close(in_time=not flushing.cancelled_caught)

    def _close(self, *, in_time: bool) -> None:
        """Count and log the traces that were not sent, once the thread has ended or was abandoned."""
        if not in_time:
            self._sender.stop()
        with self._lock:
            left = len(self._waiting) + self._taken
            self._waiting.clear()
        if left:
            logger.warning("traces of %d requests were not sent before the end, to %s", left, self._endpoint)

    # --- in the thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        stopping = False
        while not stopping:
            stopping = self._stopping.wait(PAUSE_S)
            batch = self._take()
            while batch:
                began_s = time.thread_time()
                self._send(batch)
                stopping = self._stopping.wait(REST * (time.thread_time() - began_s)) or stopping
                # Few requests wait until there are more: sending few costs as much as sending many.
                batch = self._take() if len(batch) == MAX_BATCH or stopping else []
            self._losses.report(self._dropped, self._failed, self._reason, stopping=stopping)
        self._sender.close()

    def _take(self) -> list[TracedRequest]:
        with self._lock:
            batch = [self._waiting.popleft() for _ in range(min(MAX_BATCH, len(self._waiting)))]
            self._taken = len(batch)
        return batch

    def _send(self, batch: list[TracedRequest]) -> None:
        try:
            self._sender.send(self._encoded(batch))
        except Exception as error:  # the thread goes on, whatever it is
            logger.debug("sending traces failed", exc_info=True)
            text = str(error) if isinstance(error, NotTaken) else f"{type(error).__name__}: {error}"
            self._reason = one_line(text, MAX_REASON_CHARS)
            self._failed += len(batch)
            self._losses.report(self._dropped, self._failed, self._reason)
        else:
            self._sent += len(batch)
        self._taken = 0

    def _encoded(self, batch: list[TracedRequest]) -> bytes:
        encoded: list[bytes] = []
        for request in batch:
            spans = self._maker.spans(request)
            encoder = self._encoder = self._encoder or SpanEncoder(spans[0])
            encoded += map(encoder.span, spans)
        assert self._encoder is not None
        return self._encoder.request(encoded)


class _Losses:
    """Logs that traces are lost, once in WARNING_PAUSE_S at most."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._reported = (0, 0)
        self._limit: LineLimit[str] = LineLimit(period_ns=int(WARNING_PAUSE_S * 1e9))

    def report(self, dropped: int, failed: int, reason: str, *, stopping: bool = False) -> None:
        if (dropped, failed) == self._reported:
            return
        if self._limit.count("", time.monotonic_ns()) and not stopping:
            return
        new_dropped, new_failed = dropped - self._reported[0], failed - self._reported[1]
        self._reported = (dropped, failed)
        if new_failed:
            logger.warning(
                "traces of %d requests could not be sent to %s: %s", new_failed, self._endpoint, reason or "no answer"
            )
        if new_dropped:
            logger.warning(
                "traces of %d requests were dropped: more than can be sent to %s", new_dropped, self._endpoint
            )


def _resource(version: str) -> Resource:
    """What sends the traces. OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES override our attributes.

    OpenTelemetry's detectors come first, because their ``service.instance.id`` is another in each process.
    """
    ours = Resource(
        {
            SERVICE_NAME: "toutates",
            "service.version": version,
            "service.instance.id": f"{socket.gethostname()}:{os.getpid()}",
            "host.name": socket.gethostname(),
            "process.pid": os.getpid(),
        }
    )
    return Resource.create().merge(ours).merge(OTELResourceDetector().detect())
