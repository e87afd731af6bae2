"""Tables of Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = ["one_line", "table"]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table with a head."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(one_line(text) for text in line) + " |" for line in lines)


def one_line(text: str) -> str:
    """Text that stays on one line and in one column, and not too long."""
    flat = " ".join(text.split()).replace("|", "/")
    return flat if len(flat) <= 400 else flat[:400] + " ..."
