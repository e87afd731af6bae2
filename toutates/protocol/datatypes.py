"""Element types of tensors: their names and sizes, and the encodings that differ from a NumPy buffer.

A BYTES element is sent as a 4-byte little-endian length and that many bytes, in row-major order (``strings``). Typed
contents are lists of numbers in a message. All other contents are the row-major little-endian buffers that NumPy and
ONNX Runtime use, and need no function.

The errors raised here are the client's fault, and have Triton's texts where Triton has the same error. Some of Triton's
begin with ``[request id]``, which the caller of these functions adds.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from toutates.protocol.grpc_service_pb2 import InferTensorContents
from toutates.system.errors import InvalidRequest

__all__ = [
    "BY_NAME",
    "BY_ORT_TYPE",
    "NATURAL_DATATYPES",
    "Datatype",
    "encode_bytes_tensor",
    "join_strings",
    "typed_contents_to_raw",
]


@dataclass(frozen=True, slots=True)
class Datatype:
    """One element type and its names.

    Attributes:
        name: in requests and responses, such as ``FP32``.
        size: bytes per element, 0 for BYTES, whose elements differ in length.
        numpy: type in memory. BF16, which NumPy lacks, is carried as the uint16 of the same bits; BYTES as objects.
        onnx_type: ``TensorProto.DataType`` of ONNX.
        ort_type: ``NodeArg.type`` of ONNX Runtime.
        config_name: in a model configuration, such as ``TYPE_FP32``.
        contents_field: field of ``InferTensorContents`` for typed contents, None where only raw bytes will do.
    """

    name: str
    size: int
    numpy: np.dtype[Any]
    onnx_type: int
    ort_type: str
    config_name: str
    contents_field: str | None


def _datatype(
    name: str, memory: npt.DTypeLike, onnx_type: int, ort_element: str, contents_field: str | None
) -> Datatype:
    """A Datatype; what is not given here follows from the arguments."""
    memory = np.dtype(memory)
    config_name = "TYPE_STRING" if name == "BYTES" else f"TYPE_{name}"
    return Datatype(
        name=name,
        size=0 if memory.hasobject else memory.itemsize,
        numpy=memory,
        onnx_type=onnx_type,
        ort_type=f"tensor({ort_element})",
        config_name=config_name,
        contents_field=contents_field,
    )


_DATATYPES = (
    _datatype("BOOL", np.bool_, 9, "bool", "bool_contents"),
    _datatype("UINT8", np.uint8, 2, "uint8", "uint_contents"),
    _datatype("UINT16", np.uint16, 4, "uint16", "uint_contents"),
    _datatype("UINT32", np.uint32, 12, "uint32", "uint_contents"),
    _datatype("UINT64", np.uint64, 13, "uint64", "uint64_contents"),
    _datatype("INT8", np.int8, 3, "int8", "int_contents"),
    _datatype("INT16", np.int16, 5, "int16", "int_contents"),
    _datatype("INT32", np.int32, 6, "int32", "int_contents"),
    _datatype("INT64", np.int64, 7, "int64", "int64_contents"),
    _datatype("FP16", np.float16, 10, "float16", None),
    _datatype("FP32", np.float32, 1, "float", "fp32_contents"),
    _datatype("FP64", np.float64, 11, "double", "fp64_contents"),
    _datatype("BYTES", np.object_, 8, "string", "bytes_contents"),
    _datatype("BF16", np.uint16, 16, "bfloat16", None),
)

BY_NAME: Mapping[str, Datatype] = MappingProxyType({datatype.name: datatype for datatype in _DATATYPES})
BY_ORT_TYPE: Mapping[str, Datatype] = MappingProxyType({datatype.ort_type: datatype for datatype in _DATATYPES})

#: The type whose elements a contents field holds without loss. Triton names it in its errors.
NATURAL_DATATYPES = {
    "bool_contents": BY_NAME["BOOL"],
    "int_contents": BY_NAME["INT32"],
    "int64_contents": BY_NAME["INT64"],
    "uint_contents": BY_NAME["UINT32"],
    "uint64_contents": BY_NAME["UINT64"],
    "fp32_contents": BY_NAME["FP32"],
    "fp64_contents": BY_NAME["FP64"],
    "bytes_contents": BY_NAME["BYTES"],
}

_LENGTH = struct.Struct("<I")


def encode_bytes_tensor(array: npt.NDArray[Any]) -> bytes:
    """Join the elements of a BYTES tensor.

    Args:
        array: ``str`` or ``bytes`` elements, in any shape.

    Returns:
        The encoded elements in row-major order; text is encoded as UTF-8.

    Raises:
        TypeError: an element is neither ``str`` nor ``bytes``, which is a bug of the server.
    """
    return join_strings(element.encode() if isinstance(element, str) else element for element in array.ravel().tolist())


def join_strings(elements: Iterable[bytes | memoryview]) -> bytes:
    """The elements, each after its length.

    They are joined 4,096 at a time, because the objects to be joined take 50 times the memory of short elements.
    """
    pack = _LENGTH.pack
    left = iter(elements)
    joined: list[bytes] = []
    while parts := [part for element in islice(left, 4_096) for part in (pack(len(element)), element)]:
        joined.append(b"".join(parts))
    return joined[0] if len(joined) == 1 else b"".join(joined)


def typed_contents_to_raw(contents: InferTensorContents, datatype: Datatype, *, tensor: str, model: str) -> bytes:
    """Turn typed contents into the bytes that the same tensor would have as raw contents.

    Args:
        contents: the typed contents; none filled means no elements.
        datatype: the input's declared type. INT8, INT16, UINT8 and UINT16 keep the low bytes of each number.
        tensor: name of the input, for the error.
        model: name of the model, for the error.

    Returns:
        The encoded elements. Whether their number fits the shape is for the caller to check.

    Raises:
        InvalidRequest: a field of another type is filled, or several fields are.
    """
    filled = contents.ListFields()  # in order of field numbers, the order in which Triton looks at them
    if not filled:
        return b""
    field, values = filled[0]
    if field.name != datatype.contents_field:
        raise InvalidRequest(
            f"unexpected explicit tensor data for input tensor '{tensor}' for model '{model}' "
            f"of type '{NATURAL_DATATYPES[field.name].name}', expected datatype '{datatype.name}'"
        )
    if len(filled) > 1:
        raise InvalidRequest(
            f"unexpected explicit tensor data for input tensor '{tensor}' for model '{model}', "
            "binary data was already supplied."
        )
    if datatype.size == 0:
        return join_strings(values)
    natural = np.fromiter(values, NATURAL_DATATYPES[field.name].numpy, count=len(values))
    return natural.astype(datatype.numpy, copy=False).tobytes()
