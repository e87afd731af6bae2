"""What part of the last half second something was under way."""

from __future__ import annotations

from math import exp
from typing import Final

__all__ = ["Lately"]

#: After so long, two thirds (1 - 1/e) of what was noted are forgotten.
_LATELY_NS: Final = 500_000_000


class Lately:
    """A sum of times that fades."""

    __slots__ = ("_noted_ns", "_sum_ns")

    def __init__(self) -> None:
        self._sum_ns = 0.0
        self._noted_ns = 0

    def note(self, took_ns: int, now_ns: int) -> None:
        """It was under way for so long, until now."""
        self._sum_ns = self._faded_ns(now_ns) + took_ns
        self._noted_ns = now_ns

    def part(self, now_ns: int) -> float:
        """The part of the last half second or so; 0 to 1 for one at a time."""
        return self._faded_ns(now_ns) / _LATELY_NS

    def _faded_ns(self, now_ns: int) -> float:
        return self._sum_ns * exp((self._noted_ns - now_ns) / _LATELY_NS)
