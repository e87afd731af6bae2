"""The rows of a padded version that wait, and which of them run next."""

from __future__ import annotations

import time
from collections.abc import Callable

from toutates.engine.batch_queue import BatchQueue
from toutates.engine.budget import Budget
from toutates.engine.lane import Batch, Lane
from toutates.engine.lane_table import LaneTable
from toutates.engine.padded.lanes import Entry, PaddedBatch, Pool, RowPool

__all__ = ["PaddedQueue"]


class PaddedQueue(BatchQueue):
    """A ``BatchQueue`` whose open batches are pools, from which batches are taken. Forms take turns.

    Args:
        open_batches, budget, delay_ns, enough_rows, clock_ns: as of ``BatchQueue``.
        lanes: of the version.
    """

    def __init__(
        self,
        open_batches: dict[Lane, Batch],
        budget: Budget,
        lanes: LaneTable,
        *,
        delay_ns: int = 0,
        enough_rows: int = 1,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        super().__init__(open_batches, budget, delay_ns=delay_ns, enough_rows=enough_rows, clock_ns=clock_ns)
        self._lanes = lanes

    def add(self, form: Lane, entry: Entry) -> None:
        """Have rows of a form wait that are counted."""
        if self._delay_ns:
            entry.arrived_ns = self._clock_ns()
        pool = self.open.get(form)
        if pool is None:
            pool = self._new_pool(form)
            self.add_open(pool)
        assert isinstance(pool, RowPool)
        pool.add(entry)

    def _new_pool(self, form: Lane) -> Batch:
        return form.new_batch(0, 0)

    def next(self, *, seal_busy: bool) -> Batch | None:
        """See ``BatchQueue``. Nobody writes to a pool."""
        pool = self._next_open(None, seal_busy=False)
        if pool is None:
            return None
        assert isinstance(pool, Pool)
        batch = pool.take(self._lanes)
        if self._budget.bounds.waiting and isinstance(batch, PaddedBatch):
            batch.requests = sum([entry.is_first for _, entry in batch.entries])
        self._budget.start(batch)
        self.running.add(batch)
        del self.open[pool.lane]
        if pool.rows:
            self.open[pool.lane] = pool
            pool.due_ns = pool.oldest_ns + self._delay_ns
        return batch

    def waiting_requests(self) -> int:
        """How many requests wait; one that was split counts for each of its parts."""
        return sum(pool.entries for pool in self.open.values() if isinstance(pool, Pool))
