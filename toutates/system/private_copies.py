"""Copies of files for a library that maps what it opens: nobody else may change them while they are mapped.

    <root>/<name>.lock      locked by the processes that use the copies, or make them
    <root>/<name>/          the copies, by the paths that the files have in their own directory
    <root>/<name>.whole     that they are complete; only of those that processes share

A process removes its copies as soon as the library has them open: what is mapped stays. Processes that serve the same
files would have them in memory once each, so these find the copies by what the files are, and the last one to close
them removes them. What a process that was killed has left is removed by the next one that makes copies.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import stat
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from toutates.system.file_lock import try_lock

__all__ = ["TRIES", "FileChanged", "Identity", "NoRoom", "PrivateCopies", "PrivateCopy", "identity_of", "read_whole"]

#: How often files are read that change while they are read.
TRIES: Final = 3
#: Of ioctl(2): share the bytes of a file until one of the two is written.
_FICLONE: Final = 0x40049409
_AT_ONCE: Final = 64 * 1024 * 1024
_POLL_SECONDS: Final = 0.02
_MODE: Final = 0o600

#: What tells a file from another one at the same path, or from itself when it is written: device, inode, size, time.
Identity = tuple[int, int, int, int]


class FileChanged(Exception):
    """A file was written or replaced while it was read; the text is its path."""


class NoRoom(Exception):
    """Copies cannot be made; the text says where and why."""


def identity_of(status: os.stat_result) -> Identity:
    """The identity of a file."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


class PrivateCopy:
    """Copies of some files.

    Attributes:
        folder: where they are until it is closed.
    """

    __slots__ = ("_lock", "folder")

    def __init__(self, folder: Path, lock: int) -> None:
        self.folder = folder
        self._lock: int | None = lock

    def close(self) -> None:
        """Use them no more. They are removed unless another process uses them; what is mapped stays. Blocks."""
        lock, self._lock = self._lock, None
        if lock is None:
            return
        os.close(lock)
        _remove_unused(self.folder)


class PrivateCopies:
    """Makes copies. Any thread may use it.

    Args:
        roots: folders for them, made if they are not there; the first that has room is taken.
        shared: whether other processes are about to open the same files.
    """

    def __init__(self, *roots: Path, shared: bool = False) -> None:
        self._roots = roots
        self._shared = shared
        self._to_clean = list(roots)

    @property
    def shared(self) -> bool:
        """Whether copies are to be held open as long as they are mapped, because other processes open them too."""
        return self._shared

    def clean(self) -> None:
        """Remove what processes have left that were killed, the first time that this is called. Blocks."""
        while self._to_clean:
            try:
                root = self._to_clean.pop()
                names = os.listdir(root) if _is_own(root) else []
            except (IndexError, OSError):
                continue
            for name in names:
                if name.endswith(".lock"):
                    _remove_unused(root / name.removesuffix(".lock"))

    def make(self, files: Mapping[str, Path]) -> PrivateCopy:
        """Copy files. Blocks.

        Args:
            files: where they are, without any link, by the path that each copy is to have.

        Raises:
            FileChanged: one was written or replaced meanwhile, or a link was put in its way.
            NoRoom: no folder can be written, or has room.
            OSError: a file cannot be read.
        """
        before = {path: identity_of(path.stat()) for path in files.values()}
        problems = []
        for root in self._roots:
            try:
                return self._make_in(root, files, before)
            except NoRoom as error:
                problems.append(f"'{root}' ({error})")
        raise NoRoom(" or ".join(problems) or "any folder")

    def _make_in(self, root: Path, files: Mapping[str, Path], before: Mapping[Path, Identity]) -> PrivateCopy:
        name = uuid.uuid4().hex
        if self._shared:
            known = repr(sorted((inside, str(path), before[path]) for inside, path in files.items()))
            name = hashlib.sha256(known.encode()).hexdigest()[:32]
        folder = root / name
        try:
            root.mkdir(parents=True, exist_ok=True, mode=0o700)
            if not _is_own(root):
                raise NoRoom("others may write there")
            lock, is_whole = _take(folder)
        except OSError as error:
            raise NoRoom(error.strerror) from error
        copy = PrivateCopy(folder, lock)
        if is_whole:
            return copy
        try:
            _fill(folder, files, before)
            if self._shared:
                _mark_whole(folder)
        except BaseException:
            copy.close()
            raise
        # Those who wait for it come in; nobody removes what is locked by either.
        fcntl.flock(lock, fcntl.LOCK_SH)
        if self._shared and not _whole(folder).exists():  # in the moment between the two locks
            copy.close()
            return self._make_in(root, files, before)
        return copy


