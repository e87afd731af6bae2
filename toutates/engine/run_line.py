"""How long runs take by their size: a line, which is learned as they end. Nothing here knows a thread or a clock."""

from __future__ import annotations

from typing import Final

__all__ = ["RunLine"]

#: Runs of which so many have followed count for a third.
_REMEMBERED_RUNS: Final = 64


class RunLine:
    """The line through the times of runs: ``fixed_ns`` and ``each_ns`` for each unit of their size.

    A run that took twice as long as it should, because something else had the core, counts for a quarter. Several
    threads may note runs at once; one that is lost is one less.

    Attributes:
        fixed_ns: what every run takes, nanoseconds; 0 before the first run.
        each_ns: what it takes longer for each unit of its size; 0 before the first run.
        told: whether the last runs were of sizes that differ enough to tell the two apart. Else half of the time is
            said to be fixed.
    """

    __slots__ = ("_u", "_uu", "_uv", "_v", "_vv", "each_ns", "fixed_ns", "told")

    def __init__(self) -> None:
        self.fixed_ns = self.each_ns = 0.0
        self.told = False
        #: sums over the runs, of u = 1 / time and v = size / time: fixed_ns u + each_ns v is to be 1
        self._u = self._v = self._uu = self._uv = self._vv = 0.0

    def note(self, size: int, duration_ns: int) -> None:
        """A run of a size has taken so long."""
        if duration_ns <= 0:
            return
        keep = 1 - 1 / _REMEMBERED_RUNS
        u, v = 1 / duration_ns, size / duration_ns
        self._u, self._v = u_sum, v_sum = keep * self._u + u, keep * self._v + v
        self._uu, self._uv, self._vv = uu, uv, vv = (
            keep * self._uu + u * u, keep * self._uv + u * v, keep * self._vv + v * v
        )  # fmt: skip
        spread = uu * vv - uv * uv
        told = False
        if spread < 0.01 * uu * vv or not vv:
            fixed_ns, each_ns = u_sum / uu / 2, v_sum / vv / 2 if vv else 0.0
        else:
            fixed_ns, each_ns = (u_sum * vv - v_sum * uv) / spread, (v_sum * uu - u_sum * uv) / spread
            told = each_ns > 0
            if each_ns <= 0:
                fixed_ns, each_ns = u_sum / uu, 0.0
            elif fixed_ns < 0:
                fixed_ns, each_ns = 0.0, v_sum / vv
        self.told, self.fixed_ns, self.each_ns = told, fixed_ns, each_ns
