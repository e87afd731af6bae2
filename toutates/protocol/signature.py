"""What a model takes and gives: the facts that requests are validated against and batches are laid out by."""

from __future__ import annotations

from dataclasses import dataclass

from toutates.protocol.datatypes import Datatype

__all__ = ["Signature", "TensorSpec"]


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One input or output tensor of a model.

    Attributes:
        name: the tensor's name in the ONNX graph.
        datatype: element type on the wire and in memory.
        shape: sizes of the dimensions, -1 for any size; without the batch dimension when the model is batched.
        optional: whether a request may leave the input out (the graph holds a default for it).
        squeezed: whether the graph's rows have no dimension at all where clients see one of size 1. Triton shows a
            tensor of shape [batch] so, and its clients send [batch, 1].
    """

    name: str
    datatype: Datatype
    shape: tuple[int, ...]
    optional: bool = False
    squeezed: bool = False


@dataclass(frozen=True, slots=True)
class Signature:
    """All tensors of one model version, in the graph's order.

    Attributes:
        inputs: required and optional inputs.
        outputs: every output.
        batched: whether every tensor has a leading batch dimension, so that rows of several requests can share a run.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    batched: bool

    def wire_shape(self, tensor: TensorSpec) -> tuple[int, ...]:
        """The tensor's shape as clients see it: with a leading -1 for the batch dimension when the model is batched."""
        return (-1, *tensor.shape) if self.batched else tensor.shape
