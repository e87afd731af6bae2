"""Files of an artifact, which is made of archives and of single files: each is known by the SHA-256 of its content.

An archive is downloaded once, to be unpacked; what was in it is written down beside the cache. So a restart, and a look
at what has not changed, download nothing; and of a new archive only the files that changed are new.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from toutates.repositories.artifacts.spool import Spool, nameless_file
from toutates.repositories.cache.model_cache import ModelCache
from toutates.repositories.s3.keys import S3Object
from toutates.repositories.s3.listings import Listings
from toutates.repositories.s3.store import ObjectChanged
from toutates.repositories.web.client import Asked, HttpClient
from toutates.system.errors import ConfigurationError, RepositoryError

__all__ = ["ArtifactStore", "Part"]

#: Of what the archives of an artifact hold together: bytes and files.
_MAX_BYTES: Final = 16 * 2**30
MAX_FILES: Final = 20_000
#: How layers of images say that a file, or all of a folder, of the layers before is gone.
_GONE: Final = ".wh."
_ALL_GONE: Final = ".wh..wh..opq"


@dataclass(frozen=True, slots=True)
class Part:
    """A file, or an archive with files.

    Attributes:
        url: of its content.
        found: its name, what its content is known by, and its bytes.
        path: of a single file in the artifact; "" for an archive.
        below: the folder of an archive that is wanted; "" or ending in a slash.
        sha256: of the content, in hexadecimal; "" where it is not known before.
    """

    url: str
    found: S3Object
    path: str = ""
    below: str = ""
    sha256: str = ""


class _Room:
    """A file that takes no more than an object has."""

    def __init__(self, file: Any, found: S3Object) -> None:
        self._file = file
        self._found = found
        self._at = 0

    def seek(self, position: int) -> None:
        self._at = self._file.seek(position)

    def write(self, data: bytes) -> None:
        self._at += len(data)
        if self._at > self._found.size:
            raise ObjectChanged(f"what comes for {self._found.key!r} is longer than its {self._found.size} bytes")
        try:
            self._file.write(data)
        except OSError as error:
            raise RepositoryError(f"the disk of the cache cannot be written: {error.strerror}") from error


class ArtifactStore(ABC):
    """See ``ObjectStore``: the base of those whose files are in archives.

    Args:
        asked: for messages.
        client: for requests.
        cache: beside which contents of archives are written down, and on whose disk they are unpacked.
        endpoint: the URL of the service.
    """

    def __init__(self, asked: Asked, client: HttpClient, cache: ModelCache, endpoint: str) -> None:
        self._asked = asked
        self._client = client
        self._root = cache.root
        self._most = min(cache.bound, _MAX_BYTES)
        self._stopping = cache.stopping
        self._endpoint = endpoint
        self._lock = threading.Lock()
        #: contents of archives, by what these are known by
        self._known: dict[str, dict[str, S3Object]] = {}
        self._spools: dict[str, tuple[Spool, set[str]]] = {}
        #: the part that a file comes from, and its path in it
        self._origins: dict[S3Object, tuple[Part, str]] = {}

    @property
    def endpoint(self) -> str:
        """The URL of the service."""
        return self._endpoint

    @abstractmethod
    def parts(self) -> list[Part]:
        """What the artifact is made of now; later parts cover earlier ones.

        Raises:
            ConfigurationError, RepositoryError: it cannot be read.
        """

    def check_part(self, part: Part, headers: Mapping[str, str]) -> None:  # noqa: B027 - most have nothing to see
        """Look at the headers of an answer for a part.

        Raises:
            ObjectChanged: it is no longer what it was.
        """

    def objects(self, prefix: str) -> Iterator[S3Object]:
        """See ``ObjectStore.objects``."""
        files: dict[str, tuple[S3Object, Part, str]] = {}
        parts = self.parts()
        self._check_sum("bytes", sum(part.found.size for part in parts if not part.path), self._most)
        count = size = 0
        with self._lock:
            for part in parts:
                if part.path:
                    files[part.path] = (S3Object(part.path, part.found.etag, part.found.size), part, part.path)
                    continue
                contents = self._contents(part, self._most - size)
                count, size = count + len(contents), size + sum(one.size for one in contents.values())
                self._check_sum("files", count, MAX_FILES)
                self._check_sum("bytes", size, self._most)
                own = {path.removeprefix(part.below): (path, one) for path, one in contents.items()}
                if part.below:
                    files, own = _without_gone(files, own)
                for path, (inside, one) in own.items():
                    files[path] = (S3Object(path, one.etag, one.size), part, inside)
            self._origins = {found: (part, inside) for found, part, inside in files.values()}
            current = {part.found.etag for part in parts}
            self._known = {etag: known for etag, known in self._known.items() if etag in current}
            for etag in [etag for etag in self._spools if etag not in current]:
                self._spools.pop(etag)[0].close()
        yield from (found for found, _, _ in files.values() if found.key.startswith(prefix))

    def download(self, found: S3Object, target: Any, on_bytes: Callable[[int], None]) -> None:
        """See ``ObjectStore.download``."""
        with self._lock:
            part, inside = self._origins.get(found, (None, ""))
        if part is None:
            raise ObjectChanged(f"{found.key!r} of '{self._asked.url}' has changed")
        if part.path:
            self._fetch(part, target, on_bytes)
            return
        with self._lock:
            spool, left = self._spool(part, self._most)
        spool.copy(inside, target, on_bytes)
        with self._lock:
            left.discard(inside)
            if not left and self._spools.get(part.found.etag, (None,))[0] is spool:
                del self._spools[part.found.etag]
                spool.close()

    def is_encrypted(self, found: S3Object) -> bool:
        """See ``ObjectStore.is_encrypted``: no ETag here looks like an MD5."""
        return False

    def close(self) -> None:
        """See ``ObjectStore.close``."""
        self._client.close()  # first, because who holds the lock may be reading
        with self._lock:
            for spool, _ in self._spools.values():
                spool.close()
            self._spools.clear()

    def _fetch(self, part: Part, target: Any, on_bytes: Callable[[int], None]) -> None:
        import hashlib

        digest = self._client.download(
            part.url,
            part.found,
            target,
            on_bytes,
            digest=hashlib.sha256,
            check=lambda headers: self.check_part(part, headers),
        )
        if part.sha256 and digest != part.sha256:
            raise ObjectChanged(
                f"what came for {part.found.key!r} of '{self._asked.url}' does not have the digest sha256:{part.sha256}"
            )

    def _check_sum(self, what: str, count: int, most: int) -> None:
        """See that what the archives have together is not too much."""
        if count > most:
            raise self._asked.unusable(
                f"its archives have more than {most} {what} together",
                "raise --model-cache-size, or serve its files from a directory or a bucket",
            )

    def _contents(self, part: Part, most: int) -> dict[str, S3Object]:
        """The files of an archive, which have so many bytes at most, by path. The lock is held."""
        etag = part.found.etag
        if etag not in self._known:
            listings = self._listings(part)
            kept = listings.recall(part.below)
            if kept is not None:
                self._known[etag] = {found.key: found for found in kept.objects}
            else:
                self._spool(part, most)
                listings.keep(part.below, list(self._known[etag].values()), if_empty=True)
        return self._known[etag]

    def _listings(self, part: Part) -> Listings:
        return Listings(self._root, f"{self._endpoint} {part.url.partition('?')[0]} {part.found.etag}")

    def _spool(self, part: Part, most: int) -> tuple[Spool, set[str]]:
        """The contents of an archive, ``most`` bytes at most, downloaded if they are not here. The lock is held."""
        etag = part.found.etag
        if etag in self._spools:
            return self._spools[etag]
        with nameless_file(self._root) as archive:
            try:
                self._fetch(part, _Room(archive, part.found), lambda size: None)
            except ObjectChanged as error:
                raise RepositoryError(
                    f"{self._asked.flag} {self._asked.url}: {error}; check what lies between"
                ) from error
            try:
                spool = Spool(archive, self._root, most, part.below, self._check_stopping)
            except ConfigurationError as error:  # which names the nameless file
                raise self._asked.unusable(f"{part.found.key!r} {error.problem}", error.remedy) from error
        self._known[etag] = {
            path: S3Object(path, f"sha256:{one.sha256}", one.size) for path, one in spool.members.items()
        }
        self._spools[etag] = (spool, {path for path, one in spool.members.items() if one.size})
        return self._spools[etag]

    def _check_stopping(self) -> None:
        if self._stopping.is_set():
            raise RepositoryError("the server is stopping")


#: Files by path, with what is known of them.
_Files = TypeVar("_Files")
_Own = TypeVar("_Own")


def _without_gone(files: dict[str, _Files], own: dict[str, _Own]) -> tuple[dict[str, _Files], dict[str, _Own]]:
    """Files of the layers before that a layer of an image leaves there, and its own without what says that."""
    gone: set[str] = set()
    emptied: set[str] = set()
    for path in own:
        folder, slash, name = path.rpartition("/")
        if name == _ALL_GONE:
            emptied.add(folder)
        elif name.startswith(_GONE):
            gone.add(folder + slash + name.removeprefix(_GONE))

    def is_left(path: str) -> bool:
        while path:
            folder = path.rpartition("/")[0]
            if path in gone or folder in emptied:
                return False
            path = folder
        return True

    return (
        {path: one for path, one in files.items() if is_left(path)} if gone or emptied else files,
        {path: one for path, one in own.items() if not path.rpartition("/")[2].startswith(_GONE)},
    )
