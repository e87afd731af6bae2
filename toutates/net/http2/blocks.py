"""Header blocks of answers, made of what HTTP/1.1 would send.

They use nothing of HPACK's dynamic table, so they are valid on every connection, and are remembered by their worker for
as long as the date is the same.
"""

from __future__ import annotations

from typing import Final

from toutates.h2grpc.headers import ResponseBlock
from toutates.h2grpc.stream import NEVER
from toutates.http1.responses import status_line
from toutates.net.http_date import HttpDate

__all__ = ["Blocks"]

#: Heads that are remembered, and bytes of one. Most answers of a second have one of a few.
MOST: Final = 256
LONGEST: Final = 1_024
_STATUS_AT: Final = len("HTTP/1.1 ")


class Blocks:
    """The header blocks of one worker.

    Args:
        date: gives the field that every answer has; None for none.

    Attributes:
        known: by the head as HTTP/1.1 has it.
        until_ns: until when these are good, on the clock of the date.
    """

    __slots__ = ("_date", "_field", "known", "until_ns")

    def __init__(self, date: HttpDate | None) -> None:
        self._date = date
        self._field = b""
        self.known: dict[bytes, ResponseBlock] = {}
        self.until_ns = NEVER if date is None else date.until_ns

    def of(self, head: bytes) -> ResponseBlock:
        """The block of an answer with this head, which has its status line, and not its empty line."""
        if self._date is not None:
            field = self._date()
            if field is not self._field:
                self._field = field
                self.known.clear()
            self.until_ns = self._date.until_ns
        block = self.known.get(head)
        return self._make(head) if block is None else block

    def of_fields(self, status: int, fields: bytes) -> ResponseBlock:
        """The same of an answer with a status and fields."""
        return self.of(status_line(status) + fields)

    def _make(self, head: bytes) -> ResponseBlock:
        first, _, fields = head.partition(b"\r\n")
        pairs = [(b":status", first[_STATUS_AT : _STATUS_AT + 3])]
        for line in (fields + self._field).split(b"\r\n")[:-1]:
            name, _, value = line.partition(b":")
            pairs.append((name.lower(), value.strip(b" \t")))
        block = ResponseBlock(pairs)
        if len(head) <= LONGEST:
            if len(self.known) >= MOST:
                self.known.clear()
            self.known[head] = block
        return block
