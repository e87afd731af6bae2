"""How soon a model that is full has room again: what is under way, divided by what leaves.

Callers who are refused one after the other are told times one after the other, as if they had a place in a queue.
Told the same time, all would come back together, and most be refused again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

__all__ = ["LEAST_S", "MOST_S", "UNKNOWN_S", "Drain"]

#: The shortest and the longest time that is told.
LEAST_S: Final = 0.05
MOST_S: Final = 30.0
#: What is told of a model of which nothing has left yet.
UNKNOWN_S: Final = 1.0
#: Who is refused is told no more than so many times what it takes until what is under way has left. The next one begins
#: anew: those who do not come back, or come back early, keep nobody waiting for ever.
FARTHEST: Final = 4
#: What leaves is counted over so long at least, and over so long at most, if refusals come all the time.
_SHORT_NS: Final = 50_000_000
_LONG_NS: Final = 1_000_000_000
#: Where nobody was refused for so long, what was measured before is not used any more.
_STALE_NS: Final = 10_000_000_000


class Drain:
    """Measures how fast rows leave, from one refusal to the next: nothing is measured for requests that are let in.

    Used with the lock of the model's batches held.

    Args:
        clock_ns: tells the time, monotonic nanoseconds.
    """

    __slots__ = ("_clock_ns", "_from", "_from_ns", "_next_ns", "_row_ns", "_told_ns")

    def __init__(self, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._clock_ns = clock_ns
        #: when the count began, and how many rows had left by then
        self._from_ns = self._told_ns = -_STALE_NS
        self._from = 0
        #: the time that the next one is told, if it is not too early or too far away by then
        self._next_ns = 0.0
        #: nanoseconds from one row that leaves to the next; 0 while nobody knows
        self._row_ns = 0.0

    def wait_s(self, rows: int, left: int, row_ns: float = 0.0, more: int = 1) -> float:
        """Seconds until what is under way now will have left, and those who were refused before have come back.

        Args:
            rows: that are under way.
            left: rows that have left so far, of all that there ever were.
            row_ns: how long a row takes by what runs take, for the time before anything was measured; 0 for unknown.
            more: rows that are refused.
        """
        now_ns = self._clock_ns()
        if now_ns - self._told_ns >= _STALE_NS:
            self._from_ns, self._from, self._row_ns = now_ns, left, row_ns
        self._told_ns = now_ns
        since_ns, gone = now_ns - self._from_ns, left - self._from
        if since_ns >= _SHORT_NS and gone:
            self._row_ns = since_ns / gone
            if since_ns >= _LONG_NS:
                self._from_ns, self._from = now_ns, left
        drain_s = rows * self._row_ns / 1e9 if self._row_ns else UNKNOWN_S
        if not gone:
            drain_s = max(drain_s, since_ns / 1e9)  # nothing leaves: that may last as long again
        drain_ns = min(max(drain_s, LEAST_S), MOST_S) * 1e9
        if not drain_ns <= self._next_ns - now_ns <= FARTHEST * drain_ns:
            self._next_ns = now_ns + drain_ns
        told_s = (self._next_ns - now_ns) / 1e9
        self._next_ns += more * (self._row_ns or drain_ns / max(rows, 1))
        return min(told_s, MOST_S)
