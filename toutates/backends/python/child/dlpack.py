"""DLPack for tensors: by hand, because NumPy has no BF16, and takes no bare capsules.

The structures are those of dlpack.h, version 0.8 (DLManagedTensor), which every framework reads.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from toutates.backends.python.child.errors import TritonModelException

__all__ = ["array_of", "bfloat16_capsule"]

_CPU_DEVICES = (1, 3)  # the CPU, and memory pinned for CUDA
_KINDS = {0: "i", 1: "u", 2: "f", 6: "b"}
_BFLOAT = 4


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _DLManagedTensor(ctypes.Structure):
    pass


_DELETER = ctypes.CFUNCTYPE(None, ctypes.POINTER(_DLManagedTensor))
_DLManagedTensor._fields_ = (("dl_tensor", _DLTensor), ("manager_ctx", ctypes.c_void_p), ("deleter", _DELETER))

_api = ctypes.pythonapi
_api.PyCapsule_New.restype = ctypes.py_object
_api.PyCapsule_New.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_api.PyCapsule_IsValid.argtypes = (ctypes.py_object, ctypes.c_char_p)
_api.PyCapsule_GetPointer.restype = ctypes.c_void_p
_api.PyCapsule_GetPointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
_api.PyCapsule_SetName.argtypes = (ctypes.py_object, ctypes.c_char_p)

#: What capsules that were given away need, by address, until their consumer calls the deleter.
_lent: dict[int, Any] = {}


def _delete(managed: Any) -> None:
    _lent.pop(ctypes.addressof(managed.contents), None)


_deleter = _DELETER(_delete)


def bfloat16_capsule(array: Any) -> Any:
    """A capsule over an array of the uint16 of BF16 values. Memory is kept until the consumer frees it."""
    array = np.ascontiguousarray(array)
    shape = (ctypes.c_int64 * max(array.ndim, 1))(*array.shape)
    tensor = _DLTensor(array.ctypes.data, 1, 0, array.ndim, _BFLOAT, 16, 1, shape, None, 0)
    managed = _DLManagedTensor(tensor, None, _deleter)
    address = ctypes.addressof(managed)
    _lent[address] = managed, shape, array
    return _api.PyCapsule_New(address, b"dltensor", None)


class _Owner:
    """Calls the deleter of a capsule that was taken, once nobody uses its memory."""

    def __init__(self, managed: Any) -> None:
        self._managed = managed

    def __del__(self) -> None:
        if self._managed.contents.deleter:
            self._managed.contents.deleter(self._managed)


def array_of(obj: Any) -> tuple[Any, bool]:
    """The array over the memory of a capsule, or of an object with ``__dlpack__``; and whether it is of BF16."""
    capsule = obj
    if hasattr(obj, "__dlpack__") and hasattr(obj, "__dlpack_device__"):
        if obj.__dlpack_device__()[0] not in _CPU_DEVICES:
            raise TritonModelException("DLPack device type is not supported: only tensors in CPU memory are.")
        capsule = obj.__dlpack__()
    if not _api.PyCapsule_IsValid(capsule, b"dltensor"):
        raise TritonModelException(
            "Provided tensor is not supported. Tensor must be a DLPack capsule or have `__dlpack__` and "
            "`__dlpack_device__` attributes."
        )
    managed = ctypes.cast(_api.PyCapsule_GetPointer(capsule, b"dltensor"), ctypes.POINTER(_DLManagedTensor))
    tensor = managed.contents.dl_tensor
    shape = tuple(tensor.shape[at] for at in range(tensor.ndim))
    if tensor.device_type not in _CPU_DEVICES:
        raise TritonModelException("DLPack device type is not supported: only tensors in CPU memory are.")
    is_bfloat16 = tensor.code == _BFLOAT and tensor.bits == 16
    if tensor.lanes != 1 or not (is_bfloat16 or tensor.code in _KINDS):
        raise TritonModelException("DLPack data type is not supported.")
    if tensor.strides and 0 not in shape:
        step = 1
        for at in range(tensor.ndim - 1, -1, -1):
            if shape[at] != 1 and tensor.strides[at] != step:
                raise TritonModelException(
                    "DLPack tensor is not contiguous. Only contiguous DLPack tensors that are stored in C-Order are "
                    "supported."
                )
            step *= shape[at]
    dtype = np.dtype(np.uint16 if is_bfloat16 else f"{_KINDS[tensor.code]}{tensor.bits // 8}")
    _api.PyCapsule_SetName(capsule, b"used_dltensor")
    owner = _Owner(managed)
    size = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
    if not size:
        return np.empty(shape, dtype), is_bfloat16
    memory: Any = (ctypes.c_uint8 * size).from_address(tensor.data + tensor.byte_offset)
    memory.owner = owner  # which lives as long as the memory
    return np.frombuffer(memory, dtype).reshape(shape), is_bfloat16
