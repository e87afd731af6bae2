"""The keys of ``--api-key-file``: a key in each line. Empty lines and those that begin with ``#`` are passed over."""

from __future__ import annotations

import codecs
import re
from hashlib import sha256
from pathlib import Path
from typing import Final

from toutates.access.callers import Caller
from toutates.access.groups import GROUPS
from toutates.access.quotas import Quotas
from toutates.access.rules import AccessRules
from toutates.system.errors import ConfigurationError

__all__ = ["KEY_FLAG", "read_key_file"]

KEY_FLAG: Final = "--api-key-file"
#: Bytes of the file, and keys in it.
MAX_FILE_BYTES: Final = 1_048_576
MAX_KEYS: Final = 1_024

#: What a header field can carry without blanks; the token of RFC 6750 is narrower, and keys in use are not.
_KEY: Final = re.compile(r"[!-~]{1,512}")


def read_key_file(path: Path, quotas: Quotas) -> AccessRules:
    """Rules that let callers with these keys do everything, and everybody ask for the server's health.

    Raises:
        ConfigurationError: the file cannot be read, or has no key.
    """
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
    keys: dict[bytes, Caller] = {}
    groups = frozenset(GROUPS)
    for number, line in enumerate(octets.removeprefix(codecs.BOM_UTF8).decode("latin-1").splitlines(), 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        if not _KEY.fullmatch(text):
            remedy = "write keys of 1 to 512 printable ASCII characters without blanks"
            raise _mistake(f"line {number} is no key", path, remedy)
        keys[sha256(text.encode()).digest()] = Caller(f"key in line {number}", groups)
    if not keys:
        raise _mistake("has no key", path, "write one key in each line, or leave the flag out")
    if len(keys) > MAX_KEYS:
        raise _mistake(f"has {len(keys)} keys", path, f"write {MAX_KEYS} at most")
    return AccessRules(keys, anonymous=frozenset(("health",)), files=(path,))


def _mistake(problem: str, path: Path, remedy: str) -> ConfigurationError:
    return ConfigurationError(problem, key=KEY_FLAG, value=str(path), remedy=remedy)
