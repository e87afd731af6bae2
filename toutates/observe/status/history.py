"""The last values of a number, in an array of fixed size."""

from __future__ import annotations

from array import array
from typing import Final

__all__ = ["NOTHING", "Series"]

#: Stands for a missing value, because JSON has no NaN; the kept values are 0 or above.
NOTHING: Final = -1.0


class Series:
    """The last ``size`` values of one number, 0 or above each, or NOTHING."""

    __slots__ = ("_at", "_values")

    def __init__(self, size: int) -> None:
        self._values = array("f", [NOTHING]) * size
        self._at = 0

    def add(self, value: float) -> None:
        """Add a value in place of the oldest."""
        self._values[self._at] = value
        self._at = (self._at + 1) % len(self._values)

    def last(self, count: int) -> list[float]:
        """The last ``count`` values, the newest last."""
        count = min(count, len(self._values))
        values = self._values[self._at :] + self._values[: self._at]
        return [round(value, 4) for value in values[len(values) - count :]]
