"""The SuperTensor of a version with a latency target."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import islice
from typing import Any

from toutates.engine.deadlines.queue import DeadlineQueue
from toutates.engine.dispatcher import Dispatcher
from toutates.engine.lane import Batch, Lane
from toutates.engine.statistics import Forecast
from toutates.engine.supertensor import QUICK_NS, SuperTensor
from toutates.protocol.signature import Signature

__all__ = ["DeadlineSuperTensor"]


class DeadlineSuperTensor(SuperTensor):
    """A ``SuperTensor`` whose requests have a deadline. Its ports are ``deadlines.port.DeadlinePort``.

    Workers have no batches of their own in it: what waits is to be known.

    Args:
        name, signature, quick_ns, delay_ns, enough_rows: as of ``SuperTensor``.
        target_ns: how long a request may take.
        executors: how many there are.
        clock_ns: tells the time, monotonic nanoseconds.
        settings: the other arguments of ``SuperTensor``; there is no padding.

    Attributes:
        deadlines: the queue.
    """

    def __init__(
        self,
        name: str,
        signature: Signature,
        *,
        target_ns: int,
        executors: int,
        quick_ns: int = QUICK_NS,
        delay_ns: int = 0,
        enough_rows: int = 1,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        **settings: Any,
    ) -> None:
        super().__init__(name, signature, quick_ns=quick_ns, delay_ns=delay_ns, enough_rows=enough_rows, **settings)
        self.queue = self.deadlines = DeadlineQueue(
            self.queue.open,
            self.budget,
            name=name,
            target_ns=target_ns,
            executors=executors,
            delay_ns=delay_ns,
            enough_rows=enough_rows,
            clock_ns=clock_ns,
        )
        self.executors = Dispatcher(self.lock, self.queue, quick_ns=quick_ns, keeps_time=delay_ns > 0)
        self._own_batch_ns = 0

    def admit(self, lane: Lane, rows: int, is_wanted: Callable[[int], bool], around_ns: int = 0) -> None:
        """Let in a request that is about to reserve its rows, or refuse it.

        Raises:
            WouldBeLate: its answer would come after its deadline.
        """
        with self.lock:
            self.deadlines.admit(lane, rows, is_wanted, around_ns)

    def forecast(self) -> Forecast:
        """What is expected of runs, whatever the shape of their rows."""
        with self.lock:
            profile = self.deadlines.profile
            return Forecast(self.deadlines.target_ns, int(profile.fixed_ns), int(profile.each_ns), profile.error)

    def profiles(self, most: int) -> list[str]:
        """Lines about the profiles of the lanes used last, ``most`` of them, for a debugging dump."""
        with self.lock:
            lanes = list(islice(self.lanes, most))
            found = [(lane, self.deadlines.profile_of(lane)) for lane in lanes]
            return [
                f"runs of rows of {[list(row) for _, row in lane.row_shapes]} take {own.fixed_ns / 1000:.0f} us and "
                f"{own.each_ns / 1000:.1f} us for each row, give or take {own.error:.0%}"
                for lane, own in found
                if own.known
            ]

    def _release(self, batch: Batch) -> None:
        self.deadlines.ended(batch)
        super()._release(batch)
