"""The memory that all connections of one worker may hold for peers that are slow."""

from __future__ import annotations

from typing import Final

__all__ = ["CALL_BYTES", "MESSAGE_BYTES", "TASK_BYTES", "UNCOUNTED_CALLS", "MemoryBudget"]

#: What the record of an open call takes, about, with its place in tables and a message that waits for window.
CALL_BYTES: Final = 1_024
#: What the task of a streaming call takes, about, with the handler's side of the stream.
TASK_BYTES: Final = 7_168
#: What a stream's message takes besides its bytes, about, until its handler has it.
MESSAGE_BYTES: Final = 48
#: So many open calls of a connection are not counted, and may be there however much memory is used: counting them would
#: cost every request, and they are no more than what the connection itself takes.
UNCOUNTED_CALLS: Final = 64


class MemoryBudget:
    """Bytes of requests that are not whole yet, of responses that are not read yet, and of the records of open calls.

    Connections add what they hold to ``used`` and take it off again; each asks ``exceeded`` before it holds more.

    Args:
        limit: bytes.

    Attributes:
        used: bytes held.
        call_bytes: those among them that are records of calls.
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
    def call_room(self) -> int:
        """Bytes that the records of more calls may take; negative if there are too many of them.

        Half of the memory at most is for records: who opens calls and leaves it at that must not keep others' requests
        and responses out.
        """
        return min(self.limit - self.used, (self.limit >> 1) - self.call_bytes)
