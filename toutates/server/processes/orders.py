"""Calls that are carried out in all processes, and what of them has to be done again in a process that starts later.

Changes of the same thing are made one after the other, so that every process ends with the same. What all processes
have been told since the start is kept: of a model what was said last of it as a whole, and what came after. Requests
with the files of a model may have gigabytes; those are kept in files that have no name.
"""

from __future__ import annotations

import tempfile
import weakref
from collections.abc import Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import IO, Any, Final

import trio

from toutates.api.control_queue import PARSING
from toutates.api.dataplane.everywhere import Order, Outcome
from toutates.server.processes.reads import Reads

__all__ = ["UNLOAD", "Orders", "Worker"]

#: Bytes of a request that stays in memory.
_SMALL: Final = 2**16
#: Requests that are kept of one thing that is never said as a whole, such as the levels of the log. Beyond it the
#: oldest is forgotten.
_MOST: Final = 256

#: The call after which nothing need be done again of what was said of a model, unless a process loads it at its start.
#: It succeeds for any name, so one that is kept for each would let callers fill the memory of the parent.
UNLOAD: Final = "RepositoryModelUnload"

#: Carries an order out in one process; does not raise.
Worker = Callable[[Order], Awaitable[Outcome]]


class _Kept:
    """An order that is to be done again in a process that starts later.

    Attributes:
        number: its place among all.
        about, is_whole: as ``Order`` has them.
        is_unload: whether it unloads a model.
    """

    def __init__(self, order: Order) -> None:
        self.number = 0
        self.about, self.is_whole = order.about, order.whole
        self.is_unload = order.call == UNLOAD
        self._file: IO[bytes] | None = None
        self._order = order
        if len(order.request) > _SMALL:
            # It has no name, and is gone once it is closed.
            self._file = tempfile.TemporaryFile()  # noqa: SIM115
            weakref.finalize(self, self._file.close)
            self._file.write(order.request)
            self._order = Order(order.call, b"", order.changes, order.about, order.whole)

    def order(self) -> Order:
        if self._file is None:
            return self._order
        self._file.seek(0)
        order = self._order
        return Order(order.call, self._file.read(), order.changes, order.about, order.whole)

    def is_like(self, other: _Kept) -> bool:
        """Whether the two are the same, of those that are kept in memory."""
        mine, its = self._order, other._order
        return self._file is None and other._file is None and (mine.call, mine.request) == (its.call, its.request)


class Orders:
    """Carries orders out. Used in one Trio run.

    Args:
        workers: returns those that serve; asked when it is an order's turn.
    """

    def __init__(self, workers: Callable[[], Iterable[Worker]]) -> None:
        self._workers = workers
        self._reads = Reads(self._in_all)
        self._turns: dict[str, tuple[trio.Lock, int]] = {}
        self._kept: dict[str, list[_Kept]] = {}
        #: what ``remember`` was told of
        self._at_start: set[str] = set()
        self._catching_up = 0
        self._number = 0
        self._under_way = 0
        self._idle = trio.Event()
        self._idle.set()

    async def carry(self, order: Order) -> list[Outcome]:
        """Carry an order out in all processes at once; returns what has become of it in each."""
        if not order.changes:
            return await self._reads.ask(order)
        async with self._turn(order.about):
            self._under_way += 1
            self._idle = trio.Event() if self._idle.is_set() else self._idle
            try:
                outcomes = await self._in_all(order)
                if any(not one.error for one in outcomes):
                    # In a thread: it may write a file.
                    self._keep(await PARSING.run(_Kept, order))
                    self._forget_unloaded([order.about])
            finally:
                self._under_way -= 1
                if not self._under_way:
                    self._idle.set()
        return outcomes

    def remember(self, order: Order) -> None:
        """Keep what processes do at their start, for those to come."""
        self._at_start.add(order.about)
        self._keep(_Kept(order))

    async def catch_up(self, work: Worker, on_done: Callable[[], None]) -> list[tuple[str, Outcome]]:
        """Do again, in a process that starts, what the others were told; returns what failed.

        Args:
            work: carries orders out in that process.
            on_done: called when nothing is left, and nothing is under way: from then on ``carry`` has to include it.

        Returns:
            What the orders that failed are about, and their outcomes.
        """
        self._catching_up += 1
        try:
            return await self._catch_up(work, on_done)
        finally:
            self._catching_up -= 1
            self._forget_unloaded(list(self._kept))

    async def _catch_up(self, work: Worker, on_done: Callable[[], None]) -> list[tuple[str, Outcome]]:
        done: set[int] = set()
        problems: list[tuple[str, Outcome]] = []
        while True:
            # Models first: settings of traces may be a model's.
            left = sorted(
                (one for kept in self._kept.values() for one in kept if one.number not in done),
                key=lambda one: (not one.about.startswith("model "), one.number),
            )
            for kept in left:
                outcome = await work(kept.order())
                if outcome.error:
                    problems.append((kept.about, outcome))
                done.add(kept.number)
            if not left and not self._under_way:
                on_done()
                return problems
            await self._idle.wait()

    def _keep(self, last: _Kept) -> None:
        self._number += 1
        last.number = self._number
        before = () if last.is_whole else self._kept.get(last.about, ())
        self._kept[last.about] = [*(one for one in before if not one.is_like(last)), last][-_MOST:]

    def _forget_unloaded(self, abouts: Iterable[str]) -> None:
        """Forget models whose unload was the last word, once no process can have done what was said before it."""
        if not self._catching_up:
            for about in abouts:
                if about not in self._at_start and self._kept[about][-1].is_unload:
                    del self._kept[about]

    @asynccontextmanager
    async def _turn(self, about: str) -> Any:
        lock, waiting = self._turns.get(about, (trio.Lock(), 0))
        self._turns[about] = lock, waiting + 1
        try:
            async with lock:
                yield
        finally:
            lock, waiting = self._turns[about]
            if waiting == 1:
                del self._turns[about]
            else:
                self._turns[about] = lock, waiting - 1

    async def _in_all(self, order: Order) -> list[Outcome]:
        outcomes: list[Outcome] = []

        async def ask(work: Worker) -> None:
            outcomes.append(await work(order))

        async with trio.open_nursery() as nursery:
            for work in self._workers():
                nursery.start_soon(ask, work)
        return sorted(outcomes, key=lambda one: one.process)
