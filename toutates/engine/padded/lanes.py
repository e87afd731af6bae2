"""Forms, which rows have in common whatever their length, and the lanes that they run in, one for each bucket.

    rows of a form, waiting in its pool ──(an executor is free)──▶ a PaddedBatch of the lane of its longest row's bucket

Requests add rows to their form's pool. Which of them run together is chosen when an executor takes them
(``engine.lengths``). There are no buffers: whoever runs a batch makes its arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from toutates.engine.lane import Batch, Lane, RowShapes
from toutates.engine.lane_table import LaneTable
from toutates.engine.lengths import WaitingRows
from toutates.engine.padded.padding import Padding
from toutates.engine.ragged.ragged import Ragged
from toutates.engine.ragged.waiting import RowsInOrder
from toutates.engine.result import PendingRequest, Split
from toutates.protocol.signature import Signature
from toutates.protocol.strings import StringTensor

__all__ = ["Entry", "Form", "PaddedBatch", "PaddedLane", "PaddedLanes", "PaddedWay", "Pool", "RowPool"]


class Form(Lane):
    """Row shapes with -1 in place of the length: rows of one form may run together."""

    packed: ClassVar[bool] = False

    def __init__(self, signature: Signature, row_shapes: RowShapes, batch_size: int, padding: Padding | Ragged) -> None:
        super().__init__(signature, row_shapes, batch_size)
        self.padding = padding
        #: rows of several requests that run together
        self.joint_rows = self.batch_rows

    def take_whole(self, rows: int) -> None:
        super().take_whole(rows)
        self.joint_rows = 1

    def row_bytes(self, length: int) -> tuple[int, ...]:
        """Bytes of one row of each input, by position in ``row_shapes``, for rows of a length."""
        inputs = self.signature.inputs
        closed = self.padding.closed(self.row_shapes, length)
        return tuple([prod(shape) * inputs[index].datatype.size for index, shape in closed])

    def new_batch(self, ports: int, room: int) -> RowPool:
        padding = self.padding
        assert isinstance(padding, Padding)
        return RowPool(self, WaitingRows(padding.buckets, self.joint_rows, padding.most_elements, padding.run_cost))


@dataclass(frozen=True, slots=True)
class PaddedWay:
    """The way into a port for rows of one form and one length (``engine.servable.Way``).

    Attributes:
        form: of the rows.
        length: of the rows.
        row_bytes: of one row of each input, by position in the form's row shapes.
        padded_bytes: of one row of all inputs, once it is padded.
        padded_length: elements of a row, once it is padded.
        most_rows: that run together.
        packed: see ``Way``.
    """

    form: Form
    length: int
    row_bytes: tuple[int, ...]
    padded_bytes: int
    padded_length: int
    most_rows: int
    packed: bool = True


@dataclass(slots=True, eq=False)
class Entry:
    """Rows of one request that wait, all of them unless they are more than run together.

    Attributes:
        length: of each row.
        port: number of the port.
        context: the request's.
        rows: how many.
        contents: bytes of each input, by position in the form's row shapes; arrays where rows are as they came.
        part: which part of a split request they are; None for all of it.
        held_bytes: that are counted for them.
        arrived_ns: when they came, monotonic nanoseconds; only where batches wait for more rows.
    """

    length: int
    port: int
    context: Any
    rows: int
    contents: Sequence[Any]
    part: tuple[Split, int] | None = None
    held_bytes: int = 0
    arrived_ns: int = 0

    @property
    def is_first(self) -> bool:
        """Whether they are the first rows of their request."""
        return self.part is None or not self.part[1]


class Pool(Batch):
    """What waits and is no batch yet; among the open batches as long as there is any (``engine.batch_queue``)."""

    __slots__ = ()

    def __init__(self, lane: Lane) -> None:
        super().__init__(lane, 0, 0)

    @property
    def entries(self) -> int:
        """How many entries wait."""
        raise NotImplementedError

    @property
    def oldest_ns(self) -> int:
        """When the entry came that waits longest, as it says itself."""
        raise NotImplementedError

    def take(self, lanes: LaneTable) -> Batch:
        """The batch to run next; there has to be an entry.

        Args:
            lanes: of the version.
        """
        raise NotImplementedError


class RowPool(Pool):
    """The rows of one form that wait.

    Attributes:
        waiting: the rows.
    """

    __slots__ = ("waiting",)

    def __init__(self, form: Form, waiting: WaitingRows[Entry] | RowsInOrder[Entry]) -> None:
        super().__init__(form)
        self.waiting = waiting

    @property
    def entries(self) -> int:
        return len(self.waiting)

    @property
    def oldest_ns(self) -> int:
        return self.waiting.oldest.arrived_ns

    def add(self, entry: Entry) -> None:
        """Add rows that are counted already."""
        self.waiting.add(entry, entry.rows, entry.length)
        self.rows = self.counted = self.waiting.rows

    def take(self, lanes: LaneTable) -> PaddedBatch:
        chosen = self.waiting.take()
        self.rows = self.counted = self.waiting.rows
        form = self.lane
        assert isinstance(form, Form)
        lane = lanes.find(form.padding.closed(form.row_shapes, chosen.length))
        return PaddedBatch(lane, chosen.entries, chosen.rows)


class PaddedBatch(Batch):
    """Rows that wait in one pool and run together, padded to one length or joined end to end. Entries of one request
    that are neighbours are one of ``pending``, unless the request was split.

    Attributes:
        entries: with the first row of each.
    """

    __slots__ = ("entries",)

    def __init__(self, lane: Lane, entries: Sequence[Entry], rows: int) -> None:
        super().__init__(lane, 1 + max([entry.port for entry in entries]), 0)
        self.rows = self.counted = rows
        self.entries: list[tuple[int, Entry]] = []
        first = 0
        for entry in entries:
            own = self.pending[entry.port]
            last = own[-1] if own and entry.part is None else None
            if last is not None and last[0] is entry.context and last[1] + last[2] == first:
                own[-1] = (entry.context, last[1], last[2] + entry.rows, None)
            else:
                own.append((entry.context, first, entry.rows, entry.part))
                self.has_parts |= entry.part is not None
            self.entries.append((first, entry))
            self.held_bytes += entry.held_bytes
            first += entry.rows

    def among(self, first: int, rows: int) -> list[tuple[int, Entry]]:
        """The entries of some rows: of all, or of one request's."""
        if rows == self.rows:
            return self.entries
        return [(at, entry) for at, entry in self.entries if first <= at < first + rows]

    @staticmethod
    def request(first: int, entry: Entry) -> PendingRequest:
        """An entry as it is among ``pending``."""
        return entry.context, first, entry.rows, entry.part


