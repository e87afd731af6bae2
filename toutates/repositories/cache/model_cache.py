"""Files from S3 on this host: kept by what they hold, checked before use, shared by servers, bounded.

    <root>/objects/<name>           a file, complete and never written again; <name>.json holds its size and SHA-256
    <root>/partial/<name>           one that is being downloaded, locked by who does it
    <root>/views/<view>/files/      a model as a directory, of hard links to objects
    <root>/views/<view>/lock        locked, shared, by every server that uses the view
    <root>/views/<view>/manifest    the names of the view's objects; its time is the last use
    <root>/listings/                what S3 has listed, see ``listings``
    <root>/lock                     held briefly, by whoever makes a view, begins a file, or removes anything

An object's name is its MD5 and size where its ETag is an MD5 that was found to be right: then it is the same file in
every bucket. Any other ETag says only that this key of this bucket has not changed, so the name is made from these as
well. A bucket so cannot plant a file that another bucket's ETag would find.

A file gets its name by being renamed, after it and its record have reached the disk. What a crash leaves in `partial`
is locked by nobody, and is begun anew or swept away. What the disk damages is found by the SHA-256 that is compared
whenever a server starts to use a file.

What is removed for room is what was used longest ago. A view that a server has locked stays, with all of its objects,
and so does an object that is being downloaded for one: the view is locked before the download begins.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import re
import shutil
import threading
import uuid
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from toutates.repositories.cache.file_lock import lock_of, try_lock
from toutates.repositories.interface import fingerprint_of
from toutates.system.errors import ConfigurationError, RepositoryError

__all__ = ["CachedFile", "ModelCache", "ObjectIdentity", "Partial", "default_cache_root", "write_file"]

logger = logging.getLogger(__name__)

_FLAG: Final = "--model-cache-dir"
_SIZE_FLAG: Final = "--model-cache-size"
_LOCK_SECONDS: Final = 60.0
_CHUNK: Final = 1024 * 1024
_MD5: Final = re.compile(r'"([0-9a-f]{32})"')
# What file systems without hard links say, and those of a file that has as many as it can have.
_NO_LINKS: Final = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})


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
class ObjectIdentity:
    """What tells an object's content from others before it is read.

    Attributes:
        size: bytes.
        md5: hexadecimal, if the ETag looks like one; else "".
        shared: the name in the cache if the ETag is an MD5; else "".
        own: the name in the cache otherwise.
    """

    size: int
    md5: str
    shared: str
    own: str

    @classmethod
    def of(cls, place: str, key: str, etag: str, size: int) -> ObjectIdentity:
        """The identity of the object of this key and ETag in a place, which is an endpoint and a bucket."""
        match = _MD5.fullmatch(etag)
        md5 = match[1] if match else ""
        own = f"key-{fingerprint_of((place, key, etag))}-{size}"
        return cls(size, md5, f"md5-{md5}-{size}" if md5 else "", own)

    @property
    def names(self) -> tuple[str, ...]:
        """Every name it may have."""
        return (self.shared, self.own) if self.shared else (self.own,)


@dataclass(frozen=True, slots=True)
class CachedFile:
    """A complete file of the cache, or one that was when it was written."""

    name: str
    path: Path
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Partial:
    """A file that is being downloaded, locked by whoever does it until ``commit`` or ``abandon``."""

    identity: ObjectIdentity
    path: Path
    _descriptor: int


class ModelCache:
    """See the module. Methods may be called in any thread.

    Args:
        root: made if it is not there.
        bound: bytes that objects may have together, finished or not.

    Raises:
        ConfigurationError: the directory cannot be written.
    """

    def __init__(self, root: Path, bound: int) -> None:
        self.root = root.absolute()
        self._objects = self.root / "objects"
        self._partials = self.root / "partial"
        self._views = self.root / "views"
        #: once it is set, whoever waits or reads ends soon, with RepositoryError
        self.stopping = threading.Event()
        self.bound = bound
        #: what the objects and the downloads took when this server last made room, or began
        self.used_bytes = 0
        self._mutex = threading.Lock()
        #: descriptors of the views that this server has locked, and how many times
        self._held: dict[str, tuple[int, int]] = {}
        try:
            for folder in (self._objects, self._partials, self._views):
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with self._locked():
                for folder in (self._objects, self._partials, self._views):
                    write_file(folder / ".probe", b"")
                    (folder / ".probe").unlink()
                self.used_bytes = sum(size for size, _ in self._sizes().values())
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
            for view in self._held:
                self._touch(view)

    # --- views -------------------------------------------------------------------------------------------------------

    def view_path(self, view: str, model: str) -> Path:
        """Where a view has its files, whether it is there or not."""
        return self._views / view / "files" / model

    def hold(self, view: str, objects: Collection[ObjectIdentity]) -> None:
        """Keep a view and its objects, those to come too, until as many calls of ``release``.

        Raises:
            RepositoryError: the cache cannot be written.
        """
        folder = self._views / view
        with self._mutex, self._explained("a model cannot be entered"):
            descriptor, count = self._held.get(view, (-1, 0))
            if not count:
                with self._locked():
                    folder.mkdir(exist_ok=True, mode=0o700)
                    # Exclusively it is only ever locked under the lock that is held here.
                    locked = try_lock(folder / "lock", shared=True)
                    assert locked is not None
                    descriptor = locked
                    try:
                        write_file(
                            folder / "manifest", "\n".join(name for one in objects for name in one.names).encode()
                        )
                    except BaseException:
                        os.close(descriptor)
                        raise
            self._held[view] = (descriptor, count + 1)

    def release(self, view: str) -> None:
        """Undo one ``hold``."""
        with self._mutex:
            descriptor, count = self._held.pop(view, (-1, 0))
            if count > 1:
                self._held[view] = (descriptor, count - 1)
            elif count:
                self._touch(view)
                os.close(descriptor)

    def _touch(self, view: str) -> None:
        try:
            os.utime(self._views / view / "manifest")
        except OSError:
            pass  # it is taken for older than it is

    def link(self, view: str, model: str, files: Mapping[str, CachedFile]) -> None:
        """Make the files of a view that is held, by path in the model.

        Raises:
            RepositoryError: it cannot be written, or a file has gone meanwhile.
        """
        root = self.view_path(view, model)
        with self._explained(f"the files of model '{model}' cannot be linked"):
            root.mkdir(parents=True, exist_ok=True, mode=0o700)
            for name, file in files.items():
                target = root / name
                if not _same(target, file.path):
                    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                    _link(file.path, target)

    # --- objects -----------------------------------------------------------------------------------------------------

    def find(self, identity: ObjectIdentity) -> CachedFile | None:
        """The file with this content, if it is there and has its size; see ``is_sound`` for the rest."""
        for name in identity.names:
            path = self._objects / name
            try:
                record = json.loads((self._objects / f"{name}.json").read_bytes())
                sha256 = record["sha256"]
                if isinstance(sha256, str) and path.stat().st_size == record["size"] == identity.size:
                    return CachedFile(name, path, identity.size, sha256)
            except (OSError, ValueError, KeyError, TypeError):
                continue
        return None

    def is_sound(self, file: CachedFile) -> bool:
        """Whether a file still is what was written. One that is not is removed.

        Raises:
            RepositoryError: ``stopping`` was set.
        """
        digest = hashlib.sha256()
        try:
            with file.path.open("rb") as opened:
                inode = os.fstat(opened.fileno()).st_ino
                while data := opened.read(_CHUNK):
                    _heed(self.stopping)
                    digest.update(data)
        except FileNotFoundError:
            return False
        except OSError as error:
            logger.warning("cannot read '%s' in the cache of models: %s", file.path, error.strerror)
        else:
            if digest.hexdigest() == file.sha256:
                return True
            logger.warning("'%s' in the cache of models is damaged, and is downloaded again", file.path)
            with self._explained("a damaged file cannot be removed"), self._locked():
                # Another server may have noticed first, and put a good one in its place.
                if file.path.exists() and file.path.stat().st_ino == inode:
                    file.path.unlink()
        return False

    def make_room(self, size: int) -> None:
        """See that files of so many bytes in all could be begun now.

        Raises:
            RepositoryError: what is in use leaves no room for them, or the cache cannot be written.
        """
        with self._explained("there is no room to be made"), self._locked():
            self.used_bytes = self._make_room(size)

    def begin(self, identity: ObjectIdentity) -> Partial | None:
        """A file to download an object to, with its room on the disk; None while another downloads it.

        Raises:
            RepositoryError: there is no room for it.
        """
        path = self._partials / identity.own
        if identity.shared:
            path = self._partials / identity.shared
        with self._explained(f"there is no room for a file of {identity.size} bytes"):
            descriptor = try_lock(path)
            if descriptor is None:
                return None
            partial = Partial(identity, path, descriptor)
            try:
                os.ftruncate(descriptor, 0)
                with self._locked():
                    self.used_bytes = self._make_room(identity.size) + identity.size
                    _allocate(descriptor, identity.size)
            except BaseException:
                self.abandon(partial)
                raise
        return partial

    def write(self, partial: Partial, data: bytes, position: int) -> None:
        """Put bytes of a file that was begun where they belong. Several threads may.

        Raises:
            RepositoryError: the disk does not take them.
        """
        view = memoryview(data)
        with self._explained("a file cannot be written"):
            while view:
                written = os.pwrite(partial._descriptor, view, position)
                view, position = view[written:], position + written

    def digests(self, partial: Partial) -> tuple[str, str]:
        """SHA-256 and, where the identity has one, MD5 of a file that was begun; hexadecimal.

        Raises:
            RepositoryError: it cannot be read, or ``stopping`` was set.
        """
        sha256, md5 = hashlib.sha256(), hashlib.md5(usedforsecurity=False)
        position = 0
        with self._explained("a file cannot be read"):
            while data := os.pread(partial._descriptor, _CHUNK, position):
                _heed(self.stopping)
                sha256.update(data)
                if partial.identity.md5:
                    md5.update(data)
                position += len(data)
        return sha256.hexdigest(), md5.hexdigest() if partial.identity.md5 else ""

    def commit(self, partial: Partial, sha256: str, *, is_md5: bool) -> CachedFile:
        """Give a complete file its name, for good.

        Args:
            partial: from ``begin``.
            sha256: its digest, hexadecimal.
            is_md5: whether the object's ETag was found to be its MD5.

        Raises:
            RepositoryError: the disk does not take it; it is still to be abandoned.
        """
        identity = partial.identity
        name = identity.shared if is_md5 else identity.own
        target = self._objects / name
        with self._explained("a file cannot be entered"):
            os.fsync(partial._descriptor)
            record = json.dumps({"size": identity.size, "sha256": sha256}).encode()
            with self._locked():
                write_file(self._objects / f"{name}.json", record)
                partial.path.replace(target)
                os.fchmod(partial._descriptor, 0o400)  # not before: others open what they find in `partial` for writing
                _sync_directory(self._objects)
        os.close(partial._descriptor)
        return CachedFile(name, target, identity.size, sha256)

    def abandon(self, partial: Partial) -> None:
        """Remove a file that was begun and will not be completed."""
        try:
            partial.path.unlink(missing_ok=True)
        except OSError:
            pass  # it is swept away later
        os.close(partial._descriptor)

    # --- room --------------------------------------------------------------------------------------------------------

    def _make_room(self, needed: int) -> int:
        """Remove what was used longest ago until this many bytes fit the bound; returns how many are left. Under the
        lock.
        """
        objects = self._sizes()
        total = sum(size for size, _ in objects.values()) + self._partial_bytes()
        if total + needed <= self.bound:
            return total
        kept: set[str] = set()
        #: views that no server uses, with their descriptors
        idle: dict[str, tuple[int, set[str]]] = {}
        units: list[tuple[float, str, str]] = []  # last use, view or "", object or ""
        try:
            for folder in self._views.iterdir():
                names, used = _manifest(folder / "manifest")
                descriptor = try_lock(folder / "lock")
                if descriptor is None:
                    kept |= names
                else:
                    idle[folder.name] = (descriptor, names)
                    units.append((used, folder.name, ""))
            linked = kept.union(*(names for _, names in idle.values()))
            units += [(used, "", name) for name, (_, used) in objects.items() if name not in linked]
            for _, view, name in sorted(units):
                if total + needed <= self.bound:
                    return total
                loose = {name}
                if view:
                    shutil.rmtree(self._views / view, ignore_errors=True)
                    descriptor, loose = idle.pop(view)
                    os.close(descriptor)
                    loose -= kept.union(*(names for _, names in idle.values()))
                for each in loose & objects.keys():
                    (self._objects / each).unlink(missing_ok=True)
                    (self._objects / f"{each}.json").unlink(missing_ok=True)
                    total -= objects.pop(each)[0]
        finally:
            for descriptor, _ in idle.values():
                os.close(descriptor)
        if total + needed > self.bound:
            raise RepositoryError(
                f"{_SIZE_FLAG} {self.bound}: there is no room for {needed} bytes beside the {total} in '{self.root}' "
                "that are in use; raise it, or serve fewer models"
            )
        return total

    def _sizes(self) -> dict[str, tuple[int, float]]:
        """Bytes and time of every object. Records without one, and those not finished, are removed."""
        objects: dict[str, tuple[int, float]] = {}
        records: set[str] = set()
        for path in self._objects.iterdir():
            if path.suffix == ".json" or path.name.startswith("."):
                records.add(path.name)
            else:
                status = path.stat(follow_symlinks=False)
                objects[path.name] = (status.st_size, status.st_mtime)
        for name in records - {f"{name}.json" for name in objects}:
            (self._objects / name).unlink(missing_ok=True)
        return objects

    def _partial_bytes(self) -> int:
        """Bytes of all downloads under way. What nobody downloads any more is removed."""
        total = 0
        for path in self._partials.iterdir():
            descriptor = try_lock(path)
            if descriptor is not None:
                path.unlink(missing_ok=True)
                os.close(descriptor)
                continue
            try:
                total += path.stat().st_size
            except FileNotFoundError:
                pass  # finished meanwhile
        return total

    # --- the rest ----------------------------------------------------------------------------------------------------

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with lock_of(self.root / "lock", _LOCK_SECONDS, self.stopping):
            yield

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


def _allocate(descriptor: int, size: int) -> None:
    """Take the disk space of a file at once, so that a full disk shows before anything is downloaded."""
    try:
        if size:
            os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
            raise
        os.ftruncate(descriptor, size)


def _heed(stop: threading.Event) -> None:
    if stop.is_set():
        raise RepositoryError("the server is stopping")


def write_file(path: Path, data: bytes) -> None:
    """Write a small file so that others, and those after a crash, see all of it or none."""
    temporary = path.with_name(f".{uuid.uuid4().hex}")
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _manifest(path: Path) -> tuple[set[str], float]:
    """Names of a view's objects and the time of its last use; none and long ago for a view that was left unfinished."""
    try:
        return set(path.read_text().split("\n")), path.stat().st_mtime
    except (OSError, ValueError):
        return set(), 0.0


def _same(target: Path, source: Path) -> bool:
    try:
        one, other = target.stat(), source.stat()
    except OSError:
        return False
    return (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)


def _link(source: Path, target: Path) -> None:
    """Put a link in the place of whatever is there, in one step.

    A hard link, because ONNX Runtime refuses external data that a symbolic link leads out of the model's directory.
    """
    temporary = target.parent / f".{uuid.uuid4().hex}"
    try:
        try:
            temporary.hardlink_to(source)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            temporary.symlink_to(source)
        temporary.replace(target)
    finally:
        # Where both are links to one file, replacing does nothing.
        temporary.unlink(missing_ok=True)
