"""The requests of a version with queue policies that wait, as the dispatcher and the executors see them.

    a port ──▶ PolicyScheduler ──(an executor is free)──▶ a batch
                     └──(late, or nobody waits for it)──▶ ``keep_time``, which tells the port

Requests wait as they came, and not in the buffers of a batch: which of them share one is known only once it is formed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from toutates.engine.budget import Budget
from toutates.engine.lane import Batch, GatheredLane, Lane, RowShapes
from toutates.engine.lane_table import LaneTable
from toutates.engine.padded.lanes import Entry, PaddedBatch
from toutates.engine.padded.queue import PaddedQueue
from toutates.engine.policies.rules import BatchingRules
from toutates.engine.policies.scheduler import Dropped, PolicyScheduler, Waiting
from toutates.engine.ragged.lanes import RaggedForm
from toutates.engine.ragged.waiting import size_of
from toutates.engine.servable import Consumer
from toutates.protocol.signature import Signature

__all__ = ["PolicyLanes", "PolicyQueue"]


class PolicyLanes(LaneTable):
    """The lanes of a version whose requests wait as they came: none has buffers."""

    def _make(self, row_shapes: RowShapes) -> Lane:
        return GatheredLane(self._signature, row_shapes, self._batch_size)


class PolicyQueue(PaddedQueue):
    """A ``BatchQueue`` whose one open batch stands for all requests that wait.

    Args:
        open_batches, budget, clock_ns: as of ``BatchQueue``.
        lanes: of the version.
        rules: likewise.
        signature: its tensors.
        ports: the consumers, by number of their port.
        most_size: see ``PolicyScheduler``.

    Attributes:
        ring: wakes the task that keeps time; None while there is none.
        sleeps_until_ns: when it wakes by itself.
        dropped: requests to be told that they do not run.
    """

    def __init__(
        self,
        open_batches: dict[Lane, Batch],
        budget: Budget,
        lanes: LaneTable,
        rules: BatchingRules,
        signature: Signature,
        ports: Sequence[Consumer],
        most_size: int,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        super().__init__(open_batches, budget, lanes, clock_ns=clock_ns)
        self._scheduler: PolicyScheduler[Entry] = PolicyScheduler(
            rules, lambda entry, now_ns: ports[entry.port].is_wanted(entry.context, now_ns), most_size
        )
        #: has the rows that wait, as long as there are any
        self._waiting = Batch(Lane(signature, (), rules.most_rows), 0, 0)
        self.ring: Callable[[], object] | None = None
        self.sleeps_until_ns = 0
        self.dropped: list[Dropped[Entry]] = []

    # --- requests in -------------------------------------------------------------------------------------------------

    def bound_met(self, priority: int) -> int:
        """See ``PolicyScheduler``."""
        return self._scheduler.bound_met(priority)

    def put(self, lane: Lane, entry: Entry, size: int, priority: int, timeout_us: int) -> None:
        """Have a request wait that is counted, and for which there is room.

        Args:
            lane: requests of one lane, or form, may share a batch.
            entry: all of its rows.
            size: see ``PolicyScheduler``.
            priority, timeout_us: what it says; 0 for nothing.
        """
        scheduler = self._scheduler
        scheduler.add(entry, entry.rows, lane, self._clock_ns(), priority=priority, timeout_us=timeout_us, size=size)
        self._show_waiting()
        if 0 < scheduler.next_expiry_ns < self.sleeps_until_ns:
            self._wake()

    # --- batches out -------------------------------------------------------------------------------------------------

    def next(self, *, seal_busy: bool) -> Batch | None:
        """See ``BatchQueue``. Nobody writes to what waits."""
        scheduler = self._scheduler
        chosen = scheduler.choose(self._clock_ns(), hurries=self.closed)
        self._take_dropped()
        if scheduler.looks_again:
            self._wake()
        if not chosen:
            return None
        batch = self._batch_of(chosen)
        self._show_waiting()
        self._budget.start(batch)
        self.running.add(batch)
        return batch

    def _batch_of(self, chosen: Sequence[Waiting[Entry]]) -> Batch:
        lane, rows = chosen[0].key, sum([one.rows for one in chosen])
        entries = [one.own for one in chosen]
        if isinstance(lane, RaggedForm):
            size = size_of(sum([one.size for one in chosen]))
            return PaddedBatch(self._lanes.find(lane.padding.closed(lane.row_shapes, size)), entries, rows)
        batch = PaddedBatch(lane, entries, rows)
        batch.pieces = [(first, entry.rows, entry.contents) for first, entry in batch.entries]
        return batch

    def waiting_requests(self) -> int:
        """See ``BatchQueue``."""
        return self._scheduler.requests

    def next_due_ns(self) -> int:
        """See ``BatchQueue``: as far as the last look at what waits has told."""
        return self._scheduler.due_ns

    def clear(self) -> None:
        """See ``BatchQueue``."""
        super().clear()
        self.dropped.clear()

    # --- requests that do not run ------------------------------------------------------------------------------------

    def expire(self) -> bool:
        """Drop or delay some requests whose time is over; returns whether others may run now that could not before."""
        changed = self._scheduler.expire(self._clock_ns())
        self._take_dropped()
        return changed or self._scheduler.looks_again

    def next_expiry_ns(self) -> int:
        """When ``expire`` is to be called; 0 for not by itself."""
        return self._clock_ns() if self._scheduler.looks_again else self._scheduler.next_expiry_ns

    def _take_dropped(self) -> None:
        """Count requests that are dropped as gone, and have somebody tell their ports."""
        dropped = self._scheduler.dropped
        if not dropped:
            return
        for entry, _ in dropped:
            self._budget.rows -= entry.rows
            self._budget.memory_bytes -= entry.held_bytes
        self.dropped += dropped
        dropped.clear()
        self._show_waiting()
        self._wake()

    def _show_waiting(self) -> None:
        waiting = self._waiting
        waiting.rows = waiting.counted = self._scheduler.rows
        if self._scheduler.requests:
            self.open[waiting.lane] = waiting
        else:
            self.open.pop(waiting.lane, None)

    def _wake(self) -> None:
        if self.ring is not None and self.sleeps_until_ns:
            self.sleeps_until_ns = 0
            self.ring()
