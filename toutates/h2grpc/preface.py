"""The first bytes of a connection: HTTP/2's preface, HTTP/1 by mistake, or garbage (RFC 9113 section 3.4)."""

from __future__ import annotations

import re
from enum import Enum

from toutates.h2grpc.frames import PREFACE

__all__ = ["HTTP1_ANSWER", "Opening", "recognise"]

_BODY = b"This is a gRPC port: it speaks HTTP/2 with prior knowledge, not HTTP/1.\n"
HTTP1_ANSWER = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: %d\r\n"
    b"connection: close\r\n\r\n%b" % (len(_BODY), _BODY)
)

_MAYBE_REQUEST_LINE = re.compile(rb"[A-Z]{1,20}( [^\r\n]*)?\r?")
_REQUEST_LINE = re.compile(rb"[A-Z]{1,20} [^\r\n]* HTTP/1\.[01]\r?\n")


class Opening(Enum):
    """What a connection's first bytes are."""

    INCOMPLETE = 0
    HTTP2 = 1
    HTTP1 = 2
    GARBAGE = 3


def recognise(data: bytes, max_bytes: int) -> Opening:
    """What ``data``, all bytes received so far, begins. The answer does not depend on how they were split.

    Args:
        data: the bytes.
        max_bytes: how many to look at before an endless request line is called garbage.
    """
    if data.startswith(PREFACE):
        return Opening.HTTP2
    if PREFACE.startswith(data):
        return Opening.INCOMPLETE
    if _REQUEST_LINE.match(data, 0, max_bytes):
        return Opening.HTTP1
    if len(data) < max_bytes and _MAYBE_REQUEST_LINE.fullmatch(data):
        return Opening.INCOMPLETE
    return Opening.GARBAGE
