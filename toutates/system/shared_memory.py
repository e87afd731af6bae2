"""Objects of POSIX shared memory (``shm_overview(7)``) that other processes have made.

They are read and written as files. Whoever made an object may shrink it at any time, and a process that touches a page
of a mapping behind the new end is ended by SIGBUS. ``pread`` says how many bytes there were, and ``pwrite`` behind the
end makes the file longer, which hurts nobody but its owner. Large pieces are written to a mapping, which the system
alone touches (``guarded_copy``).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from toutates.system.errors import Cancelled
from toutates.system.guarded_copy import GuardedCopies, Mapping

__all__ = ["SharedObject", "object_name"]

Buffer = bytes | bytearray | memoryview

#: Where Linux has the objects.
FOLDER: Final = Path("/dev/shm")
#: Longest name of a file, bytes.
MOST_NAME_BYTES: Final = 255
#: Bytes that are written at once. New pages take some 2 ms.
_MOST_AT_ONCE: Final = 1_048_576
#: From here on pieces are written to a mapping, if the object's pages are there: pwrite has no need to clear new ones.
_LEAST_MAPPED: Final = 65_536
#: What the system counts a file's memory in, bytes.
_BLOCK: Final = 512
#: The C library keeps named semaphores beside the objects, under names that begin so.
_SEMAPHORE: Final = "sem."
_FLAGS: Final = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


def object_name(key: str) -> str:
    """The name of an object without the slashes that may stand before it; "" for a key of slashes only."""
    return key.lstrip("/")


class SharedObject:
    """An open object.

    Args:
        key: its name; slashes before it do not matter.
        copies: by which large pieces are written to what is mapped; None for pwrite alone.
        folder: where the objects are.

    Raises:
        OSError: there is no such object, it is no regular file, or it may not be opened.
        ValueError: no object can have such a name.
    """

    __slots__ = ("_copies", "_fd", "_mapped", "_mapping")

    def __init__(self, key: str, copies: GuardedCopies | None = None, folder: Path = FOLDER) -> None:
        self._copies = copies
        self._mapping: Mapping | None = None
        #: which part of the object is mapped, bytes
        self._mapped = 0, 0
        name = object_name(key)
        if not name or "/" in name or "\0" in name or name in (".", "..") or name.startswith(_SEMAPHORE):
            raise ValueError("no object has such a name")
        if len(os.fsencode(name)) > MOST_NAME_BYTES:
            raise ValueError("no object has so long a name")
        self._fd = os.open(folder / name, _FLAGS)
        if not stat.S_ISREG(os.fstat(self._fd).st_mode):
            self.close()
            raise ValueError("it is not an object of shared memory")

    @property
    def size(self) -> int:
        """Its bytes, at this moment.

        Raises:
            OSError: the system does not say.
        """
        return os.fstat(self._fd).st_size

    @property
    def is_filled(self) -> bool:
        """Whether all of its pages are there, so that what is written to it takes no new ones: at this moment.

        Raises:
            OSError: the system does not say.
        """
        state = os.fstat(self._fd)
        return state.st_blocks * _BLOCK >= state.st_size

    def map(self, offset: int, size: int) -> None:
        """Map a part of the object for what is written to it, where that can be done. Called once.

        Args:
            offset: where the part begins, a multiple of the system's pages.
            size: of the part, bytes.
        """
        if self._copies is not None:
            self._mapping = self._copies.map(self._fd, offset, size)
            if self._mapping is not None:
                self._mapped = offset, offset + size

    def read_into(self, view: bytearray | memoryview, offset: int) -> int:
        """Fill a view with the bytes from ``offset`` on; returns how many there were.

        Raises:
            OSError: they cannot be read.
        """
        done = count = os.preadv(self._fd, [view], offset)
        while count and done < len(view):
            count = os.preadv(self._fd, [memoryview(view)[done:]], offset + done)
            done += count
        return done

    def write(self, pieces: Sequence[Buffer], offset: int, is_wanted: Callable[[], bool] = lambda: True) -> int:
        """Write pieces one behind the other, from ``offset`` on, unless the object has become too short for them.

        Between the look at its size and the write it may become shorter; then it grows again, to where the pieces end.

        Args:
            pieces: of bytes.
            offset: of the first of them in the object.
            is_wanted: whether to go on, asked for each MiB.

        Returns:
            The object's size where that is too small, and nothing was written; else where the pieces end.

        Raises:
            OSError: they cannot be written. Some may have been.
            Cancelled: nobody wants them. Some may have been written.
        """
        end = offset + sum(map(len, pieces))
        size = os.lseek(self._fd, 0, os.SEEK_END)  # a third of what fstat takes; nobody reads or writes from there
        if size < end:
            return size
        first, last = self._mapped
        is_mapped = end - offset >= _LEAST_MAPPED and first <= offset and end <= last and self.is_filled
        for piece in pieces:
            done = 0
            while done < len(piece):
                if not is_wanted():
                    raise Cancelled("the client has left")
                whole = not done and len(piece) <= _MOST_AT_ONCE
                some = piece if whole else memoryview(piece)[done : done + _MOST_AT_ONCE]
                if is_mapped and len(some) >= _LEAST_MAPPED and self._copy(some, offset + done):
                    done += len(some)
                else:  # where the object has become shorter meanwhile, it grows again
                    done += os.pwrite(self._fd, some, offset + done)
            offset += done
        return end

    def _copy(self, content: Buffer, offset: int) -> bool:
        """Copy bytes to the mapping; returns whether there was room for all."""
        assert self._copies is not None
        assert self._mapping is not None
        return self._copies.copy(content, self._mapping, offset - self._mapped[0]) == len(content)

    def close(self) -> None:
        """Let go of the object. Called once."""
        os.close(self._fd)
        if self._mapping is not None:
            assert self._copies is not None
            self._copies.unmap(self._mapping)
