"""The turns of executors: before a run they wait until it is theirs. The rules are in ``order``.

There is one arbiter per server. An executor whose ``turn`` is None, as those of a server without latency targets and
without rate limiter, never hears of it. Runs so quick that a worker would do them itself have no turns: the way through
the arbiter would take longer. Neither have runs that are not on the CPU, such as those of Python models: they may wait
for other models' runs, which must not wait for them.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from typing import Final

from toutates.engine.lane import Batch
from toutates.engine.turns.order import Claim, Instance, Order, Share
from toutates.engine.turns.resources import Need, Resources

__all__ = ["Arbiter", "Member", "TakesTurns", "Turn"]

#: How long an executor waits until it looks again, because a run may have been written off.
_LOOK_S: Final = 1.0
#: The same where it may wait for a run although there is a permit, because the run may take longer than expected.
_LOOK_SOON_S: Final = 0.02


class Turn:
    """An executor's way to its turns. Used by one thread at a time.

    Args:
        arbiter: gives them.
        instance: what is known of the executor.
        due_ns: the deadline of a batch; None for a version without a target.
        quick_ns: batches whose runs take less need no turn; 0 where all do.
    """

    def __init__(
        self, arbiter: Arbiter, instance: Instance, due_ns: Callable[[Batch], int] | None, quick_ns: int
    ) -> None:
        self.instance = instance
        self._arbiter = arbiter
        self._due_ns = due_ns
        self._quick_ns = quick_ns
        #: has something once a turn that was waited for is to be taken. No lock: see ``system.gate``, which would be an
        #: open file for each executor.
        self._gate: SimpleQueue[None] = SimpleQueue()
        self._claim: Claim | None = None
        self._wake = partial(self._gate.put, None)
        #: called once it is the turn of a claim that was not granted at once. One of ``ask`` refers to the executor,
        #: and to this: it is not kept, or the executor's session would wait for a garbage collector.
        self._granted: Callable[[], None] = self._wake

    @property
    def is_strict(self) -> bool:
        """Whether every run needs its turn, those included that a worker would do."""
        return not self._quick_ns

    def begin(self, batch: Batch) -> None:
        """Wait until a batch may run."""
        if batch.lane.is_quick(batch.rows, self._quick_ns):
            return
        if not self._ask(batch):
            while True:
                try:
                    self._gate.get(timeout=self._arbiter.look_s)
                    return
                except Empty:
                    self._arbiter.look()

    def ask(self, batch: Batch, wait: Callable[[Callable[[], None], float], None], granted: Callable[[], None]) -> bool:
        """``begin`` for a thread that does not wait: whether a batch may run at once.

        Args:
            batch: to be run.
            wait: called if it may not, with what is to be called until ``granted``, and how often, in seconds. The
                arbiter's lock is held.
            granted: called once it may, in another thread, and without the lock.

        Its last turn ends with that, if it has not ended yet.
        """
        if batch.lane.is_quick(batch.rows, self._quick_ns):
            self.end()
            return True
        self._granted = granted
        at_once = self._ask(batch, wait)
        if at_once:
            self._granted = self._wake
        return at_once

    def _ask(
        self, batch: Batch, wait: Callable[[Callable[[], None], float], None] = lambda look, every_s: None
    ) -> bool:
        due_ns = self._due_ns(batch) if self._due_ns is not None else None
        return self._arbiter.begin(self, due_ns, batch.lane.wall_ns[batch.rows.bit_length()], wait)

    def note_claim(self, claim: Claim) -> None:
        """Its claim has come to the arbiter, whose lock is held."""
        self._claim = claim

    def take_claim(self) -> Claim | None:
        """The claim that it had, and has no longer; with the arbiter's lock held, or in its own thread."""
        claim, self._claim = self._claim, None
        return claim

    def note_granted(self) -> None:
        """It is its turn; without the arbiter's lock, which whoever this wakes up may want at once."""
        granted, self._granted = self._granted, self._wake
        granted()

    def end(self) -> None:
        """It has run."""
        claim = self.take_claim()
        if claim is not None:
            self._arbiter.end(claim)


class TakesTurns:
    """An executor, as the arbiter knows it.

    Attributes:
        turn: waited for before each run; None for no wait.
    """

    turn: Turn | None = None


class Member:
    """A version whose executors may have to wait for their turns.

    Args:
        executors: of the version. They are not kept alive.
        on_cpu: whether their runs are on the CPU.
        quick_ns: runs that take less are done by workers.
        due_ns: the deadline of a batch; None for a version without a target.
        needs, priorities, devices: of each executor, for the rate limiter: resources, priority, and number of the
            device.
    """

    def __init__(
        self,
        executors: Iterable[TakesTurns],
        *,
        on_cpu: bool = True,
        quick_ns: int = 0,
        due_ns: Callable[[Batch], int] | None = None,
        needs: Sequence[Sequence[Need]] = (),
        priorities: Sequence[int] = (),
        devices: Sequence[int] = (),
    ) -> None:
        self.executors = [weakref.ref(executor) for executor in executors]
        self.on_cpu = on_cpu and bool(self.executors)
        self.has_target = due_ns is not None
        self.due_ns = due_ns
        self.quick_ns = quick_ns
        self.needs, self.devices = needs, devices
        self.share = Share()
        self.instances = [
            Instance(self.share, on_cpu, priority=max(1, priorities[at] if at < len(priorities) else 1))
            for at in range(len(self.executors))
        ]


