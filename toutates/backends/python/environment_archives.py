"""Unpacks an environment of Python, as conda-pack makes them: a tar, compressed or not, or a zip.

It is somebody else's file. Links and hard links stay in the folder, and nothing is written through them
(``system.archives``); devices, and more than a bound, are refused. Of modes, only whether a file is a program is kept.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import stat
import tarfile
import time
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import IO, Any, Final

from toutates.system.archives.reading import BROKEN, TarStream, open_zip
from toutates.system.archives.unpacked_folder import BadEntry, UnpackedFolder, parts_of
from toutates.system.errors import ModelLoadError
from toutates.system.text import one_line

__all__ = ["unpack_environment"]

#: Of an unpacked archive, against those that are small and unpack to everything.
MAX_UNPACKED_BYTES: Final = 64 * 1024**3
MAX_ENTRIES: Final = 1_000_000
_MORE: Final = "it has more files than any environment"
#: Bytes of a zip's table of contents.
_MAX_DIRECTORY: Final = 128 * 2**20
_CHUNK: Final = 262_144
_STRANGE: Final = "is neither a file nor a folder nor a link"
_COMPRESSED: Final[tuple[tuple[bytes, Callable[[IO[bytes]], Any]], ...]] = (
    (b"\x1f\x8b", lambda file: gzip.GzipFile(fileobj=file, mode="rb")),
    (b"BZh", bz2.BZ2File),
    (b"\xfd7zXZ\x00", lzma.LZMAFile),
)


def unpack_environment(archive: Path, folder: Path) -> None:
    """Unpack an archive. Blocks. What a refused one has left is for the caller to remove.

    Args:
        archive: the file.
        folder: where to; it is not there yet.

    Raises:
        ModelLoadError: the archive is broken, or holds what no environment holds.
        OSError: the file cannot be read, or the folder not written.
    """
    try:
        with archive.open("rb") as file, UnpackedFolder(folder) as target:
            head = file.read(6)
            file.seek(0)
            if head.startswith(b"PK"):
                _take_zip(file, target)
            else:
                opened = next((open_it(file) for magic, open_it in _COMPRESSED if head.startswith(magic)), file)
                _take_tar(opened, target)
            target.check_links()
    except BadEntry as error:
        raise ModelLoadError(one_line(error, 500)) from error
    except BROKEN as error:
        raise ModelLoadError(f"it is broken, or no archive of an environment: {one_line(error, 200)}") from error


class _Unpacking:
    """Takes the entries of one archive, and counts what it writes, whatever the archive says of itself."""

    def __init__(self, target: UnpackedFolder) -> None:
        self._target = target
        self._written = 0

    def check_entries(self, count: int) -> None:
        """See that there may be so many entries."""
        if count > MAX_ENTRIES:
            raise tarfile.TarError(_MORE)

    def check_size(self, size: int) -> None:
        """See that so many bytes may come out of the archive."""
        if size > MAX_UNPACKED_BYTES:
            raise tarfile.TarError("it is larger than any environment")

    def put(self, name: str, put: Callable[[], None]) -> None:
        """Make an entry.

        Raises:
            BadEntry: something else is where it belongs.
        """
        try:
            put()
        except FileExistsError:
            raise BadEntry(name, "is there twice") from None
        except (NotADirectoryError, IsADirectoryError):
            raise BadEntry(name, "is a file and a folder at once, or lies behind a link") from None

    def put_member(self, opened: Any, member: tarfile.TarInfo) -> None:
        """Make an entry of a tar."""
        target, parts = self._target, parts_of(member.name)
        if member.isdir():
            target.put_folder(parts)
        elif member.issym():
            target.put_link(parts, member.linkname)
        elif member.islnk():
            target.put_hard_link(parts, parts_of(member.linkname))
        elif member.isreg():
            pieces = self._pieces(opened.extractfile(member))
            target.put_file(parts, pieces, is_program=bool(member.mode & 0o100), mtime=member.mtime)
        else:
            raise BadEntry(member.name, _STRANGE)

    def put_info(self, opened: zipfile.ZipFile, member: zipfile.ZipInfo) -> None:
        """Make an entry of a zip."""
        target, parts, mode = self._target, parts_of(member.orig_filename), member.external_attr >> 16
        kind = stat.S_IFMT(mode)
        if member.is_dir() or kind == stat.S_IFDIR:
            target.put_folder(parts)
            return
        if kind not in (0, stat.S_IFREG, stat.S_IFLNK):
            raise BadEntry(member.orig_filename, _STRANGE)
        with opened.open(member) as source:
            if kind == stat.S_IFLNK:
                target.put_link(parts, source.read(_CHUNK).decode("utf-8", "surrogateescape"))
                return
            changed = time.mktime((*member.date_time, 0, 0, -1))
            target.put_file(parts, self._pieces(source), is_program=bool(mode & 0o100), mtime=changed)

    def _pieces(self, source: IO[bytes]) -> Iterator[bytes]:
        while data := source.read(_CHUNK):
            self._written += len(data)
            self.check_size(self._written)
            yield data


def _take_tar(source: Any, target: UnpackedFolder) -> None:
    unpacking = _Unpacking(target)
    stream: Any = TarStream(source, unpacking.check_size)
    entries = 0
    opened: Any  # ``members`` is not in its stub
    with tarfile.open(fileobj=stream, mode="r:") as opened:
        while (member := opened.next()) is not None:
            stream.expect_head(expected=False)
            opened.members = []  # which tarfile collects
            entries += 1
            unpacking.check_entries(entries)
            unpacking.put(member.name, partial(unpacking.put_member, opened, member))
            stream.expect_head(expected=True)


def _take_zip(file: IO[bytes], target: UnpackedFolder) -> None:
    unpacking = _Unpacking(target)
    with open_zip(file, _MAX_DIRECTORY, MAX_ENTRIES, _MORE) as opened:
        unpacking.check_entries(len(opened.infolist()))
        for member in opened.infolist():
            unpacking.put(member.orig_filename, partial(unpacking.put_info, opened, member))
