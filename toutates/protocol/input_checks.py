"""Checks the inputs of a request against a model's signature, whoever sends it: a client, or another model.

The order of the checks and their texts are Triton's: clients compare both.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Final

from toutates.protocol.datatypes import BY_NAME
from toutates.protocol.signature import Signature, TensorSpec
from toutates.system.errors import InvalidRequest

__all__ = ["check_batch", "check_input", "check_names", "shape_text"]

_MAX_BYTES: Final = 2**63 - 1


def shape_text(shape: Sequence[int]) -> str:
    """A shape as Triton prints it: ``[1,16]``."""
    return f"[{','.join(map(str, shape))}]"


def check_names(given: Sequence[str], signature: Signature, model: str, prefix: str) -> None:
    """Check that the inputs of these names are the model's, and that none is missing.

    Args:
        given: names of the request's inputs.
        signature: the model's tensors.
        model: its name.
        prefix: of the texts that Triton begins with the request's id.

    Raises:
        InvalidRequest: they are not.
    """
    known = {tensor.name for tensor in signature.inputs}
    required = [tensor.name for tensor in signature.inputs if not tensor.optional]
    most = len(signature.inputs)
    given_names = set(given)
    missing = [name for name in required if name not in given_names]
    if not len(required) <= len(given) <= most:
        raise _wrong_number(given, len(required), most, missing, model, prefix)
    for name in reversed(given):
        if name not in known:
            raise InvalidRequest(f"unexpected inference input '{name}' for model '{model}'")
    if missing:  # optional ones were given in their place
        raise _wrong_number(given, len(required), most, missing, model, prefix)


def _wrong_number(
    given: Sequence[str], least: int, most: int, missing: Sequence[str], model: str, prefix: str
) -> InvalidRequest:
    expected = f"{most} inputs" if least == most else f"number of inputs between {least} and {most}"
    # With too many inputs none need be missing; Triton then writes half of an empty list, and so it is compared.
    lacking = _name_list(missing) if missing else "]"
    return InvalidRequest(
        f"{prefix}expected {expected} but got {len(given)} inputs for model '{model}'. Got input(s) "
        f"{_name_list(given)}, but missing required input(s) {lacking}. "
        "Please provide all required input(s)."
    )


def _name_list(names: Sequence[str]) -> str:
    quoted = [f"'{name}'" for name in names]
    return f"[{','.join(quoted)}]"


def check_batch(inputs: Sequence[tuple[str, Sequence[int]]], signature: Signature, model: str, prefix: str) -> int:
    """Check that all inputs have the same batch dimension, and return it; 1 for a model, or a request, without one.

    Args:
        inputs: name and shape of each.
        signature, model, prefix: as for ``check_names``.

    Raises:
        InvalidRequest: one has none, or another.
    """
    if not signature.batched or not inputs:
        return 1  # row, where a batched model gets none of its inputs, which are optional
    for name, shape in reversed(inputs):
        if not shape:
            raise InvalidRequest(
                f"{prefix}input '{name}' has no shape but model requires batch dimension for '{model}'"
            )
    rows = inputs[0][1][0]
    for name, shape in reversed(inputs):
        if shape[0] != rows:
            raise InvalidRequest(f"{prefix}input '{name}' batch size does not match other inputs for '{model}'")
    return rows


def check_input(
    spec: TensorSpec, datatype: str, shape: Sequence[int], signature: Signature, model: str, prefix: str
) -> None:
    """Check one input's datatype and shape.

    Args:
        spec: of the input.
        datatype: its name in the request.
        shape: in the request, with the batch dimension where the model has one.
        signature, model, prefix: as for ``check_names``.

    Raises:
        InvalidRequest: they do not fit the model.
    """
    if datatype != spec.datatype.name:
        shown = datatype if datatype in BY_NAME else "<invalid>"
        raise InvalidRequest(
            f"{prefix}inference input '{spec.name}' data-type is '{shown}', but model '{model}' expects "
            f"'{spec.datatype.name}'"
        )
    if any(size < 0 for size in shape):
        raise InvalidRequest(
            f"{prefix}All input dimensions should be specified for input '{spec.name}' for model '{model}', "
            f"got {shape_text(shape)}"
        )
    expected = signature.wire_shape(spec)
    if not shape and spec.is_scalar and not signature.batched:
        return
    if len(shape) != len(expected) or any(want not in (-1, got) for want, got in zip(expected, shape, strict=True)):
        note = (
            "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be "
            "prepended to each input shape."
        )
        raise InvalidRequest(
            f"{prefix}unexpected shape for input '{spec.name}' for model '{model}'. "
            f"Expected {shape_text(expected)}, got {shape_text(shape)}. {note if signature.batched else ''}"
        )
    # A dimension of 0 does not help: NumPy and ONNX Runtime multiply the others.
    if prod(size for size in shape if size) * spec.datatype.numpy.itemsize > _MAX_BYTES:
        raise InvalidRequest(f"{prefix}byte size for tensor '{spec.name}' exceeds maximum size of {_MAX_BYTES}")
