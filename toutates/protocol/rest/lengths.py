"""Where the JSON part of an infer request's body ends, as its header says."""

from __future__ import annotations

import re
from typing import Final

from toutates.system.errors import InvalidRequest

__all__ = ["HEADER_LENGTH", "RAW", "check_json_size", "json_length", "too_large"]

#: The header field, in the spelling that responses have.
HEADER_LENGTH: Final = "Inference-Header-Content-Length"
#: ``json_length`` of a body that is one tensor.
RAW: Final = 0

_INTEGER: Final = re.compile(r"[+-]?[0-9]+")
_LEAST, _MOST = -(2**31), 2**31 - 1


def json_length(field: str | None, body_size: int) -> int:
    """Bytes of the JSON at the start of a body; RAW where there is none, because the whole body is one tensor.

    Args:
        field: the value of the field HEADER_LENGTH; None without one.
        body_size: bytes of the body, decompressed.

    Raises:
        InvalidRequest: the value is no number, or not a size of a part of the body.
    """
    if field is None:
        return body_size
    if not _INTEGER.fullmatch(field):
        raise InvalidRequest(f"Unable to parse {HEADER_LENGTH}, got: {field[:64]}")
    number = int(field[:32])
    if not _LEAST <= number <= _MOST:
        raise InvalidRequest(
            f"Unable to parse {HEADER_LENGTH}, value is out of range [ {_LEAST}, {_MOST} ], got: {field[:64]}"
        )
    if not 0 <= number <= body_size:
        raise InvalidRequest(f"inference header size should be in range (0, {body_size}), got: {number}")
    return number


def check_json_size(size: int, most: int) -> None:
    """See that the JSON of a request has at most ``most`` bytes.

    Raises:
        InvalidRequest: it has more.
    """
    if size > most:
        raise InvalidRequest(
            f"request JSON size of {size} bytes exceeds the maximum allowed input size of {most} bytes. "
            "Use --http-max-input-size to increase the limit."
        )


def too_large(what: str, size: int, most: int) -> InvalidRequest:
    """The error for an input of more than ``most`` bytes."""
    return InvalidRequest(
        f"{what} has a byte_size ({size} bytes) that exceeds the maximum allowed value of {most} bytes. "
        "Use --http-max-input-size to increase the limit."
    )
