"""Values of ONNX Runtime out of arrays, and arrays out of them."""

from __future__ import annotations

import ctypes
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnxruntime

from toutates.backends.onnx.string_tensors import read_strings
from toutates.engine.packing import OutputArray
from toutates.protocol.signature import TensorSpec
from toutates.protocol.strings import EncodedStrings, StringTensor
from toutates.system.errors import InvalidRequest

__all__ = ["as_array", "as_ort_value", "as_texts", "encoded"]

#: Element types of ONNX.
_STRING: Final = 8
_BFLOAT16: Final = 16


def as_array(value: onnxruntime.OrtValue, *, reads_strings: bool) -> OutputArray:
    """An OrtValue in CPU memory as an array, BF16 as the uint16 of the same bits, BYTES encoded.

    Args:
        value: of a tensor. The array may be a view of its memory.
        reads_strings: whether BYTES are read from memory, as any bytes; else they are UTF-8.
    """
    element = value.element_type()
    if element == _STRING:
        return read_strings(value) if reads_strings else encoded(value.numpy())
    if element != _BFLOAT16:
        return np.asarray(value.numpy())
    shape = value.shape()
    count = int(np.prod(shape, dtype=np.int64))
    if count == 0:
        return np.empty(shape, np.uint16)
    return np.array((ctypes.c_uint16 * count).from_address(value.data_ptr()), np.uint16).reshape(shape)


def as_ort_value(array: npt.NDArray[Any], tensor: TensorSpec) -> onnxruntime.OrtValue:
    if tensor.datatype.name == "BF16":
        return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(array, tensor.datatype.onnx_type)
    return onnxruntime.OrtValue.ortvalue_from_numpy(array)


def as_texts(strings: StringTensor, tensor: str, model: str) -> npt.NDArray[np.object_]:
    """BYTES as ``str``, the only strings that ONNX Runtime's Python interface takes.

    Raises:
        InvalidRequest: an element is not UTF-8.
    """
    texts: list[str] = []
    try:
        for element in strings.elements():
            texts.append(element.decode())  # noqa: PERF401 - the error names the element by how far this came
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"string element {len(texts)} of inference input '{tensor}' for model '{model}' is not valid UTF-8 "
            f"({error.reason} at byte {error.start}); this server's ONNX Runtime takes no other strings"
        ) from error
    return np.array(texts, np.object_).reshape(strings.shape)


def encoded(array: npt.NDArray[Any]) -> OutputArray:
    """Encoded strings for an array of texts; any other array as it is."""
    if not array.dtype.hasobject:
        return array
    return EncodedStrings.of([text.encode() for text in array.ravel().tolist()], array.shape)
