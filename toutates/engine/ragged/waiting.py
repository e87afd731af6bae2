"""Rows that wait to be joined end to end, and which of them run together: the first ones, as many as may."""

from __future__ import annotations

from collections import deque
from typing import Final, Generic, TypeVar

from toutates.engine.lengths import Buckets, Chosen

__all__ = ["RowsInOrder", "size_of"]

T = TypeVar("T")

#: The size of a batch is rounded up to one of these, to remember how long such runs take.
_SIZES: Final = Buckets()


def size_of(elements: int) -> int:
    """The size that the lane of a batch with so many elements has."""
    return _SIZES.of(max(1, elements))


class RowsInOrder(Generic[T]):
    """Rows that wait, in the order in which they came. Nothing is lost by joining long rows and short ones.

    Args:
        most_rows: of a run.
        most_elements: of a run; an entry that has more runs alone.

    Attributes:
        rows: that wait.
    """

    def __init__(self, most_rows: int, most_elements: int) -> None:
        self._most_rows = most_rows
        self._most_elements = most_elements
        #: each with its rows and its elements
        self._waiting: deque[tuple[T, int, int]] = deque()
        self.rows = 0

    def __len__(self) -> int:
        """How many entries wait."""
        return len(self._waiting)

    @property
    def oldest(self) -> T:
        """The entry that waits longest. There has to be one."""
        return self._waiting[0][0]

    def add(self, own: T, rows: int, length: int) -> None:
        """Add an entry.

        Args:
            own: whatever is to come back.
            rows: how many it has, ``most_rows`` at most.
            length: elements of each.
        """
        self._waiting.append((own, rows, rows * length))
        self.rows += rows

    def take(self) -> Chosen[T]:
        """Take the entries that run next. There has to be one. Their ``length`` is that of all elements, rounded up."""
        waiting = self._waiting
        own, rows, elements = waiting.popleft()
        entries = [own]
        while waiting:
            own, more_rows, more_elements = waiting[0]
            if rows + more_rows > self._most_rows or elements + more_elements > self._most_elements:
                break
            waiting.popleft()
            entries.append(own)
            rows += more_rows
            elements += more_elements
        self.rows -= rows
        return Chosen(size_of(elements), entries, rows, elements)
