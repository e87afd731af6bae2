"""An executor of a text model: one thread's loop that reads texts' tokens and runs batches.

Whatever goes wrong with a batch, each of its requests is told. A batch that fails is run again, request by request, so
that only the one at fault gets the error. What is no ``Exception`` also ends the thread, which is then replaced.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from toutates.backends.text.computing import Computing
from toutates.backends.text.interface import Float32, SparseVector, TextError
from toutates.backends.text.queue import Ended, Inbox, TextBatch, TextQueue
from toutates.backends.text.reading import Reader, Slice
from toutates.backends.text.work import Row, TextRequest
from toutates.engine.result import Timing
from toutates.system.errors import ExecutionFailed, RequestError
from toutates.system.logs.limit import LineLimit

__all__ = ["TextCounters", "TextExecutor"]

logger = logging.getLogger(__name__)

_INTERNAL = ExecutionFailed("internal error")


@dataclass(slots=True)
class TextCounters:
    """What one executor has done. It alone writes them.

    Attributes:
        tokens: of texts that were run, without padding.
        padded: the same with padding.
        cut: texts that were cut.
        texts: whose tokens were read.
        read_ns: how long that took.
    """

    tokens: int = 0
    padded: int = 0
    cut: int = 0
    texts: int = 0
    read_ns: int = 0


class TextExecutor:
    """See the module.

    Args:
        queue: what there is to do.
        reader, computing: by which it is done.
        dimensions: of a vector, for texts without a token.
        on_batch: takes the rows, requests and timing of every batch that ran.
        counters: its own.
    """

    def __init__(
        self,
        queue: TextQueue,
        reader: Reader,
        computing: Computing,
        dimensions: int,
        on_batch: Callable[[int, int, Timing], None],
        counters: TextCounters,
    ) -> None:
        self._queue = queue
        self._reader = reader
        self._computing = computing
        self._nothing: Float32 = np.zeros(dimensions, np.float32)
        self._on_batch = on_batch
        self._counters = counters
        self._limit: LineLimit[str] = LineLimit()

    def run(self) -> None:
        """Work until there will be no more.

        Raises:
            BaseException: what is no ``Exception``. ``run`` is then to be called again, in another thread.
        """
        queue = self._queue
        inbox: Inbox = Inbox()
        while True:
            work = queue.take(inbox)
            if work is None:
                inbox.get()
                continue
            if isinstance(work, Ended):
                return
            try:
                if isinstance(work, TextBatch):
                    self._run(work)
                else:
                    self._read(work)
            except BaseException as error:
                self._give_up(work, error)
                if not isinstance(error, Exception):
                    raise
            del work

    def _read(self, slices: Sequence[Slice]) -> None:
        began_ns = time.monotonic_ns()
        read = self._reader.read(slices)
        ended_ns = time.monotonic_ns()
        counters = self._counters
        texts = sum(end - first for _, first, end in slices)
        counters.texts += texts
        counters.read_ns += ended_ns - began_ns
        counters.cut += read.cut
        if texts:
            each_ns = (ended_ns - began_ns) // texts
            for request, first, end in slices:
                request.read_ns += each_ns * (end - first)
        if texts == 1 and read.rows and self._queue.runs_alone():
            # Nothing else is there to share a batch with, so the text need not wait for itself.
            self._run(TextBatch(read.rows, len(read.rows[0].ids), ended_ns))
            return
        for row in read.empty:
            settled = row.request.settled
            row.request.vectors[row.index] = self._nothing[: settled.dimensions]
        self._queue.add_read(read, Timing(began_ns, began_ns, ended_ns, ended_ns))

    def _run(self, batch: TextBatch) -> None:
        started_ns = time.monotonic_ns()
        try:
            found = self._computing.run(batch.rows, batch.length)
        except Exception as error:
            self._run_one_by_one(batch, _as_failure(error))
            return
        ended_ns = time.monotonic_ns()
        self._queue.note_run(batch, ended_ns - started_ns)
        self._count(batch.rows, batch.length)
        failed = _take_vectors(batch.rows, found, ended_ns - started_ns)
        timing = Timing(batch.taken_ns, started_ns, ended_ns, time.monotonic_ns())
        requests = 1 if len(batch.rows) == 1 else len({row.request for row in batch.rows})
        self._on_batch(len(batch.rows), requests, timing)
        self._queue.finish(batch.rows, failed, timing, ran=True)

    def _run_one_by_one(self, batch: TextBatch, failure: RequestError) -> None:
        """Run each request of a failed batch by itself, so that only those fail that cause the failure."""
        by_request: dict[TextRequest, list[Row]] = {}
        for row in batch.rows:
            by_request.setdefault(row.request, []).append(row)
        done: list[Row] = []
        failed: list[tuple[TextRequest, RequestError]] = []
        started_ns = ended_ns = time.monotonic_ns()
        for request, rows in by_request.items():
            if len(by_request) == 1:
                failed.append((request, failure))
                break
            started_ns = time.monotonic_ns()
            try:
                found = self._computing.run(rows, batch.length)
            except Exception as error:
                failed.append((request, _as_failure(error)))
                continue
            ended_ns = time.monotonic_ns()
            self._count(rows, batch.length)
            failed += _take_vectors(rows, found, ended_ns - started_ns)
            done += rows
            self._on_batch(len(rows), 1, Timing(batch.taken_ns, started_ns, ended_ns, ended_ns))
        self._queue.finish(done, failed, Timing(batch.taken_ns, started_ns, ended_ns, ended_ns), ran=True)

    def _count(self, rows: Sequence[Row], length: int) -> None:
        tokens = sum([len(row.ids) for row in rows])
        self._counters.tokens += tokens
        self._counters.padded += len(rows) * length if self._computing.pads else tokens

    def _give_up(self, work: Sequence[Slice] | TextBatch, error: BaseException) -> None:
        """Fail every request of some work after an error of our own."""
        if not self._limit.count("", time.monotonic_ns()):
            logger.error("texts could not be computed", exc_info=error)
        is_batch = isinstance(work, TextBatch)
        requests = [row.request for row in work.rows] if isinstance(work, TextBatch) else [one for one, _, _ in work]
        now_ns = time.monotonic_ns()
        failed = [(request, _INTERNAL) for request in dict.fromkeys(requests)]
        self._queue.finish((), failed, Timing(now_ns, now_ns, now_ns, now_ns), ran=is_batch)


def _take_vectors(
    rows: Sequence[Row], found: Sequence[Float32 | SparseVector | TextError], run_ns: int
) -> list[tuple[TextRequest, RequestError]]:
    """Give texts their vectors; returns the requests that failed."""
    failed: list[tuple[TextRequest, RequestError]] = []
    for row, vector in zip(rows, found, strict=True):
        request = row.request
        if isinstance(vector, TextError):
            failed.append((request, vector))
        else:
            request.vectors[row.index] = vector
            request.run_ns += run_ns
    return failed


def _as_failure(error: Exception) -> RequestError:
    if isinstance(error, RequestError):
        return error
    logger.error("a batch of texts could not be computed", exc_info=error)
    return ExecutionFailed(f"internal error: {type(error).__name__}")
