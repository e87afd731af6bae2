"""Memory of GPUs that other processes have made, by CUDA IPC: opened, read and written through NVIDIA's cuda-bindings.

The package comes with the runtime of CUDA but for the driver, and calls without the GIL. Nothing here imports it before
``load_cuda``, which a server calls that lets clients register such memory.

The runtime has a current device for each thread, so that each call says first which one it means. Copies go by the
stream that each thread has for itself: the one that all threads share would have workers wait for each other, and for
whoever else uses it in this process.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np

from toutates.system.errors import Cancelled
from toutates.system.text import one_line

__all__ = ["HANDLE_BYTES", "Cuda", "CudaError", "DeviceMemory", "gpus_seen", "load_cuda"]

logger = logging.getLogger(__name__)

Buffer = bytes | bytearray | memoryview

#: Bytes of a ``cudaIpcMemHandle_t``.
HANDLE_BYTES: Final = 64
#: Bytes that are copied at once, after which a caller who has left is noticed.
_MOST_AT_ONCE: Final = 1_048_576
#: One of which NVIDIA's driver makes, on Linux and under Windows.
DRIVER_FILES: Final = (Path("/dev/nvidiactl"), Path("/dev/dxg"))
_MAX_REASON: Final = 500  # characters of what CUDA says


class CudaError(Exception):
    """A call of CUDA failed; the text is CUDA's own."""


class DeviceMemory:
    """An allocation of another process, opened. Any thread may use it.

    Attributes:
        device: number of the GPU, as this process counts.
        address: where it begins, for CUDA.
        size: its bytes.
    """

    __slots__ = ("_cuda", "address", "device", "size")

    def __init__(self, cuda: Cuda, device: int, address: int, size: int) -> None:
        self._cuda = cuda
        self.device = device
        self.address = address
        self.size = size

    def read_into(self, view: bytearray | memoryview, offset: int) -> int:
        """Fill a view with the bytes from ``offset`` on; returns how many there were.

        Raises:
            CudaError: they cannot be read.
        """
        if len(view):
            self._cuda.copy(self.device, _address_of(view), self.address + offset, len(view))
        return len(view)

    def write(self, pieces: Sequence[Buffer], offset: int, is_wanted: Callable[[], bool] = lambda: True) -> int:
        """Write pieces one behind the other, from ``offset`` on. They are there when it returns.

        Args:
            pieces: of bytes.
            offset: of the first of them in the memory.
            is_wanted: whether to go on, asked for each MiB.

        Returns:
            Where they end; ``size`` where that is less, and nothing was written.

        Raises:
            CudaError: they cannot be written. Some may have been.
            Cancelled: nobody wants them. Some may have been written.
        """
        end = offset + sum(map(len, pieces))
        if self.size < end:
            return self.size
        for piece in pieces:
            for done in range(0, len(piece), _MOST_AT_ONCE):
                if not is_wanted():
                    raise Cancelled("the client has left")
                some = memoryview(piece)[done : done + _MOST_AT_ONCE]
                self._cuda.copy(self.device, self.address + offset + done, _address_of(some), len(some))
            offset += len(piece)
        return end

    def close(self) -> None:
        """Let go of it. Called once. What CUDA says against it is logged: nobody could do anything about it."""
        try:
            self._cuda.close(self.device, self.address)
        except CudaError as error:
            logger.warning("memory of GPU %d could not be let go of: %s", self.device, error)


def _address_of(view: Buffer) -> int:
    """Where bytes are, of which there is at least one; ctypes has no address of what may only be read."""
    return int(np.frombuffer(view, np.uint8).ctypes.data)


class Cuda:
    """The functions of CUDA that are used here.

    Args:
        runtime, driver: ``cuda.bindings.runtime`` and ``cuda.bindings.driver``.

    Attributes:
        devices: how many GPUs there are.

    Raises:
        CudaError: CUDA cannot be used; its text says why.
    """

    def __init__(self, runtime: Any, driver: Any) -> None:
        self._runtime = runtime
        self._driver = driver
        (self.devices,) = self._checked(runtime.cudaGetDeviceCount())

    def open(self, device: int, handle: bytes) -> DeviceMemory:
        """Open an allocation. It may be opened several times, and is then closed as often.

        Args:
            device: number of the GPU.
            handle: the 64 bytes that ``cudaIpcGetMemHandle`` has given its owner.

        Raises:
            CudaError: there is no such GPU, or no such allocation, or its owner is this very process.
        """
        if not 0 <= device < self.devices:
            raise CudaError(f"there is no GPU {device} among {self.devices}")
        runtime = self._runtime
        own = runtime.cudaIpcMemHandle_t()  # whose bytes have no name of their own since version 13 of the package
        ctypes.memmove(int(own.getPtr()), handle, HANDLE_BYTES)
        self._use(device)
        (pointer,) = self._checked(runtime.cudaIpcOpenMemHandle(own, runtime.cudaIpcMemLazyEnablePeerAccess))
        address = int(pointer)
        try:
            base, size = self._checked(self._driver.cuMemGetAddressRange(address))
        except BaseException:
            self.close(device, address)
            raise
        return DeviceMemory(self, device, address, int(base) + int(size) - address)

    def close(self, device: int, address: int) -> None:
        """Close an allocation that was opened.

        Raises:
            CudaError: CUDA refuses.
        """
        self._use(device)
        self._checked(self._runtime.cudaIpcCloseMemHandle(address))

    def copy(self, device: int, to: int, source: int, size: int) -> None:
        """Copy bytes between memory of the host and of a GPU, and wait until they are there.

        Without waiting, a copy to a GPU may be under way when the client is told that it has been made.

        Raises:
            CudaError: it cannot be done.
        """
        runtime = self._runtime
        self._use(device)
        stream = runtime.cudaStream_t(int(runtime.cudaStreamPerThread))
        self._checked(runtime.cudaMemcpyAsync(to, source, size, runtime.cudaMemcpyKind.cudaMemcpyDefault, stream))
        self._checked(runtime.cudaStreamSynchronize(stream))

    def _use(self, device: int) -> None:
        self._checked(self._runtime.cudaSetDevice(device))

    def _checked(self, answer: tuple[Any, ...]) -> tuple[Any, ...]:
        """What a function has returned behind its status.

        Raises:
            CudaError: the status is an error.
        """
        status, *values = answer
        if int(status):
            raise CudaError(f"{status.name} ({int(status)})")
        return tuple(values)


def gpus_seen() -> bool:
    """Whether it looks as if ``load_cuda`` would find a GPU: the package and the driver are there. Starts neither."""
    return _is_installed() and any(path.exists() for path in DRIVER_FILES)


def _is_installed() -> bool:
    try:
        return find_spec("cuda.bindings") is not None
    except (ImportError, ValueError):  # no package "cuda", or another one of that name
        return False


def load_cuda() -> Cuda | None:
    """The CUDA of this process; None where the package, the driver or a GPU is missing, which the log then says.

    Takes some 0.2 s.
    """
    if not _is_installed():
        return None
    try:
        cuda = Cuda(import_module("cuda.bindings.runtime"), import_module("cuda.bindings.driver"))
    except Exception as error:  # of the package's own kinds where it finds no driver
        logger.info("no CUDA shared memory: %s", one_line(error, _MAX_REASON))
        return None
    if not cuda.devices:
        logger.info("no CUDA shared memory: there is no GPU")
        return None
    return cuda
