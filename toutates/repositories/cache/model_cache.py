"""Models from S3 on this host: a directory for each set of files, checked before use, shared by servers, bounded.

    <root>/models/<fingerprint>/files/<model>/  a model as a directory, complete; ONNX Runtime loads it from here
    <root>/models/<fingerprint>/manifest        a line for each file, with its SHA-256; its time is the last use
    <root>/models/<fingerprint>/lock            locked, shared, by every server that uses the directory
    <root>/filling/<fingerprint>/               the same while it is filled; its lock is held by the server that does it
    <root>/listings/                            what S3 has listed, see ``s3.listings``
    <root>/lock                                 held briefly to lock, move or remove a directory, or to take room; holds
                                                the number of changes, see ``contents``

The fingerprint is made from the names, sizes and ETags of the files, and where they are from. A directory is filled
beside the others, and gets its place by being renamed, once all of its files are on the disk.

A file is downloaded once: a new directory has hard links to the files that another one has already. A file is known by
its content (see ``ObjectIdentity``), and is compared with its SHA-256 whenever a server starts to use it. One that the
disk has damaged is removed, and its directory is filled again.

A download that fails, or a crash, leaves the files that are complete in ``filling``. The next download of the same
content takes them from there, and what is not complete is removed.

What is removed for room is the directory that was used longest ago. One that a server has locked stays.
"""

from __future__ import annotations

import errno
import hashlib
import io
import logging
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from toutates.repositories.cache.contents import Contents, remove_incomplete
from toutates.repositories.cache.files import CachedFile, ObjectIdentity, link, note, read_manifest, write_file
from toutates.repositories.cache.old_form import remove_old_form
from toutates.system.errors import ConfigurationError, RepositoryError
from toutates.system.file_lock import lock_of, try_lock

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

__all__ = ["Filling", "ModelCache", "default_cache_root"]

logger = logging.getLogger(__name__)

_FLAG: Final = "--model-cache-dir"
_SIZE_FLAG: Final = "--model-cache-size"
_LOCK_SECONDS: Final = 60.0
_CHUNK: Final = 1024 * 1024


