"""The memory that all connections of one driver may hold for slow peers: one account, whatever they speak."""

from __future__ import annotations

from typing import Final

__all__ = ["CALL_BYTES", "FREE_BYTES", "MESSAGE_BYTES", "TASK_BYTES", "UNCOUNTED_CALLS", "MemoryBudget"]

#: Bytes that an open call takes, about: its record, its places in tables, a short message that waits for window, and
#: header fields as far as they are not counted by themselves.
CALL_BYTES: Final = 2_048
#: Bytes that the task of a streaming call's handler takes, about, with the handler's side of the stream.
TASK_BYTES: Final = 7_168
#: Bytes that a received message of a streaming call takes, about, besides its contents, until its handler has it.
MESSAGE_BYTES: Final = 48
#: Up to so many open calls of a connection are not counted, and are allowed however much memory is used. Counting them
#: would cost every request, and they take no more memory than the connection itself.
UNCOUNTED_CALLS: Final = 64
#: So many bytes of a connection's header blocks and fields are not counted, for the same reason.
FREE_BYTES: Final = 8_192


class MemoryBudget:
    """Counts the bytes of incomplete requests, of responses that are not read yet, of the records of open calls, and of
    header blocks that are remembered.

    Connections add to ``used`` what they hold, and subtract it when they release it. A connection checks ``exceeded``
    before it holds more.

    Args:
        limit: bytes.

    Attributes:
        used: bytes held.
        call_bytes: those among them that are records of calls, and their header fields.
    """

    __slots__ = ("call_bytes", "limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self.call_bytes = 0

    @property
    def exceeded(self) -> bool:
        """Whether connections hold more than they may."""
        return self.used > self.limit

    @property
    def room(self) -> int:
        """Bytes that connections may still hold; negative if they hold too many. Any thread may ask."""
        return self.limit - self.used

    def has_room(self, growth: int) -> bool:
        """Whether connections may hold ``growth`` bytes more. Any thread may ask."""
        return self.used + growth <= self.limit

    @property
    def call_room(self) -> int:
        """Bytes that the records of more calls may take; negative if there are too many of them.

        Records may take half of the limit: clients that only open calls must leave room for requests and responses.
        """
        return min(self.limit - self.used, (self.limit >> 1) - self.call_bytes)
