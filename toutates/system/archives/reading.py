"""What keeps the reading of a hostile tar or zip small."""

from __future__ import annotations

import gzip
import lzma
import os
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from typing import IO, Any, Final, cast

__all__ = ["BROKEN", "TarStream", "open_zip"]

#: What the libraries raise for archives that are broken.
BROKEN: Final = (
    zipfile.BadZipFile, tarfile.TarError, gzip.BadGzipFile, zlib.error, lzma.LZMAError, EOFError, NotImplementedError,
    ValueError, RuntimeError, UnicodeError, struct.error, OverflowError, RecursionError,
)  # fmt: skip
_CHUNK: Final = 65_536
#: What a tar says of one file; an honest one has a few kilobytes. tarfile keeps all of it in memory.
_MAX_TAR_HEAD: Final = 2**20
#: What an entry of a zip's table of contents begins with.
_ENTRY: Final = b"PK\x01\x02"
#: What zipfile reads to find the table of contents: a comment, and the records behind it.
_MAX_ENDS: Final = 3 * 65_536


class TarStream:
    """The decompressed bytes of a tar, read forward, and counted: a file for ``tarfile``.

    Args:
        source: of the bytes.
        check_size: is told how many have come, and raises where they are too many.
    """

    def __init__(self, source: Any, check_size: Callable[[int], None]) -> None:
        self._check_size = check_size
        self._source = source
        self._at = 0
        #: bytes that tarfile may read until it has the head of the next file; None while a file is read
        self._left: int | None = _MAX_TAR_HEAD

    def expect_head(self, *, expected: bool) -> None:
        """Say whether the head of a file comes next, or its content."""
        self._left = _MAX_TAR_HEAD if expected else None

    def read(self, size: int = -1) -> bytes:
        """The next bytes."""
        if self._left is not None:
            self._left -= size if size >= 0 else _MAX_TAR_HEAD + 1
            if self._left < 0:
                raise tarfile.ReadError("it has a head of more than a megabyte")
        data: bytes = self._source.read(size)
        self._at += len(data)
        self._check_size(self._at)
        return data

    def tell(self) -> int:
        """How many bytes have come."""
        return self._at

    def seek(self, position: int, whence: int = os.SEEK_SET) -> int:
        """Read on to a position."""
        if whence != os.SEEK_SET or position < self._at:
            raise tarfile.ReadError("its members overlap")
        left, self._left = self._left, None
        while self._at < position and self.read(min(_CHUNK, position - self._at)):
            pass
        self._left = left
        return self._at


class _ZipSource:
    """A file for ``zipfile``, which is the one to find the table of contents: it gets no more of it than it may."""

    def __init__(self, file: IO[bytes], most_bytes: int, most_entries: int, problem: str) -> None:
        self._file = file
        self._problem = problem
        #: bytes and marks of entries that may be read until the archive is open; None then
        self._left: tuple[int, int] | None = (most_bytes + _MAX_ENDS, most_entries)
        self.seek, self.tell, self.seekable = file.seek, file.tell, file.seekable

    def read(self, size: int = -1) -> bytes:
        if self._left is None:
            return self._file.read(size)
        left, entries = self._left
        data = self._file.read(left + 1 if size < 0 else min(size, left + 1))
        self._left = left, entries = left - len(data), entries - data.count(_ENTRY)
        if left < 0 or entries < 0:
            del data  # which whoever keeps the error would keep
            raise zipfile.BadZipFile(self._problem)
        return data

    def note_open(self) -> None:
        self._left = None


def open_zip(file: IO[bytes], most_bytes: int, most_entries: int, problem: str) -> zipfile.ZipFile:
    """Open a zip to read it.

    Args:
        file: the archive.
        most_bytes: of its table of contents, which is read as a whole.
        most_entries: that it may have. Each becomes an object of some hundred bytes.
        problem: what is said of one that has more of either.

    Raises:
        BadZipFile: it is none, or its table of contents is larger.
    """
    source = _ZipSource(file, most_bytes, most_entries, problem)
    opened = zipfile.ZipFile(cast("IO[bytes]", source))
    source.note_open()
    return opened
