"""Whether one configuration beats another: loads in turns, blocks of four, until the interval is narrow.

Blocks are those of ``toutates.bench.comparison``: A B B A or B A A B by chance, so that a drift of the machine cancels
out. Each gives one ratio. The interval is Student's with 99 %, because it is looked at after each block.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from toutates.bench.intervals import mean_interval

__all__ = ["NARROW", "Verdict", "block_ratio", "verdict_of"]

_CONFIDENCE: Final = 0.99
#: A difference is known well enough if its interval is narrower.
NARROW: Final = 0.03
_LEAST: Final = 3
#: An interval is not shown whose upper end is so many times the lower one. After two blocks that differ a little it may
#: be -100 % to +1,000,000 %: Student's distribution with one degree of freedom is that wide.
_SAYS_NOTHING: Final = 10


@dataclass(frozen=True, slots=True)
class Verdict:
    """How much better the second configuration is.

    Attributes:
        ratio: its value over the first one's, of an objective that is better the greater it is.
        low, high: of the interval.
        blocks: that were measured.
    """

    ratio: float
    low: float
    high: float
    blocks: int

    @property
    def better(self) -> bool:
        """Whether it is better beyond doubt."""
        return self.low > 1

    @property
    def settled(self) -> bool:
        """Whether more blocks would tell little more."""
        return self.blocks >= _LEAST and self.high - self.low < NARROW

    def text(self) -> str:
        """In words."""
        if self.high > _SAYS_NOTHING * self.low:
            told = f"{self.blocks} blocks in turns differ too much to say how certain that is"
            return f"{self.ratio - 1:+.1%} ({told})"
        return f"{self.ratio - 1:+.1%} ({self.low - 1:+.1%} to {self.high - 1:+.1%}, {self.blocks} blocks in turns)"


def block_ratio(block: Sequence[tuple[int, float]]) -> float:
    """The logarithm of the second configuration's value over the first one's, of a block.

    Args:
        block: of each load which configuration it was for, 0 or 1, and the objective's value, above 0.
    """
    means = [
        sum(math.log(value) for place, value in block if place == which) / sum(place == which for place, _ in block)
        for which in (0, 1)
    ]
    return means[1] - means[0]


def verdict_of(ratios: Sequence[float]) -> Verdict:
    """The verdict after some blocks.

    Args:
        ratios: of each block, as ``block_ratio`` gives them; at least two.
    """
    mean, half = mean_interval(ratios, _CONFIDENCE)
    return Verdict(math.exp(mean), math.exp(mean - half), math.exp(mean + half), len(ratios))
