"""The lanes of one model version, and the spare batches that they keep."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from typing import Final
from weakref import WeakValueDictionary

from toutates.engine.lane import Allocate, Batch, GatheredLane, Lane, PackedLane, Pin, RowShapes
from toutates.protocol.signature import Signature

__all__ = ["LaneTable", "is_packed"]

#: Lanes that are kept. Beyond it the least recently used one is forgotten, with its spare batches.
MAX_LANES: Final = 256
#: Memory that spare batches of all lanes may hold.
MAX_SPARE_BYTES: Final = 256 * 1024 * 1024
#: Batches of rows larger than this are not kept: making their memory anew costs little beside filling it.
MAX_SPARE_ROW_BYTES: Final = 16 * 1024 * 1024

#: Batches without rows of their own that a lane keeps, and how large the outputs of one may be: 128 KiB in all.
MAX_LENT: Final = 32
MAX_LENT_OUTPUT_BYTES: Final = 4_096


class LaneTable:
    """Finds, makes and forgets lanes, and counts the memory of their spare batches. Guarded by the SuperTensor's lock.

    A spare batch has run, and its buffers wait to be used again.

    Args:
        signature: the model's tensors.
        batch_size: most rows of a batch.
        row_share_bytes: memory per row that the first buffers of a lane may take; None gives them room for all rows.
        pin: makes the memory of batches page-locked; None for ordinary memory.
        allocate: makes the memory of batches; None for ordinary memory.
        lends: as of ``PackedLane``.

    Attributes:
        last: the lane that was used last.
        spare_bytes: memory of the spare batches of all kept lanes.
    """

    def __init__(
        self,
        signature: Signature,
        batch_size: int,
        *,
        row_share_bytes: int | None = None,
        pin: Pin | None = None,
        allocate: Allocate | None = None,
        lends: bool = False,
    ) -> None:
        self._signature = signature
        self._batch_size = batch_size
        self._row_share_bytes = row_share_bytes
        self._pin = pin
        self._allocate = allocate
        self._lends = lends
        #: the lanes that are kept, the least recently used one first
        self._kept: OrderedDict[Hashable, Lane] = OrderedDict()
        #: these, and those that plans still hold: two lanes of one shape would take each other's place for ever
        self._known: WeakValueDictionary[Hashable, Lane] = WeakValueDictionary()
        self.last: Lane | None = None
        self.spare_bytes = 0
        #: rows of a request at most where each has a batch of its own; 0 where requests share batches
        self._whole_rows = 0

    def __len__(self) -> int:
        """How many lanes are kept."""
        return len(self._kept)

    def __iter__(self) -> Iterator[Lane]:
        """The lanes that are kept, the one used last first."""
        return reversed(self._kept.values())

    def find(self, row_shapes: RowShapes) -> Lane:
        """The lane of these row shapes; it is made if there is none."""
        return self.find_by(row_shapes, lambda: self._make(row_shapes))

    def find_by(self, key: Hashable, make: Callable[[], Lane]) -> Lane:
        """The lane that has this key; it is made if there is none."""
        lane = self._known.get(key)
        if lane is None:
            lane = self._known[key] = make()
            if self._whole_rows:
                lane.take_whole(self._whole_rows)
        self.note_use(lane)
        return lane

    def take_whole(self, rows: int) -> None:
        """Give each request of up to ``rows`` rows a batch of its own, from now on."""
        self._whole_rows = rows
        for lane in list(self._known.values()):
            self._drop_spare(lane)
            lane.take_whole(rows)

    def _make(self, row_shapes: RowShapes) -> Lane:
        if not is_packed(self._signature, row_shapes):
            return GatheredLane(self._signature, row_shapes, self._batch_size, lends=self._lends)
        lane = PackedLane(self._signature, row_shapes, self._batch_size, self._pin, self._allocate, lends=self._lends)
        if self._row_share_bytes is not None:
            lane.room = max(1, min(lane.batch_rows, self._row_share_bytes // lane.row_memory))
        return lane

    def note_use(self, lane: Lane) -> None:
        """Keep a lane, as the one used last; forget the least recently used one if there are too many."""
        self.last = lane
        self._kept[lane.key] = lane
        self._kept.move_to_end(lane.key)
        if len(self._kept) > MAX_LANES:
            _, forgotten = self._kept.popitem(last=False)
            self._drop_spare(forgotten)

    def widen(self, lane: Lane, rows: int) -> None:
        """Have the next batches of a lane take twice as many rows, ``rows`` at least; its spare ones are too small."""
        if self._whole_rows:
            return
        self._drop_spare(lane)
        lane.room = min(lane.batch_rows, max(2 * lane.room, rows))

    def widen_after(self, full: Batch) -> None:
        """Have the batches after a full one take twice as many rows, unless they take more than this one already."""
        lane = full.lane
        if full.room >= lane.room < lane.batch_rows:
            self.widen(lane, 0)

    def keep_spare(self, batch: Batch) -> None:
        """Keep a batch that has run for its lane's next rows, if it has the size of the next and there is memory."""
        lane = batch.lane
        if batch.lent_at:
            self._keep_lent(batch)
            return
        small_enough = batch.memory_bytes <= MAX_SPARE_BYTES and lane.row_memory <= MAX_SPARE_ROW_BYTES
        if batch.room == lane.room and small_enough:
            if self.spare_bytes + batch.memory_bytes > MAX_SPARE_BYTES:
                self._make_room(batch.memory_bytes)
            lane.spare.append(batch)
            self.spare_bytes += batch.memory_bytes

    def take_spare(self, lane: Lane) -> Batch:
        """A spare batch of a lane that has one, to be used again."""
        batch = lane.spare.pop()
        self.spare_bytes -= batch.memory_bytes
        return batch

    def take_lent(self, lane: Lane, ports: int, rows: int, address: int) -> Batch:
        """A batch for ``rows`` rows that lie at ``address``: what backends have bound to them may be bound already."""
        return lane.lent.pop((address, rows), None) or lane.new_lent_batch(ports, rows, address)

    def _keep_lent(self, batch: Batch) -> None:
        """Let go of the message; keep the rest for the next rows at the same address, if it is small."""
        batch.lent = None
        lent = batch.lane.lent
        if batch.room * batch.lane.bound_output_bytes <= MAX_LENT_OUTPUT_BYTES:
            if len(lent) >= MAX_LENT:
                del lent[next(iter(lent))]
            lent[batch.lent_at, batch.room] = batch

    def clear(self) -> None:
        """Forget all lanes and spare batches."""
        for lane in self._kept.values():
            lane.spare = []
            lane.lent = {}
        self._kept.clear()
        self.last = None
        self.spare_bytes = 0

    def _drop_spare(self, lane: Lane) -> None:
        self.spare_bytes -= sum(batch.memory_bytes for batch in lane.spare)
        lane.spare = []
        lane.lent = {}

    def _make_room(self, memory_bytes: int) -> None:
        """Drop spare batches of the least recently used lanes until so many bytes more fit."""
        for lane in self._kept.values():
            while self.spare_bytes + memory_bytes > MAX_SPARE_BYTES and lane.spare:
                self.take_spare(lane)


def is_packed(signature: Signature, row_shapes: RowShapes) -> bool:
    """Whether rows of these shapes are given as bytes: there are some, and each element takes as many."""
    inputs = signature.inputs
    return bool(row_shapes) and all(inputs[index].datatype.size and 0 not in shape for index, shape in row_shapes)
