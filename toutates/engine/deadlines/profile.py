"""How long runs of one lane take by their number of rows, learned while it runs: a + b x rows."""

from __future__ import annotations

from math import ceil
from typing import Final

from toutates.engine.run_line import RunLine

__all__ = ["Profile"]

#: A run's error counts for so much of the expected error.
_ERROR_SHARE: Final = 1 / 16
#: Of a run that pays, at most a tenth is what every run takes.
_ROWS_PER_FIXED: Final = 9


class Profile:
    """What runs of one shape of rows take. Guarded by the SuperTensor's lock.

    Attributes:
        error: how far runs were from what was expected of them, as a share of it, on average; 0 to 1.
    """

    __slots__ = ("_line", "error")

    def __init__(self) -> None:
        self._line = RunLine()
        self.error = 0.0

    @property
    def fixed_ns(self) -> float:
        """What every run takes; 0 while nothing is known."""
        return self._line.fixed_ns

    @property
    def each_ns(self) -> float:
        """What a run takes longer for each row; 0 while nothing is known."""
        return self._line.each_ns

    @property
    def known(self) -> bool:
        """Whether there was a run."""
        return bool(self._line.fixed_ns or self._line.each_ns)

    def note(self, rows: int, duration_ns: int) -> None:
        """A run of so many rows has taken so long."""
        if self.known:
            off = min(abs(duration_ns / self.mean_ns(rows) - 1), 1.0)
            self.error += (off - self.error) * _ERROR_SHARE
        self._line.note(rows, duration_ns)

    def mean_ns(self, rows: int) -> int:
        """What a run of so many rows takes on average; 0 while nothing is known."""
        return int(self._line.fixed_ns + self._line.each_ns * rows)

    def time_ns(self, rows: int) -> int:
        """What a run of so many rows is to be given: the average, and as much more as runs are off by."""
        return int((self._line.fixed_ns + self._line.each_ns * rows) * (1 + self.error))

    def least_rows(self, most_rows: int, most_ns: int) -> int:
        """Rows that a run should have where work waits, so that it is not spent on what every run takes.

        Args:
            most_rows: of a run.
            most_ns: what the run may take, if it has more than one row.
        """
        line = self._line
        if not line.each_ns:
            return 1
        enough = min(most_rows, ceil(_ROWS_PER_FIXED * line.fixed_ns / line.each_ns))
        within = int((most_ns / (1 + self.error) - line.fixed_ns) / line.each_ns)
        return max(1, min(enough, within))
