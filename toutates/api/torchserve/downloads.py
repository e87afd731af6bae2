"""Where the archives come from that the management API is told to register: a directory, and allowed URLs."""

from __future__ import annotations

import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from email.message import Message
from pathlib import Path, PurePosixPath
from typing import IO, Final
from urllib.parse import urlsplit

from toutates.api.torchserve.answers import Problem

__all__ = ["Downloads"]

#: Bytes of an archive, seconds without any of them, and seconds in all.
_MOST_BYTES: Final = 16 * 2**30
_TIMEOUT_S: Final = 30.0
_LONGEST_S: Final = 1_800.0
_CHUNK: Final = 1_048_576


def _not_found(url: str) -> Problem:
    return Problem(404, "ModelNotFoundException", f"Model not found at: {url}")


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """An allowed server must not send us to one that is not."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> None:
        return None


class Downloads:
    """Finds archives by what clients call them.

    Args:
        store: directory of archives; None for none.
        allowed: beginnings of the URLs that archives may be downloaded from.
    """

    def __init__(self, store: Path | None, allowed: Sequence[str]) -> None:
        self._store = store
        self._allowed = tuple(allowed)

    @contextmanager
    def archive(self, url: str) -> Iterator[Path]:
        """The archive of a name or a URL; a downloaded one is there until the block ends. Blocks.

        Raises:
            Problem: there is none, or it may not be had.
        """
        if "://" in url or url.startswith("//"):
            if not url.startswith(self._allowed):
                problem = f"Given URL {url} does not match any allowed URL(s)"
                raise Problem(404, "ModelNotFoundException", problem)
            with tempfile.TemporaryDirectory(prefix="toutates-archive-", ignore_cleanup_errors=True) as directory:
                yield _download(url, Path(directory))
            return
        if ".." in PurePosixPath(url).parts:
            raise Problem(404, "ModelNotFoundException", f"Relative path is not allowed in url: {url}")
        if self._store is None or "/" in url or "\\" in url or "\0" in url or not url.strip("."):
            raise _not_found(url)
        path = self._store / url
        if not path.exists():
            raise _not_found(url)
        yield path

    def has(self, url: str) -> bool:
        """Whether an archive can be had again: the store has one of this name, or its URL is allowed."""
        if "://" in url:
            return url.startswith(self._allowed)
        named = bool(url.strip(".")) and "/" not in url and "\0" not in url
        return self._store is not None and named and (self._store / url).exists()


def _download(url: str, directory: Path) -> Path:
    name = PurePosixPath(urlsplit(url).path).name or "archive.mar"
    target = directory / name[-200:]
    opener = urllib.request.build_opener(_NoRedirects)
    received, ends = 0, time.monotonic() + _LONGEST_S
    try:
        with opener.open(url, timeout=_TIMEOUT_S) as source, target.open("wb") as out:
            while data := source.read(_CHUNK):
                received += len(data)
                if received > _MOST_BYTES or time.monotonic() > ends:
                    raise Problem(400, "DownloadArchiveException", f"Failed to download archive from: {url}")
                out.write(data)
    except (OSError, ValueError, urllib.error.URLError) as error:
        raise Problem(400, "DownloadArchiveException", f"Failed to download archive from: {url}") from error
    return target
