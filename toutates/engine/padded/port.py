"""Ports of versions whose rows wait in pools: they are copied as they come."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from toutates.engine.lane import Lane, Piece
from toutates.engine.padded.lanes import Entry, Form, PaddedBatch, PaddedWay
from toutates.engine.padded.padding import Padding
from toutates.engine.padded.queue import PaddedQueue
from toutates.engine.ragged.ragged import Ragged
from toutates.engine.result import BatchResult, Split
from toutates.engine.servable import Buffer, Consumer, Content, view_of
from toutates.engine.splits import KeptSplit
from toutates.engine.supertensor import SuperTensor
from toutates.system.errors import InvalidRequest

__all__ = ["EntryPort", "PaddedPort", "PooledPort"]


class PooledPort:
    """What ports have in common whose rows wait in pools: they are added as they come, and executors hear of them at
    the round's end. Used by its consumer's thread only.

    Args:
        supertensor: shared with the other ports.
        consumer: for whom it is.

    Attributes:
        counters: the consumer's.
    """

    def __init__(self, supertensor: SuperTensor, consumer: Consumer) -> None:
        self.counters = consumer.counters
        self._supertensor = supertensor
        self._at_round_end = consumer.at_round_end
        self._has_added = self._commit_asked = False

    def commit(self, *, inline: bool = True) -> None:
        """See ``Port``."""
        if not self._has_added:
            return
        self._has_added = False
        run = self._supertensor.commit((), inline=inline)
        if run is not None:
            executor, batch = run
            del run  # a batch that has run here is to be freed
            executor.run_inline(batch, self._deliver)

    def _note_added(self) -> None:
        """Rows were added."""
        self._has_added = True
        if not self._commit_asked:
            self._commit_asked = True
            self._at_round_end(self._commit_round)

    def _commit_round(self) -> None:
        self._commit_asked = False
        self.commit()

    def _deliver(self, port: int, result: BatchResult) -> None:
        """Hand out the outcome of a batch that this thread has run."""
        self._supertensor.deliver(port, result)


class EntryPort(PooledPort):
    """A port whose rows wait as entries of a queue.

    Args:
        supertensor, consumer: see ``PooledPort``.
    """

    def __init__(self, supertensor: SuperTensor, consumer: Consumer) -> None:
        super().__init__(supertensor, consumer)
        queue = supertensor.queue
        assert isinstance(queue, PaddedQueue)
        self._queue = queue
        self._port = supertensor.connect(consumer)
        self._parameters = consumer.parameters
        self._finish_here = consumer.finish_here

    def _enter(self, form: Lane, rows: int, held_bytes: int, entries: Sequence[Entry]) -> None:
        """Have the rows of one request wait.

        Args:
            form: of the rows.
            rows: of all entries.
            held_bytes: that are counted for them.
            entries: of the request.
        """
        supertensor, part = self._supertensor, entries[0].part
        kept = part[0].byte_size if part is not None and isinstance(part[0], KeptSplit) else 0
        with supertensor.lock:
            supertensor.let_in(form, rows, held_bytes + kept)
            if supertensor.budget.bounds.waiting:
                supertensor.budget.waiting += 1
            for entry in entries:
                self._queue.add(form, entry)

    def _deliver(self, port: int, result: BatchResult) -> None:
        if port == self._port:
            self._finish_here(result)
        else:
            super()._deliver(port, result)


class PaddedPort(EntryPort):
    """See ``engine.servable.Port``.

    Args:
        supertensor, consumer: see ``PooledPort``.
        padding: of the version.
    """

    def __init__(self, supertensor: SuperTensor, padding: Padding | Ragged, consumer: Consumer) -> None:
        super().__init__(supertensor, consumer)
        self._padding = padding
        #: what was added since the last commit
        self._rows = 0
        self._elements = 0

    def way(self, row_shapes: Sequence[tuple[int, tuple[int, ...]]], outputs: Sequence[int] | None = None) -> PaddedWay:
        """See ``Port``.

        Raises:
            InvalidRequest: the rows have no length, or one that the version does not take.
        """
        padding, supertensor = self._padding, self._supertensor
        assert isinstance(padding, Padding)
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

    def _add(self, way: PaddedWay, rows: int, context: Any, contents: Sequence[bytes]) -> None:
        supertensor = self._supertensor
        if rows < 1:
            raise InvalidRequest(f"the batch dimension for model '{supertensor.name}' is 0; send 1 row or more")
        row_held = sum(way.row_bytes) + way.padded_bytes
        entries = self._entries(way, rows, context, contents, row_held)
        self._enter(way.form, rows, rows * row_held, entries)
        self._rows += rows
        self._elements += rows * way.padded_length
        self._note_added()
        if self._rows >= way.form.batch_rows or self._elements >= self._padding.most_elements:
            self.commit()

    def _entries(
        self, way: PaddedWay, rows: int, context: Any, contents: Sequence[bytes], row_held: int
    ) -> list[Entry]:
        """The rows of a request, cut where they are more than run together.

        Args:
            row_held: bytes that are counted for each.
        """
        if rows <= way.most_rows or not self._supertensor.joins:
            return [Entry(way.length, self._port, context, rows, contents, None, rows * row_held)]
        parts = -(-rows // way.most_rows)
        split = Split(parts)
        if self._supertensor.keeps_split:
            whole = Entry(way.length, self._port, context, rows, contents, None, rows * way.padded_bytes)
            split = KeptSplit(parts, partial(self._batch_of, way, whole), sum(map(len, contents)))
        entries: list[Entry] = []
        for index in range(parts):
            first = index * way.most_rows
            own = min(way.most_rows, rows - first)
            pieces = [
                content[first * size : (first + own) * size]
                for content, size in zip(contents, way.row_bytes, strict=True)
            ]
            entries.append(Entry(way.length, self._port, context, own, pieces, (split, index), own * row_held))
        return entries

    def _batch_of(self, way: PaddedWay, entry: Entry) -> PaddedBatch:
        """A batch of one entry, in any thread."""
        shapes = self._padding.closed(way.form.row_shapes, way.padded_length)
        return PaddedBatch(self._supertensor.lane(shapes), [entry], entry.rows)

    def commit(self, *, inline: bool = True) -> None:
        """See ``Port``."""
        self._rows = self._elements = 0
        super().commit(inline=inline)
