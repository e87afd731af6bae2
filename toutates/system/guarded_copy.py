"""Copies to mappings of files that others may shorten.

A process that touches a mapping behind the end of its file is ended by SIGBUS. The system itself may touch it:
``read(2)`` into such memory copies as much as there is room for, and says how much that was. So bytes go to a file of
this process first, the *stage*, and the system reads them from there into the mapping.

``pwrite`` to the other file would do as well, but looks for each page of 4 KiB by itself: 70 us for a MiB. Both copies
together take 40, and the second one alone 22, because the stage is one page of 2 MiB.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
from typing import Final

import numpy as np

from toutates.system.poison import Poison, current

__all__ = ["MOST_MAPPED", "GuardedCopies", "Mapping"]

Buffer = bytes | bytearray | memoryview

#: Bytes of files that are mapped at the same time. To let go of a GiB that was written takes 0.1 to 0.25 s, in which
#: whoever does that does nothing else, and what is mapped counts as memory of this process.
MOST_MAPPED: Final = 128 * 1024 * 1024
#: Bytes of a stage: one huge page.
_STAGE_BYTES: Final = 2 * 1024 * 1024
#: Bytes that are copied at once. They are in the core's cache still when the system reads them.
_AT_ONCE: Final = 262_144
#: How often a stage is tried to be made that cannot be, each time for less than a millisecond.
_TRIES: Final = 3
#: Of madvise(2): makes huge pages now (Linux 6.1).
_COLLAPSE: Final = 25
_NOWHERE: Final = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
_FIXED: Final = 0x10
_WRITABLE: Final = mmap.PROT_READ | mmap.PROT_WRITE

_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_FAILED: Final = ctypes.c_void_p(-1).value


class Mapping:
    """A part of a file in memory, which Python's ``mmap`` would open once more and could not place.

    Args:
        fd: of the file, open for reading and writing. It may be closed afterwards.
        offset: where the part begins, a multiple of the system's pages.
        size: of the part, bytes. The file may be shorter.
        alignment: of its address, a power of two.

    Raises:
        OSError: the system does not map it.
    """

    __slots__ = ("_address", "_octets", "_room")

    def __init__(self, fd: int, offset: int, size: int, alignment: int = mmap.PAGESIZE) -> None:
        room = size + alignment
        start = _map(None, room, 0, _NOWHERE, -1, 0)
        self._room = start, room
        self._address = -(-start // alignment) * alignment
        try:
            _map(self._address, size, _WRITABLE, mmap.MAP_SHARED | _FIXED, fd, offset)
        except BaseException:
            self.close()
            raise
        self._octets = (ctypes.c_ubyte * size).from_address(self._address)

    def view(self, start: int, end: int) -> memoryview:
        """Some of its bytes. A new object each time, so that any thread may have it.

        Only the system may touch them where the file can become shorter. Nobody has a view after ``close``.
        """
        return memoryview(self._octets).cast("B")[start:end]

    @property
    def size(self) -> int:
        """Its bytes."""
        return len(self._octets)

    def make_huge(self) -> bool:
        """Have its pages be huge ones from now on; returns whether the system does that."""
        return not _libc.madvise(self._address, len(self._octets), _COLLAPSE)

    def close(self) -> None:
        """Let go of the memory. Called once."""
        _libc.munmap(*self._room)


def _map(address: int | None, size: int, protection: int, flags: int, fd: int, offset: int) -> int:
    found = _libc.mmap(address, size, protection, flags, fd, offset)
    if found == _FAILED:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return int(found or 0)


class _Stage:
    """A file of this process that is one huge page.

    Raises:
        OSError: the system has none.
    """

    __slots__ = ("_fd", "_mapping", "_view")

    def __init__(self) -> None:
        self._fd = os.memfd_create("toutates-stage", os.MFD_CLOEXEC)
        try:
            # Pages that are not there do not become huge, and whoever touches one behind the end is ended.
            if os.write(self._fd, bytes(_STAGE_BYTES)) < _STAGE_BYTES:
                raise OSError("no room for a stage")
            self._mapping = Mapping(self._fd, 0, _STAGE_BYTES, _STAGE_BYTES)
            if not self._mapping.make_huge():
                self._mapping.close()
                raise OSError("no huge pages")
        except BaseException:
            os.close(self._fd)
            raise
        self._view = self._mapping.view(0, _STAGE_BYTES)

    def copy(self, content: memoryview, target: memoryview) -> int:
        """Copy up to _AT_ONCE bytes; returns how many there was room for.

        Raises:
            OSError: there was none.
        """
        self._view[: len(content)] = content
        return os.preadv(self._fd, [target], 0)

    def close(self) -> None:
        self._view.release()
        self._mapping.close()
        os.close(self._fd)


class _PoisonedStage(_Stage):
    """One that is filled before each copy, in the test mode of ``system.poison``."""

    __slots__ = ("_poison",)

    def __init__(self, poison: Poison) -> None:
        super().__init__()
        self._poison = poison

    def copy(self, content: memoryview, target: memoryview) -> int:
        self._poison.fill(np.frombuffer(self._view, np.uint8))
        return super().copy(content, target)


class GuardedCopies:
    """Makes the copies. Any thread may use it; each that copies has a stage meanwhile, which is kept for the next.

    Args:
        most_mapped: bytes that are mapped for it at the same time.
    """

    def __init__(self, most_mapped: int = MOST_MAPPED) -> None:
        self._spare: list[_Stage] = []
        self._tries = _TRIES
        self._most_mapped = most_mapped
        self._lock = threading.Lock()
        self._mapped = 0

    def map(self, fd: int, offset: int, size: int) -> Mapping | None:
        """Map a part of a file, for copies; None where the system does not, or where too much is mapped already.

        Arguments as of ``Mapping``.
        """
        with self._lock:
            if self._mapped + size > self._most_mapped:
                return None
            self._mapped += size
        try:
            return Mapping(fd, offset, size)
        except OSError:
            self._count_less(size)
            return None

    def unmap(self, mapping: Mapping) -> None:
        """Let go of what ``map`` returned. Called once."""
        mapping.close()
        self._count_less(mapping.size)

    def _count_less(self, size: int) -> None:
        with self._lock:
            self._mapped -= size

    def copy(self, content: Buffer, mapping: Mapping, start: int) -> int:
        """Copy bytes to a mapping of memory that may not be there.

        Args:
            content: the bytes.
            mapping: has room for them.
            start: where they go.

        Returns:
            How many were copied. All of them, unless the file is shorter or the system has no huge pages or no memory.
        """
        stage = self._take()
        if stage is None:
            return 0
        done = 0
        whole = memoryview(content)
        size = len(whole)
        target = mapping.view(start, start + size)
        try:
            while done < size:
                end = min(done + _AT_ONCE, size)
                done += stage.copy(whole[done:end], target[done:end])
                if done < end:
                    break
        except OSError:
            pass
        finally:
            self._spare.append(stage)
        return done

    def _take(self) -> _Stage | None:
        try:
            return self._spare.pop()
        except IndexError:
            pass
        if self._tries <= 0:  # below 0 where several threads have tried at the same time
            return None
        try:
            poison = current()
            return _Stage() if poison is None else _PoisonedStage(poison)
        except (OSError, AttributeError):  # not every system has such files
            self._tries -= 1
            return None

    def close(self) -> None:
        """Let go of the memory; nobody copies any more."""
        while self._spare:
            self._spare.pop().close()
