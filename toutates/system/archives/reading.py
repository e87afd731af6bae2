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
from typing import IO, Any, Final

__all__ = ["BROKEN", "TarStream", "zip_directory_bytes"]

#: What the libraries raise for archives that are broken.
BROKEN: Final = (
    zipfile.BadZipFile, tarfile.TarError, gzip.BadGzipFile, zlib.error, lzma.LZMAError, EOFError, NotImplementedError,
    ValueError, RuntimeError, UnicodeError, struct.error, OverflowError, RecursionError,
)  # fmt: skip
_CHUNK: Final = 65_536
#: What a tar says of one file; an honest one has a few kilobytes. tarfile keeps all of it in memory.
_MAX_TAR_HEAD: Final = 2**20
_END: Final = b"PK\x05\x06"
_END_64: Final = b"PK\x06\x06"
_END_SIZE: Final = 22
_MAX_COMMENT: Final = 65_535
_END_64_SIZES: Final = 76  # the record and its locator, which lie before the end


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


def zip_directory_bytes(file: IO[bytes]) -> int:
    """Bytes of a zip's table of contents, which ``zipfile`` reads as a whole.

    Raises:
        BadZipFile: it has none.
    """
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _MAX_COMMENT - _END_SIZE - _END_64_SIZES))
    tail = file.read()
    file.seek(0)
    at = tail.rfind(_END)
    if at < 0 or len(tail) - at < _END_SIZE:
        raise zipfile.BadZipFile("a zip's end is missing")
    length: int
    [length] = struct.unpack_from("<L", tail, at + 12)
    record = tail.rfind(_END_64, 0, at)
    if record >= 0 and len(tail) - record >= 48:
        [length_64] = struct.unpack_from("<Q", tail, record + 40)
        length = max(length_64, length if length != 0xFFFFFFFF else 0)
    return length
