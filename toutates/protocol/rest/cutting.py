"""Separating what changes in a request's JSON from what does not, without parsing it.

A client's requests differ in ``id``, in the arrays of ``data``, and in the binary tensors behind the JSON. Everything
else (names, datatypes, shapes, outputs, parameters) is the same bytes each time. ``cut`` finds the text of each array
and of the id. What is left is the key under which a server remembers what requests of this kind are made of
(``request.Form``). For binary tensors that is all of the JSON, or all but the id.

``cut`` guesses: it takes every ``"data":[`` and the first ``"id":"`` for what they look like, wherever they stand. Two
things make that safe. A key is only remembered if in its first request every guess was right (``request``). And what
was cut out has to be an array, or the text of a string, by itself. So bodies of the same key have the same structure.
"""

from __future__ import annotations

import re
from itertools import islice
from typing import Final

__all__ = ["Cut", "cut", "cut_is_plain"]

#: (key, where the id's text begins and ends or 0 and 0, where each array begins and ends, flat)
Cut = tuple[bytes, int, int, list[int]]

#: Arrays of one request.
MAX_ARRAYS: Final = 1_024
#: Strings and brackets of an array of strings whose end is looked for, 0.5 us each.
MAX_STRINGS: Final = 8_192
#: Bytes of such an array.
MAX_STRINGS_BYTES: Final = 65_536

_DATA: Final = b'"data":'
_ID: Final = b'"id":'
#: The text of an id that can be given back as it is, and of which it is plain where it ends.
_PLAIN_ID: Final = re.compile(rb'"([ !#-\[\]-~]*)"')
_TOKENS: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|[\[\]{}]', re.DOTALL)
_DATA_NAMES: Final = re.compile(rb'"data"\s*:')
_ID_NAMES: Final = re.compile(rb'"id"\s*:')


def cut(buffer: bytes, start: int, end: int, id_before: int | None = None) -> Cut | None:
    """Cut the JSON ``buffer[start:end]``; 1 us with one array or none.

    Args:
        buffer, start, end: where it is.
        id_before: where the search for the id ends; in 64 MiB of JSON it would take 30 ms. An id behind that stays.

    Returns:
        See Cut; None if it is not as clients write it, which is for a parser to judge.
    """
    id_start = id_end = 0
    at = buffer.find(_ID, start, id_before or end)
    if at >= 0:
        at += 6 if buffer[at + 5 : at + 6] == b" " else 5
        found = _PLAIN_ID.match(buffer, at, end)
        if found is not None:
            id_start, id_end = found.span(1)
    arrays: list[int] = []
    at = start
    while True:
        at = buffer.find(_DATA, at, end)
        if at < 0:
            break
        at += 8 if buffer[at + 7 : at + 8] == b" " else 7
        if buffer[at : at + 1] != b"[":
            return None
        close = _end_of_array(buffer, at, end)
        if close < 0 or len(arrays) >= 2 * MAX_ARRAYS:
            return None
        arrays += (at, close)
        at = close
    return _without(buffer, start, end, id_start, id_end, arrays), id_start, id_end, arrays


def _end_of_array(buffer: bytes, at: int, end: int) -> int:
    """Where the array that begins at ``at`` ends; below 0 if that is not plain.

    Up to the next quotation mark or brace there are numbers and brackets alone.
    """
    quote = buffer.find(b'"', at, end)
    brace = buffer.find(b"}", at, end if quote < 0 else quote)
    stop = brace if brace >= 0 else quote
    if stop < 0:
        return -1
    close = buffer.rfind(b"]", at, stop) + 1
    if close:
        return close
    depth = 0
    for token in islice(_TOKENS.finditer(buffer, at, min(end, at + MAX_STRINGS_BYTES)), MAX_STRINGS):
        octet = buffer[token.start()]
        if octet == 0x5B:  # [
            depth += 1
        elif octet == 0x5D:  # ]
            depth -= 1
            if not depth:
                return token.end()
        elif octet != 0x22:  # "
            break
    return -1


def _without(buffer: bytes, start: int, end: int, id_start: int, id_end: int, arrays: list[int]) -> bytes:
    """What is left. The id may be before, between or behind the arrays."""
    if not arrays:
        return buffer[start:id_start] + buffer[id_end:end] if id_end else buffer[start:end]
    bounds = arrays
    if id_end:
        position = 0
        while position < len(arrays) and arrays[position] < id_start:
            position += 2
        bounds = [*arrays[:position], id_start, id_end, *arrays[position:]]
    parts: list[bytes] = []
    at = start
    for index in range(0, len(bounds), 2):
        parts.append(buffer[at : bounds[index]])
        at = bounds[index + 1]
    parts.append(buffer[at:end])
    return b"".join(parts)


def cut_is_plain(found: Cut) -> bool:
    """Whether no member ``data`` or ``id`` can hide in what is left: each of those names that is there was cut.

    Names with escape sequences could, so a key must have none.
    """
    key, _, id_end, arrays = found
    if b"\\" in key or len(_DATA_NAMES.findall(key)) * 2 != len(arrays):
        return False
    return not id_end or len(_ID_NAMES.findall(key)) == 1
