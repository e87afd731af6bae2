"""Questions to all processes, made once for all who ask at about the same time, and not too often.

A request of thirty bytes for the statistics or the index of many models takes milliseconds in each process. So those
who ask the same before it is begun get one answer, one question of a kind is under way at a time, and between two there
is a pause, so that such questions take a tenth of each process's time at most.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import trio

from toutates.api.dataplane.everywhere import Order, Outcome

__all__ = ["Reads"]

#: A pause is so many times as long as the slowest process took, of its CPU, and LONGEST_S at most.
PAUSE: Final = 9
LONGEST_S: Final = 0.1

Make = Callable[[Order], Awaitable[list[Outcome]]]


class _Answer:
    def __init__(self) -> None:
        self.done = trio.Event()
        self.outcomes: list[Outcome] = []


class Reads:
    """Used in one Trio run.

    Args:
        make: asks all processes; does not raise.
    """

    def __init__(self, make: Make) -> None:
        self._make = make
        #: by call and request, what has not begun
        self._next: dict[tuple[str, bytes], _Answer] = {}
        self._turns: dict[str, trio.Lock] = {}
        #: by call, when the next one may begin
        self._not_before: dict[str, float] = {}

    async def ask(self, order: Order) -> list[Outcome]:
        """The outcomes of an order that changes nothing; it is not asked before this is called."""
        key = order.call, order.request
        answer = self._next.get(key)
        if answer is not None:
            await answer.done.wait()
            return answer.outcomes
        answer = self._next[key] = _Answer()
        async with self._turns.setdefault(order.call, trio.Lock()):
            await trio.sleep_until(self._not_before.get(order.call, 0.0))
            del self._next[key]
            try:
                answer.outcomes = await self._make(order)
            finally:
                answer.done.set()
            spent_s = max((one.spent_ns for one in answer.outcomes), default=0) / 1e9
            self._not_before[order.call] = trio.current_time() + min(PAUSE * spent_s, LONGEST_S)
        return answer.outcomes
