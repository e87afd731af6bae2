"""Makes foreign text safe to show on one line: names, keys and values of clients and files, errors of libraries.

Such text may hold new lines, commands to a terminal, or a megabyte. Code that shows it in a log, an error or a table
passes it through these functions. `h2grpc` and `http1`, which import nothing of ours, use ``repr`` of a few characters.
"""

from __future__ import annotations

from typing import Final

__all__ = ["MAX_SHOWN", "one_line", "printable", "shown"]

#: Characters that are shown of a name or a value that may be of any length.
MAX_SHOWN: Final = 80


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


def shown(text: str) -> str:
    """The first MAX_SHOWN characters of a name or a value that a client or a file gives, for errors."""
    return printable(text, MAX_SHOWN)


def one_line(text: object, limit: int | None = None) -> str:
    """Text such as an error of a library, on one line: each run of white space becomes one blank.

    Args:
        text: a string, or an error or a message, whose ``str`` is taken.
        limit: as for ``printable``.
    """
    return printable(" ".join(str(text).split()), limit)
