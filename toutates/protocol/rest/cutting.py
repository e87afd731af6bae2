"""Separating what changes in a request's JSON from what does not, without parsing it.

A client's requests differ in ``id``, in the arrays of ``data``, in what they say of their sequence, and in the binary
tensors behind the JSON. Everything else (names, datatypes, shapes, outputs, other parameters) is the same bytes each
time. ``cut`` finds the text of each array, of the id, and of the parameters of a sequence. What is left is the key by
which a server remembers what requests of this kind are made of (``request.Form``). For binary tensors that is all of
the JSON, or all but the id and the sequence.

``cut`` guesses: it takes every ``"data":[``, the first ``"id":"``, and such as ``"sequence_id":5`` for what they look
like, wherever they stand. Two things make that safe. A key is only remembered if in its first request every guess was
right (``request``). And what was cut out has to be an array, the text of a string, a number or a truth value, by
itself. So bodies of the same key have the same structure.
"""

from __future__ import annotations

import re
from itertools import islice
from typing import Final

from toutates.protocol.sequence_parameters import MAX_TEXT, NAMES, Said

__all__ = ["Cut", "cut", "cut_is_plain", "moved", "sequence_names"]

#: (key, where the id's text begins and ends or 0 and 0, where each array begins and ends, flat, what is said of a
#: sequence or None)
Cut = tuple[bytes, int, int, list[int], Said | None]

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
_SEQUENCE: Final = b'"sequence_'
_SEQUENCE_VALUE: Final = re.compile(
    rb'"sequence_(?:id": ?(?:(?P<number>0|[1-9][0-9]{0,18})|(?P<text>"[ !#-\[\]-~]{0,%d}"))'
    rb'|(?P<flag>start|end)": ?(?P<value>true|false))(?=[,}\s])' % MAX_TEXT
)
_SEQUENCE_NAMES: Final = re.compile(rb'"sequence_(?:id|start|end)"\s*:')
_ID_NAMES: Final = re.compile(rb'"id"\s*:')


def cut(buffer: bytes, start: int, end: int, id_before: int | None = None) -> Cut | None:
    """Cut the JSON ``buffer[start:end]``; 1 us with one array or none.

    Args:
        buffer, start, end: where it is.
        id_before: where the search for the id and for parameters of a sequence ends; in 64 MiB of JSON it would take
            30 ms. What is behind that stays.

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
    at = buffer.find(_SEQUENCE, start, id_before or end)
    if at >= 0:
        return _cut_sequence(buffer, start, end, (at, id_before or end), id_start, id_end, arrays)
    return _without(buffer, start, end, id_start, id_end, arrays), id_start, id_end, arrays, None


def _cut_sequence(
    buffer: bytes, start: int, end: int, search: tuple[int, int], id_start: int, id_end: int, arrays: list[int]
) -> Cut | None:
    """Cut what is said of a sequence as well, where that is plain."""
    identifier: int | str = 0
    flags: dict[bytes, bool] = {}
    places: dict[bytes, tuple[int, int]] = {}
    at, until = search
    while at >= 0 and len(places) < len(NAMES):
        found = _SEQUENCE_VALUE.match(buffer, at, until)
        if found is not None:
            number, text, flag, value = found.group("number", "text", "flag", "value")
            if (flag or b"id") in places:
                break
            places[flag or b"id"] = found.span(found.lastgroup or 0)
            if flag:
                flags[flag] = value == b"true"
            else:
                identifier = int(number) if number else text[1:-1].decode()
        at = buffer.find(_SEQUENCE, at + 1, until)
    said = (identifier, flags.get(b"start", False), flags.get(b"end", False)) if places else None
    cut_out = [*places.values(), *zip(arrays[::2], arrays[1::2], strict=True)]
    if id_end:
        cut_out.append((id_start, id_end))
    bounds = [bound for place in sorted(cut_out) for bound in place]
    if bounds != sorted(bounds):
        return None  # it was found in an array, which is none then
    return _without(buffer, start, end, 0, 0, bounds), id_start, id_end, arrays, said


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


def moved(found: Cut, by: int) -> Cut:
    """``found``, of JSON that lies ``by`` bytes behind where it was cut."""
    key, id_start, id_end, arrays, said = found
    if id_end:
        id_start, id_end = id_start + by, id_end + by
    return key, id_start, id_end, [bound + by for bound in arrays], said


def cut_is_plain(found: Cut) -> bool:
    """Whether no member ``data`` or ``id``, and nothing of a sequence, can hide in what is left.

    Each of those names that is there was cut; of parameters of a sequence ``sequence_names`` are counted besides.

    Names with escape sequences could, so a key must have none.
    """
    key, _, id_end, arrays, said = found
    if b"\\" in key or len(_DATA_NAMES.findall(key)) * 2 != len(arrays):
        return False
    if said is None and sequence_names(found):
        return False
    return not id_end or len(_ID_NAMES.findall(key)) == 1


def sequence_names(found: Cut) -> int:
    """How many names of parameters of a sequence there are, wherever they stand."""
    return len(_SEQUENCE_NAMES.findall(found[0]))
