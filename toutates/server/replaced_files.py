"""Notices that files have been replaced, and has them read again: one rule for certificates, keys and access rules.

Files are looked at once a second, also behind links, as Kubernetes swaps the files of a secret. Files that cannot be
used, are missing or are empty change nothing: the log says so once, and they are tried again each second, because a
certificate may be there before its key is. SIGHUP has them read at once.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

import trio

from toutates.system.errors import ConfigurationError
from toutates.system.logs.limit import LineLimit

__all__ = ["POLL_S", "ReplacedFiles", "reload_now", "signature_of"]

logger = logging.getLogger(__name__)

#: How long a change may stay unnoticed.
POLL_S: Final = 1.0

Signature = tuple[tuple[int, int, int] | None, ...]


class ReplacedFiles:
    """Files that belong together, and what reads them. Used on the main thread.

    Args:
        files: gives the paths; they may be others after each reading.
        read: reads the files and puts what they say into force; raises ConfigurationError, and changes nothing, where
            they cannot be used.
        kept: end of the line in the log that says what stays in force.
    """

    def __init__(self, files: Callable[[], Iterable[Path]], read: Callable[[], None], kept: str) -> None:
        self._files = files
        self._read = read
        self._kept = kept
        self._seen = signature_of(files())
        self._problem = ""
        self._limit: LineLimit[str] = LineLimit()

    def reload(self) -> None:
        """Read the files now."""
        self._problem = ""
        self._look(signature_of(self._files()))

    async def watch(self) -> None:
        """Read the files whenever they have changed, until cancelled. No failure ends it."""
        while True:
            await trio.sleep(POLL_S)
            try:
                found = signature_of(self._files())
                if found != self._seen or self._problem:
                    self._look(found)
            except Exception:  # such as no memory left
                if not self._limit.count("", time.monotonic_ns()):
                    logger.exception("files could not be looked at; it is tried again")

    def _look(self, found: Signature) -> None:
        """Read the files, whose signature was ``found`` before: one that has changed since then is read again."""
        before = tuple(self._files())
        try:
            self._read()
        except ConfigurationError as error:
            if str(error) != self._problem:
                logger.error("%s; until then %s", error, self._kept)
            self._problem = str(error)
        else:
            self._problem = ""
        after = tuple(self._files())
        self._seen = found if after == before else signature_of(after)


def reload_now(watched: Sequence[ReplacedFiles]) -> None:
    """SIGHUP: read all files now."""
    logger.info("SIGHUP: %s", "reading files again" if watched else "there is nothing to read again")
    for files in watched:
        files.reload()


def signature_of(files: Iterable[Path]) -> Signature:
    """A value that is another one when one of the files has changed: times, sizes and numbers."""
    return tuple(map(_one, files))


def _one(path: Path) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
