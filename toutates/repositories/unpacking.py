"""Unpacking model archives, which may come from anybody: zip (``.mar``), ``.tar.gz``, ``.tar``, and folders.

Nothing but plain files is taken, by names that stay in the directory, each once. What is unpacked is counted as it
comes, because an archive's own figures may be wrong. So the worst archive costs as many bytes as ``Bounds`` allow.
"""

from __future__ import annotations

import gzip
import os
import stat
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Final, NamedTuple

from toutates.models.repository import has_control_characters
from toutates.system.archives.reading import BROKEN, TarStream, open_zip
from toutates.system.archives.unpacked_folder import UnpackedFolder
from toutates.system.errors import ConfigurationError
from toutates.system.text import one_line, shown

__all__ = ["Bounds", "Sink", "unpack"]

#: Takes a file of an archive: its path, which stays in the directory, and its content in pieces.
Sink = Callable[[PurePosixPath, Iterator[bytes]], None]

_CHUNK: Final = 65_536
#: Where a tar says that it is one.
_TAR_MAGIC: Final = (257, b"ustar")
_MAX_NAME: Final = 1_024
#: Files and folders of an archive.
_MAX_HEADS: Final = 40_000
#: Bytes of a zip's table of contents, which is read as a whole.
_MAX_DIRECTORY: Final = 4 * 2**20
_LONG: Final = f"its table of contents has more than {_MAX_DIRECTORY} bytes or {_MAX_HEADS} entries"
#: How many times as large as the archive its files may be, once they are larger than RATIO_FROM.
_MAX_RATIO: Final = 200
_RATIO_FROM: Final = 16 * 2**20

_ENCRYPTED: Final = 0x1
_METHODS: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


@dataclass(frozen=True, slots=True)
class Bounds:
    """What an archive may come to.

    Attributes:
        max_files: files in it.
        max_bytes: of all its files, unpacked.
    """

    max_files: int = 10_000
    max_bytes: int = 16 * 2**30


class _Member(NamedTuple):
    """A file of an archive: its name, and what opens it."""

    name: str
    open: Callable[[], AbstractContextManager[BinaryIO]]


def unpack(
    archive: Path,
    target: Path | Sink,
    bounds: Bounds | None = None,
    *,
    below: str = "",
) -> None:
    """Unpack an archive into a directory. Blocks. What a refused one has left there is for the caller to remove.

    Args:
        archive: a zip (TorchServe's ``.mar``), a ``.tar.gz``, a ``.tar``, or a folder.
        target: an empty directory, or what takes the files.
        bounds: what it may come to; None for the usual ones.
        below: a folder in a tar that ends in a slash: what lies elsewhere, links too, is passed over. "" for all.

    Raises:
        ConfigurationError: it is none of these, is broken, or holds what an archive must not hold.
    """
    if isinstance(target, Path):
        with UnpackedFolder(target) as folder:
            unpack(archive, lambda name, pieces: folder.put_file(name.parts, pieces), bounds, below=below)
        return
    try:
        if archive.is_dir():
            _Unpacking(archive, target, bounds or Bounds(), None, below).take(_folder(archive))
            return
        if not archive.is_file():
            raise _refused(archive, "is no file and no folder", "name a .mar, a .tar.gz or a folder")
        unpacking = _Unpacking(archive, target, bounds or Bounds(), archive.stat().st_size, below)
        with archive.open("rb") as file:
            beginning = file.read(512)
            file.seek(0)
            at, magic = _TAR_MAGIC
            if beginning[:2] == b"\x1f\x8b":
                unpacking.take(_tar(archive, gzip.GzipFile(fileobj=file, mode="rb"), unpacking))
            elif beginning[at:].startswith(magic):
                unpacking.take(_tar(archive, file, unpacking))
            elif beginning[:2] == b"PK":
                unpacking.take(_zip(archive, file, unpacking))
            else:
                raise _refused(
                    archive,
                    "is neither a zip nor a .tar.gz, as archives of TorchServe are",
                    "make it with torch-model-archiver",
                )
    except OSError as error:
        problem = f"cannot be unpacked: {error.strerror or error}"
        raise _refused(archive, problem, "see that it can be read and the disk has room") from error
    except BROKEN as error:
        raise _refused(archive, f"is broken: {one_line(error, 200)}", "make the archive again") from error


def _refused(archive: Path, problem: str, remedy: str) -> ConfigurationError:
    return ConfigurationError(problem, source=archive, remedy=remedy)


