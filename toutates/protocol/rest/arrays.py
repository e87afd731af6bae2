"""The data of a tensor in JSON, read to the bytes that the same tensor has as raw contents.

An array may be flat or nested in any form; its elements count in their order, and the brackets do not matter. There are
two ways to read one:

- ``read_elements`` takes what ``parse_document`` made of it. It has Triton's words for everything that may be wrong.
- A reader (``reader_of``) takes its text. It knows how many elements there have to be, and says no more than
  ``Unreadable`` where something is odd, which is for the first way to judge. It reads 64 FP32 values in 5 us.

A large array is read in pieces of PIECE_BYTES, 1 ms each, and the memory of one piece's Python objects is all it takes.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from toutates.protocol.datatypes import Datatype, join_strings
from toutates.protocol.rest.document import MAX_DEPTH, as_boolean, as_integer, as_string, as_unsigned, finite_float
from toutates.system.errors import InvalidRequest, MalformedMessage, RequestError

__all__ = [
    "PIECE_BYTES",
    "BeyondRange",
    "NumberReader",
    "Pause",
    "Reader",
    "StringReader",
    "Unreadable",
    "pack_elements",
    "read_elements",
    "reader_of",
    "struct_format",
]

#: Bytes of an array's text that are read at once.
PIECE_BYTES: Final = 65_536
#: Shorter arrays take no long time whatever their numbers are.
_SHORT: Final = 2_048

Array = npt.NDArray[Any]
#: Called between two pieces by what takes long, where others can have the interpreter meanwhile.
Pause = Callable[[], None]

_SPACES: Final = bytes.maketrans(b"[]", b"  ")
#: From here on NumPy is quicker to see whether brackets are in pairs.
_MANY_BRACKETS: Final = 512
_NOT_BRACKETS: Final = bytes(set(range(256)) - set(b"[]"))
_BLANKS: Final = b" \t\r\n"
_SHORT_INFINITY: Final = re.compile(rb"\bInf\b")
#: Exponents near the ends of what a double holds: ``msgspec`` takes 10 us for such a number, and ``json`` 0.7.
_FAR_EXPONENT: Final = re.compile(rb"e[+-]?0*[2-9][0-9]{2}")

_TOO_MANY: Final = "Unable to parse 'data': Shape does not match true shape of 'data' field"
_TOO_FEW: Final = "Failed to parse 'data' field: shape does not match true shape"

_FLOATS: Final = msgspec.json.Decoder(list[float])
_INTEGERS: Final = msgspec.json.Decoder(list[int])
_BOOLEANS: Final = msgspec.json.Decoder(list[bool])
_TEXTS: Final = msgspec.json.Decoder(list[str])


class Unreadable(Exception):
    """A reader does not take an array, which may still be right.

    Args:
        error: what the request's sender hears, if nobody can look at the array again.
    """

    def __init__(self, error: RequestError | None = None) -> None:
        super().__init__(error)
        self.error = error


# --- numbers of any kind to bytes ------------------------------------------------------------------------------------


class BeyondRange(InvalidRequest):
    """A finite number would become infinite in its datatype; says which one. Who knows the tensor says so before it."""


class _Beyond(Exception):
    """A finite number would become infinite.

    Args:
        index: of the element.
        value: it.
    """

    def __init__(self, index: int, value: float) -> None:
        super().__init__(index, value)
        self.index, self.value = index, value

    def error(self, datatype: Datatype, before: int = 0) -> BeyondRange:
        """What the request's sender hears; ``before`` is the number of elements before those that were packed."""
        return BeyondRange(
            f"element {before + self.index} of the data, {self.value!r}, is beyond the range of {datatype.name}; "
            "infinity is written Infinity"
        )


def _pack_floats(values: Sequence[float], datatype: Datatype) -> bytes:
    """Round to the nearest values of the datatype.

    Raises:
        _Beyond: a finite value has none near.
    """
    doubles = np.array(values, np.float64)
    with np.errstate(over="ignore"):
        if datatype.name == "BF16":
            content = _to_bf16(doubles.astype(np.float32))
            infinite = (np.frombuffer(content, np.uint16) & 0x7FFF) == 0x7F80
        else:
            rounded = doubles.astype(datatype.numpy, copy=False)
            content, infinite = rounded.tobytes(), np.isinf(rounded)
    if infinite.any():
        beyond = np.flatnonzero(infinite & np.isfinite(doubles))
        if beyond.size:
            raise _Beyond(int(beyond[0]), float(doubles[beyond[0]]))
    return content


