"""The contents of an archive in one file without a name, so that nothing is left of it after a crash."""

from __future__ import annotations

import hashlib
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any, Final, NamedTuple

from toutates.repositories.unpacking import Bounds, unpack
from toutates.system.errors import RepositoryError

__all__ = ["Member", "Spool", "nameless_file"]

_CHUNK: Final = 128 * 1024  # bytes


class Member(NamedTuple):
    """A file of an archive: where its content begins in the spool, its bytes, and their SHA-256 in hexadecimal."""

    offset: int
    size: int
    sha256: str


def nameless_file(folder: Path) -> Any:
    """A new file in a directory that is gone when it is closed.

    Raises:
        RepositoryError: the directory cannot be written.
    """
    try:
        return tempfile.TemporaryFile(dir=folder)
    except OSError as error:
        raise RepositoryError(f"'{folder}' cannot be written: {error.strerror}; see --model-cache-dir") from error


class Spool:
    """The unpacked files of an archive. Blocks while it is made; ``copy`` may be called in several threads.

    Args:
        archive: the archive's file, open.
        folder: on the disk that takes the contents.
        most: bytes of all files.
        below: see ``unpack``.
        going_on: raises where the server stops.

    Attributes:
        members: by path.

    Raises:
        ConfigurationError: see ``unpack``.
    """

    def __init__(self, archive: Any, folder: Path, most: int, below: str, going_on: Callable[[], None]) -> None:
        self.members: dict[str, Member] = {}
        self._lock = threading.Lock()
        self._file = nameless_file(folder)

        def put(name: PurePosixPath, pieces: Iterator[bytes]) -> None:
            offset, digest = self._file.tell(), hashlib.sha256()
            for piece in pieces:
                going_on()
                self._file.write(piece)
                digest.update(piece)
            self.members[str(name)] = Member(offset, self._file.tell() - offset, digest.hexdigest())

        try:
            archive.flush()
            unpack(Path(f"/proc/self/fd/{archive.fileno()}"), put, Bounds(max_bytes=most), below=below)
            self._file.flush()
        except BaseException:
            self._file.close()
            raise

    def copy(self, name: str, target: Any, on_bytes: Callable[[int], None]) -> None:
        """Write the content of a file to another."""
        member = self.members[name]
        with self._lock:
            if self._file.closed:
                raise RepositoryError("the server is stopping")
            descriptor = os.dup(self._file.fileno())
        try:
            at, end = member.offset, member.offset + member.size
            while at < end:
                piece = os.pread(descriptor, min(_CHUNK, end - at), at)
                target.write(piece)
                at += len(piece)
                on_bytes(len(piece))
        finally:
            os.close(descriptor)

    def close(self) -> None:
        """Give the room on the disk back, once nobody reads."""
        with self._lock:
            self._file.close()
