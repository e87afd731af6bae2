"""A stand-in for GPUs and their driver, in place of the modules of cuda-bindings: their memory is POSIX shared memory.

It has the functions that Toutates and ``tritonclient.utils.cuda_shared_memory`` call, with arguments and answers like
those of the real ones, so that both run unchanged. What it is strict about is what they could forget: a copy is made
when its stream is waited for, and not before; an allocation is opened on its own GPU, and not by the process that owns
it; what is closed cannot be used.
"""

from __future__ import annotations

import ctypes
import enum
import gc
import itertools
import mmap
import secrets
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, Final

__all__ = ["FakeCuda"]

FOLDER: Final = Path("/dev/shm")
PREFIX: Final = "toutates-fake-gpu-"


class Status(enum.IntEnum):
    """``cudaError_t``."""

    cudaSuccess = 0
    cudaErrorInvalidValue = 1
    cudaErrorMemoryAllocation = 2
    cudaErrorNoDevice = 100
    cudaErrorInvalidDevice = 101
    cudaErrorDeviceUninitialized = 201
    cudaErrorIllegalAddress = 700


class DriverStatus(enum.IntEnum):
    """``CUresult``."""

    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1


class Handle:
    """``cudaIpcMemHandle_t``."""

    def __init__(self) -> None:
        self.octets = (ctypes.c_char * 64)()

    def getPtr(self) -> int:
        return ctypes.addressof(self.octets)


class Stream:
    """``cudaStream_t``."""

    def __init__(self, number: int) -> None:
        self.number = number

    def getPtr(self) -> int:
        return self.number


@dataclass(eq=False)
class Allocation:
    """Memory of a GPU, as one process has it."""

    device: int
    name: str
    memory: mmap.mmap
    address: int
    size: int
    is_own: bool
    opened: int = 1

    def holds(self, address: int, size: int) -> bool:
        return self.address <= address and address + size <= self.address + self.size


