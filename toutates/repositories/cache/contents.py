"""What the cache holds, known without reading all of it for each model, and which of it is removed for room.

A server keeps in memory what the complete directories hold. Directories come and go only under the cache's lock, whose
file holds a number that every server raises when it adds or removes one. As long as nobody else has raised it, filling
a directory costs the same however many there are; otherwise the names of all directories are listed, and those that are
new are read. Directories that are filled are few, and are read whenever they matter.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from toutates.repositories.cache.files import CachedFile, read_manifest
from toutates.system.file_lock import try_lock

__all__ = ["Contents", "remove_incomplete"]

_NUMBER_BYTES: Final = 8


class Contents:
    """The directories of a cache. All methods are called under the cache's lock.

    Args:
        complete: holds a directory for each set of files that is complete.
        fillings: holds a directory for each that is being filled.
    """

    def __init__(self, complete: Path, fillings: Path) -> None:
        self._complete = complete
        self._fillings = fillings
        #: the number in the lock's file that the rest of this object was read at
        self._as_of = -1
        #: bytes of the files of each complete directory, by inode
        self._sizes: dict[str, Mapping[int, int]] = {}
        #: how many complete directories have a link to each file, by inode
        self._links: Counter[int] = Counter()
        self._bytes = 0
        #: names of the contents of each complete directory
        self._names: dict[str, set[str]] = {}
        #: files by the name of their content, and then by directory
        self._files: dict[str, dict[str, CachedFile]] = {}
        #: directories and when they were last used, latest first; those from the end on are the next to be removed
        self._by_age: list[tuple[float, Path]] = []

    # --- what there is -----------------------------------------------------------------------------------------------

    def refresh(self, lock: int) -> None:
        """Take note of what other servers have added and removed.

        Args:
            lock: descriptor of the file that is locked.
        """
        number = _number_in(lock)
        if number == self._as_of:
            return
        names = set(os.listdir(self._complete))
        for name in self._sizes.keys() - names:
            self._drop(name)
        for name in names - self._sizes.keys():
            self._read(name)
        self._as_of = number

    def change(self, lock: int, name: str) -> None:
        """Take note that this server has added, removed or replaced a complete directory, and tell the others."""
        number = _number_in(lock)
        # In this order: after a crash in between, others look once too often.
        os.pwrite(lock, (number + 1).to_bytes(_NUMBER_BYTES, "big"), 0)
        if number == self._as_of:
            self._as_of = number + 1
        self._drop(name)
        if (self._complete / name).is_dir():
            self._read(name)

    def files_of(self, names: tuple[str, ...]) -> Iterator[CachedFile]:
        """The files that have one of these names of contents, as far as is known; some may have been removed."""
        for name in names:
            yield from list(self._files.get(name, {}).values())
        for folder in _folders_in(self._fillings):
            yield from (file for file in read_manifest(folder).values() if file.name in names)

    def bytes(self) -> int:
        """Bytes of all files, complete directories or not. A file with several links counts once."""
        return self._bytes + sum(size for inode, size in self._filled().items() if not self._links[inode])

    def _filled(self) -> dict[int, int]:
        """Bytes of the files in directories that are being filled, by inode."""
        filled: dict[int, int] = {}
        for folder in _folders_in(self._fillings):
            filled |= _sizes_of((folder / "files").rglob("*"))
        return filled

    def _read(self, name: str) -> None:
        files = read_manifest(self._complete / name)
        sizes = _sizes_of(file.path for file in files.values())
        self._bytes += sum(size for inode, size in sizes.items() if not self._links[inode])
        self._links.update(sizes.keys())
        self._sizes[name] = sizes
        self._names[name] = {file.name for file in files.values()}
        for file in files.values():
            self._files.setdefault(file.name, {})[name] = file

    def _drop(self, name: str) -> None:
        sizes = self._sizes.pop(name, {})
        for inode, size in sizes.items():
            self._links[inode] -= 1
            if not self._links[inode]:
                del self._links[inode]
                self._bytes -= size
        for content in self._names.pop(name, ()):
            del self._files[content][name]
            if not self._files[content]:
                del self._files[content]

    # --- room --------------------------------------------------------------------------------------------------------

    def make_room(self, lock: int, most: int) -> int:
        """Remove what no server uses until all files together have at most so many bytes, used longest ago first.

        Returns:
            The bytes that are left: more than ``most`` if everything else is in use.
        """
        self.refresh(lock)
        left = self.bytes()
        if left > most:
            self.sweep()
            left = self.bytes()
        for is_new in (False, True):
            if is_new and left > most:
                folders = _folders_in(self._complete, self._fillings)
                self._by_age = sorted(((_last_use_s(folder), folder) for folder in folders), reverse=True)
            while left > most and self._by_age:
                used_s, folder = self._by_age.pop()
                if _last_use_s(folder) == used_s and self._remove(lock, folder):
                    left = self.bytes()
        return left

    def _remove(self, lock: int, folder: Path) -> bool:
        """Remove a directory, unless a server uses it."""
        if not folder.is_dir():
            return False
        descriptor = try_lock(folder / "lock")
        if descriptor is None:
            return False
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)
        if folder.parent == self._complete:
            self.change(lock, folder.name)
        return True

    def sweep(self) -> None:
        """Remove what crashes have left of downloads."""
        for folder in _folders_in(self._fillings):
            descriptor = try_lock(folder / "lock")
            if descriptor is not None:
                if not remove_incomplete(folder):
                    shutil.rmtree(folder, ignore_errors=True)
                os.close(descriptor)


def remove_incomplete(folder: Path) -> bool:
    """Remove files of a directory that its manifest does not list; whether it lists any. The lock of it is held."""
    complete = {file.path for file in read_manifest(folder).values()}
    for path in (folder / "files").rglob("*"):
        if path.is_file() and path not in complete:
            path.unlink()
    return bool(complete)


def _number_in(lock: int) -> int:
    return int.from_bytes(os.pread(lock, _NUMBER_BYTES, 0), "big")


def _folders_in(*parents: Path) -> list[Path]:
    return [folder for parent in parents for folder in parent.iterdir() if folder.is_dir()]


def _sizes_of(paths: Iterator[Path]) -> dict[int, int]:
    """Bytes of files, by inode."""
    sizes = {}
    for path in paths:
        try:
            status = path.lstat()
        except FileNotFoundError:
            continue  # it was damaged, or its download was given up meanwhile
        if stat.S_ISREG(status.st_mode):
            sizes[status.st_ino] = status.st_size
    return sizes


def _last_use_s(folder: Path) -> float:
    """Unix time at which a directory was last used; 0 for one without a complete file."""
    try:
        return (folder / "manifest").stat().st_mtime
    except FileNotFoundError:
        return 0.0
