"""The deadlines of a connection's calls."""

from __future__ import annotations

from collections.abc import Iterable

from toutates.h2grpc.call import Call
from toutates.h2grpc.stream import NEVER

__all__ = ["Deadlines"]


class Deadlines:
    """Searches all open calls when one may be late. So a call that ends in time costs one comparison.

    Attributes:
        next_ns: the earliest moment at which a call may have expired.
    """

    __slots__ = ("_expired", "next_ns")

    def __init__(self) -> None:
        self.next_ns = NEVER
        #: calls that have expired and were not taken yet, the next one last
        self._expired: list[Call] = []

    def set(self, call: Call, now_ns: int) -> None:
        """Set the deadline of a call that begins now, by its ``grpc-timeout``."""
        assert call.head.timeout_ns is not None
        call.deadline_ns = now_ns + call.head.timeout_ns
        if call.deadline_ns < self.next_ns:
            self.next_ns = call.deadline_ns

    def look(self, calls: Iterable[Call], now_ns: int) -> None:
        """Find the calls that have expired, for ``take``, and the next deadline."""
        self.next_ns = NEVER
        self._expired = []
        for call in calls:
            if call.deadline_ns <= now_ns:
                self._expired.append(call)
            elif call.deadline_ns < self.next_ns:
                self.next_ns = call.deadline_ns
        self._expired.reverse()

    def take(self, most: int) -> list[Call]:
        """Remove and return the next ``most`` calls that have expired."""
        return [self._expired.pop() for _ in range(min(most, len(self._expired)))]

    @property
    def expired(self) -> bool:
        """Whether ``take`` has more."""
        return bool(self._expired)

    def clear(self) -> None:
        """Forget all deadlines, because the connection has ended."""
        self.next_ns = NEVER
        self._expired = []
