"""The shared memory of one version: batches' buffers, which the processes of its instances see as well.

It is a memfd: it has no name, so nothing is left of it when the last process that has it ends, however that ends. Its
size is sealed, because memory that another process takes away would end this one. Pages are taken when they are written
to, so its size costs nothing.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import sys
import threading
import weakref
from collections import deque
from math import prod
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from toutates.system.poison import Poison

__all__ = ["Arena", "PoisonedArena"]

_ALIGNMENT: Final = 4_096
#: Memory of blocks from this size on goes back to the system at once.
_LARGE_BYTES: Final = 1024 * 1024


class Arena:
    """Allocates arrays in memory that is shared with other processes. Any thread may use it.

    An array's memory is free again when nobody refers to the array or a view of it any more. The memory itself is, when
    the last array is gone; its file is closed by ``close``, whoever still holds the arena then.

    Args:
        size: bytes of all arrays at most.
    """

    def __init__(self, size: int) -> None:
        self.size = -(-size // _ALIGNMENT) * _ALIGNMENT
        self.descriptor = -1
        self.descriptor = os.memfd_create("toutates", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.descriptor, self.size)
        fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        if sys.version_info >= (3, 13):
            self._memory = mmap.mmap(self.descriptor, self.size, trackfd=False)
        else:
            self._memory = mmap.mmap(self.descriptor, self.size)  # which has a descriptor of its own
        self._start = _address(np.frombuffer(self._memory, np.uint8, 1))
        self._lock = threading.Lock()
        #: free ranges, start and end, by start
        self._free: list[tuple[int, int]] = [(0, self.size)]
        #: ranges whose arrays are gone: put here by finalizers, which may run anywhere and so take no lock
        self._freed: deque[tuple[int, int]] = deque()

    def allocate(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """An array whose contents are undefined.

        Raises:
            MemoryError: there is no room.
        """
        dtype = np.dtype(dtype)
        size = -(-max(prod(shape) * dtype.itemsize, 1) // _ALIGNMENT) * _ALIGNMENT
        with self._lock:
            start = self._take(size)
        array: npt.NDArray[Any] = np.ndarray(shape, dtype, self._memory, start)
        weakref.finalize(array, _let_go, self._memory, self._freed, start, start + size).atexit = False
        return array

    def offset(self, array: npt.NDArray[Any]) -> int:
        """Where an array that was allocated here begins."""
        return _address(array) - self._start

    def close(self) -> None:
        """Close its file: no process can be given the memory from here on. Arrays that are left keep it.

        By hand, because without the GIL an object goes only when the thread that made it next runs. Call it once nobody
        starts processes any more; a second call does nothing.
        """
        with self._lock:
            descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)

    def _take(self, size: int) -> int:
        """The start of the first free range that is large enough, which is not free any more."""
        while self._freed:
            self._free.append(self._freed.popleft())
        self._free.sort()
        joined: list[tuple[int, int]] = []
        for start, end in self._free:
            if joined and joined[-1][1] == start:
                joined[-1] = joined[-1][0], end
            else:
                joined.append((start, end))
        self._free = joined
        for at, (start, end) in enumerate(joined):
            if end - start >= size:
                joined[at : at + 1] = [(start + size, end)] if end - start > size else []
                return start
        raise MemoryError


class PoisonedArena(Arena):
    """One whose arrays are filled when they are allocated, in the test mode of ``system.poison``.

    Args:
        size: see ``Arena``.
        poison: that they are filled with.
    """

    def __init__(self, size: int, poison: Poison) -> None:
        super().__init__(size)
        self._poison = poison

    def allocate(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """See ``Arena``."""
        array = super().allocate(shape, dtype)
        self._poison.fill(array)
        return array


def _address(array: npt.NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])


def _let_go(memory: mmap.mmap, freed: deque[tuple[int, int]], start: int, end: int) -> None:
    if end - start >= _LARGE_BYTES:
        memory.madvise(mmap.MADV_REMOVE, start, end - start)
    freed.append((start, end))
