"""The one module that uses urllib3: requests to stores of objects, tried again, gone on with, and bounded.

Nothing is sent after a stop, and a stop ends what is being read. Texts of errors never have a query in them, which may
be a signature.
"""

from __future__ import annotations

import logging
import os
import re
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib import resources
from types import MappingProxyType
from typing import Any, Final, NoReturn
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from toutates.repositories.pace import CHUNK, USUAL, Pace, Patience, paced_pools
from toutates.repositories.s3.keys import S3Object
from toutates.repositories.s3.store import ObjectChanged
from toutates.repositories.web.redirects import MAX_REDIRECTS, followed, origin
from toutates.system.errors import ConfigurationError, RepositoryError, ToutatesError
from toutates.system.text import one_line

__all__ = ["Asked", "HttpClient", "Refused", "tls_context"]

_CONNECT_SECONDS: Final = 5.0
_READ_SECONDS: Final = 20.0
#: Requests that fail one after the other without a byte of content between them.
_ATTEMPTS: Final = 4
_MAX_REFUSAL: Final = 16_384  # bytes that are read of an answer without a content for us
_MAX_SHOWN: Final = 300  # characters of a text that is not ours
_URL: Final = re.compile(r"\b\w+://\S+|(?<=url: )\S+")
_NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})

#: From method, URL and headers of a request the headers that show who asks.
Authorize = Callable[[str, str, Mapping[str, str]], Mapping[str, str]]


class Refused(Exception):
    """An answer with a status that is no success.

    Attributes:
        status: HTTP's.
        headers: by any case of their names.
        origin: scheme, host and port of who answers, which after a redirect may be anybody.
    """

    def __init__(self, status: int, headers: Mapping[str, str], origin: tuple[str, str, int]) -> None:
        super().__init__(f"it answers with status {status}")
        self.status, self.headers, self.origin = status, headers, origin


class Asked:
    """Where requests go, for messages.

    Args:
        flag: that the operator has given.
        url: its value.
        service: what answers, such as "Google Cloud Storage".
        check: what to check where it cannot be reached.
    """

    def __init__(self, flag: str, url: str, service: str, check: str) -> None:
        self.flag, self.url, self.service, self.check = flag, url, service, check

    def unusable(self, problem: str, remedy: str) -> ConfigurationError:
        """An operator has to mend something."""
        return ConfigurationError(problem, key=self.flag, value=self.url, remedy=remedy)

    def unreachable(self, problem: str, error: Exception) -> RepositoryError:
        """Trying again later may help."""
        told = _URL.sub("URL", one_line(error, _MAX_SHOWN)) or type(error).__name__
        return RepositoryError(f"{self.flag} {self.url}: {problem} now: {told}; check {self.check}")


