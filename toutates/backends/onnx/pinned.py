"""Page-locked memory for batch buffers, which a GPU reads without a copy by the driver (``allocator: cuda_pinned``).

ONNX Runtime's Python interface has no pinned allocator, so the buffers are NumPy's, registered with the CUDA runtime
that ONNX Runtime's provider has loaded into the process. A second runtime would not share its context.
"""

from __future__ import annotations

import ctypes
import logging
import re
import weakref
from pathlib import Path
from typing import Any, Final, Protocol

import numpy.typing as npt

__all__ = ["CudaRuntime", "PinnedMemory", "find_cuda_runtime"]

logger = logging.getLogger(__name__)

#: cudaHostRegisterPortable: pinned for every CUDA context of the process.
_PORTABLE: Final = 1
_LIBRARY: Final = re.compile(r"\s(/\S*/libcudart(?:-[0-9a-f]+)?\.so[.0-9]*)$", re.MULTILINE)


class CudaRuntime(Protocol):
    """The two functions of libcudart used here; both return 0 for success."""

    def cudaHostRegister(self, pointer: int, size: int, flags: int) -> int: ...

    def cudaHostUnregister(self, pointer: int) -> int: ...


class _LoadedRuntime:
    """libcudart through ctypes."""

    def __init__(self, path: str) -> None:
        library = ctypes.CDLL(path)
        self._register = library.cudaHostRegister
        self._register.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint)
        self._unregister = library.cudaHostUnregister
        self._unregister.argtypes = (ctypes.c_void_p,)

    def cudaHostRegister(self, pointer: int, size: int, flags: int) -> int:
        return int(self._register(pointer, size, flags))

    def cudaHostUnregister(self, pointer: int) -> int:
        return int(self._unregister(pointer))


def find_cuda_runtime(maps: Path = Path("/proc/self/maps")) -> CudaRuntime | None:
    """The CUDA runtime loaded into this process, if any."""
    match = _LIBRARY.search(maps.read_text())
    return _LoadedRuntime(match[1]) if match is not None else None


class PinnedMemory:
    """Pins arrays for as long as they live.

    Args:
        runtime: of the process.
    """

    def __init__(self, runtime: CudaRuntime) -> None:
        self._runtime = runtime
        self._warned = False

    def pin(self, array: npt.NDArray[Any]) -> None:
        """Pin a C-contiguous array's memory; where CUDA refuses, it stays as it is, with one warning."""
        pointer = array.ctypes.data
        code = self._runtime.cudaHostRegister(pointer, array.nbytes, _PORTABLE)
        if code == 0:
            # A weak reference dies before the memory does.
            weakref.finalize(array, self._runtime.cudaHostUnregister, pointer)
        elif not self._warned:
            self._warned = True
            logger.warning("batch buffers of %d bytes cannot be pinned: CUDA error %d", array.nbytes, code)
