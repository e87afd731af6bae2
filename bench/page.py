"""Parts of a documentation page that a program writes, between two lines that mark them."""

from __future__ import annotations

__all__ = ["between", "replace_between"]


def replace_between(page: str, begin: str, end: str, generated: str) -> str:
    """The page with ``generated`` in place of what is between the marks.

    Raises:
        ValueError: the marks are not there, once each and in order.
    """
    before, _, after = _parts(page, begin, end)
    return before + begin + generated + end + after


def between(page: str, begin: str, end: str) -> str:
    """What is between the marks. Raises as ``replace_between``."""
    return _parts(page, begin, end)[1]


def _parts(page: str, begin: str, end: str) -> tuple[str, str, str]:
    before, found_begin, rest = page.partition(begin)
    generated, found_end, after = rest.partition(end)
    if not found_begin or not found_end or begin in rest or end in after:
        raise ValueError(f"the page must hold the lines {begin.strip()} and {end.strip()} once each, in this order")
    return before, generated, after
