"""gRPC statuses: canonical codes, the error a handler raises, and the two small grammars of the headers.

Source: the gRPC-over-HTTP/2 specification, "Responses" and "Requests"; codes from gRPC's ``statuscodes.md``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import IntEnum

__all__ = ["GrpcError", "LimitExceeded", "Metadata", "Status", "encode_message", "parse_timeout"]

#: Names and values of custom metadata; values of names that end in ``-bin`` are bytes.
Metadata = Sequence[tuple[str, str | bytes]]

#: A header block above 8 KiB makes C-core clients fail the call at random, so the text is cut well below it, leaving
#: room for grpc-status, content-type and a few trailing metadata.
MAX_ENCODED_MESSAGE_BYTES = 7_168


class Status(IntEnum):
    """The canonical status codes."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class GrpcError(Exception):
    """A call ends with this status. Raised by handlers, and for requests that gRPC itself refuses.

    Args:
        status: any code but OK.
        text: sent to the caller as ``grpc-message``; cut to what a header block may carry.
        metadata: trailing metadata sent along.
    """

    def __init__(self, status: Status, text: str, metadata: Metadata = ()) -> None:
        super().__init__(text)
        self.status = status
        self.text = text
        self.metadata = metadata


class CallRefused(GrpcError):
    """A guard's refusal that may be another one next time, because what it looks at can change.

    So it is not remembered with the header block, and a connection may have so many of them only.

    Args:
        status, text: as in GrpcError.
        cost: for how many reset streams it counts; more where it was dear to find out.
    """

    def __init__(self, status: Status, text: str, cost: int = 10) -> None:
        super().__init__(status, text)
        self.cost = cost


class LimitExceeded(GrpcError):
    """RESOURCE_EXHAUSTED, because the caller met a limit.

    Args:
        limit: which, one of ``limits.LIMIT_NAMES``.
        text: as in GrpcError.
    """

    def __init__(self, limit: str, text: str) -> None:
        super().__init__(Status.RESOURCE_EXHAUSTED, text)
        self.limit = limit


def encode_message(text: str) -> bytes:
    """Percent-encode a ``grpc-message``: every byte of its UTF-8 outside 0x20-0x7E, and ``%`` itself.

    So are spaces at its ends, which a field value must not have (RFC 9113 section 8.2.1). The result is cut to
    MAX_ENCODED_MESSAGE_BYTES without splitting an escape or a character.
    """
    if len(text) < 2_048 and text.isascii() and text.isprintable() and "%" not in text and text == text.strip():
        return text.encode()
    pieces: list[bytes] = []
    room = MAX_ENCODED_MESSAGE_BYTES
    for character in text[:MAX_ENCODED_MESSAGE_BYTES]:
        if " " <= character <= "~" and character != "%":
            piece = character.encode()
        else:
            piece = b"".join(b"%%%02X" % byte for byte in character.encode("utf-8", "replace"))
        room -= len(piece)
        if room < 0:
            break
        pieces.append(piece)
    for end in (0, -1):
        if pieces and pieces[end] == b" ":
            pieces[end] = b"%20"
    return b"".join(pieces)


_TIMEOUT = re.compile(rb"([0-9]{1,8})([HMSmun])")
_NANOSECONDS = {b"H": 3_600 * 10**9, b"M": 60 * 10**9, b"S": 10**9, b"m": 10**6, b"u": 10**3, b"n": 1}


def parse_timeout(value: bytes) -> int | None:
    """Nanoseconds of a ``grpc-timeout`` value, or None when it does not follow the grammar."""
    match = _TIMEOUT.fullmatch(value)
    return int(match[1]) * _NANOSECONDS[match[2]] if match else None
