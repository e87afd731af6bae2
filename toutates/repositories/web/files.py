"""Files of a web server: one graph, or a folder whose page lists what is in it.

A file is known by its ETag, else by the time of its last change and its size, else by its size alone, which the log
says once.
"""

from __future__ import annotations

import base64
import logging
import netrc
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote, urljoin, urlsplit

from toutates.repositories.pace import USUAL, Patience
from toutates.repositories.s3.download import THREADS
from toutates.repositories.s3.keys import S3Object
from toutates.repositories.s3.store import ObjectChanged
from toutates.repositories.specification import BucketSpecification
from toutates.repositories.web.client import Asked, Authorize, HttpClient, Refused
from toutates.repositories.web.redirects import origin
from toutates.system.errors import ConfigurationError

__all__ = ["WebFile", "WebStore", "explained", "netrc_password", "state_of"]

logger = logging.getLogger(__name__)

_MAX_PAGE: Final = 4 * 2**20  # bytes of a page that lists a folder
_MAX_PAGES: Final = 2_000
_MAX_DEPTH: Final = 8
#: Each look costs a request for each file.
_MAX_FILES: Final = 2_000
#: What exporters call the weights of NAME.onnx.
_WEIGHTS: Final = (".onnx.data", ".onnx_data", ".data")


class WebFile:
    """Asks what a file is now.

    Args:
        asked: for messages.
        client: for requests.
    """

    def __init__(self, asked: Asked, client: HttpClient) -> None:
        self._asked = asked
        self._client = client
        self._is_warned = False

    def look(self, url: str) -> tuple[str, int]:
        """What a file's content is known by, and its bytes.

        Raises:
            ConfigurationError, RepositoryError: there is none, or it cannot be read.
        """
        found = self.look_if_there(url)
        if found is None:
            raise self._asked.unusable("there is no such file (404)", "correct the URL")
        return found

    def look_if_there(self, url: str) -> tuple[str, int] | None:
        """The same; None for a file that is not there, or is a page."""
        problem = f"{unquote(urlsplit(url).path)!r} cannot be read"
        try:
            headers, _, _ = self._client.read(url, 0, problem, method="HEAD")
        except Refused as error:
            if error.status in (404, 410):
                return None
            raise self._asked.unreachable(problem, error) from error
        if headers.get("Content-Type", "").startswith("text/html"):
            raise self._asked.unusable(
                f"{unquote(urlsplit(url).path)!r} is a page and no file, as of a login", "give the URL of the file"
            )
        size = headers.get("Content-Length", "")
        if not (size.isascii() and size.isdigit() and len(size) < 20):
            raise self._asked.unusable(
                "the server does not say how large the file is", "use one that sends Content-Length"
            )
        state = state_of(headers)
        if not state and not self._is_warned:
            self._is_warned = True
            logger.warning(
                "%s: the server sends neither ETag nor Last-Modified, so only a change of a file's size shows",
                self._asked.url,
            )
        return state or f"size {int(size)}", int(size)


