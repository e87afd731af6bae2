"""What a response's head looks like, and the refusals that a connection makes of its own accord."""

from __future__ import annotations

import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

__all__ = ["CONTINUE", "LAST_CHUNK", "Refused", "chunk", "encode_fields", "has_no_body", "status_line"]

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK: Final = b"0\r\n\r\n"

_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE: Final = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_STATUS_LINES: Final = {
    int(status): f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode("ascii") for status in HTTPStatus
}


class Refused(Exception):
    """A request is answered with an error, and goes no further.

    Args:
        status: 4xx or 5xx.
        text: for people; one line without its end.
        fields: further header fields, of ``encode_fields``.
        ends: whether the connection ends with the answer. Such a refusal is not remembered with the head.
    """

    def __init__(self, status: int, text: str, fields: bytes = b"", *, ends: bool = False) -> None:
        super().__init__(status, text)
        self.status = status
        self.text = text
        self.fields = fields
        self.ends = ends

    def anew(self) -> Refused:
        """The same refusal without its past, to be kept or raised again: frames that one has passed keep what came."""
        return Refused(self.status, self.text, self.fields, ends=self.ends)


def encode_fields(fields: Mapping[str, str]) -> bytes:
    """Header fields as they are sent.

    Raises:
        ValueError: a name or a value holds what would end its field.
    """
    for name, value in fields.items():
        if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            raise ValueError(f"not a header field: {name!r}: {value!r}")
    return "".join(f"{name}: {value}\r\n" for name, value in fields.items()).encode("latin-1")


def status_line(status: int) -> bytes:
    """The first line of a response."""
    return _STATUS_LINES.get(status) or f"HTTP/1.1 {status} \r\n".encode("ascii")


def has_no_body(status: int) -> bool:
    """Whether responses of a status never have a body (RFC 9110 section 6.4.1)."""
    return status in (204, 304)


def chunk(data: bytes) -> bytes:
    """A piece of a body in chunked coding; not empty, because an empty chunk ends the body."""
    return b"%x\r\n%b\r\n" % (len(data), data)
