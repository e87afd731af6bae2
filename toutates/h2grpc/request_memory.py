"""Counting the memory of a connection's requests until their handlers have them."""

from __future__ import annotations

from toutates.h2grpc.budget import TASK_BYTES, MemoryBudget
from toutates.h2grpc.limits import Limits
from toutates.h2grpc.status import LimitExceeded
from toutates.h2grpc.stream import Stream

__all__ = ["RequestMemory"]


class RequestMemory:
    """Counts the bytes of requests for one connection, and adds them to the budget of all connections.

    Args:
        limits: the bound of the connection.
        budget: the bound of all connections.

    Attributes:
        held_bytes: bytes of the connection's requests.
    """

    __slots__ = ("_budget", "_most", "held_bytes")

    def __init__(self, limits: Limits, budget: MemoryBudget) -> None:
        self._most = limits.max_buffered_bytes
        self._budget = budget
        self.held_bytes = 0

    def hold(self, stream: Stream, size: int) -> None:
        """Set the bytes that are kept of a stream's request to ``size``.

        Raises:
            LimitExceeded: the connection, or the server, holds too much.
        """
        if self.note(stream, size) > 0:
            self.check()

    def note(self, stream: Stream, size: int) -> int:
        """``hold`` without a check; returns how many more bytes it is."""
        growth = size - stream.held_bytes
        stream.held_bytes = size
        self.held_bytes += growth
        self._budget.used += growth
        return growth

    def has_room(self, size: int) -> bool:
        """Whether ``size`` more bytes are within the bounds."""
        return self.held_bytes + size <= self._most and self._budget.used + size <= self._budget.limit

    def check(self) -> None:
        """Check what is held against the bounds.

        Raises:
            LimitExceeded: the connection, or the server, holds too much.
        """
        if self.held_bytes > self._most:
            text = f"the connection has {self.held_bytes} bytes of requests under way, and {self._most} is the most"
            raise LimitExceeded("connection_buffer", text)
        if self._budget.exceeded:
            text = f"the server holds {self._budget.used} bytes for slow peers, and {self._budget.limit} is the most"
            raise LimitExceeded("server_buffer", text)

    def hold_task(self, stream: Stream) -> None:
        """Count the task of a streaming call's handler.

        Raises:
            LimitExceeded: there is no memory for it.
        """
        budget = self._budget
        if budget.call_room < TASK_BYTES:
            text = f"the server holds {budget.call_bytes} bytes for open calls, and {budget.limit >> 1} is the most"
            raise LimitExceeded("server_buffer", text)
        stream.task_bytes = TASK_BYTES
        budget.used += TASK_BYTES
        budget.call_bytes += TASK_BYTES

    def hold_head(self, stream: Stream) -> None:
        """Count the header fields of an open call, which there is room for."""
        size = stream.head.kept_bytes
        stream.head_bytes = size
        self.held_bytes += size
        self._budget.used += size
        self._budget.call_bytes += size

    def release_head(self, stream: Stream) -> None:
        """Stop counting the header fields of a call that has ended."""
        self.held_bytes -= stream.head_bytes
        self._budget.used -= stream.head_bytes
        self._budget.call_bytes -= stream.head_bytes
        stream.head_bytes = 0

    def has_room_for_head(self, size: int) -> bool:
        """Whether header fields of ``size`` bytes are within the bounds, that of open calls included."""
        return self.held_bytes + size <= self._most and size <= self._budget.call_room

    def release(self, stream: Stream) -> None:
        """Free what is kept of a stream's request, and stop counting it."""
        if stream.assembler is not None:
            stream.assembler.drop()
            stream.assembler = None
        self.held_bytes -= stream.held_bytes
        self._budget.used -= stream.held_bytes
        stream.held_bytes = 0
        if stream.task_bytes:
            self._budget.used -= stream.task_bytes
            self._budget.call_bytes -= stream.task_bytes
            stream.task_bytes = 0
