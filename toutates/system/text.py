"""Makes foreign text safe to write, and to show on one line: names of clients and files, errors of libraries.

Such text may hold new lines, commands to a terminal, or a megabyte. Code that shows it in a log, an error or a table
passes it through these functions. `h2grpc` and `http1`, which import nothing of ours, use ``repr`` of a few characters.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["MAX_SHOWN", "described", "one_line", "printable", "shown", "text_of", "writable"]

#: Characters that are shown of a name or a value that may be of any length.
MAX_SHOWN: Final = 80
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def printable(text: str, limit: int | None = None) -> str:
    r"""A name or a value as it is, with each character that cannot be printed escaped as in Python (``\n``, ``\x1b``).

    Args:
        text: the name or value.
        limit: characters that are shown, followed by the number of those left out; None for all.
    """
    if limit is not None and len(text) > limit:
        text = f"{text[:limit]}... ({len(text) - limit} more characters)"
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode("ascii") for one in text)


def writable(text: str) -> str:
    r"""A text as it is, with what no UTF-8 can encode written as in Python (``\xe8``, ``\ud83d``).

    Every text that leaves the server is such a text: an answer that cannot be encoded would be no answer. A string of
    Python has surrogates where a file's name is not UTF-8, and where JSON or a library has half an emoji. Names by
    which something is looked up, allowed, counted or cached are never changed so: two of them would become one.
    """
    if text.isascii():  # of which the string knows it
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return _SURROGATE.sub(_escaped, text)
    return text


def _escaped(found: re.Match[str]) -> str:
    code = ord(found[0])
    # The system's names of files have their bytes at U+DC80 and up (PEP 383).
    return f"\\x{code - 0xDC00:02x}" if 0xDC80 <= code <= 0xDCFF else f"\\u{code:04x}"


def text_of(error: BaseException) -> str:
    """What an error says, writable; its type where it says nothing."""
    try:
        text = str(error)
    except Exception:  # of a stranger's class
        text = ""
    return writable(text) if text.strip() else type(error).__name__


def described(error: BaseException) -> str:
    """An error by its type and what it says, as Python shows it, writable."""
    kind, text = type(error).__name__, text_of(error)
    return text if text == kind else f"{kind}: {text}"


def shown(text: str) -> str:
    """The first MAX_SHOWN characters of a name or a value that a client or a file gives, for errors."""
    return printable(text, MAX_SHOWN)


def one_line(text: object, limit: int | None = None) -> str:
    """Text such as an error of a library, on one line: each run of white space becomes one blank.

    Args:
        text: a string, an error, of which it takes what that says, or a message, whose ``str`` it takes.
        limit: as for ``printable``.
    """
    foreign = text_of(text) if isinstance(text, BaseException) else str(text)
    return printable(" ".join(foreign.split()), limit)