class HttpClient:
    """Requests to one store. Methods may be called in several threads at once, and block.

    Args:
        asked: for messages.
        explain: problem and remedy for an answer that an operator has to do something about; None for others.
        stopping: once it is set, no request is sent, nor tried again.
        connections: how many threads will read at once.
        authorize: see Authorize. What it gives is sent to the host of the request alone, and no further.
        patience: how long is waited.
    """

    def __init__(
        self,
        asked: Asked,
        explain: Callable[[Refused], tuple[str, str] | None],
        stopping: threading.Event,
        connections: int,
        authorize: Authorize = lambda method, url, headers: _NO_HEADERS,
        *,
        patience: Patience = USUAL,
    ) -> None:
        import urllib3

        logging.getLogger("urllib3").setLevel(logging.WARNING)  # it would show signed URLs
        self._asked = asked
        self._explain = explain
        self._stopping = stopping
        self._authorize = authorize
        self._patience = patience
        self._of_heads = replace(patience, least_rate=0)  # contents have their own, or are short: see `_short`
        self._lock = threading.Lock()
        #: answers that are being read
        self._answers: set[Any] = set()
        self._proxies = getproxies()
        self._pools: dict[str, Any] = {}
        self._settings: dict[str, Any] = {
            "maxsize": connections,
            "timeout": urllib3.Timeout(connect=_CONNECT_SECONDS, read=_READ_SECONDS),
            "retries": False,
            "ssl_context": tls_context(),
        }

    # --- what stores ask for -----------------------------------------------------------------------------------------

    def read(
        self,
        url: str,
        limit: int,
        problem: str,
        headers: Mapping[str, str] = _NO_HEADERS,
        method: str = "GET",
    ) -> tuple[Mapping[str, str], bytes, str]:
        """A short content as a whole.

        Args:
            url: of it.
            limit: bytes that it may have.
            problem: what cannot be done where this fails, such as "it cannot be listed".
            headers: to send.
            method: HEAD for no content.

        Returns:
            Headers of the answer, content, and the URL that it came from in the end.

        Raises:
            ConfigurationError, RepositoryError: it cannot be had.
            Refused: an answer with a status of 400 to 499 for which ``explain`` has nothing.
        """
        failures = 0
        while True:
            try:
                with self._answer(method, url, headers) as (answer, came_from):
                    body = self._short(answer, limit)
                    if len(body) > limit:
                        raise self._asked.unusable(
                            f"{problem}: what answers is longer than {limit} bytes",
                            f"name a place of {self._asked.service}",
                        )
                    return answer.headers, body, came_from
            except (ToutatesError, Refused):
                raise
            except Exception as error:
                self._check_stopping()
                failures += 1
                self._wait_or_raise(error, failures, problem)

    def download(
        self,
        url: str,
        found: S3Object,
        target: Any,
        on_bytes: Callable[[int], None],
        headers: Mapping[str, str] = _NO_HEADERS,
        digest: Callable[[], Any] | None = None,
        check: Callable[[Mapping[str, str]], None] = lambda headers: None,
    ) -> str:
        """Write an object's content to a file. What is cut off goes on where it was cut.

        Args:
            url: of it.
            found: as it was listed; what is longer is refused by the target.
            target: see ``ObjectStore.download``.
            on_bytes: the same.
            headers: to send.
            digest: makes a digest of hashlib; None for none.
            check: looks at the headers of each answer, and raises ObjectChanged.

        Returns:
            The digest in hexadecimal; "" without one.

        Raises:
            ObjectChanged: it is no longer what was listed.
            ConfigurationError, RepositoryError: it cannot be read.
        """
        shown = _without_query(url)
        problem = f"{found.key!r} cannot be read"
        summed = digest() if digest else None
        pace = Pace(self._patience)
        at, furthest, failures, validator = 0, 0, 0, ""
        while at < found.size:
            asking = dict(headers)
            if at:
                asking["Range"] = f"bytes={at}-"
                if validator:
                    asking["If-Range"] = validator
            try:
                with self._answer("GET", url, asking) as (answer, _):
                    check(answer.headers)
                    validator = _strong(answer.headers.get("ETag", ""))
                    if at and not (answer.status == 206 and _begins_at(answer.headers.get("Content-Range", ""), at)):
                        on_bytes(-at)
                        summed, at = digest() if digest else None, 0
                        if answer.status == 206:
                            raise ConnectionError("it sends another part than was asked for")
                    target.seek(at)
                    for chunk in pace.chunks(partial(answer.read1, decode_content=False)):
                        self._check_stopping()
                        target.write(chunk)
                        if summed is not None:
                            summed.update(chunk)
                        at += len(chunk)
                        on_bytes(len(chunk))
                if at < found.size:
                    raise ConnectionError(f"it ends after {at} of {found.size} bytes")
            except (ToutatesError, ObjectChanged):
                raise
            except Refused as error:
                if error.status in (404, 412, 416):
                    raise ObjectChanged(f"'{shown}' has changed or is gone (status {error.status})") from error
                raise self._asked.unreachable(problem, error) from error
            except Exception as error:
                self._check_stopping()
                failures = 1 if at > furthest else failures + 1
                furthest = max(at, furthest)
                self._wait_or_raise(error, max(failures, pace.misses), problem)
        return str(summed.hexdigest()) if summed is not None else ""

    def close(self) -> None:
        """See ``ObjectStore.close``."""
        with self._lock:
            answers, pools = list(self._answers), list(self._pools.values())
        for answer in answers:
            try:
                answer.shutdown()
            except (OSError, ValueError, RuntimeError):
                pass  # it has ended by itself
        for pool in pools:
            pool.clear()

    # --- requests ----------------------------------------------------------------------------------------------------

    @contextmanager
    def _answer(self, method: str, url: str, headers: Mapping[str, str]) -> Iterator[tuple[Any, str]]:
        """A successful answer whose content is to be read, and the URL that gave it."""
        own = origin(url)
        for _ in range(MAX_REDIRECTS + 1):
            self._check_stopping()
            sent = {"Accept-Encoding": "identity", "User-Agent": "toutates", **headers}
            if origin(url) == own:
                sent.update(self._authorize(method, url, sent))
            else:
                sent.pop("Authorization", None)  # as that of a server of tokens, which redirects
            pool, by_proxy = self._pool(url)
            answer = pool.request(method, url, headers=sent, preload_content=False, redirect=False)
            try:
                with self._lock:
                    self._answers.add(answer)
                self._check_stopping()  # `close` may have been called before the answer was noted
                location = answer.headers.get("Location", "") if answer.status in _REDIRECTS else ""
                if not location:
                    if not 200 <= answer.status < 300:
                        self._refuse(answer, origin(url))
                    yield answer, url
                    return
                if int(answer.headers.get("Content-Length") or _MAX_REFUSAL) < _MAX_REFUSAL:
                    self._short(answer, _MAX_REFUSAL)  # so that the connection can be used again
                try:
                    url = followed(url, location, by_proxy=by_proxy)
                except ValueError as error:
                    raise self._asked.unusable(
                        f"a redirect of '{_without_query(url)}' is not followed: {error}",
                        "name the place itself, with https",
                    ) from error
            finally:
                with self._lock:
                    self._answers.discard(answer)
                if answer.length_remaining != 0:
                    answer.close()  # what was not read cannot be followed by another answer
                answer.release_conn()
        raise self._asked.unusable(
            f"'{_without_query(url)}' redirects more than {MAX_REDIRECTS} times", "name the place itself"
        )

    def _short(self, answer: Any, limit: int) -> bytes:
        """What is left of an answer: all of it, or more than ``limit`` bytes.

        Raises:
            TimeoutError: it takes too long.
        """
        body = bytearray()
        end = time.monotonic() + self._patience.whole_s
        # As it comes: what waits for a certain number of bytes would wait for a byte at a time, each just in time.
        while len(body) <= limit and (piece := answer.read1(CHUNK, decode_content=False)):
            self._check_stopping()
            body += piece
            if time.monotonic() > end:
                raise TimeoutError(f"it takes longer than {self._patience.whole_s:g} s")
        return bytes(body)

    def _refuse(self, answer: Any, by: tuple[str, str, int]) -> NoReturn:
        self._short(answer, _MAX_REFUSAL)
        refused = Refused(answer.status, answer.headers, by)
        if answer.status in (408, 429) or answer.status >= 500:
            raise ConnectionError(str(refused))
        explained = self._explain(refused)
        if explained is not None:
            raise self._asked.unusable(*explained) from refused
        raise refused

    def _pool(self, url: str) -> tuple[Any, bool]:
        """What makes connections to a host, and whether that is a proxy."""
        import urllib3

        scheme, host, _ = origin(url)
        proxy = "" if proxy_bypass(host) else self._proxies.get(scheme, self._proxies.get("all", ""))
        with self._lock:
            if proxy not in self._pools:
                if not proxy:
                    self._pools[proxy] = urllib3.PoolManager(**self._settings)
                else:
                    named = proxy if "://" in proxy else f"http://{proxy}"
                    parts = urlsplit(named)
                    signed = urllib3.make_headers(proxy_basic_auth=f"{parts.username}:{parts.password or ''}")
                    self._pools[proxy] = urllib3.ProxyManager(
                        named, proxy_headers=signed if parts.username else None, **self._settings
                    )
                made = self._pools[proxy]
                made.pool_classes_by_scheme = paced_pools(made.pool_classes_by_scheme, self._of_heads)
            return self._pools[proxy], bool(proxy)

    def _check_stopping(self) -> None:
        if self._stopping.is_set():
            raise RepositoryError("the server is stopping")

    def _wait_or_raise(self, error: Exception, failures: int, problem: str) -> None:
        """Wait before the next request if there is to be one."""
        if isinstance(error, (ssl.SSLCertVerificationError,)) or "CERTIFICATE_VERIFY_FAILED" in str(error):
            raise self._asked.unusable(
                f"{problem}: its certificate is not trusted", "name a file with its authority by SSL_CERT_FILE"
            ) from error
        if failures >= _ATTEMPTS:
            raise self._asked.unreachable(problem, error) from error
        self._stopping.wait(self._patience.wait_s(failures))
        self._check_stopping()


def tls_context() -> ssl.SSLContext:
    """A context that trusts the authorities of this machine; where it has none, as in small images, botocore's."""
    context = ssl.create_default_context()
    paths = ssl.get_default_verify_paths()
    if not paths.cafile and not (paths.capath and os.listdir(paths.capath)):
        context.load_verify_locations(cadata=resources.files("botocore").joinpath("cacert.pem").read_text("utf-8"))
    return context


def _strong(etag: str) -> str:
    """An ETag that may stand in If-Range; "" if this one may not."""
    return etag if etag.startswith('"') else ""


def _begins_at(content_range: str, at: int) -> bool:
    return content_range.startswith(f"bytes {at}-")


def _without_query(url: str) -> str:
    return url.partition("?")[0]