class WebStore:
    """See ``ObjectStore``.

    Args:
        specification: a folder, or a graph in one.
        stopping: once it is set, no request is sent, nor tried again.
        patience: how long is waited.
    """

    def __init__(
        self, specification: BucketSpecification, stopping: threading.Event, patience: Patience = USUAL
    ) -> None:
        self._asked = Asked(specification.flag, specification.url, "a web server", "the URL, the network, HTTPS_PROXY")
        self._client = HttpClient(
            self._asked, explained, stopping, THREADS + 2, netrc_password(self._asked), patience=patience
        )
        self._endpoint = specification.bucket_url
        self._graph = specification.prefix + specification.file if specification.file else ""
        self._file = WebFile(self._asked, self._client)

    @property
    def endpoint(self) -> str:
        """The URL of the service."""
        return self._endpoint

    def objects(self, prefix: str) -> Iterator[S3Object]:
        """See ``ObjectStore.objects``."""
        if self._graph:
            yield S3Object(self._graph, *self._file.look(self._url(self._graph)))
            for suffix in _WEIGHTS:
                key = self._graph.removesuffix(".onnx") + suffix
                try:
                    found = self._file.look_if_there(self._url(key))
                except ConfigurationError:
                    continue  # a page, as some servers answer for whatever they do not have
                if found is not None:
                    yield S3Object(key, *found)
            return
        pages = files = 0
        folders = [(prefix.rpartition("/")[0] + "/" if "/" in prefix else "", 0)]
        while folders:
            folder, depth = folders.pop()
            pages += 1
            if pages > _MAX_PAGES or depth > _MAX_DEPTH:
                raise self._asked.unusable(
                    f"its pages list more than {_MAX_PAGES} folders, or {_MAX_DEPTH} of them in each other",
                    "name a folder of models alone",
                )
            for key in self._entries(folder, is_root=depth == 0):
                if key.endswith("/"):
                    folders.append((key, depth + 1))
                elif key.startswith(prefix):
                    files += 1
                    if files > _MAX_FILES:
                        raise self._asked.unusable(
                            f"there are more than {_MAX_FILES} files, and each costs a request",
                            "name a folder of fewer, or an archive (.tar.gz) of it",
                        )
                    found = self._file.look_if_there(self._url(key))
                    if found is not None:
                        yield S3Object(key, *found)

    def download(self, found: S3Object, target: Any, on_bytes: Callable[[int], None]) -> None:
        """See ``ObjectStore.download``."""

        def check(headers: Mapping[str, str]) -> None:
            state, size = state_of(headers), headers.get("Content-Length", "")
            if state and state != found.etag:
                raise ObjectChanged(f"'{self._url(found.key)}' has changed")
            if "Content-Range" not in headers and size and size != str(found.size):
                raise ObjectChanged(f"'{self._url(found.key)}' has {size} bytes in place of {found.size}")

        self._client.download(self._url(found.key), found, target, on_bytes, check=check)

    def is_encrypted(self, found: S3Object) -> bool:
        """See ``ObjectStore.is_encrypted``: an ETag of a web server is no MD5 that could be relied on."""
        return True

    def close(self) -> None:
        """See ``ObjectStore.close``."""
        self._client.close()

    def _url(self, key: str) -> str:
        return f"{self._endpoint}/{quote(key)}"

    def _entries(self, folder: str, *, is_root: bool) -> list[str]:
        """Keys of what a page lists, of folders with a slash at the end."""
        url = self._url(folder)
        try:
            headers, body, came_from = self._client.read(url, _MAX_PAGE, "it cannot be listed")
        except Refused as error:
            if error.status in (404, 410):
                if not is_root:
                    return []
                raise self._asked.unusable("there is no such folder (404)", "correct the URL") from error
            raise self._asked.unreachable("it cannot be listed", error) from error
        if not headers.get("Content-Type", "").startswith("text/html"):
            raise self._asked.unusable(
                "is no page that lists a folder",
                "name a file (.onnx), an archive (.tar.gz, .zip) or a folder that the server lists",
            )
        page = _Links()
        page.feed(body.decode(errors="replace"))
        start = f"{self._endpoint}/"
        if not came_from.startswith(start):
            raise self._asked.unusable("its page is on another server", "name that one")
        keys: dict[str, None] = {}
        for link in page.links:
            try:
                target = urljoin(came_from, link).partition("#")[0]
            except ValueError:
                continue
            key = unquote(target.removeprefix(start)) if target.startswith(start) and "?" not in target else ""
            rest = key.removeprefix(folder) if key.startswith(folder) else ""
            # What lies in the folder itself: no page above, and no link to elsewhere.
            if rest and "/" not in rest.removesuffix("/") and rest.removesuffix("/") not in (".", ".."):
                keys[key] = None
        return list(keys)


class _Links(HTMLParser):
    """Collects the targets of a page's links."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a" and len(self.links) <= _MAX_FILES + _MAX_PAGES:
            self.links += [value for name, value in attrs if name == "href" and value]


def state_of(headers: Mapping[str, str]) -> str:
    """What the content of an answer is known by: its ETag, or the time of its last change; "" without either."""
    etag = headers.get("ETag", "")
    if etag:
        return etag if etag.isascii() and etag.isprintable() else repr(etag)
    changed = headers.get("Last-Modified", "")
    return f"changed {changed}" if changed else ""


def explained(refused: Refused) -> tuple[str, str] | None:
    """Problem and remedy for an answer of a web server; see HttpClient."""
    if refused.status in (401, 403):
        return f"access is denied ({refused.status})", "write name and password of the host into ~/.netrc"
    if refused.status == 405:
        return "the server does not answer HEAD (405)", "use one that does"
    return None


def netrc_password(asked: Asked) -> Authorize:
    """What adds the password that ~/.netrc, or the file that NETRC names, has for a host."""
    path = Path(os.environ.get("NETRC", "") or Path.home() / ".netrc")
    try:
        known = netrc.netrc(path)
    except FileNotFoundError:
        return lambda method, url, headers: {}
    except (OSError, netrc.NetrcParseError, UnicodeError) as error:
        raise asked.unusable(f"'{path}' cannot be read ({type(error).__name__})", "correct it, or remove it") from error

    def authorize(method: str, url: str, headers: Mapping[str, str]) -> Mapping[str, str]:
        _, host, _ = origin(url)
        found = known.hosts.get(host)
        if found is None:
            return {}
        return {"Authorization": "Basic " + base64.b64encode(f"{found[0]}:{found[2]}".encode()).decode()}

    return authorize
