"""JSON in Triton's dialect: what is accepted, and the texts of its errors.

Triton reads JSON with RapidJSON. Beyond JSON it takes the numbers NaN, Inf, Infinity, -Inf and -Infinity; of two
members with the same name the first one counts. The standard library's parser can be told to do both. It is slower than
``msgspec``, which reads the data of tensors (``arrays``), so documents are bounded in the number of their values.

An error in syntax or type is a ``MalformedMessage``, which REST answers with status 500, as Triton does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from math import isinf
from typing import Any, Final, NoReturn, TypeVar

from toutates.system.errors import InvalidRequest, MalformedMessage

__all__ = [
    "MAX_DEPTH",
    "MAX_DOCUMENT_BYTES",
    "MAX_VALUES",
    "Members",
    "as_array",
    "as_boolean",
    "as_integer",
    "as_object",
    "as_string",
    "as_unsigned",
    "finite_float",
    "first_of_each",
    "is_parsable",
    "parse_document",
    "read_member",
    "syntax_error",
]

T = TypeVar("T")

#: Values, arrays and objects of one document: up to 1 us each to parse.
MAX_VALUES: Final = 16_384
#: Bytes of one document whose strings are long and few, such as images in base64: up to 8 ns each.
MAX_DOCUMENT_BYTES: Final = 2_097_152
#: Bytes of one that has more values than FEW_VALUES, or other letters than ASCII's. No other thread has the interpreter
#: while names are hashed, digits are read, and letters become wide: up to 12 ns for a byte.
MAX_DEAR_BYTES: Final = 1_048_576
#: Values of a document that may be longer than that.
FEW_VALUES: Final = 256
#: Escape sequences in strings, 50 ns each.
MAX_ESCAPES: Final = 262_144
#: Depth of arrays in the data of a tensor; Triton's limit.
MAX_DEPTH: Final = 100

#: A string. One without an end is one too: otherwise each of its quotation marks would be looked at as the first.
_STRING: Final = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)'
_STRINGS: Final = re.compile(_STRING, re.DOTALL)
_SHORT_INFINITY: Final = re.compile(_STRING + rb"|\bInf\b", re.DOTALL)
#: The same word, found fifty times as fast as by a pattern that does not begin with it.
_INFINITY: Final = re.compile(rb"Inf(?<!\wInf)\b")
#: Escape sequences of a string: a pair of surrogates, one alone (its group), or any other.
_ESCAPES: Final = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F])|.)", re.DOTALL
)
#: The standard library's texts, by their beginning, and RapidJSON's.
_REASONS: Final = {
    "Expecting value": "Invalid value.",
    "Expecting property name": "Missing a name for object member.",
    "Illegal trailing comma before end of object": "Missing a name for object member.",
    "Illegal trailing comma before end of array": "Invalid value.",
    "Expecting ':'": "Missing a colon after a name of object member.",
    "Unterminated string": "Missing a closing quotation mark in string.",
    "Invalid control character": "Invalid encoding in string.",
    "Invalid \\escape": "Invalid escape character in string.",
    "Invalid \\uXXXX": "Incorrect hex digit after \\u escape in string.",
    "Extra data": "The document root must not be followed by other values.",
}
_TOO_BIG: Final = "Number too big to be stored in double."


#: Members of an object in their order, with those that have the same name.
Members = list[tuple[str, Any]]


def first_of_each(pairs: Members) -> dict[str, Any]:
    """An object of these members; of those with the same name the first."""
    members = dict(pairs)
    return members if len(members) == len(pairs) else dict(reversed(pairs))


def parse_document(
    octets: bytes, most: int = MAX_DOCUMENT_BYTES, make_object: Callable[[Members], Any] = first_of_each
) -> Any:
    """The value of a document: dict, list, str, int, float, bool or None.

    Args:
        octets: in UTF-8.
        most: bytes that it may have; above MAX_DOCUMENT_BYTES they are of any kind, which takes as long as it takes.
        make_object: makes an object of its members.

    Raises:
        MalformedMessage: it is not JSON; the text has RapidJSON's reason, and the offset in bytes.
        InvalidRequest: it is too deep or too large.
    """
    if not is_parsable(octets, most):
        raise InvalidRequest(
            f"the request's JSON has more than {MAX_VALUES} values, {most} bytes, or {min(most, MAX_DEAR_BYTES)} bytes "
            f"with more than {FEW_VALUES} values or with other letters than ASCII's, tensors of numbers left out; send "
            "the others as binary data"
        )
    if _INFINITY.search(octets):
        octets = _SHORT_INFINITY.sub(lambda found: b"Infinity" if found[0] == b"Inf" else found[0], octets)
    try:
        text = octets.decode()
    except UnicodeDecodeError as error:
        raise syntax_error("Invalid encoding in string.", error.start) from None
    try:
        document = json.loads(text, object_pairs_hook=make_object, parse_float=finite_float)
    except json.JSONDecodeError as error:
        raise _syntax_error(error) from None
    except ValueError:  # of ``finite_float``, or an integer of thousands of digits
        raise syntax_error(_TOO_BIG, 0) from None
    except RecursionError:
        raise InvalidRequest(f"JSON nesting depth exceeds maximum allowed limit ({MAX_DEPTH})") from None
    if b"\\u" in octets:
        _check_surrogates(octets)
    return document


def is_parsable(octets: bytes, most: int = MAX_DOCUMENT_BYTES) -> bool:
    """Whether a document is small enough to be parsed."""
    if len(octets) > most or octets.count(b"\\") > MAX_ESCAPES:
        return False
    values = MAX_VALUES
    if len(octets) > MAX_DEAR_BYTES and most <= MAX_DOCUMENT_BYTES:
        if not octets.isascii():
            return False
        values = FEW_VALUES
    if octets.count(b'"') - octets.count(b'\\"') > 4 * values:  # two of a name and two of its value
        return False
    return _count(octets) <= values or _count(_STRINGS.sub(b"", octets)) <= values


def _count(octets: bytes) -> int:
    return octets.count(b",") + octets.count(b"[") + octets.count(b"{")


def finite_float(text: str) -> float:
    """The number that a text of digits is.

    Raises:
        ValueError: it has no place in a double.
    """
    number = float(text)
    if isinf(number):  # Infinity itself does not come here
        raise ValueError(text)
    return number


def _check_surrogates(octets: bytes) -> None:
    for found in _ESCAPES.finditer(octets):
        if found[1]:
            raise syntax_error("The surrogate pair in string is invalid.", found.start())


def syntax_error(reason: str, offset: int) -> MalformedMessage:
    """The error for bytes that are not JSON."""
    return MalformedMessage(f"failed to parse the request JSON buffer: {reason} at {offset}")


def _syntax_error(error: json.JSONDecodeError) -> MalformedMessage:
    before = error.doc[: error.pos].encode()
    reason = next((ours for theirs, ours in _REASONS.items() if error.msg.startswith(theirs)), "Invalid value.")
    if error.msg.startswith("Expecting ','"):
        of_object = "Missing a comma or '}' after an object member."
        reason = of_object if _innermost(before) == b"{" else "Missing a comma or ']' after an array element."
    elif error.msg.startswith("Unterminated"):
        before = error.doc.encode()
    elif error.pos == len(error.doc) and not before.strip():
        reason = "The document is empty."
    return syntax_error(reason, len(before))


def _innermost(before: bytes) -> bytes:
    """The bracket that is still open at the end of valid JSON that is cut off."""
    closed = 0
    for bracket in reversed(re.findall(rb"[\[\]{}]", _STRINGS.sub(b"", before))):
        closed += 1 if bracket in b"]}" else -1
        if closed < 0:
            return bytes(bracket)
    return b""


# --- types -----------------------------------------------------------------------------------------------------------


def read_member(members: Any, key: str, read: Callable[[Any], T]) -> T:
    """The member ``key`` of an object, which it must have, as ``read`` gives it.

    Raises:
        MalformedMessage: there is none, or it is of another type; the text names the key.
    """
    try:
        if not isinstance(members, dict) or key not in members:
            raise MalformedMessage(f"attempt to access non-existing object member '{key}'")
        return read(members[key])
    except MalformedMessage as error:
        raise MalformedMessage(f"Unable to parse '{key}': {error}") from None


def as_string(value: Any) -> str:
    """A string."""
    return value if isinstance(value, str) else _refuse("string")


def as_boolean(value: Any) -> bool:
    """A boolean."""
    return value if isinstance(value, bool) else _refuse("boolean")


def as_integer(value: Any) -> int:
    """An integer that 64 bits hold with their sign. ``1.0`` is none."""
    if type(value) is int and -(2**63) <= value < 2**63:
        return value
    return _refuse("signed-integer")


def as_unsigned(value: Any) -> int:
    """An integer that 64 bits hold without a sign."""
    if type(value) is int and 0 <= value < 2**64:
        return value
    return _refuse("unsigned-integer")


def as_array(value: Any) -> list[Any]:
    """An array."""
    return value if isinstance(value, list) else _refuse("array")


def as_object(value: Any) -> Mapping[str, Any]:
    """An object."""
    return value if isinstance(value, dict) else _refuse("object")


def _refuse(kind: str) -> NoReturn:
    raise MalformedMessage(f"attempt to access JSON non-{kind} as {kind}")
