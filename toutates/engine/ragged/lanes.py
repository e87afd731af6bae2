"""Forms of ragged rows and the lanes that their batches run in, one for each size: as ``engine.padded.lanes``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from toutates.engine.lane import Batch, Lane, RowShapes
from toutates.engine.lane_table import LaneTable
from toutates.engine.padded.lanes import Entry, Form, PaddedBatch, PaddedWay, RowPool
from toutates.engine.ragged.ragged import Ragged
from toutates.engine.ragged.waiting import RowsInOrder
from toutates.protocol.signature import Signature
from toutates.protocol.strings import StringTensor

__all__ = ["RaggedEntry", "RaggedForm", "RaggedLane", "RaggedLanes", "RaggedWay"]


@dataclass(frozen=True, slots=True)
class RaggedWay(PaddedWay):
    """The way into a port for rows of one shape.

    Attributes:
        row_shapes: of the inputs.
    """

    row_shapes: RowShapes = ()


@dataclass(slots=True, eq=False)
class RaggedEntry(Entry):
    """Rows of one request that wait.

    Attributes:
        row_shapes: of the inputs.
    """

    row_shapes: RowShapes = ()


class RaggedForm(Form):
    """Row shapes with (-1,) for ragged inputs: rows of one form may run together."""

    def new_batch(self, ports: int, room: int) -> RowPool:
        return RowPool(self, RowsInOrder(self.joint_rows, self.padding.most_elements))


class RaggedLane(Lane):
    """Batches of one form and about one size."""

    packed: ClassVar[bool] = False

    def __init__(self, signature: Signature, row_shapes: RowShapes, batch_size: int, ragged: Ragged) -> None:
        super().__init__(signature, row_shapes, batch_size)
        self._ragged = ragged

    def inputs(self, batch: Batch, first: int, rows: int) -> dict[int, npt.NDArray[Any] | StringTensor]:
        assert isinstance(batch, PaddedBatch)
        entries = [entry for _, entry in batch.among(first, rows)]
        shapes = []
        for entry in entries:
            assert isinstance(entry, RaggedEntry)
            shapes.append(dict(entry.row_shapes))
        signature, ragged = self.signature, self._ragged
        inputs: dict[int, npt.NDArray[Any] | StringTensor] = {}
        for at, (index, shape) in enumerate(shapes[0].items()):
            contents = [entry.contents[at] for entry in entries]
            joined = contents[0] if len(contents) == 1 else b"".join(contents)
            dtype = signature.inputs[index].datatype.numpy
            array: npt.NDArray[Any] = np.frombuffer(joined, dtype) if len(joined) else np.empty(0, dtype)
            inputs[index] = array if index in ragged.inputs else array.reshape(rows, *shape)
        return {**inputs, **ragged.made(signature, [entry.rows for entry in entries], shapes)}


class RaggedLanes(LaneTable):
    """The forms of a model version and their lanes. A form is found by row shapes with (-1,) for ragged inputs.

    Args:
        signature: the tensors that clients see.
        batch_size: most rows of a batch.
        ragged: of the version.
    """

    def __init__(self, signature: Signature, batch_size: int, ragged: Ragged) -> None:
        super().__init__(signature, batch_size)
        self._ragged = ragged

    def _make(self, row_shapes: RowShapes) -> Lane:
        if any(-1 in shape for _, shape in row_shapes):
            return RaggedForm(self._signature, row_shapes, self._batch_size, self._ragged)
        return RaggedLane(self._signature, row_shapes, self._batch_size, self._ragged)
