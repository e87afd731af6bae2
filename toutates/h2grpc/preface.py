"""The first bytes of a connection: HTTP/2's preface, HTTP/1 or TLS by mistake, or garbage (RFC 9113 section 3.4)."""

from __future__ import annotations

import re
from enum import Enum
from typing import Final

from toutates.h2grpc.frames import PREFACE, ErrorCodes

__all__ = ["REFUSALS", "Opening", "http1_answer", "recognise"]


def http1_answer(text: str, fields: bytes) -> bytes:
    """An HTTP/1 response with status 400 and ``text``; ``fields`` are further header fields, each with its CR LF."""
    body = text.encode() + b"\n"
    return (
        b"HTTP/1.1 400 Bad Request\r\n%bcontent-type: text/plain; charset=utf-8\r\ncontent-length: %d\r\n"
        b"connection: close\r\n\r\n%b" % (fields, len(body), body)
    )


class Opening(Enum):
    """The protocol that a connection's first bytes belong to."""

    INCOMPLETE = 0
    HTTP2 = 1
    HTTP1 = 2
    GARBAGE = 3
    TLS = 4


#: For clients that speak another protocol: an answer in their protocol, of HTTP/1 the text alone (``http1_answer``);
#: the error code and the text with which the connection ends. A TLS client gets a record with the fatal alert
#: handshake_failure (RFC 8446 section 6.2).
REFUSALS: Final = {
    Opening.HTTP1: (
        b"This is a gRPC port: it speaks HTTP/2 with prior knowledge, not HTTP/1.",
        ErrorCodes.HTTP_1_1_REQUIRED,
        "HTTP/1 request on a gRPC port",
    ),
    Opening.TLS: (
        b"\x15\x03\x01\0\x02\x02\x28",
        ErrorCodes.PROTOCOL_ERROR,
        "TLS handshake on a plaintext port",
    ),
}

_MAYBE_REQUEST_LINE = re.compile(rb"[A-Z]{1,20}( [^\r\n]*)?\r?")
_REQUEST_LINE = re.compile(rb"[A-Z]{1,20} [^\r\n]* HTTP/1\.[01]\r?\n")
#: The head of a record that carries a handshake, of SSL 3.0 to TLS 1.3 (RFC 8446 section 5.1).
_TLS_HANDSHAKE = re.compile(rb"\x16\x03[\x00-\x04]")
_MAYBE_TLS_HANDSHAKE = b"\x16\x03"


def recognise(data: bytes, max_bytes: int) -> Opening:
    """The protocol of a connection that has received ``data`` so far, however that was split.

    Args:
        data: the bytes.
        max_bytes: how many to look at before an endless request line is called garbage.
    """
    if data.startswith(PREFACE):
        return Opening.HTTP2
    if PREFACE.startswith(data) or _MAYBE_TLS_HANDSHAKE.startswith(data):
        return Opening.INCOMPLETE
    if _REQUEST_LINE.match(data, 0, max_bytes):
        return Opening.HTTP1
    if _TLS_HANDSHAKE.match(data):
        return Opening.TLS
    if len(data) < max_bytes and _MAYBE_REQUEST_LINE.fullmatch(data):
        return Opening.INCOMPLETE
    return Opening.GARBAGE