class FakeCuda:
    """GPUs as one process sees them.

    Args:
        devices: how many there are.

    Attributes:
        runtime, driver: modules like those of cuda-bindings.
        broken: functions that fail with cudaErrorIllegalAddress, by name.
        allocations: that this process has made or opened.
        copied: bytes that were copied.
    """

    def __init__(self, devices: int = 2) -> None:
        self.devices = devices
        self.broken: set[str] = set()
        self.allocations: list[Allocation] = []
        self.copied = 0
        self._lock = threading.Lock()
        self._current = threading.local()
        self._streams = itertools.count(16)
        #: by thread and stream: to, the bytes; or from, to, how many
        self._pending: dict[tuple[int, int], list[tuple[int, int, bytes | int, Any]]] = {}
        self.runtime = self._module("cuda.bindings.runtime")
        self.driver = self._module("cuda.bindings.driver")
        for name in dir(self):
            if name.startswith("cuda"):
                setattr(self.runtime, name, self._guarded(name))
            elif name.startswith("cu"):
                setattr(self.driver, name, self._guarded(name))
        constants: dict[str, Any] = {
            "CUDA_IPC_HANDLE_SIZE": 64,
            "cudaDeviceAttr": enum.IntEnum("cudaDeviceAttr", {"cudaDevAttrUnifiedAddressing": 41}),
            "cudaError_t": Status,
            "cudaIpcMemHandle_t": Handle,
            "cudaIpcMemLazyEnablePeerAccess": 1,
            "cudaMemcpyKind": enum.IntEnum("cudaMemcpyKind", {"cudaMemcpyDefault": 4}),
            "cudaStreamPerThread": 2,
            "cudaStream_t": Stream,
        }
        for name, value in constants.items():
            setattr(self.runtime, name, value)
        self.driver.CUresult = DriverStatus  # type: ignore[attr-defined]

    @staticmethod
    def _module(name: str) -> ModuleType:
        module = ModuleType(name)
        module.__spec__ = ModuleSpec(name, None)
        return module

    def _guarded(self, name: str) -> Any:
        function = getattr(self, name)

        def call(*arguments: Any) -> Any:
            return (Status.cudaErrorIllegalAddress,) if name in self.broken else function(*arguments)

        return call

    def install(self) -> None:
        """Take the place of the package in this process, for modules that are imported from now on."""
        bindings = self._module("cuda.bindings")
        package = self._module("cuda")
        for module in (bindings, package):
            module.__path__ = []
        package.bindings = bindings  # type: ignore[attr-defined]
        bindings.runtime, bindings.driver = self.runtime, self.driver  # type: ignore[attr-defined]
        sys.modules |= {
            "cuda": package,
            "cuda.bindings": bindings,
            "cuda.bindings.runtime": self.runtime,
            "cuda.bindings.driver": self.driver,
        }

    @contextmanager
    def installed(self) -> Iterator[None]:
        """The same within a block. What was imported with it stays with it."""
        saved = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "cuda"}
        try:
            self.install()
            yield
        finally:
            for name in [name for name in sys.modules if name.partition(".")[0] == "cuda"]:
                del sys.modules[name]
            sys.modules |= saved
            gc.collect()  # a client's regions are freed by their objects, which errors may keep
            self.free_all()

    def free_all(self) -> None:
        """Free what this process has made."""
        for allocation in [one for one in self.allocations if one.is_own]:
            self.cudaFree(allocation.address)

    # --- the runtime -------------------------------------------------------------------------------------------------

    def cudaGetDeviceCount(self) -> Any:
        return Status.cudaSuccess, self.devices

    def cudaGetDevice(self) -> Any:
        return Status.cudaSuccess, self._device()

    def cudaSetDevice(self, device: int) -> Any:
        if not 0 <= device < self.devices:
            return (Status.cudaErrorInvalidDevice,)
        self._current.device = device
        return (Status.cudaSuccess,)

    def cudaDeviceGetAttribute(self, attribute: int, device: int) -> Any:
        return Status.cudaSuccess, 1

    def cudaGetErrorString(self, status: Status) -> Any:
        return Status.cudaSuccess, status.name.encode()

    def cudaMalloc(self, size: int) -> Any:
        if size <= 0:
            return Status.cudaErrorMemoryAllocation, None
        name = f"{PREFIX}{self._device()}-{secrets.token_hex(8)}"
        path = FOLDER / name
        path.write_bytes(bytes(size))
        return Status.cudaSuccess, self._mapped(name, is_own=True).address

    def cudaFree(self, address: int) -> Any:
        found = self._at(address)
        if found is None or not found.is_own:
            return (Status.cudaErrorInvalidValue,)
        (FOLDER / found.name).unlink()
        self.allocations.remove(found)
        return (Status.cudaSuccess,)

    def cudaIpcGetMemHandle(self, address: int) -> Any:
        found = self._at(address)
        if found is None:
            return Status.cudaErrorInvalidValue, None
        handle = Handle()
        handle.octets.raw = found.name.encode().ljust(64, b"\0")
        return Status.cudaSuccess, handle

    def cudaIpcOpenMemHandle(self, handle: Handle, flags: int) -> Any:
        name = handle.octets.raw.rstrip(b"\0").decode(errors="replace")
        with self._lock:
            for found in self.allocations:
                if found.name == name:
                    if found.is_own:
                        return Status.cudaErrorDeviceUninitialized, None
                    found.opened += 1
                    return Status.cudaSuccess, found.address
            if not name.startswith(f"{PREFIX}{self._device()}-") or not (FOLDER / name).is_file():
                return Status.cudaErrorInvalidValue, None
            return Status.cudaSuccess, self._mapped(name, is_own=False).address

    def cudaIpcCloseMemHandle(self, address: int) -> Any:
        with self._lock:
            found = self._at(address)
            if found is None or found.is_own:
                return (Status.cudaErrorInvalidValue,)
            found.opened -= 1
            if not found.opened:
                self.allocations.remove(found)
            return (Status.cudaSuccess,)

    def cudaMemcpyAsync(self, to: Any, source: Any, size: int, kind: int, stream: Stream) -> Any:
        kept = to, source  # host memory
        to, source = _address(to), _address(source)
        holds_to, holds_source = (self._holding(one, size) is not None for one in (to, source))
        if holds_to is holds_source or kind != 4:
            return (Status.cudaErrorInvalidValue,)
        data: bytes | int = ctypes.string_at(source, size) if holds_to else source
        with self._lock:
            self._pending.setdefault(self._stream(stream), []).append((to, size, data, kept))
        return (Status.cudaSuccess,)

    def cudaStreamCreate(self) -> Any:
        return Status.cudaSuccess, Stream(next(self._streams))

    def cudaStreamDestroy(self, stream: Stream) -> Any:
        return (Status.cudaSuccess,)

    def cudaStreamSynchronize(self, stream: Stream) -> Any:
        with self._lock:
            pending = self._pending.pop(self._stream(stream), [])
            for to, size, data, _ in pending:
                ctypes.memmove(to, data, size)
                self.copied += size
        return (Status.cudaSuccess,)

    # --- the driver --------------------------------------------------------------------------------------------------

    def cuDeviceGet(self, device: int) -> Any:
        return DriverStatus.CUDA_SUCCESS, device

    def cuDevicePrimaryCtxGetState(self, device: int) -> Any:
        return DriverStatus.CUDA_SUCCESS, 0, 1

    def cuMemGetAddressRange(self, address: int) -> Any:
        found = self._holding(address, 1)
        if found is None:
            return DriverStatus.CUDA_ERROR_INVALID_VALUE, None, None
        return DriverStatus.CUDA_SUCCESS, found.address, found.size

    # --- memory ------------------------------------------------------------------------------------------------------

    def _device(self) -> int:
        return getattr(self._current, "device", 0)

    @staticmethod
    def _stream(stream: Stream) -> tuple[int, int]:
        return (threading.get_ident() if stream.number == 2 else 0), stream.number

    def _mapped(self, name: str, *, is_own: bool) -> Allocation:
        with (FOLDER / name).open("r+b") as file:
            memory = mmap.mmap(file.fileno(), 0)
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        device = int(name.removeprefix(PREFIX).partition("-")[0])
        allocation = Allocation(device, name, memory, address, len(memory), is_own)
        self.allocations.append(allocation)
        return allocation

    def _at(self, address: int) -> Allocation | None:
        return next((one for one in self.allocations if one.address == address), None)

    def _holding(self, address: int, size: int) -> Allocation | None:
        return next((one for one in self.allocations if one.holds(address, size)), None)


def _address(memory: Any) -> int:
    if isinstance(memory, int):
        return memory
    if isinstance(memory, bytes):
        return ctypes.cast(ctypes.c_char_p(memory), ctypes.c_void_p).value or 0
    return ctypes.addressof(memory)
