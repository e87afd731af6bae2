"""Notes that people write into the generated part of docs/measurements.md: how a table came about, and what it says.

A note stands under the heading of its table, between the lines ABOVE or BELOW and END. It stays there whatever is
generated anew; whether it still fits the figures is for people to see.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import pairwise

__all__ = ["ABOVE", "BELOW", "END", "notes_of", "with_notes"]

ABOVE = "<!-- note above, written by hand: begin -->"
BELOW = "<!-- note below, written by hand: begin -->"
END = "<!-- note: end -->"

#: By the heading of a section, what stands above and below its tables, with the marks.
Notes = Mapping[str, tuple[str, str]]

_NOTE = re.compile(rf"({re.escape(ABOVE)}|{re.escape(BELOW)})\n.*?\n{re.escape(END)}", re.DOTALL)
_HEADING = re.compile(r"^##+ .*$", re.MULTILINE)


def notes_of(generated: str) -> Notes:
    """The notes of a generated part.

    Raises:
        ValueError: a mark is without its other one, or a note stands under no heading, or is one of two of its kind.
    """
    notes: dict[str, tuple[str, str]] = {}
    sections = list(_sections(generated))
    headings = [heading for heading, _ in sections]
    for heading, text in sections:
        found = [match[0] for match in _NOTE.finditer(text)]
        if sum(map(text.count, (ABOVE, BELOW, END))) != 2 * len(found):
            raise ValueError(f"under '{heading}': a note must begin with one of its marks, and end with '{END}'")
        above, below = ([note for note in found if note.startswith(mark)] for mark in (ABOVE, BELOW))
        if len(above) > 1 or len(below) > 1 or (found and not heading):
            raise ValueError(f"under '{heading}': one note above the tables and one below them are the most")
        if found and headings.count(heading) > 1:
            raise ValueError(f"several sections are called '{heading}', and one of them has a note")
        if found:
            notes[heading] = "".join(above), "".join(below)
    return notes


def with_notes(generated: str, notes: Notes) -> str:
    """What was generated with the notes under their headings.

    Raises:
        ValueError: a heading of theirs is not there any more.
    """
    parts = []
    left = dict(notes)
    for heading, text in _sections(generated):
        above, below = left.pop(heading, ("", ""))
        body = text.removeprefix(heading).strip("\n")
        parts.append("\n\n".join(filter(None, (heading, above, body, below))))
    if left:
        raise ValueError(f"the page has notes for tables that are not made any more: {', '.join(left)}")
    return "\n\n".join(filter(None, parts)) + "\n"


def _sections(generated: str) -> Iterator[tuple[str, str]]:
    """Each heading with all up to the next one; first "" with what stands before all headings."""
    # Headings within notes are those of notes.
    hidden = _NOTE.sub(lambda match: match[0].replace("#", "\0"), generated)
    starts = [0, *(match.start() for match in _HEADING.finditer(hidden)), len(generated)]
    for start, end in pairwise(starts):
        text = generated[start:end]
        heading = text.partition("\n")[0] if start or text.startswith("##") else ""
        yield heading, text
