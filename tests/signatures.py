"""Tensors and signatures by the names of their datatypes."""

from __future__ import annotations

from collections.abc import Sequence

from toutates.protocol.datatypes import BY_NAME
from toutates.protocol.signature import Signature, TensorSpec

__all__ = ["signature", "spec"]


def spec(name: str, datatype: str, shape: Sequence[int] = (), *, optional: bool = False) -> TensorSpec:
    """A tensor.

    Args:
        name: its name.
        datatype: such as ``FP32``.
        shape: of a row; -1 for any size.
        optional: whether a request may leave it out.
    """
    return TensorSpec(name, BY_NAME[datatype], tuple(shape), optional=optional)


def signature(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], *, batched: bool = True) -> Signature:
    """The tensors of a model, whose first axis is that of the batch where it is ``batched``."""
    return Signature(tuple(inputs), tuple(outputs), batched)
