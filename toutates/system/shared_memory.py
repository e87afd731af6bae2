"""Objects of POSIX shared memory (``shm_overview(7)``) that other processes have made.

They are read and written as files, and never mapped. Whoever made an object may shrink it at any time, and a process
that touches a page of a mapping behind the new end is ended by SIGBUS. To map an object, or to let go of a mapping,
waits while the system takes pages from its owner's own mappings, and whoever needs a page in this process waits as
well: 5 s were seen. ``pread`` says how many bytes there were, and ``pwrite`` behind the end makes the file longer,
which hurts nobody but its owner.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from toutates.system.errors import Cancelled

__all__ = ["SharedObject", "object_name"]

Buffer = bytes | bytearray | memoryview

#: Where Linux has the objects.
FOLDER: Final = Path("/dev/shm")
#: Longest name of a file, bytes.
MOST_NAME_BYTES: Final = 255
#: Bytes that are written at once. New pages take some 2 ms.
_MOST_AT_ONCE: Final = 1_048_576
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
        folder: where the objects are.

    Raises:
        OSError: there is no such object, it is no regular file, or it may not be opened.
        ValueError: no object can have such a name.
    """

    __slots__ = ("_fd",)

    def __init__(self, key: str, folder: Path = FOLDER) -> None:
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
        for piece in pieces:
            done = 0
            while done < len(piece):
                if not is_wanted():
                    raise Cancelled("the client has left")
                whole = not done and len(piece) <= _MOST_AT_ONCE
                some = piece if whole else memoryview(piece)[done : done + _MOST_AT_ONCE]
                done += os.pwrite(self._fd, some, offset + done)
            offset += done
        return end

    def close(self) -> None:
        """Let go of the object. Called once."""
        os.close(self._fd)
