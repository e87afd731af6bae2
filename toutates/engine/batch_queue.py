"""The batches of one model version that are under way, and which of them runs next.

    open ──(full, or an executor is free)──▶ sealed ──(every worker has committed)──▶ running ──▶ spare

The next batch to run is the one that was sealed first, or an open one that was opened before it: no shape waits for
ever behind another that fills batch after batch.

An open batch is not taken from a worker in the middle of its round: the rows that are about to come are better run
together. Only when another worker commits while an executor idles is the batch sealed before the first worker has
committed, so that two workers whose rounds always overlap cannot keep it open for ever.

Only where the model asks for it (``delay_ns``), an open batch waits for more rows though an executor is idle: until it
has ``enough_rows``, is full, or has been open for so long.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from itertools import chain, islice

from toutates.engine.budget import Budget
from toutates.engine.lane import Batch, Lane

__all__ = ["BatchQueue"]


class BatchQueue:
    """The open, sealed and running batches of a SuperTensor, whose lock guards it.

    Args:
        open_batches: see ``open``. The budget knows the same ones.
        budget: counts their rows.
        delay_ns: how long an open batch may wait for more rows; 0 for not at all.
        enough_rows: a batch of so many rows does not wait.
        clock_ns: tells the time, monotonic nanoseconds.

    Attributes:
        open: the batch of each lane that still takes rows, the one opened first first.
        sealed: batches that take no more rows and wait for an executor, the one sealed first first.
        running: batches that an executor has, or is about to have.
        closed: whether no batch will be added, and none waits for more rows.
    """

    def __init__(
        self,
        open_batches: dict[Lane, Batch],
        budget: Budget,
        *,
        delay_ns: int = 0,
        enough_rows: int = 1,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.open = open_batches
        self.sealed: deque[Batch] = deque()
        self.running: set[Batch] = set()
        self.closed = False
        self._budget = budget
        self._delay_ns = delay_ns
        self._enough_rows = enough_rows
        self._clock_ns = clock_ns

    @property
    def in_flight(self) -> int:
        """How many batches are open, sealed or running."""
        return len(self.open) + len(self.sealed) + len(self.running)

    @property
    def finished(self) -> bool:
        """Whether there will never be a batch to run again."""
        return self.closed and not self.in_flight

    def waiting(self) -> Iterator[Batch]:
        """The batches that no executor has."""
        return chain(self.sealed, self.open.values())

    def add_open(self, batch: Batch) -> None:
        """Add a batch that takes rows of any worker; its lane has none."""
        self.open[batch.lane] = batch
        if self._delay_ns:
            batch.due_ns = self._clock_ns() + self._delay_ns

    def seal(self, batch: Batch) -> None:
        """Have an open batch take no more rows."""
        del self.open[batch.lane]
        self.sealed.append(batch)
        self._budget.count_exactly(batch)

    def next(self, *, seal_busy: bool) -> Batch | None:
        """Take the batch to run next, if one is ready.

        Args:
            seal_busy: whether open batches that workers are writing to are sealed, if nothing else is ready: they can
                run as soon as these workers have committed.
        """
        found = None
        for batch in self.sealed:
            if not batch.busy:
                found = batch
                break
        first = self._next_open(found, seal_busy=seal_busy) if self.open else None
        if first is not None:
            found = first
            del self.open[found.lane]
        elif found is not None:
            self.sealed.remove(found)
        else:
            return None
        if first is not None or found.requests:
            self._budget.start(found)
        self.running.add(found)
        return found

    def _next_open(self, sealed: Batch | None, *, seal_busy: bool) -> Batch | None:
        """The first open batch that may run, if it was opened before ``sealed``."""
        busy = []
        found = None
        for batch in self.open.values():
            if sealed is not None and sealed.order < batch.order:
                break
            if self._delay_ns and not self._is_due(batch):
                continue
            if not batch.busy:
                found = batch
                break
            if seal_busy and sealed is None:
                busy.append(batch)
        for batch in busy:
            self.seal(batch)
        return found

    def first_ready(self) -> Batch | None:
        """A batch that waits for nothing but an executor, and workers that write to it; None without one."""
        if self.sealed:
            return self.sealed[0]
        for batch in self.open.values():
            if not self._delay_ns or self._is_due(batch):
                return batch
        return None

    def requests_of_next(self, batches: int) -> int:
        """Requests in the first so many batches that could run now, whether or not they are committed."""
        due = (batch for batch in self.open.values() if not self._delay_ns or self._is_due(batch))
        return sum(batch.requests for batch in islice(chain(self.sealed, due), batches))

    def waiting_requests(self) -> int:
        """Requests that wait; one whose rows were split counts in each of its batches."""
        # Workers may add more at this moment; a list's length can be read in any thread.
        return sum(len(own) for batch in self.waiting() for own in batch.pending)

    def next_due_ns(self) -> int:
        """When the first open batch is due that no worker writes to; 0 if there is none.

        A batch that a worker writes to is looked at when that worker commits.
        """
        return min([batch.due_ns for batch in self.open.values() if not batch.busy], default=0) if self.open else 0

    def clear(self) -> None:
        """Forget all batches."""
        self.open.clear()
        self.sealed.clear()
        self.running.clear()

    def _is_due(self, batch: Batch) -> bool:
        return batch.rows >= self._enough_rows or self.closed or self._clock_ns() >= batch.due_ns
