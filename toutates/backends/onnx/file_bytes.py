"""A file as bytes that are read when they are asked for.

A file that is mapped ends the process where another shortens it meanwhile. What is read of one that was shortened is
missing, which is an error like any other.
"""

from __future__ import annotations

import os
from typing import Final, overload

__all__ = ["FileBytes"]

#: Bytes that are read at once, and kept until others are asked for.
_WINDOW: Final = 65_536


class FileBytes:
    """Bytes of a file, of which those are in memory that were last asked for.

    Args:
        descriptor: of the file, open for reading as long as this is used.
        size: of the file.
    """

    __slots__ = ("_descriptor", "_size", "_start", "_window")

    def __init__(self, descriptor: int, size: int) -> None:
        self._descriptor = descriptor
        self._size = size
        self._start = 0
        self._window = b""

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, index: int, /) -> int: ...

    @overload
    def __getitem__(self, index: slice, /) -> bytes: ...

    def __getitem__(self, index: int | slice, /) -> int | bytes:
        """One byte, or those from a start to an end.

        Raises:
            IndexError: they are behind the end, also where the file has become shorter.
            OSError: they cannot be read.
        """
        if isinstance(index, slice):
            return self._part(index.start, index.stop)
        at = index - self._start
        if not 0 <= at < len(self._window):
            self._read(index, 1)
            at = 0
        return self._window[at]

    def find(self, wanted: bytes, start: int, end: int) -> int:
        """Where bytes first occur in a part, or -1.

        Raises:
            IndexError, OSError: as above.
        """
        while end - start >= len(wanted):
            stop = min(start + _WINDOW, end)
            found = self._part(start, stop).find(wanted)
            if found >= 0:
                return start + found
            start = stop - len(wanted) + 1
        return -1

    def _part(self, start: int, end: int) -> bytes:
        first = start - self._start
        if not 0 <= first <= first + end - start <= len(self._window):
            self._read(start, end - start)
            first = 0
        return self._window[first : first + end - start]

    def _read(self, start: int, size: int) -> None:
        self._window = os.pread(self._descriptor, max(_WINDOW, size), start)
        self._start = start
        if len(self._window) < size:
            raise IndexError(start + size)
