"""Tensors of ``triton_python_backend_utils``, and the numbers and names of their types."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from toutates.backends.python.child.dlpack import array_of, bfloat16_capsule
from toutates.backends.python.child.errors import TritonModelException

__all__ = [
    "NUMPY_OF_NAME",
    "TRITON_STRING_TO_NUMPY",
    "TYPES",
    "Tensor",
    "deserialize_bytes_tensor",
    "encode_strings",
    "numpy_to_triton_type",
    "serialize_byte_tensor",
    "text_of",
    "triton_string_to_numpy",
    "triton_to_numpy_type",
]

#: Names of datatypes in requests, by the number of Triton's DataType.
TYPES = (
    "",
    "BOOL",
    "UINT8",
    "UINT16",
    "UINT32",
    "UINT64",
    "INT8",
    "INT16",
    "INT32",
    "INT64",
    "FP16",
    "FP32",
    "FP64",
    "BYTES",
    "BF16",
)
_NUMPY: Sequence[Any] = (
    None,
    np.bool_,
    np.uint8,
    np.uint16,
    np.uint32,
    np.uint64,
    np.int8,
    np.int16,
    np.int32,
    np.int64,
    np.float16,
    np.float32,
    np.float64,
    np.object_,
)
#: Types in memory; BF16 as the uint16 of the same bits.
NUMPY_OF_NAME: dict[str, Any] = {
    **{name: np.dtype(kind) for name, kind in zip(TYPES[1:], _NUMPY[1:])},
    "BF16": np.dtype(np.uint16),
}
_NUMBER_OF_NAME = {name: number for number, name in enumerate(TYPES)}
_NUMBER_OF_DTYPE: dict[Any, int] = {np.dtype(kind): number for number, kind in enumerate(_NUMPY) if kind is not None}
TRITON_STRING_TO_NUMPY: dict[str, Any] = {
    ("TYPE_STRING" if name == "BYTES" else "TYPE_" + name): kind for name, kind in zip(TYPES[1:], _NUMPY[1:])
}
_LENGTH = struct.Struct("<I")
_BYTES, _BF16 = 13, 14


def triton_string_to_numpy(triton_type_string: str) -> Any:
    """The NumPy type of a type of a configuration, such as ``TYPE_FP32``; KeyError for one that NumPy has not."""
    return TRITON_STRING_TO_NUMPY[triton_type_string]


def triton_to_numpy_type(data_type: int) -> Any:
    """The NumPy type of Triton's number of a type."""
    return _NUMPY[data_type]


def numpy_to_triton_type(data_type: Any) -> int:
    """Triton's number of a NumPy type."""
    dtype = np.dtype(data_type)
    return _BYTES if dtype.kind in "SUO" else _NUMBER_OF_DTYPE[dtype]


def serialize_byte_tensor(input_tensor: Any) -> Any:
    """An array of strings as they are sent, in an object array of one element; as Triton's function of the name."""
    if input_tensor.size == 0:
        return np.empty([0], np.object_)
    if input_tensor.dtype.kind not in "SUO":
        return None
    return np.asarray(encode_strings(input_tensor), np.object_)


def encode_strings(array: Any) -> bytes:
    """The elements of an array in row-major order, each after its length of 4 bytes; text as UTF-8."""
    parts: list[bytes] = []
    for element in array.ravel().tolist():
        if isinstance(element, str):
            element = element.encode()
        elif not isinstance(element, bytes):
            element = str(element).encode()
        parts.append(_LENGTH.pack(len(element)))
        parts.append(element)
    return b"".join(parts)


def deserialize_bytes_tensor(encoded_tensor: Any) -> Any:
    """The reverse of ``serialize_byte_tensor``: an object array of bytes, of one dimension."""
    content = bytes(encoded_tensor)
    found: list[bytes] = []
    at = 0
    while at < len(content):
        (length,) = _LENGTH.unpack_from(content, at)
        found.append(content[at + 4 : at + 4 + length])
        at += 4 + length
    array = np.empty(len(found), np.object_)
    array[:] = found
    return array


def text_of(value: Any, what: str) -> str:
    """A text as this module's functions take it, which may be ``bytes`` of UTF-8; TypeError for anything else."""
    if isinstance(value, (bytes, bytearray)):
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise TritonModelException(f"{what} is not UTF-8") from None
    if not isinstance(value, str):
        raise TypeError(f"{what} must be a str, not {type(value).__name__}")
    return str(value)


