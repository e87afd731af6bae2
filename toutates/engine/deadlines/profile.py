"""How long runs of one lane take by their number of rows, learned while it runs: a + b x rows."""

from __future__ import annotations

from math import ceil
from typing import Final

from toutates.engine.run_line import RunLine

__all__ = ["Profile"]

#: A run's error counts for so much of the expected error, and its time for so much of the scale.
_ERROR_SHARE: Final = 1 / 16
_SCALE_SHARE: Final = 1 / 8
#: So many times what was expected is the most that one run counts for.
_MOST_RATIO: Final = 4.0
#: Of a run that pays, at most a tenth is what every run takes.
_ROWS_PER_FIXED: Final = 9


class Profile:
    """What runs of one shape of rows take. Guarded by the SuperTensor's lock.

    The line tells runs of few rows from those of many, and hardly hears of runs that took too long. How long runs take
    these days is its scale: it follows within some runs when the machine becomes slower.

    Attributes:
        error: how far runs were from what was expected of them, as a share of it, on average; 0 to 1.
    """

    __slots__ = ("_line", "_scale", "error")

    def __init__(self) -> None:
        self._line = RunLine()
        self._scale = 1.0
        self.error = 0.0

    @property
    def fixed_ns(self) -> float:
        """What every run takes; 0 while nothing is known."""
        return self._line.fixed_ns * self._scale

    @property
    def each_ns(self) -> float:
        """What a run takes longer for each row; 0 while nothing is known."""
        return self._line.each_ns * self._scale

    @property
    def known(self) -> bool:
        """Whether there was a run."""
        return bool(self._line.fixed_ns or self._line.each_ns)

    def note(self, rows: int, duration_ns: int) -> None:
        """A run of so many rows has taken so long."""
        line = self._line
        expected_ns = line.fixed_ns + line.each_ns * rows
        if expected_ns > 0:
            ratio = min(duration_ns / expected_ns, _MOST_RATIO)
            self.error += (min(abs(ratio / self._scale - 1), 1.0) - self.error) * _ERROR_SHARE
            self._scale += (ratio - self._scale) * _SCALE_SHARE
        self._line.note(rows, duration_ns)

    def mean_ns(self, rows: int) -> int:
        """What a run of so many rows takes on average; 0 while nothing is known."""
        return int((self._line.fixed_ns + self._line.each_ns * rows) * self._scale)

    def time_ns(self, rows: int) -> int:
        """What a run of so many rows is to be given: the average, and as much more as runs are off by."""
        return int((self._line.fixed_ns + self._line.each_ns * rows) * self._scale * (1 + self.error))

    def least_rows(self, most_rows: int, most_ns: int) -> int:
        """Rows that a run should have where work waits, so that it is not spent on what every run takes.

        Args:
            most_rows: of a run.
            most_ns: what the run may take, if it has more than one row.
        """
        fixed_ns, each_ns = self.fixed_ns, self.each_ns
        if not each_ns:
            return 1
        enough = min(most_rows, ceil(_ROWS_PER_FIXED * fixed_ns / each_ns))
        within = int((most_ns / (1 + self.error) - fixed_ns) / each_ns)
        return max(1, min(enough, within))
