"""Header blocks of answers, made of what HTTP/1.1 would send.

They use nothing of HPACK's dynamic table, so they are valid on every connection, and are remembered by their worker for
as long as the date is the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from toutates.h2grpc.headers import encode_block
from toutates.http1.responses import status_line

__all__ = ["Blocks"]

#: Heads that are remembered, and bytes of one. Most answers of a second have one of a few.
MOST: Final = 256
LONGEST: Final = 1_024
_STATUS_AT: Final = len("HTTP/1.1 ")


class Blocks:
    """The header blocks of one worker.

    Args:
        fields: gives the fields that every answer has, as HTTP/1.1 sends them; None for none.
    """

    __slots__ = ("_common", "_fields", "_known")

    def __init__(self, fields: Callable[[], bytes] | None) -> None:
        self._fields = fields
        self._common = b""
        #: by the head as HTTP/1.1 has it
        self._known: dict[bytes, bytes] = {}

    def of(self, head: bytes) -> bytes:
        """The block of an answer with this head, which has its status line, and not its empty line."""
        if self._fields is not None:
            common = self._fields()
            if common is not self._common:
                self._common = common
                self._known.clear()
        block = self._known.get(head)
        return self._make(head) if block is None else block

    def of_fields(self, status: int, fields: bytes) -> bytes:
        """The same of an answer with a status and fields."""
        return self.of(status_line(status) + fields)

    def _make(self, head: bytes) -> bytes:
        first, _, fields = head.partition(b"\r\n")
        pairs = [(b":status", first[_STATUS_AT : _STATUS_AT + 3])]
        for line in (fields + self._common).split(b"\r\n")[:-1]:
            name, _, value = line.partition(b":")
            pairs.append((name.lower(), value.strip(b" \t")))
        block = encode_block(pairs)
        if len(head) <= LONGEST:
            if len(self._known) >= MOST:
                self._known.clear()
            self._known[head] = block
        return block