class Tensor:
    """A named array, ``triton_python_backend_utils.Tensor``.

    Args:
        name: of the tensor.
        numpy_array: its values. ``bytes``, ``np.bytes_`` and ``str`` become BYTES.
    """

    __slots__ = ("_array", "_encoded", "_name", "_number", "_shape")

    _name: str
    _array: Any
    _encoded: bytes | None
    _number: int
    _shape: Sequence[int] | None

    def __init__(self, name: str, numpy_array: Any) -> None:
        if numpy_array is None:
            raise TypeError("Tensor(name: str, numpy_array: numpy.ndarray)")
        if name.__class__ is not str:
            name = text_of(name, "a tensor's name")
        if not name:
            raise TritonModelException("Tensor name cannot be an empty string.")
        array = np.asarray(numpy_array)
        number = _NUMBER_OF_DTYPE.get(array.dtype)
        if number is None:
            if array.dtype.kind not in "SU":
                raise TritonModelException("NumPy dtype is not supported.")
            number = _BYTES
        self._name = name
        self._array = array
        self._number = number
        self._encoded = self._shape = None

    @classmethod
    def received(cls, name: str, datatype: str, array: Any) -> Tensor:
        """A tensor that the server has sent."""
        tensor = cls.__new__(cls)
        tensor._name, tensor._array, tensor._number = name, array, _NUMBER_OF_NAME[datatype]
        tensor._encoded = tensor._shape = None
        return tensor

    @classmethod
    def received_strings(cls, name: str, encoded: bytes, shape: Sequence[int]) -> Tensor:
        """A tensor of BYTES that the server has sent; the elements are made when somebody asks for them."""
        tensor = cls.__new__(cls)
        tensor._name, tensor._array, tensor._number = name, None, _BYTES
        tensor._encoded, tensor._shape = encoded, shape
        return tensor

    def name(self) -> str:
        """Its name."""
        return self._name

    def shape(self) -> list[int]:
        """Its shape."""
        return list(self._array.shape if self._shape is None else self._shape)

    def triton_dtype(self) -> int:
        """Triton's number of its type."""
        return self._number

    @property
    def datatype(self) -> str:
        """The name of its type in requests; not Triton's."""
        return TYPES[self._number]

    def is_cpu(self) -> bool:
        """Whether it is in the CPU's memory; it always is."""
        return True

    def as_numpy(self) -> Any:
        """Its values; of BYTES an array of ``bytes``."""
        if self._number == _BF16:
            raise TritonModelException(
                "Tensor dtype is BF16 and cannot be converted to NumPy. Use to_dlpack() and from_dlpack() instead."
            )
        if self._array is None:
            assert self._encoded is not None
            assert self._shape is not None
            self._array = deserialize_bytes_tensor(self._encoded).reshape(self._shape)
            self._encoded = None
        return self._array

    def memory(self) -> Any:
        """Its values, those of BF16 as the uint16 of the same bits."""
        return self.as_numpy() if self._array is None else self._array

    def encoded(self) -> bytes:
        """BYTES as they are sent."""
        return self._encoded if self._encoded is not None else encode_strings(self._array)

    def __dlpack__(self, stream: Any = None, **_: Any) -> Any:
        """A capsule of DLPack over the same memory."""
        return self.to_dlpack()

    def __dlpack_device__(self) -> Any:
        """The CPU, in DLPack's numbers."""
        return 1, 0

    def to_dlpack(self) -> Any:
        """A capsule of DLPack over the same memory."""
        if self._number == _BYTES:
            raise TritonModelException("DLPack does not have support for string tensors.")
        if self._number == _BF16:
            return bfloat16_capsule(self._array)
        return self._array.__dlpack__()

    @staticmethod
    def from_dlpack(name: str, obj: Any) -> Tensor:
        """A tensor over the memory of a capsule of DLPack, or of an object that has one."""
        name = text_of(name, "a tensor's name")
        if not name:
            raise TritonModelException("Tensor name cannot be an empty string.")
        array, is_bfloat16 = array_of(obj)
        if is_bfloat16:
            return Tensor.received(name, "BF16", array)
        return Tensor(name, array)
