"""Downloads of objects into the cache. Files that are there already are checked instead.

A pool of threads does both; no job of it waits for another. A model is downloaded by the server that has the lock of
its directory. Other servers wait for it, and then use what it has downloaded.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Final, ParamSpec, TypeVar

from toutates.repositories.cache.files import CachedFile, ObjectIdentity
from toutates.repositories.cache.model_cache import Filling, ModelCache
from toutates.repositories.interface import Progress
from toutates.repositories.s3.keys import S3Object
from toutates.repositories.s3.store import ObjectChanged, ObjectStore
from toutates.system.errors import RepositoryError

__all__ = ["THREADS", "DownloadCounters", "Downloads"]

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

#: Threads that download and check at the same time, for all models of a repository.
THREADS: Final = 8
_POLL_SECONDS: Final = 0.1


@dataclass(slots=True)
class DownloadCounters:
    """What was downloaded so far. It is changed under ``lock``, and read without it.

    Attributes:
        objects: downloaded completely.
        bytes: of these objects.
        failures: calls of ``Downloads.bring`` that could not download what was missing.
        duration_ns: of all its calls that had something to download.
    """

    objects: int = 0
    bytes: int = 0
    failures: int = 0
    duration_ns: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


class Downloads:
    """Brings objects of one bucket into the cache. Methods may be called in any thread.

    Args:
        client: of the bucket.
        cache: that gets the files.
        place: the bucket and its endpoint; names them in messages.

    Attributes:
        counters: see DownloadCounters.
    """

    def __init__(self, client: ObjectStore, cache: ModelCache, place: str) -> None:
        self.counters = DownloadCounters()
        self._client = client
        self._cache = cache
        self._place = place
        self._stop = cache.stopping
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="s3")

    def close(self) -> None:
        """Let the threads end once they have nothing to do, which is soon when the cache is told to stop."""
        self._pool.shutdown(wait=False)  # `wait` never returns for futures that this would cancel

    def bring(
        self,
        fingerprint: str,
        model: str,
        wanted: Mapping[str, S3Object],
        on_progress: Progress,
        unreachable: str = "",
    ) -> int:
        """Bring these objects into the cache, as the files of one directory, and hold the directory.

        Args:
            fingerprint: of the directory.
            model: whose files they are.
            wanted: the objects, by path below the directory's ``files``.
            on_progress: see Progress.
            unreachable: why nothing is to be downloaded; "" if it is.

        Returns:
            The bytes that were downloaded.

        Raises:
            ObjectChanged: an object is no longer what it was.
            ConfigurationError, RepositoryError: an object cannot be read, or the cache cannot be written.
        """
        size = sum(found.size for found in wanted.values())
        progress = _Progress(size, on_progress)
        if self._is_here(fingerprint, wanted):
            progress.add(size)
            return 0
        filling = self._begin(fingerprint, model)
        try:
            missing = dict(wanted)
            self._reuse(filling, missing, progress)
            if missing and unreachable:
                raise RepositoryError(
                    f"{len(missing)} of its {len(wanted)} files are not in the cache '{self._cache.root}', such as "
                    f"{next(iter(missing.values())).key!r}, and cannot be downloaded: {unreachable}"
                )
            downloaded = self._download_missing(filling, missing, progress) if missing else 0
            self._cache.finish(filling)
        except BaseException:
            self._cache.abandon(filling)
            raise
        return downloaded

    def _identify(self, found: S3Object) -> ObjectIdentity:
        return ObjectIdentity.of(self._place, found.key, found.etag, found.size)

    # --- what is there -----------------------------------------------------------------------------------------------

    def _is_here(self, fingerprint: str, wanted: Mapping[str, S3Object]) -> bool:
        """Whether the directory is complete and sound. Then it is held."""
        if not self._cache.hold(fingerprint):
            return False
        is_here = False
        try:
            files = self._cache.files(fingerprint)
            is_here = files.keys() == wanted.keys() and all(self._are_sound(files.values()))
        finally:
            if not is_here:
                self._cache.release(fingerprint)
        return is_here

    def _are_sound(self, files: Iterable[CachedFile]) -> list[bool]:
        futures = [self._submit(self._cache.is_sound, file) for file in files]
        return [future.result() for future in futures]

    def _begin(self, fingerprint: str, model: str) -> Filling:
        """The directory to fill, once no other thread or server fills it."""
        is_waiting = False
        while (filling := self._cache.begin(fingerprint, model)) is None:
            if not is_waiting:
                is_waiting = True
                logger.info("%s: another server downloads model '%s'", self._place, model)
            # Its lock ends when it has finished or died. Then the files are there, or this server downloads them.
            self._stop.wait(_POLL_SECONDS)
            self._check_going_on()
        return filling

    def _reuse(self, filling: Filling, missing: dict[str, S3Object], progress: _Progress) -> None:
        """Take from the cache what it has, and remove that from ``missing``."""
        linked = self._cache.reuse(filling, {path: self._identify(found) for path, found in missing.items()})
        for (path, file), is_sound in zip(linked.items(), self._are_sound(linked.values()), strict=True):
            if is_sound:
                self._cache.complete(filling, path, file)
                progress.add(missing.pop(path).size)

    # --- what is not -------------------------------------------------------------------------------------------------

    def _download_missing(self, filling: Filling, missing: dict[str, S3Object], progress: _Progress) -> int:
        """Download what is missing; returns the bytes that came."""
        began_ns = time.monotonic_ns()
        downloaded = 0
        failures = 1
        try:
            while missing:
                # Of files with equal content one is downloaded, and the others are linked to it.
                batch = {self._identify(found).names[0]: path for path, found in missing.items()}.values()
                self._cache.reserve(filling, {path: missing[path].size for path in batch})
                self._download_all(filling, {path: missing[path] for path in batch}, progress)
                downloaded += sum(missing.pop(path).size for path in batch)
                if missing:
                    self._reuse(filling, missing, progress)
            failures = 0
        finally:
            with self.counters.lock:
                self.counters.failures += failures
                self.counters.duration_ns += time.monotonic_ns() - began_ns
        return downloaded

    def _download_all(self, filling: Filling, batch: Mapping[str, S3Object], progress: _Progress) -> None:
        errors: list[BaseException] = []

        def download(path: str, found: S3Object) -> None:
            try:
                self._download(filling, path, found, progress, lambda: self._check_going_on(bool(errors)))
            except ObjectChanged as error:
                changes.append(error)  # the other files are worth having, when this one is tried again
            except BaseException as error:
                errors.append(error)

        changes: list[ObjectChanged] = []
        futures: list[Future[None]] = []
        try:
            futures += [self._submit(download, path, found) for path, found in batch.items()]
        finally:
            wait(futures)
        for error in (*errors, *changes):
            raise error

    def _download(
        self, filling: Filling, path: str, found: S3Object, progress: _Progress, check_going_on: Callable[[], None]
    ) -> None:
        def check(end: int) -> None:
            check_going_on()
            if end > found.size:
                raise ObjectChanged(f"what comes for {found.key!r} is longer than its {found.size} bytes")

        check_going_on()
        identity = self._identify(found)
        if found.size:
            with self._cache.open(filling, path, check) as target:
                self._client.download(found, target, progress.add)
        sha256, md5 = self._cache.digests(filling, path, "sha256", "md5")
        is_md5 = bool(identity.md5) and not self._client.is_encrypted(found)
        if is_md5 and md5 != identity.md5:
            raise ObjectChanged(f"what came for {found.key!r} does not have the MD5 that its ETag says")
        name = identity.shared if is_md5 else identity.own
        self._cache.complete(filling, path, CachedFile(filling.path(path), name, found.size, sha256))
        with self.counters.lock:
            self.counters.objects += 1
            self.counters.bytes += found.size

    # --- the pool ----------------------------------------------------------------------------------------------------

    def _submit(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        try:
            return self._pool.submit(function, *args, **kwargs)
        except RuntimeError:  # after `close`
            raise RepositoryError("the server is stopping") from None

    def _check_going_on(self, has_failed: bool = False) -> None:
        if self._stop.is_set():
            raise RepositoryError("the server is stopping")
        if has_failed:
            raise RepositoryError("another file of the model cannot be downloaded")


class _Progress:
    """Adds up the bytes that several threads have downloaded of one model."""

    def __init__(self, total: int, on_progress: Progress) -> None:
        self._total = total
        self._done = 0
        self._shown = 0
        self._on_progress = on_progress
        self._lock = threading.Lock()

    def add(self, size: int) -> None:
        """Add bytes that have come; a negative number where a part begins anew. The sum that is reported only grows."""
        with self._lock:
            self._done += size
            self._shown = max(self._shown, self._done)
            self._on_progress(self._shown, self._total)