class Arbiter:
    """Gives executors their turns.

    Args:
        permits: runs on the CPU at a time, where a version has a latency target.
        resources: of the rate limiter; None where it is off.
        clock_ns: tells the time, monotonic nanoseconds.
        cores: for these runs; None for as many as there are permits.

    Attributes:
        look_s: how long an executor waits until it looks again.
    """

    def __init__(
        self,
        permits: int,
        resources: Resources | None = None,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        cores: int | None = None,
    ) -> None:
        self._lock = threading.Lock()
        self._permits = permits
        self._resources = resources
        self._order = Order(None, resources, clock_ns, cores)
        self.look_s = _LOOK_S if cores is None or cores >= permits else _LOOK_SOON_S
        self._turns: dict[Claim, Turn] = {}
        #: in the order in which they came, as keys
        self._members: dict[Member, None] = {}
        #: how many of them have a latency target
        self._timed = 0

    # --- versions ----------------------------------------------------------------------------------------------------

    def add(self, member: Member) -> None:
        """Have the executors of a version wait for their turns, as far as there is a reason to.

        Raises:
            ModelLoadError: there will never be enough of a resource; nothing was added.
        """
        with self._lock:
            self._add_needs(member)
            self._members[member] = None
            self._count(member, 1)
            self._settle(member)

    def remove(self, member: Member) -> None:
        """A version is being unloaded: what it still has to run needs no resource, and soon no turn."""
        with self._lock:
            if member not in self._members:
                return
            del self._members[member]
            if self._resources is not None:
                for instance in member.instances:
                    self._resources.remove(instance.needs)
                    instance.needs = {}
            for reference in member.executors:
                if (executor := reference()) is not None:
                    executor.turn = None
            self._count(member, -1)
            granted = self._grant()
        _tell(granted)

    def _add_needs(self, member: Member) -> None:
        resources = self._resources
        if resources is None:
            return
        added: list[Instance] = []
        try:
            for at, instance in enumerate(member.instances[: len(member.needs)]):
                instance.needs = resources.add(member.needs[at], member.devices[at])
                added.append(instance)
        except BaseException:
            for instance in added:
                resources.remove(instance.needs)
            raise

    def _count(self, member: Member, more: int) -> None:
        """One member more, or less. Only with the first latency target, and without the last, others are looked at."""
        order = self._order
        order.shares += more * member.on_cpu
        self._timed += more * member.has_target
        permits = self._permits if self._timed else None
        if order.permits != permits:
            order.permits = permits
            for one in self._members:
                self._settle(one)

    def _settle(self, member: Member) -> None:
        """Have a version's executors wait, or wait no longer, by what versions there are."""
        for reference, instance in zip(member.executors, member.instances, strict=True):
            executor = reference()
            if executor is None:
                continue
            waits = self._resources is not None or (self._timed > 0 and instance.takes_permit)
            if waits and executor.turn is None:
                quick_ns = 0 if self._resources is not None else member.quick_ns
                executor.turn = Turn(self, instance, member.due_ns, quick_ns)
            elif not waits:
                executor.turn = None

    # --- turns -------------------------------------------------------------------------------------------------------

    def begin(
        self, turn: Turn, due_ns: int | None, work_ns: int, wait: Callable[[Callable[[], None], float], None]
    ) -> bool:
        """Have a batch take its turn; whether it is at once. ``wait`` is called with ``look`` if it is not."""
        with self._lock:
            ended = turn.take_claim()
            if ended is not None:
                self._order.end(ended)
                del self._turns[ended]
            claim = self._order.claim(turn.instance, due_ns, work_ns)
            self._turns[claim] = turn
            turn.note_claim(claim)
            granted = self._grant(claim)
            at_once = bool(claim.granted_ns)
            if not at_once:
                wait(self.look, self.look_s)
        if granted:
            _tell(granted)
        return at_once

    def look(self) -> None:
        """Look whether a run may begin, because one may have been written off, or take longer than was expected."""
        with self._lock:
            granted = self._grant()
        _tell(granted)

    def end(self, claim: Claim) -> None:
        """The run of a claim has ended."""
        with self._lock:
            self._order.end(claim)
            del self._turns[claim]
            granted = self._grant()
        _tell(granted)

    @property
    def under_way(self) -> tuple[int, int]:
        """How many batches wait for their turn, and how many have it."""
        with self._lock:
            running = sum([bool(claim.granted_ns) for claim in self._turns])
            return len(self._turns) - running, running

    def _grant(self, own: Claim | None = None) -> list[Turn]:
        """Those whose turn it is by now, but for the caller's, to be told (``_tell``)."""
        return [self._turns[claim] for claim in self._order.grant() if claim is not own]


def _tell(granted: list[Turn]) -> None:
    """Wake up those whose turn it is."""
    for turn in granted:
        turn.note_granted()
