"""The share of one CPU that one kind of work may use.

With the GIL, what the HTTP thread computes the workers cannot; without it, it still takes one of their CPUs. So work is
begun only as long as no more than its share has been used; what is over waits, and the callers with it (``turns``).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

__all__ = ["BURST_S", "MAX_DEBT_S", "SHARE", "CpuBudget"]

#: Of one CPU, in the long run.
SHARE: Final = 0.1
#: Seconds of CPU that may be used at once after a quiet time: a large scrape or a flame graph takes some tenths.
BURST_S: Final = 2.0
#: Seconds of CPU that are owed at most, whatever was used: the wait for them is this by SHARE, five seconds.
MAX_DEBT_S: Final = 0.5


class CpuBudget:
    """Seconds of CPU that come with time and go with use. Used in one thread.

    Args:
        share: seconds that come per second.
        burst_s: there are never more.
        max_debt_s: no more are ever missing.
        clock: seconds.
    """

    def __init__(
        self,
        share: float = SHARE,
        burst_s: float = BURST_S,
        max_debt_s: float = MAX_DEBT_S,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._share = share
        self._burst_s = burst_s
        self._max_debt_s = max_debt_s
        self._clock = clock
        self._left_s = burst_s
        self._looked_s = clock()

    def use(self, cpu_s: float) -> None:
        """Charge seconds of CPU that were used."""
        self._left_s = max(self._left_s - cpu_s, -self._max_debt_s)

    def shortage_s(self) -> float:
        """Seconds until some of the budget is left; 0 if some is left now."""
        now_s = self._clock()
        self._left_s = min(self._left_s + (now_s - self._looked_s) * self._share, self._burst_s)
        self._looked_s = now_s
        return max(0.0, -self._left_s / self._share)