class PaddedLane(Lane):
    """The rows of one form that are padded to one length.

    Attributes:
        length: that they are padded to.
    """

    packed: ClassVar[bool] = False

    def __init__(self, signature: Signature, row_shapes: RowShapes, batch_size: int, padding: Padding) -> None:
        super().__init__(signature, row_shapes, batch_size)
        self._padding = padding
        self.length = next(shape[padding.inputs[index].axis] for index, shape in row_shapes if index in padding.inputs)

    def inputs(self, batch: Batch, first: int, rows: int) -> dict[int, npt.NDArray[Any] | StringTensor]:
        assert isinstance(batch, PaddedBatch)
        entries = batch.among(first, rows)
        inputs: dict[int, npt.NDArray[Any] | StringTensor] = {}
        for at, (index, shape) in enumerate(self.row_shapes):
            spec = self.signature.inputs[index]
            padded = self._padding.inputs.get(index)
            array = np.full((rows, *shape), padded.value if padded is not None else 0, spec.datatype.numpy)
            for start, entry in entries:
                own = list(shape)
                part = [slice(start - first, start - first + entry.rows), *(slice(None) for _ in shape)]
                if padded is not None:
                    own[padded.axis] = entry.length
                    part[1 + padded.axis] = slice(entry.length)
                content = np.frombuffer(entry.contents[at], spec.datatype.numpy)
                array[tuple(part)] = content.reshape(entry.rows, *own)
            inputs[index] = array
        mask = self._padding.mask
        if mask is not None and mask not in inputs:
            inputs[mask] = self._mask(mask, entries, first, rows)
        return inputs

    def _mask(self, index: int, entries: Sequence[tuple[int, Entry]], first: int, rows: int) -> npt.NDArray[Any]:
        spec, axis = self.signature.inputs[index], self._padding.inputs[index].axis
        shape = list(spec.graph_shape)
        shape[axis] = self.length
        mask = np.zeros((rows, *shape), spec.datatype.numpy)
        along = mask.swapaxes(1, 1 + axis)  # a view
        for start, entry in entries:
            along[start - first : start - first + entry.rows, : entry.length] = 1
        return mask


class PaddedLanes(LaneTable):
    """The forms of a model version and their lanes. A form is found by row shapes with -1 in place of the length.

    Args:
        signature: the model's tensors.
        batch_size: most rows of a batch.
        padding: of the version.
    """

    def __init__(self, signature: Signature, batch_size: int, padding: Padding) -> None:
        super().__init__(signature, batch_size)
        self._padding = padding

    def _make(self, row_shapes: RowShapes) -> Lane:
        kind = Form if any(-1 in shape for _, shape in row_shapes) else PaddedLane
        return kind(self._signature, row_shapes, self._batch_size, self._padding)
