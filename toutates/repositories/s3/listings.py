"""Listings of S3 on disk: what a server serves that starts while S3 does not answer.

    <cache>/listings/<name>     of one prefix of one bucket:
        SHA-256 of all that follows, in hexadecimal
        {"place": ..., "prefix": ..., "time": ..., "objects": ..., "sha256": ...}, the last of the lines that follow
        ["KEY", "ETAG", SIZE], for each object

A file is replaced as a whole, so that servers that share a cache, and those that start after a crash, read the listing
of one moment. It is written when what is listed has changed, and every few minutes, so that its time is nearly right.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from toutates.repositories.cache.files import write_file
from toutates.repositories.interface import fingerprint_of
from toutates.repositories.s3.keys import S3Object

__all__ = ["KeptListing", "Listings"]

logger = logging.getLogger(__name__)

#: How old the time of a listing that does not change may become.
_REFRESH_S: Final = 300.0
#: Files in the directory: one for each repository, and one for each model that was asked for by name.
_MAX_FILES: Final = 1_000
#: The most that is read of a file; 200,000 objects with long keys take half of it.
_MAX_BYTES: Final = 2**28
_MAX_HEAD_BYTES: Final = 2**14
#: A file that has been written for so long was left behind by a crash. Seconds.
_LEFT_BEHIND_S: Final = 3_600.0


@dataclass(frozen=True, slots=True)
class KeptListing:
    """A listing as S3 gave it.

    Attributes:
        objects: every object under the prefix then.
        time_s: Unix time of then.
    """

    objects: tuple[S3Object, ...]
    time_s: float


class Listings:
    """The listings of one bucket that are on disk. Methods may be called in any thread, and raise nothing.

    Args:
        cache: the directory of the cache.
        place: what tells this bucket, at this endpoint, from others.
        clock: Unix time.
    """

    def __init__(self, cache: Path, place: str, clock: Callable[[], float] = time.time) -> None:
        self._folder = cache / "listings"
        self._place = place
        self._clock = clock
        self._trouble = ""

    def keep(self, prefix: str, objects: Sequence[S3Object], *, if_empty: bool) -> None:
        """Remember what S3 has just listed. What the disk does not take is said in the log once.

        Args:
            prefix: of all keys.
            objects: in the order in which they came.
            if_empty: whether to remember also that there is nothing, where nothing is known of the prefix. False for
                prefixes that anybody can ask for.
        """
        path = self._path(prefix)
        try:
            if not objects and not if_empty and not path.exists():
                return
            body = b"".join(_line([found.key, found.etag, found.size]) for found in objects)
            digest, now = hashlib.sha256(body).hexdigest(), self._clock()
            known = self._head(path, prefix)
            if known is not None and known["sha256"] == digest and 0 <= now - known["time"] < _REFRESH_S:
                return
            head = {"place": self._place, "prefix": prefix, "time": now, "objects": len(objects), "sha256": digest}
            data = _line(head) + body
            self._folder.mkdir(exist_ok=True, mode=0o700)
            self._clear()
            write_file(path, hashlib.sha256(data).hexdigest().encode() + b"\n" + data)
            self._trouble = ""
        except OSError as error:
            trouble = f"'{path}' cannot be written: {error.strerror}"
            if trouble != self._trouble:
                self._trouble = trouble
                logger.warning("%s; if S3 does not answer the next start, it cannot start from the cache", trouble)

    def recall(self, prefix: str) -> KeptListing | None:
        """What S3 listed the last time; None if nobody knows. A file that cannot be used is said in the log."""
        path = self._path(prefix)
        try:
            with path.open("rb") as file:
                data = file.read(_MAX_BYTES + 1)
            check, _, rest = data.partition(b"\n")
            if len(data) > _MAX_BYTES or hashlib.sha256(rest).hexdigest().encode() != check:
                raise ValueError("it is damaged, or was written halfway")
            first, _, body = rest.partition(b"\n")
            head = self._read_head(first, prefix)
            return KeptListing(tuple(map(_object, body.splitlines())), head["time"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            logger.warning("the listing in '%s' is not used: %s", path, reason)
            return None

    def _path(self, prefix: str) -> Path:
        return self._folder / fingerprint_of((self._place, prefix))

    def _head(self, path: Path, prefix: str) -> Any:
        """What a file says of its listing; None if there is none that could be used."""
        try:
            with path.open("rb") as file:
                lines = file.read(_MAX_HEAD_BYTES).split(b"\n", 2)
            return self._read_head(lines[1], prefix)
        except (OSError, ValueError, KeyError, TypeError, IndexError, RecursionError):
            return None

    def _read_head(self, line: bytes, prefix: str) -> Any:
        head = json.loads(line)
        if (head["place"], head["prefix"]) != (self._place, prefix):
            raise ValueError("it is of another bucket, endpoint or prefix")
        if not isinstance(head["time"], (int, float)) or not isinstance(head["sha256"], str):
            raise ValueError("its first lines are none of a listing")
        return head

    def _clear(self) -> None:
        """Remove what crashes have left, and of too many listings the oldest."""
        now = time.time()
        entries: list[tuple[float, str]] = []
        for entry in os.scandir(self._folder):
            try:
                changed = entry.stat(follow_symlinks=False).st_mtime
                if not entry.name.startswith("."):
                    entries.append((changed, entry.path))
                elif now - changed > _LEFT_BEHIND_S:
                    os.unlink(entry.path)
            except FileNotFoundError:
                pass  # another server was faster
        for _, path in sorted(entries)[: max(0, len(entries) + 1 - _MAX_FILES)]:
            Path(path).unlink(missing_ok=True)


def _line(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def _object(line: bytes) -> S3Object:
    key, etag, size = json.loads(line)
    if not isinstance(key, str) or not isinstance(etag, str) or not isinstance(size, int) or size < 0:
        raise ValueError("a line of it is none of an object")
    return S3Object(key, etag, size)
