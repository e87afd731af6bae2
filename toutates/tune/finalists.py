"""Who goes on among the best of a search: those are winners by luck in part, so that only loads made afterwards count.

Rounds of a load each, in an order by chance. Who is worse than the leader beyond doubt, by the differences within
rounds, is measured no further.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from toutates.bench.intervals import mean_interval
from toutates.tune.search import Point
from toutates.tune.turns import NARROW

__all__ = ["order", "still_in"]

#: A finalist is looked at after each round, and with others: one who is out wrongly is lost.
_CONFIDENCE: Final = 0.98
_LEAST: Final = 3

#: Of each finalist the objective's value in each round, the greater the better; 0 where constraints did not hold.
Values = Mapping[Point, Sequence[float]]


def order(values: Values) -> list[Point]:
    """The finalists, from the best on; those for whom constraints did not hold in half of the rounds come last."""
    return sorted(values, key=lambda point: _mean(values[point]), reverse=True)


def still_in(values: Values) -> list[Point]:
    """The finalists that are to be measured again; none where the first is known.

    Args:
        values: of those that are still in, as many of each.
    """
    leader, *others = order(values)
    if len(values[leader]) < _LEAST:
        return [leader, *others]
    kept, wide = [leader], False
    for point in others:
        gaps = [
            math.log(other / own) for own, other in zip(values[leader], values[point], strict=True) if own and other
        ]
        if len(gaps) < _LEAST:
            continue
        mean, half = mean_interval(gaps, _CONFIDENCE)
        if mean + half > 0:
            kept.append(point)
            wide |= half > NARROW / 2
    return kept if wide else []


def _mean(values: Sequence[float]) -> float:
    held = [math.log(value) for value in values if value]
    return sum(held) / len(held) if 2 * len(held) > len(values) else -math.inf
