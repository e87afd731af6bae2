"""What the document says of a model: the body of its requests, its answers, and an example that works."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import msgspec

from toutates.api.rest.openapi.messages import Schema
from toutates.protocol.datatypes import Datatype
from toutates.protocol.signature import Signature, TensorSpec
from toutates.system.json_text import encode_json

__all__ = ["MAX_EXAMPLE_BYTES", "ModelDescription", "describe"]

#: An example is left out if it has more bytes. That of an image of 224 x 224 x 3 has 300 KB.
MAX_EXAMPLE_BYTES: Final = 1_048_576


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """The JSON of what is said of all models of a signature.

    Attributes:
        request, answer: schemas.
        example: of a request; b"" where it would be too long.
    """

    request: bytes
    answer: bytes
    example: bytes


def describe(signature: Signature, max_input_bytes: int) -> ModelDescription:
    """Describe the models of a signature.

    The example has zeros in every required input, and 1 for each dimension that is open, as the run has with which a
    version is warmed up.

    Args:
        signature: of the version.
        max_input_bytes: bytes that the JSON of a request, and one of its tensors, may have.
    """
    inputs, outputs = signature.inputs, signature.outputs
    required = [spec for spec in inputs if not spec.optional]
    request: Schema = {
        "type": "object",
        "required": ["inputs"],
        "properties": {
            "id": {"type": "string"},
            "parameters": {"type": "object"},
            "inputs": _tensors(signature, inputs, len(required), "inputs"),
            "outputs": {
                "type": "array",
                "description": "The outputs that are wanted; all of them if this is left out.",
                "items": {
                    "type": "object",
                    "required": ["name"],
                    "properties": {
                        "name": {"type": "string", "enum": [spec.name for spec in outputs]},
                        "parameters": {"type": "object"},
                    },
                },
            },
        },
    }
    answer: Schema = {
        "type": "object",
        "required": ["model_name", "model_version", "outputs"],
        "properties": {
            "id": {"type": "string"},
            "model_name": {"type": "string"},
            "model_version": {"type": "string"},
            "parameters": {"type": "object"},
            "outputs": _tensors(signature, outputs, 0, "outputs"),
        },
    }
    if not outputs:
        del request["properties"]["outputs"]
    return ModelDescription(
        encode_json(request),
        encode_json(answer),
        _example(signature, required, min(max_input_bytes, MAX_EXAMPLE_BYTES)),
    )


def _tensors(signature: Signature, specs: Sequence[TensorSpec], least: int, what: str) -> Schema:
    kinds = [_tensor(signature, spec) for spec in specs]
    schema: Schema = {"type": "array", "minItems": least, "maxItems": len(kinds)}
    schema["items"] = kinds[0] if len(kinds) == 1 else {"oneOf": kinds} if kinds else {}
    schema["description"] = f"The {what}: " + ", ".join(_title(signature, spec) for spec in specs)
    return schema


def _title(signature: Signature, spec: TensorSpec) -> str:
    shape = ", ".join(map(str, signature.wire_shape(spec)))
    return f"{spec.name} {spec.datatype.name} [{shape}]{' (optional)' if spec.optional else ''}"


def _tensor(signature: Signature, spec: TensorSpec) -> Schema:
    shape = signature.wire_shape(spec)
    dimensions: Schema = {
        "type": "array",
        "items": {"type": "integer", "format": "int64", "minimum": 0},
        "minItems": 0 if spec.is_scalar and not signature.batched else len(shape),
        "maxItems": len(shape),
        "description": f"[{', '.join(map(str, shape))}], where -1 stands for any size",
    }
    if -1 not in shape and not spec.is_scalar:
        dimensions["enum"] = [shape]
    return {
        "type": "object",
        "title": _title(signature, spec),
        "required": ["name", "datatype", "shape", "data"],
        "properties": {
            "name": {"type": "string", "enum": [spec.name]},
            "datatype": {"type": "string", "enum": [spec.datatype.name]},
            "shape": dimensions,
            "data": {"type": "array", "items": _element(spec.datatype), "description": "Elements in row-major order."},
            "parameters": {"type": "object"},
        },
    }


def _element(datatype: Datatype) -> Schema:
    kind = datatype.name
    if kind == "BYTES":
        return {"type": "string"}
    if kind == "BOOL":
        return {"type": "boolean"}
    if kind in ("FP16", "BF16", "FP32", "FP64"):
        return {"type": "number"}
    return {"type": "integer", "minimum": 0} if kind.startswith("UINT") else {"type": "integer"}


def _example(signature: Signature, required: Sequence[TensorSpec], most: int) -> bytes:
    """A request in JSON; b"" if it has more bytes than ``most``."""
    shapes = [[1 if size == -1 else size for size in signature.wire_shape(spec)] for spec in required]
    zeros = [_zero(spec.datatype) for spec in required]
    size = sum(
        prod(shape) * max(len(zero) + 1, spec.datatype.size or 4)
        for spec, shape, zero in zip(required, shapes, zeros, strict=True)
    )
    if size > most:
        return b""
    inputs: list[dict[str, Any]] = [
        {
            "name": spec.name,
            "datatype": spec.datatype.name,
            "shape": shape,
            "data": msgspec.Raw(b"[%b]" % b",".join([zero] * prod(shape))),
        }
        for spec, shape, zero in zip(required, shapes, zeros, strict=True)
    ]
    example = encode_json({"inputs": inputs})
    return example if len(example) <= most else b""


def _zero(datatype: Datatype) -> bytes:
    return {"BYTES": b'""', "BOOL": b"false"}.get(datatype.name, b"0")
