"""Rows of different length: what they are padded to, and which of those that wait run together.

A row is as long as its text has tokens. Rows that share a run are padded to one length, and what is computed for the
padding is lost. So lengths are rounded up to a *bucket*, and rows of one bucket share a run, or where few wait, rows of
buckets that lie near each other. Nothing here knows a thread, an array or a clock.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, Generic, TypeVar

from toutates.engine.run_line import RunLine

__all__ = ["MAX_RATIO", "Buckets", "Chosen", "RunCost", "WaitingRows"]

#: Elements that are run for each element of a row, at most, where rows of several buckets share a run.
MAX_RATIO: Final = 1.25
#: A run costs as much as so many elements more, until it is known: 9 of a small text encoder on a CPU, more of a
#: quantized one, thousands of a GPU.
RUN_COST: Final = 32
_MOST_RUN_COST: Final = 4_096
#: Where there are no buckets of the operator's, there are so many to each doubling of the length.
_PER_DOUBLING_BITS: Final = 2

T = TypeVar("T")


class Buckets:
    """The lengths that rows are padded to.

    Args:
        lengths: ascending; () for four to each doubling, without an end: 1 to 8, 10, 12, 14, 16, 20, 24, 28, 32 and so
            on. Of these no row grows by more than a quarter.
    """

    def __init__(self, lengths: Sequence[int] = ()) -> None:
        self.lengths = tuple(lengths)

    @property
    def longest(self) -> int:
        """The greatest length that a row may have; 0 where there is no bound."""
        return self.lengths[-1] if self.lengths else 0

    def of(self, length: int) -> int:
        """The bucket of a length.

        Args:
            length: of a row, from 1 to ``longest``.
        """
        if self.lengths:
            return self.lengths[bisect_left(self.lengths, length)]
        bits = max(0, (length - 1).bit_length() - 1 - _PER_DOUBLING_BITS)
        return -(-length >> bits) << bits

    def up_to(self, longest: int) -> list[int]:
        """The buckets of all lengths from 1 to ``longest``, ascending."""
        found: list[int] = []
        length = 1
        while length <= min(longest, self.longest or longest):
            found.append(self.of(length))
            length = found[-1] + 1
        return found


class RunCost:
    """What a run costs beside its elements, learned from how long runs take (``RunLine``).

    Attributes:
        elements: that would take as long as what every run costs.
    """

    def __init__(self) -> None:
        self.elements = float(RUN_COST)
        self._line = RunLine()

    def note(self, elements: int, duration_ns: int) -> None:
        """A run of so many elements, padding included, has taken so long."""
        line = self._line
        line.note(elements, duration_ns)
        each_ns = line.each_ns  # once: another thread may note a run meanwhile
        if line.told and each_ns:
            self.elements = min(line.fixed_ns / each_ns, _MOST_RUN_COST)


@dataclass(frozen=True, slots=True)
class Chosen(Generic[T]):
    """Rows that run together.

    Attributes:
        length: that they are padded to.
        entries: whose rows they are, the oldest first.
        rows: how many.
        real: elements of all rows without the padding; ``rows`` x ``length`` are run.
    """

    length: int
    entries: list[T]
    rows: int
    real: int


@dataclass(slots=True)
class _Entry(Generic[T]):
    number: int
    rows: int
    real: int
    own: T


@dataclass(slots=True)
class _Plan:
    """A run that could be next.

    Attributes:
        top: what its rows are padded to.
        counts: how many of the oldest entries of each bucket it takes.
        rows, real: of these.
        run_cost: elements that every run costs.
        pays: elements of rows for each element that it costs; 0 if it pads too much.
    """

    top: int
    counts: dict[int, int]
    rows: int
    real: int
    run_cost: float
    pays: float = 0.0

    @property
    def cost(self) -> float:
        return self.run_cost + self.rows * self.top


class WaitingRows(Generic[T]):
    """Rows that wait, and the choice of those that run next.

    One entry leads: the one that waits longest, so that an entry waits for no more runs than there were entries when it
    came, or another one that a subclass says. Its bucket's other entries come with it, and those of near buckets for as
    long as they make the run pay better: every run costs some elements (``RunCost``), and so rows of a small run may be
    padded more than those of a large one.

    Choosing takes time that grows with the number of rows that are chosen and that of buckets, not with what waits.

    Args:
        buckets: what lengths are rounded up to.
        most_rows: of a run.
        most_elements: of a run, padding included.
        run_cost: of the model's runs; None for one that is not learned.

    Attributes:
        rows: that wait.
    """

    def __init__(self, buckets: Buckets, most_rows: int, most_elements: int, run_cost: RunCost | None = None) -> None:
        self._buckets = buckets
        self._run_cost = run_cost or RunCost()
        self._most_rows = most_rows
        self._most_elements = most_elements
        #: entries by bucket and number, the oldest first; no bucket is empty
        self._waiting: dict[int, OrderedDict[int, _Entry[T]]] = {}
        self._added = 0
        self._count = 0
        self.rows = 0

    def __len__(self) -> int:
        """How many entries wait."""
        return self._count

    def __iter__(self) -> Iterator[T]:
        """The entries, in no order."""
        return (entry.own for entries in self._waiting.values() for entry in entries.values())

    @property
    def oldest(self) -> T:
        """The entry that waits longest. There has to be one."""
        return _first(self._waiting[self._oldest_bucket()]).own

    def add(self, own: T, rows: int, length: int) -> None:
        """Add an entry.

        Args:
            own: whatever is to come back.
            rows: how many it has, ``rows_at_once`` at most.
            length: of each.
        """
        entry = _Entry(self._added, rows, rows * length, own)
        bucket = self._buckets.of(length)
        entries = self._waiting.get(bucket)
        if entries is None:
            entries = self._waiting[bucket] = OrderedDict()
        entries[entry.number] = entry
        self._added += 1
        self._count += 1
        self.rows += rows

    def rows_at_once(self, length: int) -> int:
        """Most rows of a length that run together; 1 for rows that are longer than ``most_elements``."""
        return self._most(self._buckets.of(length))

    def take(self) -> Chosen[T]:
        """Take the entries that run next. There has to be one."""
        own = self._next_bucket()
        lengths = sorted(self._waiting, reverse=True)
        best = self._plan(own, own, lengths)
        for top in lengths:
            if own < top <= 2 * own:
                plan = self._plan(own, top, lengths)
                if plan.pays > best.pays:
                    best = plan
        entries: list[_Entry[T]] = []
        for length, count in best.counts.items():
            waiting = self._waiting[length]
            entries += [waiting.popitem(last=False)[1] for _ in range(count)]
            if not waiting:
                del self._waiting[length]
        entries.sort(key=lambda entry: entry.number)
        self._count -= len(entries)
        self.rows -= best.rows
        return Chosen(best.top, [entry.own for entry in entries], best.rows, best.real)

    # --- the choice --------------------------------------------------------------------------------------------------

    def _next_bucket(self) -> int:
        """The bucket whose first entry has to be among those that are taken."""
        return self._oldest_bucket()

    def _oldest_bucket(self) -> int:
        return min(self._waiting, key=lambda length: next(iter(self._waiting[length])))

    def _most(self, bucket: int) -> int:
        return max(1, min(self._most_rows, self._most_elements // bucket))

    def _plan(self, own: int, top: int, lengths: Sequence[int]) -> _Plan:
        """The best run that pads the entry that leads to ``top``.

        Args:
            own: the entry's bucket.
            top: the same, or a greater one.
            lengths: of all buckets with entries, descending.
        """
        waiting = self._waiting
        first = _first(waiting[own])
        plan = _Plan(top, {own: 1}, first.rows, first.real, self._run_cost.elements)
        most = self._most(top)
        if first.rows > most:
            return plan
        for length in lengths:
            if length > top:
                continue
            count = plan.counts.get(length, 0)
            for entry in islice(waiting[length].values(), count, None):
                rows, real = plan.rows + entry.rows, plan.real + entry.real
                if rows > most:
                    break
                # The bucket's own rows are never padded too much, and those of the top bucket make up for the first.
                if length != top and (
                    rows * top > MAX_RATIO * real or entry.real * plan.cost < plan.real * entry.rows * top
                ):
                    break
                plan.rows, plan.real = rows, real
                count += 1
            if count:
                plan.counts[length] = count
        if own == top or plan.rows * top <= MAX_RATIO * plan.real:
            plan.pays = plan.real / plan.cost
        return plan


def _first(entries: OrderedDict[int, _Entry[T]]) -> _Entry[T]:
    return next(iter(entries.values()))
