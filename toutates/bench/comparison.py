"""Whether two servers differ: loads in turns, and a paired test of each figure.

Loads come in blocks of four, A B B A or B A A B by chance, so that a drift of the machine cancels out, and so does
whatever comes in turns. A block gives one difference of logarithms for each figure. These are taken as a sample of
Student's distribution; a figure differs if the interval of its mean leaves out 0, and the mean is no trifle. The
confidence is such that two alike servers are called different in one comparison of a hundred, over all figures.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from toutates.bench.intervals import mean_interval

__all__ = ["Difference", "block_order", "compare_blocks"]

#: Of comparisons of alike servers, which are called different.
_WRONG: Final = 0.01
#: Less is no difference, however certain: a port's number or the order of two starts can make it.
_TRIFLE: Final = 0.02
_ANYTHING: Final = 100


@dataclass(frozen=True, slots=True)
class Difference:
    """Of one figure.

    Attributes:
        figure: its name.
        ratio: the second server's over the first's.
        low, high: of the interval of that.
        real: whether the servers differ in it.
    """

    figure: str
    ratio: float
    low: float
    high: float
    real: bool

    def text(self) -> str:
        """In words."""
        # Few blocks that differ much have an interval that says nothing.
        interval = f"{self.low - 1:+.1%} to {self.high - 1:+.1%}" if self.high < _ANYTHING else "or anything else"
        said = f"{self.ratio - 1:+.1%} ({interval})"
        return f"{self.figure:6} {said:32} {'DIFFERENT' if self.real else 'no difference that can be told'}"


def block_order(rng: np.random.Generator) -> tuple[int, int, int, int]:
    """Which server each load of a block is for, 0 or 1."""
    first = int(rng.integers(2))
    return first, 1 - first, 1 - first, first


def compare_blocks(
    figures: Sequence[str], blocks: Sequence[Sequence[tuple[int, dict[str, float]]]]
) -> list[Difference]:
    """How the second server differs from the first.

    Args:
        figures: names of those to compare; a figure that some load has not, or that is not above 0, is left out.
        blocks: of each load which server it was for, and its figures.

    Raises:
        ValueError: there are fewer than two blocks.
    """
    if len(blocks) < 2:
        raise ValueError(f"{len(blocks)} blocks of loads; a comparison needs at least 2")
    known = [name for name in figures if all(load.get(name, 0) > 0 for block in blocks for _, load in block)]
    found = []
    for name in known:
        gaps = []
        for block in blocks:
            means = [
                sum(math.log(load[name]) for place, load in block if place == which)
                / sum(place == which for place, _ in block)
                for which in (0, 1)
            ]
            gaps.append(means[1] - means[0])
        mean, half = mean_interval(gaps, 1 - _WRONG / len(known))
        real = abs(mean) > half and abs(math.expm1(mean)) > _TRIFLE
        found.append(Difference(name, math.exp(mean), math.exp(mean - half), math.exp(mean + half), real))
    return found
