"""The signature of a model: its tensors, against which requests are validated and by which batches are laid out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from toutates.protocol.datatypes import Datatype

__all__ = ["Signature", "TensorSpec", "reshape_fits"]


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One input or output tensor of a model.

    Attributes:
        name: the tensor's name in the ONNX graph.
        datatype: element type on the wire and in memory.
        shape: sizes of the dimensions for clients, -1 for any size; without the batch dimension if the model is
            batched.
        optional: whether a request may leave the input out (the graph holds a default for it).
        reshape: the shape that the graph has in place of ``shape``, where they differ; of as many elements, and with
            its open dimensions in the same order (``reshape_fits``). Triton shows a tensor of shape [batch] as
            [batch, 1] and a scalar as [1], so there it is ``()``; a config.pbtxt may ask for others.
    """

    name: str
    datatype: Datatype
    shape: tuple[int, ...]
    optional: bool = False
    reshape: tuple[int, ...] | None = None

    @property
    def graph_shape(self) -> tuple[int, ...]:
        """The shape as the graph has it, without the batch dimension when the model is batched."""
        return self.shape if self.reshape is None else self.reshape

    @property
    def is_scalar(self) -> bool:
        """Whether the tensor has no dimensions in the graph, or none but the batch, and one for clients."""
        return self.shape == (1,) and self.reshape == ()

    def to_graph(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The graph's shape for a client's shape, which has to fit ``shape``."""
        if self.reshape is None:
            return tuple(shape)
        # A scalar may be sent with no dimensions as well as with one.
        return () if self.is_scalar else _moved(shape, self.shape, self.reshape)

    def to_wire(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The clients' shape for a shape of the graph; one that is not as ``reshape`` says stays as it is."""
        if self.reshape is None or len(shape) != len(self.reshape):
            return tuple(shape)
        if any(given not in (-1, size) for given, size in zip(self.reshape, shape, strict=True)):
            return tuple(shape)
        return _moved(shape, self.reshape, self.shape)


def _moved(sizes: Sequence[int], source: Sequence[int], target: Sequence[int]) -> tuple[int, ...]:
    """``target`` with its open dimensions replaced by the sizes of the open dimensions of ``source``, in order."""
    found = iter([size for size, given in zip(sizes, source, strict=True) if given == -1])
    return tuple(next(found) if size == -1 else size for size in target)


def reshape_fits(shape: Sequence[int], reshape: Sequence[int]) -> bool:
    """Whether the two shapes have as many elements, whatever the sizes of the open dimensions.

    Triton's rule: as many dimensions are open in both, and between them the sizes have the same products. So
    [2, 4, -1, 6] may become [8, -1, 1, 6].
    """
    return _products(shape) == _products(reshape)


def _products(shape: Sequence[int]) -> list[int]:
    """Products of the sizes between the open dimensions."""
    parts: list[list[int]] = [[]]
    for size in shape:
        if size == -1:
            parts.append([])
        else:
            parts[-1].append(size)
    return [prod(part) for part in parts]


@dataclass(frozen=True, slots=True)
class Signature:
    """All tensors of one model version, in the graph's order.

    Attributes:
        inputs: required and optional inputs.
        outputs: every output that is offered.
        batched: whether every tensor has a leading batch dimension, so that rows of several requests can share a run.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    batched: bool

    def wire_shape(self, tensor: TensorSpec) -> tuple[int, ...]:
        """The tensor's shape as clients see it: with a leading -1 for the batch dimension when the model is batched."""
        return (-1, *tensor.shape) if self.batched else tensor.shape
