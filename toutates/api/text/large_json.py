"""JSON of megabytes, read in steps between which other threads can have the interpreter.

``msgspec`` reads 10 MB at once, and no other thread has the interpreter meanwhile, for up to 80 ms. Here a document is
read value by value, long strings in pieces, and arrays of numbers in pieces. What may be in it is bounded, because each
string of three bytes becomes an object of fifty.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Final

import msgspec

from toutates.protocol.rest.arrays import Pause

__all__ = ["MAX_NUMBERS", "MAX_VALUES", "BadJson", "TooMuch", "read_large"]

#: Strings, arrays, objects and words of one document, 2 us each; twice what the largest request of any API needs.
MAX_VALUES: Final = 8_192
#: Numbers in arrays of numbers.
MAX_NUMBERS: Final = 524_288
#: No request has arrays or objects deeper than this.
MAX_DEPTH: Final = 16
#: Bytes of a string, or of an array of numbers, that are read at once: 0.5 ms at most.
PIECE_BYTES: Final = 65_536
#: Values between two pauses.
VALUES_AT_ONCE: Final = 256

_BLANKS: Final = re.compile(rb"[ \t\n\r]*")
#: true, false, null, and numbers; what they are exactly is for the parser.
_WORD: Final = re.compile(rb"[-+.0-9A-Za-z]{1,1024}")
#: What is before the quotation mark that ends a string, or before an escape sequence that is not whole.
_LETTERS: Final = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
#: The first half of a pair of escaped surrogates.
_HIGH: Final = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}")
_LONGEST_ESCAPE: Final = 12

_decode: Final = msgspec.json.decode
_STRING: Final = msgspec.json.Decoder(str).decode
_NUMBERS: Final = msgspec.json.Decoder(list[Any]).decode


class BadJson(Exception):
    """The document is no JSON; the text says where."""


class TooMuch(Exception):
    """The document has more values than any request; the text says of what."""


def read_large(octets: bytes | bytearray, pause: Pause, *, halves: bool = False) -> Any:
    """The value of a document: dict, list, str, int, float, bool or None.

    Args:
        octets: in UTF-8.
        pause: called about every millisecond.
        halves: whether strings may have halves of characters, which are surrogates then.

    Raises:
        BadJson: it is no JSON.
        TooMuch: it has too many values, or is too deep.
    """
    reader = _Reader(octets, pause, json.loads if halves else _STRING)
    value = reader.value(0)
    reader.skip_blanks()
    if reader.at != len(octets):
        raise BadJson(f"JSON is malformed: trailing characters (byte {reader.at})")
    return value


class _Reader:
    """Reads one document from its beginning to its end.

    Attributes:
        at: how far it has come.
    """

    def __init__(
        self, octets: bytes | bytearray, pause: Pause, read_string: Callable[[bytes | bytearray], str] = _STRING
    ) -> None:
        self._read_string = read_string
        self._octets = octets
        self._pause = pause
        self.at = 0
        self._values = 0
        self._numbers = 0

    def skip_blanks(self) -> None:
        found = _BLANKS.match(self._octets, self.at)
        assert found is not None
        self.at = found.end()

    def value(self, depth: int) -> Any:
        """The value that begins here, blanks before it passed over."""
        self.skip_blanks()
        self._values += 1
        if self._values > MAX_VALUES:
            raise TooMuch(f"the request's JSON has more than {MAX_VALUES} values")
        if depth > MAX_DEPTH:
            raise TooMuch(f"the request's JSON is nested deeper than {MAX_DEPTH}")
        if not self._values % VALUES_AT_ONCE:
            self._pause()
        octet = self._octets[self.at : self.at + 1]
        if octet == b'"':
            return self._string()
        if octet == b"[":
            return self._array(depth)
        if octet == b"{":
            return self._object(depth)
        word = _WORD.match(self._octets, self.at)
        if word is None:
            raise self._malformed()
        self.at = word.end()
        return _checked(word[0], word.start())

    def _malformed(self) -> BadJson:
        if self.at >= len(self._octets):
            return BadJson("Input data was truncated")
        return BadJson(f"JSON is malformed: invalid character (byte {self.at})")

    def _next(self, wanted: bytes) -> bytes:
        """The next character, one of ``wanted``, which is passed over."""
        self.skip_blanks()
        octet = bytes(self._octets[self.at : self.at + 1])
        if not octet or octet not in wanted:
            raise self._malformed()
        self.at += 1
        return octet

    def _peek(self) -> bytes:
        self.skip_blanks()
        return bytes(self._octets[self.at : self.at + 1])

    def _object(self, depth: int) -> dict[str, Any]:
        members: dict[str, Any] = {}
        self.at += 1
        if self._peek() == b"}":
            self.at += 1
            return members
        while True:
            if self._peek() != b'"':
                raise self._malformed()
            name = self._string()
            self._next(b":")
            members[name] = self.value(depth + 1)
            if self._next(b",}") == b"}":
                return members

    def _array(self, depth: int) -> list[Any]:
        numbers = self._numbers_here()
        if numbers is not None:
            return numbers
        items: list[Any] = []
        self.at += 1
        if self._peek() == b"]":
            self.at += 1
            return items
        while True:
            items.append(self.value(depth + 1))
            if self._next(b",]") == b"]":
                return items

    def _numbers_here(self) -> list[Any] | None:
        """The array that begins here, if nothing but numbers and words is in it."""
        octets = self._octets
        close = octets.find(b"]", self.at)
        if close < 0 or any(octets.find(octet, self.at + 1, close) >= 0 for octet in (b'"', b"[", b"{")):
            return None
        end = close + 1
        self._numbers += octets.count(b",", self.at, end) + 1
        if self._numbers > MAX_NUMBERS:
            raise TooMuch(f"the request's JSON has more than {MAX_NUMBERS} numbers")
        start, self.at = self.at, end
        if end - start <= PIECE_BYTES:
            return _checked_numbers(bytes(octets[start:end]), start)
        values: list[Any] = []
        at = start + 1
        while at < end:
            cut = octets.find(b",", at + PIECE_BYTES, end)
            if cut < 0:
                cut = end - 1
            piece = _checked_numbers(b"[%b]" % bytes(octets[at:cut]), at)
            if not piece:
                raise BadJson(f"JSON is malformed: invalid character (byte {at})")
            values += piece
            at = cut + 1
            self._pause()
        return values

    # --- strings -----------------------------------------------------------------------------------------------------

    def _string(self) -> str:
        """The string that begins here."""
        octets, start = self._octets, self.at
        end = self._end_of_string(start + 1)
        self.at = end + 1
        if end - start <= PIECE_BYTES:
            return self._checked_string(octets[start : end + 1], start)
        pieces: list[str] = []
        at = start + 1
        while at < end:
            cut = self._cut(at, end)
            pieces.append(self._checked_string(b'"%b"' % bytes(octets[at:cut]), at))
            at = cut
            self._pause()
        return "".join(pieces)

    def _checked_string(self, octets: bytes | bytearray, at: int) -> str:
        try:
            return self._read_string(octets)
        except (msgspec.DecodeError, ValueError) as error:
            raise _bad(error, at) from None

    def _end_of_string(self, at: int) -> int:
        """Where the quotation mark is that ends the string whose letters begin at ``at``."""
        octets = self._octets
        first = at
        while True:
            found = _LETTERS.match(octets, at, at + PIECE_BYTES)
            assert found is not None
            at = found.end()
            octet = octets[at : at + 1]
            if octet == b'"':
                return at
            if octet == b"\\":
                at += 2
            if at >= len(octets):
                raise BadJson("Input data was truncated")
            if at - first > PIECE_BYTES:
                self._pause()

    def _backslashes_before(self, at: int, first: int) -> int:
        """How many backslashes end at ``at``, not before ``first``."""
        count = 0
        while at > first:
            start = max(first, at - 1_024)
            piece = self._octets[start:at]
            left = len(piece.rstrip(b"\\"))
            count += len(piece) - left
            if left:
                break
            at = start
        return count

    def _cut(self, at: int, end: int) -> int:
        """Where to cut a string that goes on from ``at``, where a letter begins: before another, a piece further."""
        octets = self._octets
        cut = at + PIECE_BYTES
        if cut >= end:
            return end
        # An escape sequence has at most twelve bytes, so one that would be cut begins in those before.
        last = octets.rfind(b"\\", cut - _LONGEST_ESCAPE, cut)
        if last < 0:
            while octets[cut] & 0xC0 == 0x80 and cut > at + PIECE_BYTES - 4:
                cut -= 1
            return cut
        if not self._backslashes_before(last + 1, at) % 2:
            return last + 1
        before = last - 6
        if _HIGH.match(octets, before) and not self._backslashes_before(before, at) % 2:
            return before
        return last


def _checked(octets: bytes, at: int) -> Any:
    try:
        return _decode(octets)
    except (msgspec.DecodeError, ValueError) as error:
        raise _bad(error, at) from None


def _checked_numbers(octets: bytes, at: int) -> list[Any]:
    try:
        return _NUMBERS(octets)
    except (msgspec.DecodeError, ValueError) as error:
        raise _bad(error, at) from None


def _bad(error: Exception, at: int) -> BadJson:
    text = "invalid UTF-8" if isinstance(error, UnicodeDecodeError) else str(error).partition(" (byte ")[0]
    return BadJson(f"{text} (at byte {at} or behind it)")
