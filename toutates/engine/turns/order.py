"""Whose run is next: the rules, without threads.

**Permits.** As many runs at a time as there are cores, so that the order of runs is decided here and not by the
system's scheduler. One model never has all of them, if there are others: what comes for another model finds a core,
however much is asked of the first.

**More permits than cores**, as on a machine of one core, are for those that had better not wait. Two runs that share a
core may both be late where one after the other is in time. So who is next waits for the run that ends first, if that is
expected to take no more than half of the time that is left until its own deadline, and leaves enough for its own run.
It does not wait if its own run is so short that the other hardly feels it, nor for a version that has had most of the
time lately: such a one is asked for too much, and somebody who waited for it would wait each time.

**Fairness before deadlines.** A model that has run for longer than others that wait, by more than ``QUANTUM_NS``, comes
after them. A model that was idle begins with some credit. So a model that is asked for too much takes what the others
leave, and cannot buy their time with an earlier deadline.

**Earliest deadline first** among those that have used about as much: within three quarters of the quantum. The deadline
of a batch is that of its model's target. Batches of models without a target are due ``DEFAULT_NS`` after they came, so
that they wait for others, and not for ever. However many wait, the next one is found in a time that grows with their
logarithm (``fair_queue``).

**Rates.** With the rate limiter, a run also needs its instance's resources, and the instance with the lowest product of
executions and priority is first, before all other rules. Then all that wait are looked at for each run.

A run that does not end counts for ``WRITTEN_OFF_NS``. Then its permit is free for others, who could else be stopped by
a model that hangs. Resources are not given back before the end of the run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from toutates.engine.turns.claims import Claim, Instance, Share
from toutates.engine.turns.fair_queue import QUANTUM_NS, FairQueue
from toutates.engine.turns.resources import Resources

__all__ = ["QUANTUM_NS", "Claim", "Instance", "Order", "Share"]

CREDIT_NS: Final = 100_000_000
DEFAULT_NS: Final = 100_000_000
WRITTEN_OFF_NS: Final = 5_000_000_000
#: A run that takes less than a sixteenth of another one does not wait for it.
_SHORT_SHIFT: Final = 4
#: A version that has had more of the time than this is not waited for.
_MOST_PART: Final = 2 / 3


class Order:
    """Decides whose run is next.

    Args:
        permits: runs at a time; None for any number.
        resources: that runs need; None where runs are not rated.
        clock_ns: tells the time, monotonic nanoseconds.
        cores: for the runs; None for as many as there are permits.

    Attributes:
        permits: as given; it may be changed at any time.
        shares: how many versions there are.
    """

    def __init__(
        self,
        permits: int | None,
        resources: Resources | None,
        clock_ns: Callable[[], int],
        cores: int | None = None,
    ) -> None:
        self.permits = permits
        self._cores = cores
        self.shares = 0
        self._resources = resources
        self._clock_ns = clock_ns
        #: for permits
        self._queue = FairQueue()
        #: for resources, or for nothing: in the order in which they came
        self._waiting: list[Claim] = []
        #: that hold permits, in the order in which they began, as keys
        self._permitted: dict[Claim, None] = {}
        self._used_ns = 0
        self._executions = 0

    def claim(self, instance: Instance, due_ns: int | None, work_ns: int = 0) -> Claim:
        """An instance has a batch to run.

        Args:
            instance: which has no other claim.
            due_ns: the batch's deadline; None without one.
            work_ns: what its run is expected to take; 0 where nothing is known.
        """
        claim = Claim(instance, self._clock_ns() + DEFAULT_NS if due_ns is None else due_ns, work_ns)
        share = instance.share
        if not share.claims:
            share.used_ns = max(share.used_ns, self._used_ns - CREDIT_NS)
        share.claims += 1
        if not instance.executions:
            # Else an instance that comes late would have all runs until it has caught up.
            instance.executions = self._executions // max(instance.priority, 1)
        if self._resources is None and instance.takes_permit:
            self._queue.add(claim)
        else:
            self._waiting.append(claim)
        return claim

    def grant(self) -> list[Claim]:
        """Give their turns to those who may run now."""
        self._write_off()
        granted: list[Claim] = []
        if self._resources is not None:
            while self._waiting and (ready := self._ready()):
                claim = self._first(ready)
                self._waiting.remove(claim)
                granted.append(self._begin(claim))
            return granted
        waiting, self._waiting = self._waiting, []
        granted += map(self._begin, waiting)
        if self.permits is None:
            granted += map(self._begin, self._queue.drain())
            return granted
        self._queue.set_most(self._most)
        while self._queue and len(self._permitted) < self.permits:
            if self._cores is not None and len(self._permitted) >= self._cores and self._next_can_wait():
                break
            next_claim = self._queue.pop()
            if next_claim is None:
                break
            granted.append(self._begin(next_claim))
        return granted

    def end(self, claim: Claim) -> None:
        """The run of a claim that had its turn has ended."""
        share = claim.instance.share
        now_ns = self._clock_ns()
        share.note_run(now_ns - claim.granted_ns, now_ns)
        share.claims -= 1
        self._give_permit_back(claim)
        self._queue.note(share)
        if self._resources is not None:
            self._resources.give_back(claim.taken)

    def _next_can_wait(self) -> bool:
        """Whether who is next is to wait for a run that is under way."""
        claim = self._queue.first()
        if claim is None:
            return True
        now_ns = self._clock_ns()
        left_ns = claim.due_ns - now_ns
        # Who is late by so much is expected to be late by as much again.
        waits = [
            abs(run.granted_ns + run.work_ns - now_ns)
            for run in self._permitted
            if run.work_ns
            and claim.work_ns << _SHORT_SHIFT >= run.work_ns
            and run.instance.share.part(now_ns) < _MOST_PART
        ]
        return bool(waits) and min(waits) <= min(left_ns >> 1, left_ns - claim.work_ns)

    @property
    def _most(self) -> int | None:
        """Runs that one version may have at a time; None for any number."""
        return None if self.permits is None or self.shares < 2 else max(1, self.permits - 1)

    def _ready(self) -> list[Claim]:
        """With the rate limiter: who could run now. Who ranks below one that waits for a resource leaves it to it."""
        assert self._resources is not None
        awaited: set[Any] = set()
        ready = []
        for claim in sorted(self._waiting, key=_rank):
            needs = claim.instance.needs
            if not self._resources.are_free(needs):
                awaited.update(needs)
            elif awaited.isdisjoint(needs) and self._may_run(claim.instance):
                ready.append(claim)
        return ready

    def _may_run(self, instance: Instance) -> bool:
        """Whether there is a permit for it."""
        if self.permits is None or not instance.takes_permit:
            return True
        if len(self._permitted) >= self.permits:
            return False
        most = self._most
        return most is None or instance.share.running < most

    @staticmethod
    def _first(ready: list[Claim]) -> Claim:
        """With the rate limiter: of those that may run, the first of the ones that rank lowest."""
        lowest = min(map(_rank, ready))
        ready = [claim for claim in ready if _rank(claim) == lowest]
        least_ns = min([claim.instance.share.used_ns for claim in ready])
        ready = [claim for claim in ready if claim.instance.share.used_ns <= least_ns + QUANTUM_NS]
        return min(ready, key=lambda claim: claim.due_ns)

    def _begin(self, claim: Claim) -> Claim:
        """Begin the turn of a claim; returns the claim."""
        instance = claim.instance
        instance.executions += 1
        self._executions = max(self._executions, instance.executions * instance.priority)
        self._used_ns = max(self._used_ns, instance.share.used_ns)
        claim.granted_ns = self._clock_ns()
        if instance.takes_permit:
            claim.holds_permit = True
            instance.share.running += 1
            self._permitted[claim] = None
        self._queue.note(instance.share)
        if self._resources is not None:
            claim.taken = instance.needs
            self._resources.take(claim.taken)
        return claim

    def _give_permit_back(self, claim: Claim) -> None:
        if claim.holds_permit:
            claim.holds_permit = False
            claim.instance.share.running -= 1
            del self._permitted[claim]

    def _write_off(self) -> None:
        """No longer count runs that do not end."""
        before_ns = self._clock_ns() - WRITTEN_OFF_NS
        while self._permitted:
            oldest = next(iter(self._permitted))
            if oldest.granted_ns >= before_ns:
                break
            self._give_permit_back(oldest)
            self._queue.note(oldest.instance.share)


def _rank(claim: Claim) -> int:
    return claim.instance.executions * claim.instance.priority
