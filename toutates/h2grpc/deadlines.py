"""The deadlines of a connection's calls."""

from __future__ import annotations

from collections.abc import Iterable

from toutates.h2grpc.call import Call
from toutates.h2grpc.stream import NEVER

__all__ = ["Deadlines"]


class Deadlines:
    """Looks at every open call when one is due, so that calls which end in time cost nothing but a comparison.

    Attributes:
        next_ns: the earliest moment at which a call may have expired.
    """

    __slots__ = ("_expired", "next_ns")

    def __init__(self) -> None:
        self.next_ns = NEVER
        #: calls that have expired, the next one to fail last
        self._expired: list[Call] = []

    def set(self, call: Call, now_ns: int) -> None:
        """A call has begun whose caller waits for so long."""
        assert call.head.timeout_ns is not None
        call.deadline_ns = now_ns + call.head.timeout_ns
        if call.deadline_ns < self.next_ns:
            self.next_ns = call.deadline_ns

    def look(self, calls: Iterable[Call], now_ns: int) -> None:
        """Find the calls that have expired; ``take`` gives them out."""
        self.next_ns = NEVER
        self._expired = []
        for call in calls:
            if call.deadline_ns <= now_ns:
                self._expired.append(call)
            elif call.deadline_ns < self.next_ns:
                self.next_ns = call.deadline_ns
        self._expired.reverse()

    def take(self, most: int) -> list[Call]:
        """The next ``most`` calls that have expired."""
        return [self._expired.pop() for _ in range(min(most, len(self._expired)))]

    @property
    def expired(self) -> bool:
        """Whether ``take`` has more."""
        return bool(self._expired)

    def clear(self) -> None:
        """Forget them: the connection is over."""
        self.next_ns = NEVER
        self._expired = []