def _to_bf16(values: npt.NDArray[np.float32]) -> bytes:
    """Round to the nearest value of BF16, of two to the one whose last bit is 0."""
    bits = values.view(np.uint32)
    rounded = (bits + (0x7FFF + (bits >> 16 & 1))) >> 16
    rounded[np.isnan(values)] = 0x7FC0  # rounding may make another number of a NaN
    return rounded.astype(np.uint16).tobytes()


def _pack_integers(values: Sequence[int], datatype: Datatype) -> bytes:
    """Integers of 64 bits, of which narrower datatypes keep the low bits, as Triton does."""
    wide = np.array(values, np.int64 if datatype.numpy.kind == "i" else np.uint64)
    return wide.astype(datatype.numpy, copy=False).tobytes()


def _pack_booleans(values: Sequence[bool], datatype: Datatype) -> bytes:
    return np.array(values, np.bool_).tobytes()


# --- what was parsed -------------------------------------------------------------------------------------------------


def read_elements(data: list[Any], datatype: Datatype, count: int) -> bytes:
    """The elements of an array that ``parse_document`` has read.

    Args:
        data: flat, or nested.
        datatype: of the tensor.
        count: elements that its shape has. Of BYTES any number is taken; who knows the model has words for a wrong one.

    Raises:
        MalformedMessage: an element is of another type, or they are too many or too few.
        InvalidRequest: the nesting is too deep; BeyondRange where a finite number would become infinite.
    """
    elements: list[Any] = []
    _flatten(data, elements, 1, "" if not datatype.size else "Unable to parse 'data': ")
    try:
        content = pack_elements(elements if not datatype.size else elements[:count], datatype)
    except MalformedMessage as error:
        what = "Unable to parse 'data'" if datatype.size else "Unable to parse JSON bytes array"
        raise MalformedMessage(f"{what}: {error}") from None
    if datatype.size and len(elements) != count:
        raise MalformedMessage(_TOO_MANY if len(elements) > count else _TOO_FEW)
    return content


def pack_elements(elements: list[Any], datatype: Datatype) -> bytes:
    """The bytes of elements that ``parse_document`` has read.

    Raises:
        MalformedMessage: one is of another type.
        BeyondRange: a finite number would become infinite.
    """
    if not datatype.size:
        return join_strings([as_string(element).encode() for element in elements])
    check, pack = _kind_of(datatype)
    for element in elements:
        check(element)
    try:
        return pack(elements, datatype)
    except _Beyond as beyond:
        raise beyond.error(datatype) from None


def _flatten(data: list[Any], elements: list[Any], depth: int, prefix: str) -> None:
    if depth > MAX_DEPTH:
        raise InvalidRequest(f"{prefix}JSON nesting depth exceeds maximum allowed limit ({MAX_DEPTH})")
    for item in data:
        if isinstance(item, list):
            _flatten(item, elements, depth + 1, prefix)
        else:
            elements.append(item)


def _as_number(value: Any) -> None:
    if type(value) is float:
        return
    if type(value) is not int:
        raise MalformedMessage("attempt to access JSON non-number as double")
    try:
        float(value)
    except OverflowError:
        raise MalformedMessage("Number too big to be stored in double.") from None


def _kind_of(datatype: Datatype) -> tuple[Callable[[Any], object], Callable[[Sequence[Any], Datatype], bytes]]:
    """What checks one element of a datatype with elements of fixed size, and what packs many."""
    if datatype.name == "BOOL":
        return as_boolean, _pack_booleans
    if datatype.name.startswith("INT"):
        return as_integer, _pack_integers
    if datatype.name.startswith("UINT"):
        return as_unsigned, _pack_integers
    return _as_number, _pack_floats


# --- what was not ----------------------------------------------------------------------------------------------------