class _Unpacking:
    """Writes the files of one archive.

    Args:
        archive: for errors.
        put: takes the files.
        bounds: what it may come to.
        size: of the archive, bytes; None for a folder.
        below: see ``unpack``.
    """

    def __init__(self, archive: Path, put: Sink, bounds: Bounds, size: int | None, below: str) -> None:
        self._archive = archive
        self._put = put
        self._below = PurePosixPath(below).parts
        self._bounds = bounds
        self._most = bounds.max_bytes
        if size is not None:
            self._most = min(self._most, max(_RATIO_FROM, _MAX_RATIO * size))
        self._written = 0
        self._names: set[PurePosixPath] = set()

    def take(self, members: Iterator[_Member]) -> None:
        for member in members:
            name = self._check(member.name)
            try:
                with member.open() as source:
                    self._put(name, self._pieces(source))
            except (FileExistsError, NotADirectoryError, IsADirectoryError):
                raise self.refusal(member.name, "is a file and a folder at once") from None

    def is_wanted(self, name: str) -> bool:
        """Whether a file lies in the folder that is wanted."""
        return PurePosixPath(name).parts[: len(self._below)] == self._below

    def _pieces(self, source: BinaryIO) -> Iterator[bytes]:
        while data := source.read(_CHUNK):
            self._written += len(data)
            self.check_size(self._written)
            yield data

    def check_size(self, size: int) -> None:
        """See that so many bytes may come out of the archive.

        Raises:
            ConfigurationError: they are more than it may have.
        """
        if size > self._most:
            problem = f"has files of more than {self._most} bytes, as an archive has that is to fill the disk"
            raise _refused(self._archive, problem, "unpack it yourself, and import the folder, if you trust it")

    def check_files(self, count: int) -> None:
        """See that there may be so many files.

        Raises:
            ConfigurationError: they are more.
        """
        if count > self._bounds.max_files:
            most = self._bounds.max_files
            raise _refused(self._archive, f"has more than {most} files", "leave out what the handler does not need")

    def refusal(self, name: str, problem: str) -> ConfigurationError:
        return _refused(self._archive, f"'{shown(name)}' in it {problem}", "make the archive anew, of plain files")

    def _check(self, name: str) -> PurePosixPath:
        path = PurePosixPath(name)
        if name.startswith("/") or name[1:2] == ":":
            raise self.refusal(name, "has an absolute path")
        if ".." in path.parts:
            raise self.refusal(name, "leaves the archive's directory by '..'")
        if not path.parts or "\\" in name or len(name.encode()) > _MAX_NAME or has_control_characters(name):
            raise self.refusal(name, "has a name that no file should have")
        if path in self._names:
            raise self.refusal(name, "is there twice")
        self._names.add(path)
        self.check_files(len(self._names))
        return path


# --- zip -------------------------------------------------------------------------------------------------------------


def _zip(archive: Path, file: BinaryIO, unpacking: _Unpacking) -> Iterator[_Member]:
    with open_zip(file, _MAX_DIRECTORY, _MAX_HEADS, _LONG) as opened:
        unpacking.check_files(sum(not member.is_dir() for member in opened.infolist()))
        for member in opened.infolist():
            kind = stat.S_IFMT(member.external_attr >> 16)
            if member.is_dir():
                continue
            if kind not in (0, stat.S_IFREG):
                raise unpacking.refusal(member.filename, "is a link or no plain file")
            if member.flag_bits & _ENCRYPTED:
                raise _refused(archive, "is encrypted", "make the archive without a password")
            if member.compress_type not in _METHODS:
                raise _refused(archive, "is compressed in another way than deflate", "make the archive anew")
            # ``orig_filename`` is what stands in the archive; ``filename`` ends at a NUL.
            yield _Member(member.orig_filename, _opener(opened, member))


def _opener(opened: zipfile.ZipFile, member: zipfile.ZipInfo) -> Callable[[], AbstractContextManager[Any]]:
    return lambda: opened.open(member)


# --- tar -------------------------------------------------------------------------------------------------------------


def _tar(archive: Path, file: Any, unpacking: _Unpacking) -> Iterator[_Member]:
    inflated: Any = TarStream(file, unpacking.check_size)
    heads = 0
    opened: Any  # ``members`` is not in its stub
    with tarfile.open(fileobj=inflated, mode="r:") as opened:
        while (member := opened.next()) is not None:
            inflated.expect_head(expected=False)
            opened.members = []  # which tarfile collects
            heads += 1
            if heads > _MAX_HEADS:
                raise _refused(archive, "has more folders than files", "leave out what the handler does not need")
            if not unpacking.is_wanted(member.name):
                inflated.expect_head(expected=True)
                continue
            if not (member.isdir() or member.isreg()) or member.issparse():
                raise unpacking.refusal(member.name, "is a link or no plain file")
            if member.isreg():
                yield _Member(member.name, _tar_opener(opened, member))
            inflated.expect_head(expected=True)


def _tar_opener(opened: tarfile.TarFile, member: tarfile.TarInfo) -> Callable[[], AbstractContextManager[Any]]:
    return lambda: _present(opened.extractfile(member))


@contextmanager
def _present(opened: Any) -> Iterator[Any]:
    assert opened is not None  # a plain file has content
    yield opened


# --- folders ---------------------------------------------------------------------------------------------------------


def _folder(archive: Path) -> Iterator[_Member]:
    for directory, names, files in os.walk(archive, onerror=_raise):
        names[:] = sorted(name for name in names if name not in ("__pycache__", ".git"))
        for name in sorted([*names, *files]):
            path = Path(directory, name)
            mode = path.lstat().st_mode
            if stat.S_ISDIR(mode):
                continue
            if not stat.S_ISREG(mode):
                problem = f"'{shown(str(path.relative_to(archive)))}' in it is a link or no plain file"
                raise _refused(archive, problem, "put the file itself there")
            yield _Member(str(path.relative_to(archive)), _file_opener(path))


def _file_opener(path: Path) -> Callable[[], AbstractContextManager[Any]]:
    return lambda: path.open("rb")


def _raise(error: OSError) -> None:
    raise error
