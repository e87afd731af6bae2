"""Parts of a documentation page that a program writes, between two lines that mark them."""

from __future__ import annotations

__all__ = ["replace_between"]


def replace_between(page: str, begin: str, end: str, generated: str) -> str:
    """The page with ``generated`` in place of what is between the marks.

    Raises:
        ValueError: the marks are not there, once each and in order.
    """
    before, found_begin, rest = page.partition(begin)
    _, found_end, after = rest.partition(end)
    if not found_begin or not found_end or begin in rest or end in after:
        raise ValueError(f"the page must hold the lines {begin.strip()} and {end.strip()} once each, in this order")
    return before + begin + generated + end + after
