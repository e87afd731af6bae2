"""Where the archives come from that the management API is told to register: a directory, and allowed URLs."""

from __future__ import annotations

import http.client
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import IO, Any, Final

import trio

from toutates.api.torchserve.answers import Problem
from toutates.repositories.pace import LEAST_RATE, Pace, PacedResponse, Patience
from toutates.repositories.web.allowed import AllowedUrls, PlainUrl
from toutates.system.text import shown
from toutates.system.thread_pools import ThreadPool

__all__ = ["FOLDERS", "Downloads"]

#: What reads, writes and removes files of the repository, which takes no longer than the disk does.
FOLDERS: Final = ThreadPool("folders", 8)
#: Downloads take as long as somebody else's server wants.
_DOWNLOADS: Final = ThreadPool("downloads", 8)
#: Of a queue that others wait in too.
_MOST_WAITING: Final = 32
#: Bytes of an archive, seconds without any of them, and seconds in all.
_MOST_BYTES: Final = 16 * 2**30
_TIMEOUT_S: Final = 30.0
_LONGEST_S: Final = 1_800.0
_CHUNK: Final = 1_048_576


def _not_found(url: str) -> Problem:
    return Problem(404, "ModelNotFoundException", f"Model not found at: {url}")


class Downloads:
    """Finds archives by what clients call them.

    Args:
        store: directory of archives; None for none.
        allowed: beginnings of the URLs that archives may be downloaded from.
        least_rate: at which they have to come, bytes per second; 0 for any.
    """

    def __init__(self, store: Path | None, allowed: Sequence[str], least_rate: int = LEAST_RATE) -> None:
        self._store = store
        self._allowed = AllowedUrls(allowed)
        self._least_rate = least_rate

    @asynccontextmanager
    async def archive(self, url: str) -> AsyncIterator[Path]:
        """The archive of a name or a URL; a downloaded one is there until the block ends. On the main thread.

        Raises:
            Problem: there is none, or it may not be had.
        """
        if not _is_url(url):
            yield await FOLDERS.run(self._stored, url)
            return
        try:
            plain = self._allowed.plain(url)
        except ValueError as error:
            problem = f"Given URL {shown(url)} does not match any allowed URL(s)"
            raise Problem(404, "ModelNotFoundException", problem) from error
        if _DOWNLOADS.limiter.statistics().tasks_waiting >= _MOST_WAITING:
            problem = "Too many archives are being downloaded; try again later."
            raise Problem(503, "ServiceUnavailableException", problem)
        # At once, or others would be let in meanwhile. Abandoned at a shutdown, which must not wait for it.
        folder, path = await _DOWNLOADS.run(self._download, plain, abandon_on_cancel=True)
        try:
            yield path
        finally:
            with trio.CancelScope(shield=True):
                await FOLDERS.run(folder.cleanup)

    def _stored(self, name: str) -> Path:
        if ".." in PurePosixPath(name).parts:
            raise Problem(404, "ModelNotFoundException", f"Relative path is not allowed in url: {name}")
        if self._store is None or "/" in name or "\\" in name or "\0" in name or not name.strip("."):
            raise _not_found(name)
        path = self._store / name
        if not path.exists():
            raise _not_found(name)
        return path

    def has(self, url: str) -> bool:
        """Whether an archive can be had again: the store has one of this name, or its URL is allowed."""
        try:
            return bool(self._allowed.plain(url) if _is_url(url) else self._stored(url))
        except (Problem, ValueError):
            return False

    def _download(self, url: PlainUrl) -> tuple[TemporaryDirectory[str], Path]:
        folder = TemporaryDirectory(prefix="toutates-archive-", ignore_cleanup_errors=True)
        try:
            target = Path(folder.name, (PurePosixPath(url.path).name or "archive.mar")[-200:])
            self._fetch(url, target)
        except BaseException:
            folder.cleanup()
            raise
        return folder, target

    def _fetch(self, url: PlainUrl, target: Path) -> None:
        pace = _Limited(self._least_rate)
        opener = urllib.request.build_opener(_Redirects(self._allowed), _Http(pace), _Https(pace))
        received = 0
        try:
            with opener.open(str(url), timeout=_TIMEOUT_S) as source, target.open("wb") as out:
                while data := source.read(_CHUNK):
                    received += len(data)
                    if received > _MOST_BYTES or time.monotonic() > pace.ends:
                        raise TimeoutError
                    out.write(data)
        except (OSError, ValueError, http.client.HTTPException) as error:
            if isinstance(error, urllib.error.HTTPError):
                error.close()  # it is the answer, and has the connection
            raise Problem(400, "DownloadArchiveException", f"Failed to download archive from: {url}") from error


def _is_url(text: str) -> bool:
    return "://" in text or text.startswith("//")


# --- by urllib -------------------------------------------------------------------------------------------------------


class _Redirects(urllib.request.HTTPRedirectHandler):
    """An allowed server must not send us to one that is not."""

    def __init__(self, allowed: AllowedUrls) -> None:
        self._allowed = allowed

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        try:
            allowed = str(self._allowed.plain(newurl))
        finally:
            fp.close()  # or urllib would read the whole body, however long it is
        return super().redirect_request(req, fp, code, msg, headers, allowed)


class _Limited(Pace):
    """A pace that ends after some time, be it within a head that never ends."""

    def __init__(self, least_rate: int) -> None:
        super().__init__(Patience(least_rate))
        self.ends = time.monotonic() + _LONGEST_S

    def count(self, size: int, took_s: float) -> None:
        super().count(size, took_s)
        if time.monotonic() > self.ends:
            raise TimeoutError


class _Http(urllib.request.HTTPHandler):
    """Connections whose answers come by a pace."""

    def __init__(self, pace: Pace) -> None:
        super().__init__()
        self._pace = pace

    def http_open(self, req: urllib.request.Request) -> Any:
        return self.do_open(partial(_paced, http.client.HTTPConnection, self._pace), req)


class _Https(urllib.request.HTTPSHandler):
    """The same with TLS."""

    def __init__(self, pace: Pace) -> None:
        super().__init__()
        self._pace = pace

    def https_open(self, req: urllib.request.Request) -> Any:
        return self.do_open(partial(_paced, http.client.HTTPSConnection, self._pace), req)


def _paced(kind: Any, pace: Pace, *arguments: Any, **named: Any) -> Any:
    connection = kind(*arguments, **named)
    connection.response_class = partial(PacedResponse, pace, head_s=_LONGEST_S)
    return connection
