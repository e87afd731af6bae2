"""Fair queueing in the HTTP thread, and the CPU that each kind of work may use.

A flow is a source of work: a connection, or the listener. Each flow belongs to a lane, and a lane has
a budget of CPU. While the budget lasts, every flow works as soon as it asks. When it is used up, flows wait, and get
turns one by one as the budget allows. The flow that has used least CPU goes first (start-time fair queueing), so that
one that asks rarely waits for one turn of another at most, however much the others ask for.

There are two lanes: probes must be answered while everything else waits.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import Final

import trio

from toutates.observe.http.cpu_budget import CpuBudget

__all__ = ["CpuMeter", "Flow", "Lane", "Lanes"]

#: Seconds of a lane's sleep at least. To wake up costs CPU of its own: what comes meanwhile has to be more than that.
MIN_SLEEP_S: Final = 0.005
#: Seconds of CPU that a flow which asks now and then is ahead of those that ask all the time: some probes, each of
#: which needs three turns (to be accepted, read and answered), may be served before the others go on.
CREDIT_S: Final = 0.02
#: Seconds of CPU that probes and new connections may use at once after a quiet time: some 500 of them.
PROMPT_BURST_S: Final = 0.5


class Lane:
    """Flows that share a budget of CPU. Used in one Trio run, where ``run`` has to run.

    Args:
        budget: seconds of CPU.
    """

    def __init__(self, budget: CpuBudget) -> None:
        self.budget = budget
        #: what a flow is taken to have used at least, however long it did not work
        self.floor_s = 0.0
        self._waiting: list[tuple[Flow, trio.Event]] = []
        self._asked = trio.Event()

    async def turn(self, flow: Flow) -> bool:
        """Wait until ``flow`` may work. Returns whether it had to wait.

        When there is CPU left and nobody waits, this returns at once, without a checkpoint.
        """
        if not self._waiting and not self.budget.shortage_s():
            return False
        flow.used_s = max(flow.used_s, self.floor_s)
        waiter = (flow, trio.Event())
        self._waiting.append(waiter)
        self._asked.set()
        try:
            await waiter[1].wait()
        finally:
            if waiter in self._waiting:  # it was cancelled
                self._waiting.remove(waiter)
        return True

    async def run(self) -> None:
        """Give turns to flows, for ever."""
        Flow(self).adopt_task()
        while True:
            if not self._waiting:
                self._asked = trio.Event()
                await self._asked.wait()
            if shortage_s := self.budget.shortage_s():
                await trio.sleep(max(shortage_s, MIN_SLEEP_S))
            elif self._waiting:
                waiter = min(self._waiting, key=lambda one: one[0].used_s)  # the first of equals has waited longest
                self._waiting.remove(waiter)
                flow, granted = waiter
                self.floor_s = max(self.floor_s, flow.used_s - CREDIT_S)
                granted.set()
                for _ in range(2):  # tasks of one round run in any order; after two the meter has seen its first step
                    await trio.lowlevel.checkpoint()


class Flow:
    """A source of work, which takes one turn after the other.

    Args:
        lane: that it belongs to at first.

    Attributes:
        used_s: seconds of CPU that it has used since it came to its lane, on top of the lane's floor then.
    """

    __slots__ = ("_lane", "used_s")

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self.used_s = lane.floor_s

    def adopt_task(self) -> None:
        """Charge what the calling task does from now on, and all tasks that it starts, to this flow."""
        _FLOW.set(self)

    def move_to(self, lane: Lane) -> None:
        """Have what it does from now on use the budget of ``lane``."""
        if lane is not self._lane:
            self._lane = lane
            self.used_s = lane.floor_s

    async def turn(self) -> bool:
        """Wait until it may work. Returns whether it had to wait."""
        return await self._lane.turn(self)

    def use(self, cpu_s: float) -> None:
        """Charge seconds of CPU to the flow and its lane."""
        self.used_s += cpu_s
        self._lane.budget.use(cpu_s)


_FLOW: ContextVar[Flow] = ContextVar("flow")


class Lanes:
    """The two lanes.

    Args:
        prompt: probes' budget, and that of connections until they have said what they want.
        other: everybody else's.
    """

    def __init__(self, prompt: CpuBudget | None = None, other: CpuBudget | None = None) -> None:
        self.prompt = Lane(prompt or CpuBudget(burst_s=PROMPT_BURST_S))
        self.other = Lane(other or CpuBudget())


class CpuMeter(trio.abc.Instrument):
    """Charges the CPU of every step of every task to the task's flow. Made and used in the thread that it measures.

    Args:
        rest: what tasks without a flow are charged to.
        cpu_clock: seconds of CPU that the thread has used.
    """

    def __init__(self, rest: CpuBudget, cpu_clock: Callable[[], float] = time.thread_time) -> None:
        self._rest = rest
        self._cpu_clock = cpu_clock
        self._seen_s = cpu_clock()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        """Called by Trio. What the scheduler itself took before the step counts as the step's."""
        now_s = self._cpu_clock()
        flow = task.context.get(_FLOW)
        if flow is None:
            self._rest.use(now_s - self._seen_s)
        else:
            flow.use(now_s - self._seen_s)
        self._seen_s = now_s
