"""Which tensors of a model are ragged, which inputs the server makes for it, and which outputs it cuts apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from math import prod
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from toutates.engine.lane import RowShapes
from toutates.protocol.signature import Signature, TensorSpec

__all__ = ["DEFAULT_MOST_ELEMENTS", "BatchInput", "BatchInputKind", "Ragged"]

#: Elements of the ragged inputs of a batch where the configuration does not bound them.
DEFAULT_MOST_ELEMENTS: Final = 1_048_576

#: What a batch input holds of its source; Triton's names of the same, in this order: BATCH_ELEMENT_COUNT,
#: BATCH_ACCUMULATED_ELEMENT_COUNT, BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO, BATCH_MAX_ELEMENT_COUNT_AS_SHAPE,
#: BATCH_ITEM_SHAPE, BATCH_ITEM_SHAPE_FLATTEN.
BatchInputKind = Literal["counts", "ends", "offsets", "longest", "shapes", "flat_shapes"]


@dataclass(frozen=True, slots=True)
class BatchInput:
    """An input that the server makes of what is in a batch.

    Attributes:
        tensor: the graph's.
        kind: ``counts`` [requests]: elements of each request; ``ends`` [requests]: their running sum; ``offsets``
            [requests + 1]: the same after a zero; ``longest`` [greatest count]: zeros, whose number says it;
            ``shapes`` [rows, rank]: the shape of each row; ``flat_shapes`` [rows x rank]: the same in one dimension.
        source: index of the input that this is said of.
    """

    tensor: TensorSpec
    kind: BatchInputKind
    source: int

    def of(self, rows: Sequence[int], shapes: Sequence[tuple[int, ...]]) -> npt.NDArray[Any]:
        """The input for some requests.

        Args:
            rows: of each request.
            shapes: of a row of the source, of each request.
        """
        dtype = self.tensor.datatype.numpy
        counts = [own * prod(shape) for own, shape in zip(rows, shapes, strict=True)]
        match self.kind:
            case "counts":
                return np.array(counts, dtype)
            case "ends":
                return np.array(list(accumulate(counts)), dtype)
            case "offsets":
                return np.array(list(accumulate(counts, initial=0)), dtype)
            case "longest":
                return np.zeros(max(counts), dtype)
        by_row = np.repeat(np.array(shapes, dtype), rows, axis=0)
        return by_row if self.kind == "shapes" else by_row.reshape(-1)

    def row_bytes(self, elements: int, rank: int) -> int:
        """Memory that it takes for a row of a source with so many elements and dimensions, at most."""
        count = {"longest": elements, "shapes": rank, "flat_shapes": rank}.get(self.kind, 2)
        return count * self.tensor.datatype.size


@dataclass(frozen=True, slots=True)
class Ragged:
    """How rows of different shape are put into one batch.

    Attributes:
        inputs: indices of the inputs whose elements the model gets in one dimension, those of all rows end to end.
        batch_inputs: that the server makes. The model has them after the signature's inputs.
        outputs: by the output's index, the input whose shape says what a request gets of it: an open dimension of the
            output has the size that the input has there. The elements of all requests lie end to end. Other outputs
            have a row for each row of the batch.
        most_elements: of ragged inputs in a batch; a request with more runs alone.
    """

    inputs: frozenset[int]
    batch_inputs: tuple[BatchInput, ...] = ()
    outputs: Mapping[int, int] = field(default_factory=dict)
    most_elements: int = DEFAULT_MOST_ELEMENTS

    def run_signature(self, signature: Signature) -> Signature:
        """The tensors of a run: those that clients see, and the batch inputs."""
        return replace(signature, inputs=(*signature.inputs, *(made.tensor for made in self.batch_inputs)))

    def form_of(self, row_shapes: RowShapes, signature: Signature) -> RowShapes:
        """What rows that share a batch have in common: the shapes, with (-1,) for ragged inputs."""
        form = [(index, (-1,) if index in self.inputs else shape) for index, shape in row_shapes]
        if not self.inputs:  # only batch inputs: one more entry stands for the size of the batch
            form.append((len(signature.inputs), (-1,)))
        return tuple(form)

    def closed(self, form: RowShapes, length: int) -> RowShapes:
        """A form for batches of about ``length`` elements."""
        return tuple([(index, (length,) if shape == (-1,) else shape) for index, shape in form])

    def elements(self, row_shapes: RowShapes) -> int:
        """Elements of a row's ragged inputs."""
        return sum([prod(shape) for index, shape in row_shapes if index in self.inputs])

    def made_bytes(self, row_shapes: RowShapes) -> int:
        """Memory of the batch inputs for a row, at most."""
        shapes = dict(row_shapes)
        return sum([made.row_bytes(prod(shapes[made.source]), len(shapes[made.source])) for made in self.batch_inputs])

    def made(
        self, signature: Signature, rows: Sequence[int], shapes: Sequence[Mapping[int, tuple[int, ...]]]
    ) -> dict[int, npt.NDArray[Any]]:
        """The batch inputs for some requests, by their index in a run.

        Args:
            signature: the tensors that clients see.
            rows: of each request.
            shapes: of a row of each input, by its index, of each request.
        """
        return {
            len(signature.inputs) + at: made.of(rows, [own[made.source] for own in shapes])
            for at, made in enumerate(self.batch_inputs)
        }
