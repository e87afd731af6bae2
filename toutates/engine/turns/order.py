"""Whose run is next: the rules, without threads.

**Permits.** As many runs at a time as there are cores, so that the order of runs is decided here and not by the
system's scheduler. One model never has all of them, if there are others: what comes for another model finds a core,
however much is asked of the first.

**Fairness before deadlines.** A model that has run for longer than others that wait, by more than ``QUANTUM_NS``, comes
after them. A model that was idle begins with some credit. So a model that is asked for too much takes what the others
leave, and cannot buy their time with an earlier deadline.

**Earliest deadline first** among the rest. The deadline of a batch is that of its model's target. Batches of models
without a target are due ``DEFAULT_NS`` after they came, so that they wait for others, and not for ever.

**Rates.** With the rate limiter, a run also needs its instance's resources, and the instance with the lowest product of
executions and priority is first, before all other rules.

A run that does not end counts for ``WRITTEN_OFF_NS``. Then its permit is free for others, who could else be stopped by
a model that hangs. Resources are not given back before the end of the run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from toutates.engine.turns.resources import Resources

__all__ = ["Claim", "Instance", "Order", "Share"]

QUANTUM_NS: Final = 20_000_000
CREDIT_NS: Final = 100_000_000
DEFAULT_NS: Final = 100_000_000
WRITTEN_OFF_NS: Final = 5_000_000_000


@dataclass(slots=True, eq=False)
class Share:
    """What a model version takes of the time.

    Attributes:
        used_ns: how long its runs have taken. After it was idle, what others have used meanwhile is added.
        running: runs that hold a permit.
        claims: that wait or run.
    """

    used_ns: int = 0
    running: int = 0
    claims: int = 0


@dataclass(slots=True, eq=False)
class Instance:
    """An executor of a version.

    Attributes:
        share: of the version.
        takes_permit: whether its runs are on the CPU.
        needs: resources of a run.
        priority: see the head of the module.
        executions: runs so far, and those that it is thought to have had before it came.
    """

    share: Share
    takes_permit: bool = True
    needs: Mapping[Any, int] = field(default_factory=dict)
    priority: int = 1
    executions: int = 0


@dataclass(slots=True, eq=False)
class Claim:
    """A batch that waits for its turn, or has it.

    Attributes:
        instance: that is to run it.
        due_ns: its deadline, monotonic nanoseconds.
        granted_ns: when its turn began; 0 before.
        holds_permit: whether its run counts among those that have a permit.
        taken: resources that its run has.
    """

    instance: Instance
    due_ns: int
    granted_ns: int = 0
    holds_permit: bool = False
    taken: Mapping[Any, int] = field(default_factory=dict)


class Order:
    """Decides whose run is next.

    Args:
        permits: runs at a time; None for any number.
        resources: that runs need; None where runs are not rated.
        clock_ns: tells the time, monotonic nanoseconds.

    Attributes:
        permits: as given; it may be changed at any time.
        shares: how many versions there are.
    """

    def __init__(self, permits: int | None, resources: Resources | None, clock_ns: Callable[[], int]) -> None:
        self.permits = permits
        self.shares = 0
        self._resources = resources
        self._clock_ns = clock_ns
        #: in the order in which they came
        self._waiting: list[Claim] = []
        self._running: list[Claim] = []
        self._used_ns = 0
        self._executions = 0

    def claim(self, instance: Instance, due_ns: int | None) -> Claim:
        """An instance has a batch to run.

        Args:
            instance: which has no other claim.
            due_ns: the batch's deadline; None without one.
        """
        claim = Claim(instance, self._clock_ns() + DEFAULT_NS if due_ns is None else due_ns)
        share = instance.share
        if not share.claims:
            share.used_ns = max(share.used_ns, self._used_ns - CREDIT_NS)
        share.claims += 1
        if not instance.executions:
            # Else an instance that comes late would have all runs until it has caught up.
            instance.executions = self._executions // max(instance.priority, 1)
        self._waiting.append(claim)
        return claim

    def grant(self) -> list[Claim]:
        """Give their turns to those who may run now."""
        self._write_off()
        granted: list[Claim] = []
        while self._waiting:
            ready = self._ready()
            if not ready:
                break
            claim = self._first(ready)
            self._waiting.remove(claim)
            self._begin(claim)
            granted.append(claim)
        return granted

    def end(self, claim: Claim) -> None:
        """The run of a claim that had its turn has ended."""
        share = claim.instance.share
        share.used_ns += self._clock_ns() - claim.granted_ns
        share.claims -= 1
        self._give_permit_back(claim)
        self._running.remove(claim)
        if self._resources is not None:
            self._resources.give_back(claim.taken)

    def _ready(self) -> list[Claim]:
        """Those who could run now. Who ranks below one that waits for a resource does not take it away."""
        if self._resources is None:
            return [claim for claim in self._waiting if self._may_run(claim.instance)]
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
        if sum([claim.holds_permit for claim in self._running]) >= self.permits:
            return False
        return self.shares < 2 or instance.share.running < max(1, self.permits - 1)

    def _first(self, ready: list[Claim]) -> Claim:
        """Of those that may run, the first of the ones that rank lowest."""
        if self._resources is not None:
            lowest = min(map(_rank, ready))
            ready = [claim for claim in ready if _rank(claim) == lowest]
        least_ns = min([claim.instance.share.used_ns for claim in ready])
        ready = [claim for claim in ready if claim.instance.share.used_ns <= least_ns + QUANTUM_NS]
        return min(ready, key=lambda claim: claim.due_ns)

    def _begin(self, claim: Claim) -> None:
        instance = claim.instance
        instance.executions += 1
        self._executions = max(self._executions, instance.executions * instance.priority)
        self._used_ns = max(self._used_ns, instance.share.used_ns)
        claim.granted_ns = self._clock_ns()
        if instance.takes_permit:
            claim.holds_permit = True
            instance.share.running += 1
        self._running.append(claim)
        if self._resources is not None:
            claim.taken = instance.needs
            self._resources.take(claim.taken)

    def _give_permit_back(self, claim: Claim) -> None:
        if claim.holds_permit:
            claim.holds_permit = False
            claim.instance.share.running -= 1

    def _write_off(self) -> None:
        """No longer count runs that do not end."""
        before_ns = self._clock_ns() - WRITTEN_OFF_NS
        for claim in self._running:
            if claim.granted_ns < before_ns:
                self._give_permit_back(claim)


def _rank(claim: Claim) -> int:
    return claim.instance.executions * claim.instance.priority
