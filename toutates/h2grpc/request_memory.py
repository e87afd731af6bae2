"""What a connection holds of requests that their handlers do not have yet."""

from __future__ import annotations

from toutates.h2grpc.budget import TASK_BYTES, MemoryBudget
from toutates.h2grpc.limits import Limits
from toutates.h2grpc.status import LimitExceeded
from toutates.h2grpc.stream import Stream

__all__ = ["RequestMemory"]


class RequestMemory:
    """Counts it, for the connection and for all connections.

    Args:
        limits: what the connection may hold.
        budget: what all may hold.

    Attributes:
        held_bytes: of all the connection's requests.
    """

    __slots__ = ("_budget", "_most", "held_bytes")

    def __init__(self, limits: Limits, budget: MemoryBudget) -> None:
        self._most = limits.max_buffered_bytes
        self._budget = budget
        self.held_bytes = 0

    def hold(self, stream: Stream, size: int) -> None:
        """Account for ``size`` bytes of a stream's request that have to be kept.

        Raises:
            LimitExceeded: the connection, or the server, holds too much.
        """
        growth = size - stream.held_bytes
        stream.held_bytes = size
        self.held_bytes += growth
        self._budget.used += growth
        if growth <= 0:
            return
        if self.held_bytes > self._most:
            text = f"the connection has {self.held_bytes} bytes of requests under way, and {self._most} is the most"
            raise LimitExceeded("connection_buffer", text)
        if self._budget.exceeded:
            text = f"the server holds {self._budget.used} bytes for slow peers, and {self._budget.limit} is the most"
            raise LimitExceeded("server_buffer", text)

    def hold_task(self, stream: Stream) -> None:
        """Account for the task of a streaming call's handler.

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

    def release(self, stream: Stream) -> None:
        """What was held of a stream's request is of no more use."""
        stream.assembler = None
        self.held_bytes -= stream.held_bytes
        self._budget.used -= stream.held_bytes
        stream.held_bytes = 0
        if stream.task_bytes:
            self._budget.used -= stream.task_bytes
            self._budget.call_bytes -= stream.task_bytes
            stream.task_bytes = 0
