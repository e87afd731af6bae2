"""A port of a padded version: rows are copied as they come, and wait in their form's pool from the round's end on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from toutates.engine.lane import Piece
from toutates.engine.padded.lanes import Entry, Form, PaddedWay
from toutates.engine.padded.padding import Padding
from toutates.engine.padded.queue import PaddedQueue
from toutates.engine.result import BatchResult, Split
from toutates.engine.servable import Buffer, Consumer, Content, view_of
from toutates.engine.supertensor import SuperTensor
from toutates.system.errors import InvalidRequest, ModelNotReady

__all__ = ["PaddedPort"]


class PaddedPort:
    """See ``engine.servable.Port``; used by its consumer's thread only.

    Args:
        supertensor: shared with the other ports.
        padding: of the version.
        consumer: for whom it is.

    Attributes:
        counters: the consumer's.
    """

    def __init__(self, supertensor: SuperTensor, padding: Padding, consumer: Consumer) -> None:
        self._supertensor = supertensor
        self._padding = padding
        queue = supertensor.queue
        assert isinstance(queue, PaddedQueue)
        self._queue = queue
        self._port = supertensor.connect(consumer)
        self._finish_here = consumer.finish_here
        self._at_round_end = consumer.at_round_end
        self.counters = consumer.counters
        self._commit_asked = False
        #: what was added since the last commit, its rows and padded elements
        self._added: list[Entry] = []
        self._rows = 0
        self._elements = 0

    def way(self, row_shapes: Sequence[tuple[int, tuple[int, ...]]], outputs: Sequence[int] | None = None) -> PaddedWay:
        """See ``Port``.

        Raises:
            InvalidRequest: the rows have no length, or one that the version does not take.
        """
        padding, supertensor = self._padding, self._supertensor
        shapes, length = padding.form_of(tuple(row_shapes), supertensor.signature, supertensor.name)
        form = supertensor.lane(shapes)
        assert isinstance(form, Form)
        padded = padding.buckets.of(length)
        most = max(1, min(form.batch_rows, padding.most_elements // padded))
        return PaddedWay(form, length, form.row_bytes(length), sum(form.row_bytes(padded)), padded, most)

    def add_packed(self, way: PaddedWay, rows: int, context: Any, buffer: Buffer, spans: Sequence[int]) -> None:
        """See ``Port``."""
        whole = memoryview(buffer)
        contents = [bytes(whole[spans[at] : spans[at + 1]]) for at in range(0, len(spans), 2)]
        self._add(way, rows, context, contents)

    def add_contents(self, way: PaddedWay, rows: int, context: Any, contents: Sequence[Content]) -> None:
        """See ``Port``."""
        self._add(way, rows, context, [bytes(view_of(content)) for content in contents])

    def add_gathered(
        self, way: PaddedWay, rows: int, context: Any, arrays: Sequence[Piece], held_bytes: int = 0
    ) -> None:
        """Not called: rows are given as bytes."""
        raise NotImplementedError

    def commit(self, *, inline: bool = True) -> None:
        """See ``Port``."""
        if not self._added:
            return
        added, self._added = self._added, []
        self._rows = self._elements = 0
        supertensor = self._supertensor
        with supertensor.lock:
            for entry in added:
                self._queue.add(entry)
            run = supertensor.executors.dispatch(inline=inline)
        del added  # a batch that has run here is to be freed
        if run is not None:
            executor, batch = run
            executor.run_inline(batch, self._deliver)

    def _add(self, way: PaddedWay, rows: int, context: Any, contents: Sequence[bytes]) -> None:
        if rows < 1:
            raise InvalidRequest(f"the batch dimension for model '{self._supertensor.name}' is 0; send 1 row or more")
        self._count(way, rows)
        row_held = sum(way.row_bytes) + way.padded_bytes
        if rows <= way.most_rows:
            self._added.append(Entry(way, self._port, context, rows, contents, None, rows * row_held))
        else:
            split = Split(-(-rows // way.most_rows))
            for index in range(split.left):
                first = index * way.most_rows
                own = min(way.most_rows, rows - first)
                pieces = [
                    content[first * size : (first + own) * size]
                    for content, size in zip(contents, way.row_bytes, strict=True)
                ]
                self._added.append(Entry(way, self._port, context, own, pieces, (split, index), own * row_held))
        self._rows += rows
        self._elements += rows * way.padded_length
        if self._rows >= way.form.batch_rows or self._elements >= self._padding.most_elements:
            self.commit()
        elif not self._commit_asked:
            self._commit_asked = True
            self._at_round_end(self._commit_round)

    def _count(self, way: PaddedWay, rows: int) -> None:
        """Count the rows of a request, from when they are added until they have run.

        Raises:
            RequestError: they do not fit in now, or never will.
        """
        supertensor = self._supertensor
        budget = supertensor.budget
        held = rows * (sum(way.row_bytes) + way.padded_bytes)
        with supertensor.lock:
            if self._queue.closed:
                raise ModelNotReady(
                    "Server is stopping, scheduler for model has stopped accepting new inference requests"
                )
            if budget.bounds.waiting:
                # What idle executors take at the commit does not wait.
                budget.check_waiting(len(supertensor.executors.idle) * way.form.batch_rows)
            budget.check_fit(way.form, rows, held)
            budget.rows += rows
            budget.memory_bytes += held
            if budget.bounds.waiting:
                budget.waiting += 1

    def _commit_round(self) -> None:
        self._commit_asked = False
        self.commit()

    def _deliver(self, port: int, result: BatchResult) -> None:
        if port == self._port:
            self._finish_here(result)
        else:
            self._supertensor.deliver(port, result)
