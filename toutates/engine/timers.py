"""When each of many is to be looked at. The one that is first is known at once, and one more takes logarithmic time."""

from __future__ import annotations

import heapq
from typing import Final, Generic, Protocol, TypeVar

__all__ = ["NEVER_NS", "Timed", "Timers"]

NEVER_NS: Final = 2**63 - 1
#: So many entries that count no longer are kept, beside as many as there are others.
_STALE_KEPT: Final = 64


class Timed(Protocol):
    """What has a time.

    Attributes:
        at_ns: set by ``Timers``, monotonic nanoseconds; 0 for none.
    """

    at_ns: int


T = TypeVar("T", bound=Timed)


class Timers(Generic[T]):
    """The times of all that have one. Not for two threads at once.

    Attributes:
        next_ns: no time is before this; ``NEVER_NS`` without any.
    """

    __slots__ = ("_count", "_entries", "_set", "next_ns")

    def __init__(self) -> None:
        #: time, place, and whose it is; an entry counts if its owner has this time still
        self._entries: list[tuple[int, int, T]] = []
        self._set = 0
        self._count = 0
        self.next_ns = NEVER_NS

    def set(self, owner: T, at_ns: int) -> None:
        """Give it this time in place of another one."""
        if not owner.at_ns:
            self._count += 1
        owner.at_ns = at_ns
        self._set += 1
        heapq.heappush(self._entries, (at_ns, self._set, owner))
        if len(self._entries) > 2 * self._count + _STALE_KEPT:
            self._entries = [entry for entry in self._entries if entry[2].at_ns == entry[0]]
            heapq.heapify(self._entries)
        self.next_ns = self._entries[0][0]

    def cancel(self, owner: T) -> None:
        """Take away its time, if it has one."""
        if not owner.at_ns:
            return
        owner.at_ns = 0
        self._count -= 1
        if not self._count:
            self._entries.clear()
            self.next_ns = NEVER_NS

    def take_due(self, now_ns: int, most: int) -> list[T]:
        """Those whose time has come, the first one first, ``most`` of them. They have none any more."""
        due: list[T] = []
        entries = self._entries
        while entries and entries[0][0] <= now_ns and len(due) < most:
            at_ns, _, owner = heapq.heappop(entries)
            if owner.at_ns == at_ns:
                self.cancel(owner)
                due.append(owner)
        self.next_ns = entries[0][0] if entries else NEVER_NS
        return due