def default_cache_root() -> Path:
    """``$XDG_CACHE_HOME/toutates``, or ``~/.cache/toutates``.

    Raises:
        ConfigurationError: there is no home directory.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    try:
        # The specification of base directories has relative ones ignored.
        return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "toutates"
    except RuntimeError:
        raise ConfigurationError(
            "there is no home directory for the cache of models", key=_FLAG, remedy="name a directory"
        ) from None


@dataclass(frozen=True, slots=True)
class Filling:
    """A directory that is being filled, locked by whoever does it until ``finish`` or ``abandon``.

    Attributes:
        fingerprint: the name that it will have.
        folder: where it is until then.
    """

    fingerprint: str
    folder: Path
    lock: io.FileIO

    def path(self, name: str) -> Path:
        """Where a file is filled in, by its path below ``files``."""
        return self.folder / "files" / name


class ModelCache:
    """One server's access to a cache. Methods may be called in any thread.

    Args:
        root: made if it is not there.
        bound: bytes that its files may have together, finished or not.

    Raises:
        ConfigurationError: the directory cannot be written.
    """

    def __init__(self, root: Path, bound: int) -> None:
        self.root = root.absolute()
        self._models = self.root / "models"
        self._fillings = self.root / "filling"
        #: once it is set, everything that waits or reads ends soon, with RepositoryError
        self.stopping = threading.Event()
        self.bound = bound
        #: bytes of all files when this server last made room, or was started
        self.used_bytes = 0
        self._mutex = threading.Lock()
        #: descriptors of the directories that this server has locked, and how many times
        self._held: dict[str, tuple[int, int]] = {}
        self._contents = Contents(self._models, self._fillings)
        try:
            for folder in (self._models, self._fillings):
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with self._locked() as lock:
                for folder in (self._models, self._fillings):
                    write_file(folder / ".probe", b"")
                    (folder / ".probe").unlink()
                remove_old_form(self.root)
                self._contents.sweep()
                self._contents.refresh(lock)
                self.used_bytes = self._contents.bytes()
        except OSError as error:
            raise ConfigurationError(
                f"cannot be used as a cache: {error.strerror}",
                key=_FLAG,
                value=str(self.root),
                remedy="make it writable for the server's user, or name another directory",
            ) from error

    def stop(self) -> None:
        """Set ``stopping``, and note that what is held was in use until now. The locks end with the process."""
        self.stopping.set()
        with self._mutex:
            for fingerprint in self._held:
                self._touch(fingerprint)

    # --- complete directories ----------------------------------------------------------------------------------------

    def path(self, fingerprint: str, model: str) -> Path:
        """Where a model has its files, whether they are there or not."""
        return self._models / fingerprint / "files" / model

    def hold(self, fingerprint: str) -> bool:
        """Keep a directory until as many calls of ``release``; False if it is not there.

        Raises:
            RepositoryError: the cache cannot be written.
        """
        with self._mutex, self._explained("a model cannot be locked"), self._locked():
            return self._hold(fingerprint)

    def _hold(self, fingerprint: str) -> bool:
        folder = self._models / fingerprint
        descriptor, count = self._held.get(fingerprint, (-1, 0))
        if not count:
            if not folder.is_dir():
                return False
            # Exclusively it is only ever locked under the lock that is held here.
            locked = try_lock(folder / "lock", shared=True)
            assert locked is not None
            descriptor = locked
        self._held[fingerprint] = (descriptor, count + 1)
        return True

    def release(self, fingerprint: str) -> None:
        """Undo one ``hold``, or ``finish``."""
        with self._mutex:
            descriptor, count = self._held.pop(fingerprint, (-1, 0))
            if count > 1:
                self._held[fingerprint] = (descriptor, count - 1)
            elif count:
                self._touch(fingerprint)
                os.close(descriptor)

    def _touch(self, fingerprint: str) -> None:
        try:
            os.utime(self._models / fingerprint / "manifest")
        except OSError:
            pass  # then it looks as if it was last used earlier

    def files(self, fingerprint: str) -> Mapping[str, CachedFile]:
        """What a directory that is held should have, by path below ``files``; see ``is_sound``."""
        return read_manifest(self._models / fingerprint)

    def is_sound(self, file: CachedFile) -> bool:
        """Whether a file still is what was written. One that is not is removed.

        Raises:
            RepositoryError: it cannot be removed, or ``stopping`` was set.
        """
        try:
            with file.path.open("rb") as opened:
                status = os.fstat(opened.fileno())
                if status.st_size == file.size and self._digests(opened, "sha256") == [file.sha256]:
                    return True
        except FileNotFoundError:
            return False
        except OSError as error:
            logger.warning("cannot read '%s' in the cache of models: %s", file.path, error.strerror)
            return False
        logger.warning("'%s' in the cache of models is damaged, and is downloaded again", file.path)
        with self._explained("a damaged file cannot be removed"), self._locked():
            # Another server may have noticed first, and put a good one in its place.
            if file.path.exists() and file.path.stat().st_ino == status.st_ino:
                file.path.unlink()
        return False

    # --- filling -----------------------------------------------------------------------------------------------------

    def begin(self, fingerprint: str, model: str) -> Filling | None:
        """A directory to fill; None while another thread or server does it.

        Raises:
            RepositoryError: the cache cannot be written.
        """
        folder = self._fillings / fingerprint
        with self._explained("a model cannot be begun"), self._locked():
            folder.mkdir(exist_ok=True, mode=0o700)
            descriptor = try_lock(folder / "lock")
            if descriptor is None:
                return None
            try:
                remove_incomplete(folder)
                (folder / "files" / model).mkdir(parents=True, exist_ok=True, mode=0o700)
            except BaseException:
                os.close(descriptor)
                raise
        return Filling(fingerprint, folder, io.FileIO(descriptor, "r+"))

    def reuse(self, filling: Filling, wanted: Mapping[str, ObjectIdentity]) -> dict[str, CachedFile]:
        """Link files that the cache has already into a directory. They are still to be checked, and noted.

        Args:
            filling: from ``begin``.
            wanted: by path below ``files``.

        Returns:
            The files that were linked, by path.

        Raises:
            RepositoryError: the cache cannot be written.
        """
        found = {}
        with self._explained("a file cannot be linked"), self._locked() as lock:
            self._contents.refresh(lock)
            for path, identity in wanted.items():
                target = filling.path(path)
                for file in self._contents.files_of(identity.names):
                    if file.size == identity.size and self._link(lock, file.path, target, file.size):
                        found[path] = replace(file, path=target)
                        break
        return found

    def _link(self, lock: int, source: Path, target: Path, size: int) -> bool:
        """Have a file in a second place too; False if it is not there any more, or if there is no room for a copy."""
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            if not link(source, target):
                self._make_room(lock, size)
                shutil.copyfile(source, target)
        except (FileNotFoundError, RepositoryError):
            return False
        return True

    def reserve(self, filling: Filling, sizes: Mapping[str, int]) -> None:
        """Make files to download to, of these sizes by path below ``files``, and make room for them.

        Raises:
            RepositoryError: there is no room for them.
        """
        needed = sum(sizes.values())
        with self._explained(f"there is no room for {needed} bytes"), self._locked() as lock:
            self._make_room(lock, needed)
            for name, size in sizes.items():
                path = filling.path(name)
                path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                path.unlink(missing_ok=True)  # it may be a link to a file of another directory
                _allocate(path, size)

    def _make_room(self, lock: int, needed: int) -> None:
        """Remove what was used longest ago until so many bytes fit the bound."""
        left = self._contents.make_room(lock, self.bound - needed)
        if left + needed > self.bound:
            raise RepositoryError(
                f"{_SIZE_FLAG} {self.bound}: there is no room for {needed} bytes beside the {left} in '{self.root}' "
                "that are in use; raise it, or serve fewer models"
            )
        self.used_bytes = left + needed

    def open(self, filling: Filling, name: str, check: Callable[[int], None]) -> io.RawIOBase:
        """A file from ``reserve``, to write to at any position.

        Args:
            filling: from ``begin``.
            name: path below ``files``.
            check: called with the position of the last byte of each write before it is done; may raise.

        Raises:
            RepositoryError: it cannot be opened. Its ``write`` raises it too.
        """
        with self._explained("a file cannot be written"):
            return _Target(filling.path(name), check, self._explained)

    def digests(self, filling: Filling, name: str, *algorithms: str) -> list[str]:
        """Digests of a file that was downloaded, by these algorithms of ``hashlib``; hexadecimal.

        Raises:
            RepositoryError: it cannot be read, or ``stopping`` was set.
        """
        with self._explained("a file cannot be read"), filling.path(name).open("rb") as opened:
            return self._digests(opened, *algorithms)

    def complete(self, filling: Filling, name: str, file: CachedFile) -> None:
        """Note that a file of a directory, by its path below ``files``, is complete.

        Raises:
            RepositoryError: the disk does not take it.
        """
        with self._explained("a file cannot be completed"):
            file.path.chmod(0o400)
            with file.path.open("rb") as opened:
                os.fsync(opened.fileno())
            note(filling.folder, name, file)

    def finish(self, filling: Filling) -> None:
        """Give a directory with complete files its place, and hold it.

        Raises:
            RepositoryError: the cache cannot be written; it is still to be abandoned.
        """
        target = self._models / filling.fingerprint
        with self._mutex, self._explained("a model cannot be completed"), self._locked() as lock:
            if target.exists():
                # It has a damaged file, and other servers may use it: its files are replaced one by one.
                for path in (path for path in filling.path("").rglob("*") if path.is_file()):
                    place = target / path.relative_to(filling.folder)
                    place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                    path.replace(place)
                (filling.folder / "manifest").replace(target / "manifest")
                shutil.rmtree(filling.folder)
            else:
                filling.folder.rename(target)
            filling.lock.close()
            self._contents.change(lock, filling.fingerprint)
            self._hold(filling.fingerprint)

    def abandon(self, filling: Filling) -> None:
        """Give up filling a directory. Its complete files stay, for whoever downloads the same content."""
        try:
            with self._locked():
                if not remove_incomplete(filling.folder):
                    shutil.rmtree(filling.folder)
        except (OSError, RepositoryError):
            pass  # a later start removes it
        finally:
            filling.lock.close()

    # --- the rest ----------------------------------------------------------------------------------------------------

    def _digests(self, opened: io.BufferedReader, *algorithms: str) -> list[str]:
        digests = [hashlib.new(algorithm, usedforsecurity=False) for algorithm in algorithms]
        while data := opened.read(_CHUNK):
            if self.stopping.is_set():
                raise RepositoryError("the server is stopping")
            for digest in digests:
                digest.update(data)
        return [digest.hexdigest() for digest in digests]

    @contextmanager
    def _locked(self) -> Iterator[int]:
        with lock_of(self.root / "lock", _LOCK_SECONDS, self.stopping) as descriptor:
            yield descriptor

    @contextmanager
    def _explained(self, problem: str) -> Iterator[None]:
        """Turn errors of the file system into ours."""
        try:
            yield
        except OSError as error:
            remedy = "make it writable for the server's user"
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                remedy = f"make room on its disk, lower {_SIZE_FLAG}, or name another directory"
            raise RepositoryError(f"{_FLAG} {self.root}: {problem}: {error.strerror}; {remedy}") from error


class _Target(io.FileIO):
    """A file that is downloaded to. See ``ModelCache.open``."""

    def __init__(
        self, path: Path, check: Callable[[int], None], explained: Callable[[str], AbstractContextManager[None]]
    ) -> None:
        super().__init__(path, "r+")
        self._check = check
        self._explained = explained

    def write(self, data: ReadableBuffer) -> int:
        """Write all of these bytes at the file's position."""
        view = memoryview(data).cast("B")
        self._check(self.tell() + len(view))
        with self._explained("a file cannot be written"):
            written = 0
            while written < len(view):
                written += super().write(view[written:]) or 0
        return written


def _allocate(path: Path, size: int) -> None:
    """Take the disk space of a file at once, so that a full disk shows before anything is downloaded."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        if size:
            os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
            raise
        os.ftruncate(descriptor, size)
    finally:
        os.close(descriptor)