def read_whole(path: Path) -> bytearray:
    """The bytes of a file, by its path without any link, as they were at one time. Blocks.

    Raises:
        FileChanged: it was written or replaced each time that it was read, or a link was put in its way.
        OSError: it cannot be read.
    """
    for _ in range(TRIES):
        with path.open("rb", buffering=0) as file:
            before = os.fstat(file.fileno())
            if not _is_at(file.fileno(), path):
                continue
            content = bytearray(before.st_size)
            view, at = memoryview(content), 0
            while at < len(content) and (count := file.readinto(view[at : at + _AT_ONCE])):
                at += count
            view.release()
            if at == len(content) and identity_of(before) == identity_of(os.fstat(file.fileno())):
                return content
        del content
    raise FileChanged(str(path))


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether an open file is where its path says, and no link has led elsewhere."""
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}") == str(path)
    except OSError:  # there is no /proc
        return True


def _whole(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.whole")


def _mark_whole(folder: Path) -> None:
    try:
        _whole(folder).touch(mode=_MODE)
    except OSError as error:
        raise NoRoom(error.strerror) from error


def _is_own(root: Path) -> bool:
    """Whether nobody else can change what is in a folder."""
    status = root.lstat()
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o022


def _take(folder: Path) -> tuple[int, bool]:
    """Lock a folder of copies: alone where they are to be made, else with others; whether they are complete."""
    path = folder.with_name(f"{folder.name}.lock")
    while True:
        for shared in (False, True):
            lock = try_lock(path, shared=shared)
            if lock is None:
                continue
            if _whole(folder).exists():
                fcntl.flock(lock, fcntl.LOCK_SH)
                if shared or _whole(folder).exists():
                    return lock, True
            elif not shared:
                return lock, False
            os.close(lock)
        time.sleep(_POLL_SECONDS)  # another process makes them


def _remove_unused(folder: Path) -> None:
    """Remove a folder of copies unless a process has locked it. What cannot be removed stays."""
    path = folder.with_name(f"{folder.name}.lock")
    try:
        lock = try_lock(path)
        if lock is None:
            return
        try:
            _whole(folder).unlink(missing_ok=True)
            shutil.rmtree(folder, ignore_errors=True)
            path.unlink(missing_ok=True)
        finally:
            os.close(lock)
    except OSError:
        pass


def _fill(folder: Path, files: Mapping[str, Path], before: Mapping[Path, Identity]) -> None:
    """Copy files into a folder that this process has locked alone.

    Raises:
        FileChanged, NoRoom, OSError: see ``PrivateCopies.make``.
    """
    try:
        shutil.rmtree(folder, ignore_errors=True)  # of a process that was killed while it did the same
        folder.mkdir(mode=0o700)
        for inside in files:
            (folder / inside).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise NoRoom(error.strerror) from error
    left = sum(identity[2] for identity in before.values())
    for inside, path in files.items():
        source = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            status = os.fstat(source)
            if identity_of(status) != before[path] or not stat.S_ISREG(status.st_mode) or not _is_at(source, path):
                raise FileChanged(str(path))
            is_whole = _copy(source, folder / inside, status.st_size, left)
            left -= status.st_size
            if not is_whole or identity_of(os.fstat(source)) != before[path]:
                raise FileChanged(str(path))
        finally:
            os.close(source)
    for path, identity in before.items():  # one of them may have been replaced while another was read
        try:
            if identity_of(path.stat()) != identity:
                raise FileChanged(str(path))
        except FileNotFoundError:
            raise FileChanged(str(path)) from None


def _copy(source: int, path: Path, size: int, needed: int) -> bool:
    """Copy an open file; False if it is shorter by now. ``needed`` bytes must be free where bytes cannot be shared.

    Raises:
        NoRoom: the copy cannot be written.
    """
    try:
        target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, _MODE)
        try:
            try:
                fcntl.ioctl(target, _FICLONE, source)
                return True
            except OSError:  # another file system, or one that cannot
                pass
            room = os.fstatvfs(target)
            if room.f_bavail * room.f_frsize < needed:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            at = 0
            while at < size:
                count = os.sendfile(target, source, at, min(_AT_ONCE, size - at))
                if not count:
                    return False
                at += count
            return True
        finally:
            os.close(target)
    except OSError as error:
        raise NoRoom(error.strerror) from error
