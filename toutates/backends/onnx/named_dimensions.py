"""What the names of a graph's dimensions explain. They refuse nothing: exporters name things alike that are not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from toutates.backends.onnx.signature_reader import Session
from toutates.protocol.signature import Signature

__all__ = ["difference", "empty_inputs", "shared_dimensions"]

#: Names that one line has, of inputs and of dimensions.
_MAX_NAMES: Final = 6


def difference(session: Session, shapes: Mapping[str, Sequence[int]], model: str) -> str:
    """Where the inputs of a run differ in a dimension that has one name in the graph, for the caller; "" if nowhere.

    Args:
        session: of the graph.
        shapes: of the inputs that were given, as the graph takes them.
        model: its name.
    """
    seen: dict[str, tuple[str, int]] = {}
    for name, axis, tensor in _named(session):
        shape = shapes.get(tensor, ())
        if axis >= len(shape):
            continue
        first, size = seen.setdefault(name, (tensor, shape[axis]))
        if size == shape[axis]:
            continue
        if first == tensor:
            return (
                f"input '{tensor}' of model '{model}' has dimension '{name}' twice, with sizes {size} and "
                f"{shape[axis]} in {list(shape)}; it has to be one size"
            )
        return (
            f"inputs '{first}' and '{tensor}' of model '{model}' share the dimension '{name}', and have "
            f"{size} and {shape[axis]} there, in {list(shapes[first])} and {list(shape)}; send the same size in both"
        )
    return ""


def shared_dimensions(session: Session, signature: Signature) -> tuple[str, ...]:
    """What an operator is told of inputs that share a dimension of an open size, one sentence; none if none do.

    Args:
        session: of the graph.
        signature: its tensors. The dimension of the batch is left out, which no request can have in two sizes.
    """
    tensors = {tensor.name: tensor for tensor in signature.inputs}
    found: dict[str, dict[str, None]] = {}
    for name, axis, tensor in _named(session):
        own = axis - signature.batched
        known = tensors.get(tensor)
        if known is not None and 0 <= own < len(known.graph_shape) and known.graph_shape[own] == -1:
            found.setdefault(name, {})[tensor] = None
    shared = [f"{_few(inputs)} share '{name}'" for name, inputs in found.items() if len(inputs) > 1]
    if not shared:
        return ()
    more = f" and {len(shared) - _MAX_NAMES} more" if len(shared) > _MAX_NAMES else ""
    dimensions = "; ".join(shared[:_MAX_NAMES]) + more
    return (f"inputs with a dimension of one name, in which a request is to have one size: {dimensions}",)


def empty_inputs(signature: Signature) -> list[str]:
    """What is wrong with inputs that have a dimension of 0, one sentence each.

    Args:
        signature: of the graph.
    """
    return [
        f"input '{tensor.name}' has a dimension of zero ({list(signature.wire_shape(tensor))}), which no request with "
        "any element can have; export the model with an open dimension there"
        for tensor in signature.inputs
        if 0 in tensor.shape and not tensor.optional
    ]


def _named(session: Session) -> Iterator[tuple[str, int, str]]:
    """The dimensions of the inputs that have names: each with its axis and the input's name."""
    for tensor in session.get_inputs():
        for axis, size in enumerate(tensor.shape):
            if isinstance(size, str) and size:
                yield size, axis, tensor.name


def _few(names: Mapping[str, None]) -> str:
    shown = ", ".join(f"'{name}'" for name in list(names)[:_MAX_NAMES])
    return f"{shown} and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else shown
