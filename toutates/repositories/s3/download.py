"""Objects into the cache: those that are there are checked, the others read in parts, several at once.

A pool of threads does both, and nothing in it waits for anything else in it. An object is written by whoever has its
partial file locked: a server that finds it locked does the rest first, and then takes what the other has got.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, ParamSpec, TypeVar

from toutates.repositories.cache.model_cache import CachedFile, ModelCache, ObjectIdentity, Partial
from toutates.repositories.interface import Progress
from toutates.repositories.s3.client import ObjectChanged, ReadInterrupted, S3Client
from toutates.repositories.s3.keys import S3Object
from toutates.system.errors import RepositoryError

__all__ = ["THREADS", "DownloadCounters", "Downloads"]

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

#: that read at once, for all models of a repository
THREADS: Final = 8
_PART: Final = 8 * 2**20  # bytes
#: objects begun at once, each with a file descriptor
_OBJECTS_AT_ONCE: Final = 64
#: of one part without a byte of progress between them, each of them with the requests of botocore's own retries
_ATTEMPTS: Final = 4
_FIRST_WAIT: Final = 0.2  # seconds, doubled each time, and up to twice that at random
_POLL_SECONDS: Final = 0.1


@dataclass(slots=True)
class DownloadCounters:
    """What was downloaded so far. Changed under ``lock``, read without.

    Attributes:
        objects: that are here.
        bytes: of these.
        failures: calls of ``Downloads.bring`` that raised.
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
        cache: where to.
        place: what tells this bucket from others, and names it in messages.

    Attributes:
        counters: see DownloadCounters.
    """

    def __init__(self, client: S3Client, cache: ModelCache, place: str) -> None:
        self.counters = DownloadCounters()
        self._client = client
        self._cache = cache
        self._place = place
        self._stop = cache.stopping
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="s3")

    def close(self) -> None:
        """Let the threads end once they have nothing to do, which is soon when the cache is told to stop."""
        self._pool.shutdown(wait=False)  # `wait` never returns for futures that this would cancel

    def identify(self, found: S3Object) -> ObjectIdentity:
        """What the object is called in the cache."""
        return ObjectIdentity.of(self._place, found.key, found.etag, found.size)

    def bring(
        self, wanted: Sequence[S3Object], on_progress: Progress, unreachable: str = ""
    ) -> tuple[dict[str, CachedFile], int]:
        """Have all of these objects in the cache, in a view that is held.

        Args:
            wanted: the objects.
            on_progress: see Progress.
            unreachable: why nothing is to be downloaded; "" if it is.

        Returns:
            The files by key; and the bytes that were downloaded.

        Raises:
            ObjectChanged: an object is no longer what it was.
            ConfigurationError, RepositoryError: an object cannot be read, or the cache cannot be written.
        """
        progress = _Progress(sum(found.size for found in wanted), on_progress)
        files: dict[str, CachedFile] = {}
        missing: dict[str, S3Object] = {}
        for found, file in zip(wanted, self._checked(wanted), strict=True):
            if file is None:
                missing[found.key] = found
            else:
                files[found.key] = file
                progress.add(found.size)
        if not missing:
            return files, 0
        if unreachable:
            raise RepositoryError(
                f"{len(missing)} of its {len(wanted)} files are not in the cache '{self._cache.root}', such as "
                f"{next(iter(missing))!r}, and cannot be downloaded: {unreachable}"
            )
        began_ns = time.monotonic_ns()
        failures = 1
        try:
            downloaded = self._bring(missing, files, progress)
            failures = 0
        finally:
            with self.counters.lock:
                self.counters.failures += failures
                self.counters.duration_ns += time.monotonic_ns() - began_ns
        return files, downloaded

    def _bring(self, missing: dict[str, S3Object], files: dict[str, CachedFile], progress: _Progress) -> int:
        """Have what is missing, and enter it in ``files``; returns the bytes that were downloaded."""
        identities = {self.identify(found) for found in missing.values()}
        self._cache.make_room(sum(identity.size for identity in identities))
        downloaded = 0
        is_waiting = False
        while missing:
            for job in self._download(list(islice(missing.values(), _OBJECTS_AT_ONCE)), files, progress):
                downloaded += job.found.size
            before = len(missing)
            missing = {key: found for key, found in missing.items() if key not in files}
            if len(missing) == before:
                if not is_waiting:
                    is_waiting = True
                    logger.info("%s: another server downloads %s", self._place, next(iter(missing)))
                # Its lock ends with it. Then either the object is there, or this one can begin it.
                self._stop.wait(_POLL_SECONDS)
        return downloaded

    # --- checking ----------------------------------------------------------------------------------------------------

    def _checked(self, wanted: Iterable[S3Object]) -> list[CachedFile | None]:
        """What is there of these, and sound."""
        futures = [self._submit(self._sound, self.identify(found)) for found in wanted]
        return [future.result() for future in futures]

    def _sound(self, identity: ObjectIdentity) -> CachedFile | None:
        file = self._cache.find(identity)
        return file if file is not None and self._cache.is_sound(file) else None

    # --- reading -----------------------------------------------------------------------------------------------------

    def _download(self, wanted: Iterable[S3Object], files: dict[str, CachedFile], progress: _Progress) -> list[_Job]:
        """Download those objects that no other server is at, and enter in ``files`` what there is then."""
        batch: list[_Job] = []
        futures: list[Future[None]] = []
        failed = threading.Event()
        try:
            for found in wanted:
                self._heed()
                job = self._begin(found, files, progress, failed)
                if job is not None:
                    batch.append(job)
                    futures += [self._submit(self._read_part, job, start, end) for start, end in job.parts]
            wait(futures)
            for future in futures:
                future.result()
        except BaseException:
            failed.set()
            raise
        finally:
            wait(futures)  # of those that failed too: their files are closed now
            for job in batch:
                if job.file is None:
                    self._cache.abandon(job.partial)
                else:
                    files[job.found.key] = job.file
        return batch

    def _begin(
        self, found: S3Object, files: dict[str, CachedFile], progress: _Progress, failed: threading.Event
    ) -> _Job | None:
        """A job for an object, unless another server is at it, or has it by now."""
        identity = self.identify(found)
        file = self._cache.find(identity)
        partial = None if file is not None else self._cache.begin(identity)
        if partial is not None and (file := self._cache.find(identity)) is not None:
            self._cache.abandon(partial)  # the other was done between the two
        if file is not None:
            files[found.key] = file
            progress.add(found.size)
            return None
        return _Job(found, partial, progress, failed) if partial is not None else None

    def _read_part(self, job: _Job, start: int, end: int) -> None:
        try:
            self._read(job, start, end)
            if not job.failed.is_set() and job.is_last_part():
                self._finish(job)
        except ObjectChanged:
            raise  # the batch's other objects are worth having, when this one is tried again
        except BaseException:
            job.failed.set()
            raise

    def _read(self, job: _Job, start: int, end: int) -> None:
        """Read a part, from where it was cut off as often as it takes, while it gets on."""
        position, attempts = start, 0
        while position < end:
            before, problem = position, "it ended too early"
            try:
                reader = self._client.read(job.found, position, end)
                if not reader.etag_is_md5:
                    job.etag_is_md5 = False
                for chunk in reader.chunks():
                    self._heed()
                    if job.failed.is_set():
                        return
                    data = chunk[: end - position]
                    self._cache.write(job.partial, data, position)
                    position += len(data)
                    job.progress.add(len(data))
            except ReadInterrupted as error:
                problem = str(error)
            attempts = 0 if position > before else attempts + 1
            if attempts == _ATTEMPTS:
                raise RepositoryError(f"{self._place}: {job.found.key!r} cannot be read now: {problem}")
            if position < end:
                logger.debug("%s: %r was cut off at byte %d: %s", self._place, job.found.key, position, problem)
                self._stop.wait(_FIRST_WAIT * 2**attempts * (1 + random.random()))
                self._heed()

    def _finish(self, job: _Job) -> None:
        sha256, md5 = self._cache.digests(job.partial)
        identity = job.partial.identity
        is_md5 = bool(identity.md5) and job.etag_is_md5
        if is_md5 and md5 != identity.md5:
            raise ObjectChanged(f"what came for {job.found.key!r} does not have the MD5 that its ETag says")
        job.file = self._cache.commit(job.partial, sha256, is_md5=is_md5)
        with self.counters.lock:
            self.counters.objects += 1
            self.counters.bytes += identity.size

    # --- the pool ----------------------------------------------------------------------------------------------------

    def _submit(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        try:
            return self._pool.submit(function, *args, **kwargs)
        except RuntimeError:  # after `close`
            raise RepositoryError("the server is stopping") from None

    def _heed(self) -> None:
        if self._stop.is_set():
            raise RepositoryError("the server is stopping")


class _Job:
    """One object on its way. ``progress`` and ``failed`` are shared with others.

    Attributes:
        parts: where each begins and ends, in bytes; one for an empty object too.
        etag_is_md5: until the service says otherwise, of any part.
        file: once it is complete.
    """

    def __init__(self, found: S3Object, partial: Partial, progress: _Progress, failed: threading.Event) -> None:
        self.found = found
        self.partial = partial
        self.progress = progress
        self.failed = failed
        self.parts = [(start, min(start + _PART, found.size)) for start in range(0, max(1, found.size), _PART)]
        self.etag_is_md5 = True
        self.file: CachedFile | None = None
        self._parts_left = len(self.parts)
        self._lock = threading.Lock()

    def is_last_part(self) -> bool:
        """Count a part that is there; whether it was the last."""
        with self._lock:
            self._parts_left -= 1
            return self._parts_left == 0


class _Progress:
    """Adds up what several threads have got."""

    def __init__(self, total: int, on_progress: Progress) -> None:
        self._total = total
        self._done = 0
        self._on_progress = on_progress
        self._lock = threading.Lock()

    def add(self, size: int) -> None:
        """Some bytes more. One call at a time, so that what is reported only grows."""
        with self._lock:
            self._done += size
            self._on_progress(self._done, self._total)