class NumberReader:
    """Reads arrays of so many elements of a datatype with elements of fixed size.

    Args:
        datatype: of the tensor.
        count: elements that its shape has.

    Attributes:
        size: bytes of what is read.
    """

    __slots__ = ("_check", "_count", "_datatype", "_decode", "_pack", "_pack_many", "size")

    def __init__(self, datatype: Datatype, count: int) -> None:
        self.size = count * datatype.size
        self._datatype = datatype
        self._count = count
        self._check, self._pack_many = _kind_of(datatype)
        decoder: msgspec.json.Decoder[Any] = _FLOATS
        if datatype.name == "BOOL":
            decoder = _BOOLEANS
        elif "INT" in datatype.name:
            decoder = _INTEGERS
        self._decode = decoder.decode
        #: packs the values of an array that is not read in pieces: 20 ns each, where NumPy takes 50. It refuses those
        #: of BF16, which are not the integers that ``struct`` takes them for.
        self._pack = struct.Struct(_packing(datatype, count)).pack

    def read(self, buffer: bytes, start: int, end: int, pause: Pause | None = None) -> bytes:
        """The bytes of an array.

        Args:
            buffer: holds its text; a bytearray does as well.
            start, end: of the text, from its first bracket to its last.
            pause: called between two pieces.

        Raises:
            Unreadable: it is not an array of so many such elements, or one that only ``read_elements`` takes.
        """
        text = buffer[start:end] if end - start <= PIECE_BYTES else b""
        if text and not (len(text) > _SHORT and _has_far_exponents(text)):
            try:
                return self._pack(*self._decode(_flat(text) if text.startswith(b"[[") else text))
            except (msgspec.DecodeError, struct.error, OverflowError):
                pass  # with a number that is none of JSON's, or out of the datatype's range
        return self._read_pieces(buffer, start, end, pause)

    def _read_pieces(self, buffer: bytes, at: int, end: int, pause: Pause | None) -> bytes:
        """Read an array from comma to comma, without a copy of all of it."""
        packed: list[bytes] = []
        left = self._count
        depth = 0
        if at >= end:
            raise Unreadable
        while at < end:
            cut = buffer.find(b",", at + PIECE_BYTES, end)
            if cut < 0:
                cut = end
            if cut - at > 2 * PIECE_BYTES:
                raise Unreadable  # blanks, or a number of more digits than anybody needs
            piece = buffer[at:cut]
            if b"[" in piece or b"]" in piece:
                depth = _depth_after(piece, depth, first=not packed, last=cut == end)
                piece = piece.translate(_SPACES)
            values = self._decode_piece(b"[%b]" % piece)
            before = self._count - left
            left -= len(values)
            if left < 0:
                raise Unreadable(MalformedMessage(_TOO_MANY))
            if not values:
                raise Unreadable
            try:
                packed.append(self._pack_piece(values))
            except _Beyond as beyond:
                raise Unreadable(beyond.error(self._datatype, before)) from None
            at = cut + 1
            if pause is not None:
                pause()
        if left:
            raise Unreadable(MalformedMessage(_TOO_FEW))
        return packed[0] if len(packed) == 1 else b"".join(packed)

    def _decode_piece(self, text: bytes) -> list[Any]:
        if self._check is _as_number and _has_far_exponents(text):
            return _decode_numbers(text)
        try:
            values: list[Any] = self._decode(text)
        except msgspec.ValidationError:
            raise Unreadable(MalformedMessage(f"Unable to parse 'data': {self._type_error()}")) from None
        except msgspec.DecodeError:
            if self._check is not _as_number:
                raise Unreadable from None
            return _decode_numbers(text)  # perhaps it has some that JSON has no words for
        return values

    def _type_error(self) -> str:
        try:
            self._check(None)
        except MalformedMessage as error:
            return str(error)
        raise AssertionError("null is a value of no datatype")

    def _pack_piece(self, values: list[Any]) -> bytes:
        try:
            return struct.pack(_packing(self._datatype, len(values)), *values)
        except (struct.error, OverflowError):
            pass
        if self._datatype.numpy.kind in "iu" and self._datatype.name != "BF16":
            try:
                self._check(min(values))
                self._check(max(values))
            except MalformedMessage:
                raise Unreadable from None
        return self._pack_many(values, self._datatype)


def _decode_numbers(text: bytes) -> list[Any]:
    """The numbers of an array, by a parser that takes 1 us for any of them.

    Raises:
        Unreadable: it holds something else.
    """
    try:
        values: list[Any] = json.loads(_SHORT_INFINITY.sub(b"Infinity", text), parse_float=finite_float)
        for value in values:
            _as_number(value)
    except (ValueError, RecursionError):
        raise Unreadable from None
    except MalformedMessage as error:
        raise Unreadable(MalformedMessage(f"Unable to parse 'data': {error}")) from None
    return values


