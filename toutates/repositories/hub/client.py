"""The one module that uses huggingface_hub: it lists and reads a model of the Hub, and explains what goes wrong.

The library finds the endpoint (HF_ENDPOINT), the token (HF_TOKEN, or the file that `hf auth login` writes), proxies and
certificates, and makes the HTTP client. The requests are made here: its own file system sleeps through its retries,
and a server that stops would wait for them. What a file holds is compared with the digest that the listing has of it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import quote, urljoin

from toutates.repositories.pace import USUAL, Pace, Patience
from toutates.repositories.s3.keys import S3Object
from toutates.repositories.s3.store import ObjectChanged
from toutates.repositories.specification import HubSpecification
from toutates.repositories.web.listing import listed_object
from toutates.system.errors import ConfigurationError, RepositoryError, ToutatesError
from toutates.system.text import one_line

__all__ = ["HubClient"]

#: Seconds: for connecting, reading, writing, and for a connection of the pool.
_TIMEOUTS: Final = (5.0, 20.0, 20.0, 20.0)
#: Requests that fail one after the other without a byte of content between them.
_ATTEMPTS: Final = 4
_MAX_PAGE: Final = 16 * 2**20  # bytes of one page of a listing; the Hub's have some hundred thousand
_MAX_OBJECTS: Final = 20_000
_MAX_PAGES: Final = 1_000
_MAX_SHOWN: Final = 300  # characters of a text that is not ours
#: Digests by which the Hub names contents: git's SHA-1 of a small file, SHA-256 of a large one.
_GIT: Final = re.compile(r"[0-9a-f]{40}")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
#: URLs in errors may be signed.
_URL: Final = re.compile(r"\b\w+://\S+")

_TOKEN: Final = "correct the name, or give a token that may read it by HF_TOKEN"


class _Refused(Exception):
    """An answer with a status that is no success."""

    def __init__(self, status: int) -> None:
        super().__init__(f"it answers with status {status}")
        self.status = status


class HubClient:
    """A model of the Hub. Its methods may be called in several threads at once.

    Args:
        specification: what the operator asked for.
        stopping: once it is set, no request is sent, nor tried again.
        patience: how long is waited.

    Raises:
        ConfigurationError: huggingface_hub is not installed, or too old.
    """

    def __init__(self, specification: HubSpecification, stopping: threading.Event, patience: Patience = USUAL) -> None:
        self._specification = specification
        self._stopping = stopping
        self._patience = patience
        self._lock = threading.Lock()
        #: sockets of the answers that are being read
        self._sockets: set[socket.socket] = set()
        try:
            from huggingface_hub import constants, get_session, get_token
        except ImportError as error:
            raise self._unusable(
                f"huggingface_hub, which reads the Hub, cannot be imported: {error}",
                "install toutates[hub], which brings it",
            ) from error
        for name in ("huggingface_hub", "httpx", "httpx2", "httpcore", "httpcore2"):
            logging.getLogger(name).setLevel(logging.WARNING)  # they would show signed URLs
        self._endpoint: str = constants.ENDPOINT
        self._session: Any = get_session()
        if not hasattr(self._session, "stream"):
            raise self._unusable("huggingface_hub is older than 1.0", "install toutates[hub], which brings a newer one")
        self._token = get_token()
        # A client of HTTP shows what it refuses.
        if self._token and not (self._token.isascii() and self._token.isprintable()):
            raise self._unusable("the token of the Hub has characters that no token has", "set HF_TOKEN again")
        revision = quote(specification.revision or "main", safe="")
        self._tree = f"{self._endpoint}/api/models/{specification.bucket}/tree/{revision}"
        self._files = f"{self._endpoint}/{specification.bucket}/resolve/{revision}"

    @property
    def endpoint(self) -> str:
        """The URL of the Hub."""
        return self._endpoint

    def objects(self, prefix: str) -> Iterator[S3Object]:
        """See ``ObjectStore.objects``: every file, with the digest of its content as ETag."""
        url, count = f"{self._tree}?recursive=true", 0
        for _ in range(_MAX_PAGES):
            entries, following = self._page(url)
            for found in entries:
                if found.key.startswith(prefix):
                    yield found
            count += len(entries)
            if count > _MAX_OBJECTS:
                raise self._unusable(f"it has more than {_MAX_OBJECTS} files", "name a model of fewer files")
            if not following:
                return
            url = urljoin(url, following)
            if not url.startswith(f"{self._endpoint}/"):  # the token is for the Hub alone
                break
        raise self._no_hub()

    def download(self, found: S3Object, target: Any, on_bytes: Callable[[int], None]) -> None:
        """See ``ObjectStore.download``. What is cut off goes on where it was cut."""
        url = f"{self._files}/{quote(found.key)}"
        shown = f"{self._specification.bucket_url}/{found.key}"
        digest, at, furthest, failures = _digest_of(found), 0, 0, 0
        pace = Pace(self._patience)
        while at < found.size:
            try:
                with self._answer(url, at) as (answer, is_rest):
                    if not is_rest and at:
                        on_bytes(-at)
                        digest, at = _digest_of(found), 0
                    target.seek(at)
                    for chunk in pace.chunks(_reader(answer.iter_raw())):
                        self._check_stopping()
                        target.write(chunk)  # which refuses what is beyond the size
                        digest.update(chunk)
                        at += len(chunk)
                        on_bytes(len(chunk))
                if at < found.size:
                    raise ConnectionError(f"it ends after {at} of {found.size} bytes")
            except (ToutatesError, ObjectChanged):
                raise
            except Exception as error:
                self._check_stopping()
                if isinstance(error, _Refused) and error.status in (404, 416):
                    raise ObjectChanged(f"'{shown}' is gone, or has become smaller") from error
                failures = 1 if at > furthest else failures + 1
                furthest = max(at, furthest)
                self._wait_or_raise(error, max(failures, pace.misses), f"file {found.key!r} cannot be read")
        if digest.hexdigest() != found.etag:
            raise ObjectChanged(f"what came for '{shown}' does not have the digest that the listing says")

    def is_encrypted(self, found: S3Object) -> bool:
        """See ``ObjectStore.is_encrypted``: no ETag here looks like an MD5."""
        return False

    def close(self) -> None:
        """See ``ObjectStore.close``. The HTTP client is the library's, and lives as long as the process."""
        with self._lock:
            for one in self._sockets:
                try:
                    one.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass  # it has ended by itself

    # --- requests ----------------------------------------------------------------------------------------------------

    def _page(self, url: str) -> tuple[list[S3Object], str]:
        """The files on a page of the listing, and the URL of the next page; "" if there is none."""
        failures = 0
        while True:
            try:
                body = bytearray()
                end = time.monotonic() + self._patience.whole_s
                with self._answer(url, 0) as (answer, _):
                    for chunk in answer.iter_raw():  # as it comes
                        self._check_stopping()
                        body += chunk
                        if time.monotonic() > end:
                            raise TimeoutError(f"it takes longer than {self._patience.whole_s:g} s")
                        if len(body) > _MAX_PAGE:
                            raise self._no_hub()
                    following = answer.links.get("next", {}).get("url", "")
                return [_object(entry) for entry in json.loads(body) if entry["type"] == "file"], following
            except ToutatesError:
                raise
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                raise self._no_hub() from error
            except Exception as error:
                self._check_stopping()
                failures += 1
                self._wait_or_raise(error, failures, "it cannot be listed")

    @contextmanager
    def _answer(self, url: str, at: int) -> Iterator[tuple[Any, bool]]:
        """A successful answer whose content is to be read, and whether that is what comes from byte ``at`` on."""
        self._check_stopping()
        headers = {"accept-encoding": "identity"}
        if self._token:
            headers["authorization"] = f"Bearer {self._token}"  # which the client leaves out where it is sent elsewhere
        if at:
            headers["range"] = f"bytes={at}-"
        with self._session.stream("GET", url, headers=headers, timeout=_TIMEOUTS, follow_redirects=True) as answer:
            if not answer.is_success:
                raise _Refused(answer.status_code)
            stream = answer.extensions.get("network_stream")
            connection: socket.socket | None = stream.get_extra_info("socket") if stream is not None else None
            with self._lock:
                if connection is not None:
                    self._sockets.add(connection)
            try:
                self._check_stopping()  # `close` may have been called before the socket was noted
                yield answer, answer.status_code == 206
            finally:
                with self._lock:
                    if connection is not None:
                        self._sockets.discard(connection)

    def _check_stopping(self) -> None:
        if self._stopping.is_set():
            raise RepositoryError("the server is stopping")

    # --- errors ------------------------------------------------------------------------------------------------------

    def _wait_or_raise(self, error: Exception, failures: int, problem: str) -> None:
        """Wait before the next request if there is to be one."""
        status = error.status if isinstance(error, _Refused) else 0
        asked = self._specification
        if status in (401, 403, 404):
            raise self._unusable(
                f"the Hub has no such model or revision, or does not show it (status {status})",
                f"{_TOKEN}; a gated model's conditions are accepted on its page",
            ) from error
        if type(error).__name__ == "OfflineModeIsEnabled":
            raise self._unusable(f"{problem}: HF_HUB_OFFLINE is set", "remove it, or name a directory") from error
        will_change = not status or status == 429 or status >= 500
        if not will_change or failures >= _ATTEMPTS:
            told = _URL.sub("URL", one_line(error, _MAX_SHOWN)) or type(error).__name__
            raise RepositoryError(
                f"{asked.flag} {asked.url} at {self._endpoint}: {problem} now: {told}; check the network, HTTPS_PROXY "
                "and HF_ENDPOINT"
            ) from error
        self._stopping.wait(self._patience.wait_s(failures))
        self._check_stopping()

    def _unusable(self, problem: str, remedy: str) -> ConfigurationError:
        asked = self._specification
        return ConfigurationError(problem, key=asked.flag, value=asked.url, remedy=remedy)

    def _no_hub(self) -> ConfigurationError:
        return self._unusable(f"what answers at {self._endpoint} lists files as no Hub does", "check HF_ENDPOINT")


def _reader(pieces: Iterator[bytes]) -> Callable[[int], bytes]:
    """Reads pieces as they come, whatever their size."""
    return lambda size: next(pieces, b"")


def _object(entry: Any) -> S3Object:
    path, size = entry["path"], entry["size"]
    digest = entry["lfs"]["oid"] if entry.get("lfs") else entry["oid"]
    if not isinstance(size, int) or not (_GIT.fullmatch(digest) or _SHA256.fullmatch(digest)):
        raise ValueError("an entry is none of a file")
    return listed_object(path, digest, size)


def _digest_of(found: S3Object) -> Any:
    """What computes the digest by which the Hub names a file's content."""
    if _SHA256.fullmatch(found.etag):
        return hashlib.sha256()
    return hashlib.sha1(b"blob %d\0" % found.size, usedforsecurity=False)
