"""Header blocks of answers, made of what HTTP/1.1 would send.

They use nothing of HPACK's dynamic table, so they are valid on every connection, and are remembered by their worker for
as long as the date is the same.
"""

from __future__ import annotations

from typing import Final

from toutates.h2grpc.headers import ResponseBlock
from toutates.net.http_date import HttpDate

__all__ = ["Blocks"]

#: Heads that are remembered, and bytes of one. Most answers of a second have one of a few.
MOST: Final = 256
LONGEST: Final = 1_024


class Blocks:
    """The header blocks of one worker.

    Args:
        date: has the field that every answer has.

    Attributes:
        known: by the status, where it is not 200, and the fields.
        until_ns: until when these are good, on the clock of the date.
    """

    __slots__ = ("_date", "known", "until_ns")

    def __init__(self, date: HttpDate) -> None:
        self._date = date
        self.known: dict[bytes, ResponseBlock] = {}
        self.until_ns = date.until_ns

    def of(self, fields: bytes, status: int = 200) -> ResponseBlock:
        """The block of an answer with these fields of its own, with the empty line after them or without."""
        if self.until_ns != self._date.until_ns:
            self.until_ns = self._date.until_ns
            self.known.clear()
        key = fields if status == 200 else b"%d %b" % (status, fields)
        block = self.known.get(key)
        return self._make(key, status, fields) if block is None else block

    def _make(self, key: bytes, status: int, fields: bytes) -> ResponseBlock:
        pairs = [(b":status", b"%d" % status)]
        for line in filter(None, (fields + self._date.field()).split(b"\r\n")):
            name, _, value = line.partition(b":")
            pairs.append((name.lower(), value.strip(b" \t")))
        block = ResponseBlock(pairs)
        if len(key) <= LONGEST:
            if len(self.known) >= MOST:
                self.known.clear()
            self.known[key] = block
        return block
