"""What an executor of a text model does with a batch: it reads the tokens of texts, or computes texts, or both.

What is computed goes to the requests themselves, because they want arrays of different shapes. So the outputs of a run
say no more than that it was successful. A request that has an error is left out of what follows.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from toutates.backends.text.computing import Computing
from toutates.backends.text.here import HereBatch
from toutates.backends.text.interface import Fault, Float32, SparseVector, TextError
from toutates.backends.text.queue import ReadingBatch, TextQueue
from toutates.backends.text.reading import Reader, ReadTexts, Slice
from toutates.backends.text.work import Row, TextRequest
from toutates.engine.counters import ExecutorCounters
from toutates.engine.lane import Batch
from toutates.engine.padded.lanes import PaddedBatch, PaddedLane
from toutates.engine.padded.padding import Padding
from toutates.engine.result import Outputs
from toutates.engine.supertensor import SuperTensor
from toutates.system.errors import ExecutionFailed, TooLate

__all__ = ["TextBackend", "TextCounters"]

#: The requests have what was computed.
_WITH_REQUESTS: Final = Outputs((), (), ())
_LATE: Final = TooLate("the answer would come after the caller's deadline, or the caller has left")


@dataclass(slots=True)
class TextCounters:
    """What one executor has done. It alone writes them.

    Attributes:
        cut: texts that were cut.
        texts: whose tokens were read.
        read_ns: how long that took.
    """

    cut: int = 0
    texts: int = 0
    read_ns: int = 0


class TextBackend:
    """Reads the tokens of a batch's texts, or computes the texts, or both; see ``engine.servable.Backend``.

    Args:
        supertensor: whose queue is a ``TextQueue``.
        reader, computing: by which texts are computed.
        dimensions: of a vector, for texts without a token.
        elements: of the executor, count what was padded.
        counters: its own.
    """

    def __init__(
        self,
        supertensor: SuperTensor,
        reader: Reader,
        computing: Computing,
        dimensions: int,
        elements: ExecutorCounters,
        counters: TextCounters,
    ) -> None:
        queue = supertensor.queue
        assert isinstance(queue, TextQueue)
        self._supertensor = supertensor
        self._queue = queue
        self._reader = reader
        self._computing = computing
        self._pads = computing.pads
        self._nothing: Float32 = np.zeros(dimensions, np.float32)
        self._elements = elements
        self._counters = counters
        assert isinstance(supertensor.padding, Padding)
        self._run_cost = supertensor.padding.run_cost
        self.started_ns = 0
        self.ended_ns = 0

    @property
    def on_cpu(self) -> bool:
        """See ``Backend``."""
        return self._computing.on_cpu

    @property
    def one_thread(self) -> bool:
        """See ``Backend``. A session may have threads of its own."""
        return not self._computing.pads

    def run(self, batch: Batch, first: int, rows: int) -> Outputs:
        """See ``Backend``."""
        if isinstance(batch, ReadingBatch):
            self._read(batch, first, rows)
        elif isinstance(batch, HereBatch):
            self._run_here(batch)
        else:
            assert isinstance(batch, PaddedBatch)
            assert isinstance(batch.lane, PaddedLane)
            self._compute(self._wanted(batch, first, rows), batch.lane.length)
        return _WITH_REQUESTS

    def close(self) -> None:
        """See ``Backend``. The session is that of all executors."""

    def _run_here(self, batch: HereBatch) -> None:
        settled, counters = batch.settled, self._counters
        began_ns = time.monotonic_ns()
        texts = self._reader.ids_of(batch.texts, settled)
        tokens = list(map(len, texts))
        self.started_ns = started_ns = time.monotonic_ns()
        if min(tokens) and max(tokens) <= settled.limit:
            batch.vectors = list(self._computing.means(texts, tokens, settled))
        else:
            fit = [at for at, size in enumerate(tokens) if 0 < size <= settled.limit]
            if not fit:
                raise TextError("each of these texts is to be treated by itself", Fault.TOO_LONG)
            vectors: list[Float32 | None] = [None] * len(texts)
            fitting = [tokens[at] for at in fit]
            for at, vector in zip(fit, self._computing.means([texts[at] for at in fit], fitting, settled), strict=True):
                vectors[at] = vector
            batch.vectors, tokens = vectors, [size if 0 < size <= settled.limit else 0 for size in tokens]
            batch.rows = batch.computed = len(fit)
        self.ended_ns = time.monotonic_ns()
        batch.tokens = tokens
        batch.read_ns = read_ns = started_ns - began_ns
        counters.texts += batch.rows
        counters.read_ns += read_ns
        elements = sum(tokens)
        self._elements.add_elements(batch.rows, elements, elements)

    # --- reading -----------------------------------------------------------------------------------------------------

    def _read(self, batch: ReadingBatch, first: int, rows: int) -> None:
        if rows != batch.rows and not batch.lane.computes:
            raise ExecutionFailed("internal error")  # reading never fails for a text's sake, so it is not tried again
        slices = batch.among(first, rows)
        counters = self._counters
        self.started_ns = began_ns = time.monotonic_ns()
        # The executor has seen that a caller of the batch waits; others of it may have left.
        late = self._late(slices) if len(slices) > 1 else ()
        if late:
            slices = [own for own in slices if own[0] not in late]
            rows = sum([end - begin for _, begin, end in slices])
        try:
            read = self._reader.read(slices)
        except BaseException:
            with self._supertensor.lock:
                self._queue.note_read(batch.slices)  # else their callers' next texts wait behind everybody's
            raise
        read.failed += [(request, request.error or _LATE) for request in late]
        self.ended_ns = ended_ns = time.monotonic_ns()
        counters.texts += rows
        counters.read_ns += ended_ns - began_ns
        counters.cut += read.cut
        each_ns = (ended_ns - began_ns) // max(rows, 1)
        for request, begin, end in slices:
            request.read_ns += each_ns * (end - begin)
        for request, error in read.failed:
            request.error = error
        for row in read.empty:
            request = row.request
            request.vectors[row.index] = self._nothing[: request.settled.dimensions]
        if not batch.lane.computes:
            self._pass_on(batch, read)
        elif read.rows:
            own = [row for row in read.rows if row.request.error is None] if read.failed else read.rows
            self._compute(own, max([row.length for row in own], default=0) if self._pads else 0)

    @staticmethod
    def _late(slices: Sequence[Slice]) -> Collection[TextRequest]:
        """Requests of texts that nobody waits for any more, or that have failed."""
        now_ns = time.monotonic_ns()
        late = [request for request, _, _ in slices if request.error is not None or not request.is_wanted(now_ns)]
        return set(late) if late else ()

    def _pass_on(self, batch: ReadingBatch, read: ReadTexts) -> None:
        """Have the texts wait for a batch of their length; those that are done, or have failed, stay in this one."""
        rows = [row for row in read.rows if row.request.error is None]
        done: dict[TextRequest, int] = {request: 0 for request, _ in read.failed}
        for row in read.empty:
            done[row.request] = done.get(row.request, 0) + 1
        batch.pending[0][:] = [(request, 0, count, None) for request, count in done.items()]
        supertensor, queue = self._supertensor, self._queue
        with supertensor.lock:
            for row in rows:
                queue.add(queue.form, row)
            queue.note_read(batch.slices)
            batch.counted -= len(rows)
            # This executor takes one batch itself.
            if supertensor.executors.idle and (queue.unread or len(rows) > queue.form.batch_rows):
                supertensor.executors.dispatch(inline=False)
        supertensor.executors.hand_over()

    # --- computing ---------------------------------------------------------------------------------------------------

    def _wanted(self, batch: PaddedBatch, first: int, rows: int) -> list[Row]:
        """The texts of a batch whose requests still wait for them."""
        by_ns = time.monotonic_ns()
        if self._queue.open:  # where others wait, what will be late anyway is left out
            by_ns += batch.lane.wall_ns[rows.bit_length()]
        wanted: list[Row] = []
        last, is_wanted = None, False
        for _, row in batch.among(first, rows):
            assert isinstance(row, Row)
            request = row.request
            if request is not last:
                last = request
                is_wanted = request.error is None and request.is_wanted(by_ns)
                if not is_wanted and request.error is None:
                    request.error = _LATE
            if is_wanted:
                wanted.append(row)
        return wanted

    def _compute(self, rows: Sequence[Row], length: int) -> None:
        if not rows:
            return
        self.started_ns = started_ns = time.monotonic_ns()
        found = self._computing.run(rows, length)
        self.ended_ns = ended_ns = time.monotonic_ns()
        tokens = padded = sum([row.length for row in rows])
        run_ns = ended_ns - started_ns
        if self._pads:
            padded = len(rows) * length
            self._run_cost.note(padded, run_ns)
        self._elements.add_elements(len(rows), tokens, padded)
        for row, vector in zip(rows, found, strict=True):
            request: TextRequest = row.context
            if isinstance(vector, TextError):
                request.error = vector
                continue
            request.vectors[row.index] = vector
            request.run_ns += run_ns
            if request.settled.counts:
                with self._supertensor.lock:
                    request.new_size += _size_of(vector)


def _size_of(result: Float32 | SparseVector) -> int:
    if isinstance(result, SparseVector):
        return result.indices.nbytes + result.values.nbytes
    return result.nbytes
