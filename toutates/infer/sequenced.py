"""What a request says of its sequence, apart from everything else: thousands of sequences are of one kind of requests.

The parameters ``sequence_id``, ``sequence_start`` and ``sequence_end`` differ from request to request, as ``id`` and
raw contents do. So they are no part of the key under which a plan is found, and a ``SequenceLayout`` reads them in the
places where they stood in an earlier request of the same length.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from toutates.protocol.sequence_parameters import MAX_TEXT, NAMES, Said
from toutates.protocol.wire_format import read_varint

__all__ = ["SequenceLayout", "names_sequence", "sequence_layout"]

_ID_TAG: Final = 3 << 3 | 2
_PARAMETER_TAG: Final = 4 << 3 | 2
_RAW_TAG: Final = 7 << 3 | 2
_OTHER_TAGS: Final = frozenset(number << 3 | 2 for number in (1, 2, 5, 6))
#: The key of a parameter as clients write it: the map entry's first field.
_KEYS: Final = tuple(b"\x0a" + bytes([len(name)]) + name.encode() for name in NAMES)
_NAMES: Final = tuple(name.encode() for name in NAMES)
_PREFIX: Final = b"sequence_"
_VALUE_TAG: Final = 2 << 3 | 2
#: Tags of InferParameter's fields.
_BOOL_TAG: Final = 1 << 3
_INT64_TAG: Final = 2 << 3
_STRING_TAG: Final = 3 << 3 | 2
_NOWHERE: Final = (0, 0)


def names_sequence(buffer: bytes, start: int, end: int) -> bool:
    """Whether a parameter, the map entry ``buffer[start:end]``, may be one of the three."""
    return buffer.find(_PREFIX, start, end) >= 0 and any(buffer.find(name, start, end) >= 0 for name in _NAMES)


@dataclass(frozen=True, slots=True)
class SequenceLayout:
    """Where the parts of a request with parameters of a sequence are. Offsets are from the start of the message.

    A message of the layout's length that has the constant bytes in their places has the same fields.

    Attributes:
        key: what its plan is found by: the constant fields, and the names of the parameters in their places.
        constants: the constant bytes, each with its offset.
        id_field: where the ``id`` field begins and ends, tag and length included; 0 and 0 without one.
        spans: start and end of each raw content, flat.
        number: where the sequence's id begins and ends, as a varint; 0 and 0 without one.
        text: the same of one that is a text.
        start, end: where the flags are, which are one byte each; 0 without one.
    """

    key: bytes
    constants: tuple[tuple[int, bytes], ...]
    id_field: tuple[int, int]
    spans: tuple[int, ...]
    number: tuple[int, int]
    text: tuple[int, int]
    start: int
    end: int

    def read(self, buffer: bytes, at: int) -> tuple[bytes, list[int], Said] | None:
        """The id field, the spans of the raw contents, and what is said of a sequence, of the message at ``at``.

        None if the message is not of this layout, or its id is not plainly UTF-8, which is for a parser to judge. The
        caller has checked the message's length.
        """
        for offset, constant in self.constants:
            if not buffer.startswith(constant, at + offset):
                return None
        first, last = self.id_field
        id_field = buffer[at + first : at + last]
        if not id_field.isascii():
            return None
        first, last = self.number
        identifier: int | str = 0
        if last:
            number = buffer[at + first]
            if last - first > 1:
                number = _number(buffer, at + first, at + last)
            elif number >= 0x80:
                return None
            if number < 0:
                return None
            identifier = number
        elif self.text[1]:
            first, last = self.text
            text = buffer[at + first : at + last]
            if not text.isascii():
                return None
            identifier = text.decode()
        start = buffer[at + self.start] if self.start else 0
        end = buffer[at + self.end] if self.end else 0
        if start > 1 or end > 1:
            return None
        return id_field, [at + offset for offset in self.spans], (identifier, start == 1, end == 1)


def sequence_layout(buffer: bytes, at: int, end: int) -> SequenceLayout | None:
    """The layout of a message with parameters of a sequence.

    None for a message without them, and for one that no known client writes. Protobuf has to read that.
    """
    message = at
    key: list[bytes] = []
    constants: list[tuple[int, bytes]] = []
    spans: list[int] = []
    #: by the number of the parameter, where its value is
    values: dict[int, tuple[int, int]] = {}
    is_text = False
    id_field = _NOWHERE
    constant_from = at
    try:
        while at < end:
            field_at = at
            tag = buffer[at]
            length, start = read_varint(buffer, at + 1)
            at = start + length
            if at > end:
                return None
            cut = start, at
            if tag == _PARAMETER_TAG and names_sequence(buffer, start, at):
                which, first, is_text_here = _value(buffer, start, at)
                if which in values:
                    return None  # the last one would count
                values[which] = cut = first, at
                is_text = is_text or is_text_here
                key.append(_NAMES[which])
            elif tag == _ID_TAG:
                if id_field is not _NOWHERE:
                    return None
                id_field = field_at - message, at - message
            elif tag == _RAW_TAG:
                spans += (start - message, at - message)
            elif tag in _OTHER_TAGS or tag == _PARAMETER_TAG:
                key.append(buffer[field_at:at])
                continue
            else:
                return None
            constants.append((constant_from - message, buffer[constant_from : cut[0]]))
            constant_from = cut[1]
    except (IndexError, _OddError):
        return None
    if not values or at != end:
        return None
    if constant_from < end:
        constants.append((constant_from - message, buffer[constant_from:end]))
    identifier, starts, ends = (tuple(one - message for one in values.get(which, ())) for which in range(3))
    place = (identifier[0], identifier[1]) if identifier else _NOWHERE
    return SequenceLayout(
        b"".join(key),
        tuple(constants),
        id_field,
        tuple(spans),
        _NOWHERE if is_text else place,
        place if is_text else _NOWHERE,
        starts[0] if starts else 0,
        ends[0] if ends else 0,
    )


class _OddError(Exception):
    """A parameter is not as clients write it."""


def _value(buffer: bytes, at: int, end: int) -> tuple[int, int, bool]:
    """Which of the three parameters a map entry is, where its value begins, and whether that is a text.

    The value is a varint or a text, and all there is up to the end of the entry.

    Raises:
        _OddError: it is none of them, or has another type, or is written in another way.
        IndexError: the buffer ends before it does.
    """
    which = next((which for which, key in enumerate(_KEYS) if buffer.startswith(key, at)), -1)
    if which < 0:
        raise _OddError
    at += len(_KEYS[which])
    if buffer[at] != _VALUE_TAG:
        raise _OddError
    length, at = read_varint(buffer, at + 1)
    if at + length != end or not length:
        raise _OddError
    tag = buffer[at]
    at += 1
    if which == 0 and tag == _STRING_TAG:
        length, at = read_varint(buffer, at)
        if at + length != end or length > MAX_TEXT:
            raise _OddError
        return which, at, True
    if tag != (_INT64_TAG if which == 0 else _BOOL_TAG):
        raise _OddError
    if (which and end - at != 1) or _number(buffer, at, end) < 0:
        raise _OddError
    return which, at, False


def _number(buffer: bytes, at: int, end: int) -> int:
    """The varint of 64 bits that is all of ``buffer[at:end]``; below 0 if it is none."""
    size = end - at
    number = buffer[at]
    if size == 1:
        return number if number < 0x80 else -1
    if size > 10 or buffer[end - 1] >= (2 if size == 10 else 0x80):
        return -1
    number &= 0x7F
    shift = 7
    for octet in buffer[at + 1 : end - 1]:
        if octet < 0x80:
            return -1
        number |= (octet & 0x7F) << shift
        shift += 7
    return number | buffer[end - 1] << shift if buffer[at] >= 0x80 else -1
