"""The keys of ``--api-key-file``, which callers of the APIs for text have to send as ``Authorization: Bearer KEY``.

The file has a key in each line. Empty lines and those that begin with ``#`` are passed over. Only the keys' SHA-256 is
kept. What a caller sends is hashed and held against each of them in constant time, so that neither the time of an
answer nor a dump of the memory tells a key.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from hashlib import sha256
from hmac import compare_digest
from pathlib import Path
from typing import Final

from toutates.system.errors import ConfigurationError

__all__ = ["FLAG", "ApiKeys", "Keys", "is_let_in"]

logger = logging.getLogger(__name__)

FLAG: Final = "--api-key-file"
#: Bytes of the file, and keys in it. Each is looked at for each new head of a request, 0.3 us.
MAX_FILE_BYTES: Final = 1_048_576
MAX_KEYS: Final = 1_024

#: What a header field can carry without blanks; the token of RFC 6750 is narrower, and keys in use are not.
_KEY: Final = re.compile(r"[!-~]{1,512}")
_BEARER: Final = re.compile(r"bearer +([!-~]+)", re.IGNORECASE)

#: Digests of all keys that are let in.
Keys = tuple[bytes, ...]


class ApiKeys:
    """The keys in force. Read on the main thread, which replaces them as a whole; looked at by all workers.

    Args:
        path: of the file; None lets everybody in.

    Attributes:
        keys: digests of those let in; None for everybody.

    Raises:
        ConfigurationError: the file cannot be read, or has no key.
    """

    def __init__(self, path: Path | None) -> None:
        self.keys: Keys | None = None
        self._path = path
        if path is not None:
            self._load(path)

    def reload(self) -> None:
        """Read the file again. One that cannot be used changes nothing."""
        if self._path is None:
            return
        try:
            self._load(self._path)
        except ConfigurationError as error:
            logger.error("%s; until then the keys read before stay in use", error)

    def _load(self, path: Path) -> None:
        self.keys = _read(path)
        logger.info("%d API keys of %s are let in", len(self.keys), path)


def is_let_in(keys: Keys | None, fields: Mapping[str, str]) -> bool:
    """Whether a request with these header fields, by lower-case name, has a key."""
    if keys is None:
        return True
    sent = _BEARER.fullmatch(fields.get("authorization", ""))
    digest = sha256(b"" if sent is None else sent[1].encode()).digest()
    found = False
    for key in keys:  # all of them, wherever one is equal
        found |= compare_digest(digest, key)
    return found and sent is not None


def _read(path: Path) -> Keys:
    try:
        if not path.is_file():
            problem = "is not a file" if path.exists() else "there is no such file"
            raise _mistake(problem, path, "correct the path")
        with path.open("rb") as file:
            octets = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise _mistake(f"cannot be read: {error.strerror}", path, "let the server's user read it") from None
    if len(octets) > MAX_FILE_BYTES:
        raise _mistake(f"has more than {MAX_FILE_BYTES} bytes", path, "write one key in each line, and nothing else")
    keys: dict[bytes, None] = {}
    for number, line in enumerate(octets.decode("latin-1").splitlines(), 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        if not _KEY.fullmatch(text):
            remedy = "write keys of 1 to 512 printable ASCII characters without blanks"
            raise _mistake(f"line {number} is no key", path, remedy)
        keys[sha256(text.encode()).digest()] = None
    if not keys:
        raise _mistake("has no key", path, "write one key in each line, or leave the flag out")
    if len(keys) > MAX_KEYS:
        raise _mistake(f"has {len(keys)} keys", path, f"write {MAX_KEYS} at most")
    return tuple(keys)


def _mistake(problem: str, path: Path, remedy: str) -> ConfigurationError:
    return ConfigurationError(problem, key=FLAG, value=str(path), remedy=remedy)