def _has_far_exponents(text: bytes) -> bool:
    """Whether a number in ``text`` may have one; 0.05 ns a byte where none has an exponent."""
    return (b"e" in text and _FAR_EXPONENT.search(text) is not None) or (
        b"E" in text and _FAR_EXPONENT.search(text.lower()) is not None
    )


def struct_format(datatype: Datatype, count: int) -> str:
    """The format under which ``struct`` knows so many elements of a datatype; of BF16 that of the bits.

    It is the native one, whose floats take 8 ns each, where those of a named byte order take 12.
    """
    return f"{count}{datatype.numpy.char}"


def _packing(datatype: Datatype, count: int) -> str:
    """The format that packs so many elements. Of FP32 it is one that refuses numbers which would become infinite."""
    form = struct_format(datatype, count)
    return f"={form}" if datatype.name == "FP32" else form


def _flat(text: bytes) -> bytes:
    """A nested array of numbers, which begins with two brackets, as a flat one.

    The brackets become blanks once they are seen to be in pairs, each with an element behind the first and before the
    second. Then what is left is a list of elements only if that with the brackets is one: what they would part or join
    otherwise, as in ``1[,]2``, has no element there. So empty arrays are not taken.

    Raises:
        Unreadable: the brackets do not fit, or something is empty.
    """
    if text.find(b"[", 2) < 0:  # the array within is a flat one, or no array
        return text[1:-1]
    inner = text.translate(None, _NOT_BRACKETS)[1:-1]
    if len(inner) > _MANY_BRACKETS:  # of which each round would remove as few as it likes
        _depth_after(text, 0, last=True)
    else:
        for _ in range(MAX_DEPTH - 1):
            if not inner:
                break
            inner = inner.replace(b"[]", b"")
        if inner or _has_gaps(text):
            raise Unreadable
    return b"[%b]" % text[1:-1].translate(_SPACES)


def _has_gaps(text: bytes) -> bool:
    """Whether a bracket has no element, or array of elements, on its inner side."""
    compact = text.translate(None, _BLANKS)
    return b",]" in compact or b"[," in compact or b"[]" in compact


def _depth_after(piece: bytes, depth: int, *, first: bool = True, last: bool) -> int:
    """How deep an array of numbers is after a piece of it that ends at a comma, or with it.

    Args:
        piece: one with brackets; the first one begins with the array's first.
        depth: before the piece.
        first: whether the array begins with the piece; a comma is before any other.
        last: whether the array has to end with the piece, and not before.

    Raises:
        Unreadable: it does not, or is too deep, or something in it is empty.
    """
    if _has_gaps(piece if first and last else (b"" if first else b",") + piece + (b"" if last else b",")):
        raise Unreadable
    brackets = np.frombuffer(piece.translate(None, _NOT_BRACKETS), np.uint8)
    depths = depth + np.cumsum(np.where(brackets == ord("["), 1, -1))
    after = int(depths[-1])
    if depths.max() > MAX_DEPTH or depths[:-1].min(initial=1) < 1 or after < 0 or (after == 0) is not last:
        raise Unreadable
    return after


class StringReader:
    """Reads arrays of so many strings.

    Args:
        count: elements that the tensor's shape has.
    """

    __slots__ = ("_count",)

    def __init__(self, count: int) -> None:
        self._count = count

    def read(self, buffer: bytes, start: int, end: int, pause: Pause | None = None) -> bytes:
        """The elements of an array as BYTES; see ``NumberReader.read``."""
        text = buffer[start:end]
        try:
            elements: list[Any] = []
            if text.startswith(b"[["):
                _flatten(msgspec.json.decode(text), elements, 1, "")
            else:
                elements = _TEXTS.decode(text)
            if len(elements) == self._count:
                return join_strings([as_string(element).encode() for element in elements])
        except (msgspec.DecodeError, UnicodeError, MalformedMessage, InvalidRequest, RecursionError):
            pass
        raise Unreadable


Reader = NumberReader | StringReader


def reader_of(datatype: Datatype, count: int) -> Reader:
    """A reader of the arrays of a tensor."""
    return NumberReader(datatype, count) if datatype.size else StringReader(count)
