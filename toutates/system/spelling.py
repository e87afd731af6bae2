"""Names whose letters can be composed in two ways: a folder may have one (macOS), and a client another.

``é`` is one character, or an ``e`` and an accent. NFC, which composes them, is the same for both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final
from unicodedata import normalize

__all__ = ["composed", "spellings_of"]

#: Characters of a name that is looked at; no folder's is longer, however it is composed.
_MAX_NAME: Final = 1_024


def composed(name: str) -> str:
    """A name in its NFC form."""
    return name if name.isascii() or len(name) > _MAX_NAME else normalize("NFC", name)


def spellings_of(names: Iterable[str]) -> Mapping[str, str]:
    """By their NFC form, the names that have letters beyond ASCII; of two of one form the first."""
    found: dict[str, str] = {}
    for name in names:
        if not name.isascii():
            found.setdefault(composed(name), name)
    return found
