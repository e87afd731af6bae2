"""How much of one CPU the HTTP side may use, whoever asks it for what.

With the GIL, what this thread computes the workers cannot; without it, it still takes one of their CPUs. So work is
begun only as long as the thread has used no more than its share; what is over waits, and the callers with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import trio

__all__ = ["BURST_S", "SHARE", "CpuBudget"]

#: Of one CPU, in the long run.
SHARE: Final = 0.1
#: Seconds of CPU that may be used at once after a quiet time: a large scrape or a flame graph takes some tenths.
BURST_S: Final = 2.0


class CpuBudget:
    """Seconds of CPU that come with time and go with use. Made and used in the thread that it is for.

    Args:
        share: seconds that come per second.
        burst_s: there are never more.
        clock: seconds.
        cpu_clock: seconds of CPU that the thread has used.
    """

    def __init__(
        self,
        share: float = SHARE,
        burst_s: float = BURST_S,
        *,
        clock: Callable[[], float] = time.monotonic,
        cpu_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self._share = share
        self._burst_s = burst_s
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._left_s = burst_s
        self._looked_s = clock()
        self._used_s = cpu_clock()

    def shortage_s(self) -> float:
        """Seconds until there is something left; 0 if there is."""
        now_s, used_s = self._clock(), self._cpu_clock()
        came_s = (now_s - self._looked_s) * self._share
        self._left_s = min(self._left_s + came_s, self._burst_s) - (used_s - self._used_s)
        self._looked_s, self._used_s = now_s, used_s
        return max(0.0, -self._left_s / self._share)

    async def wait(self) -> None:
        """Return once there is something left. Others may have used it up by the time that the caller begins."""
        while (shortage_s := self.shortage_s()) > 0:  # noqa: ASYNC110  # time is what it waits for
            await trio.sleep(shortage_s)
