"""Text that others wrote, made fit to stand in a line of ours: names, keys, values, and errors of libraries.

Such text may hold anything: new lines, commands to a terminal, a megabyte. Whatever shows it in a log, an error or a
table passes it through here. `h2grpc` and `http1`, which import nothing of ours, use ``repr`` of a few characters.
"""

from __future__ import annotations

from typing import Final

__all__ = ["MAX_SHOWN", "one_line", "printable", "shown"]

#: Characters that are shown of a name or a value that may be of any length.
MAX_SHOWN: Final = 80


def printable(text: str, limit: int | None = None) -> str:
    r"""A name or a value as it is, with each character that cannot be printed escaped as in Python (``\n``, ``\x1b``).

    Args:
        text: it.
        limit: characters that are shown; behind them stands how many more there were. None for all.
    """
    if limit is not None and len(text) > limit:
        text = f"{text[:limit]}... ({len(text) - limit} more characters)"
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode("ascii") for one in text)


def shown(text: str) -> str:
    """The beginning of a name or a value that a client or a file gives, for an error that names it."""
    return printable(text, MAX_SHOWN)


def one_line(text: object, limit: int | None = None) -> str:
    """A sentence or several, such as an error of a library, on one line: each run of white space becomes one blank.

    Args:
        text: it, or an error or a message whose ``str`` it is.
        limit: as for ``printable``.
    """
    return printable(" ".join(str(text).split()), limit)
