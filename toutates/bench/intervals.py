"""Means of a few repeats with their confidence intervals, by Student's t distribution."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

__all__ = ["Interval", "mean_interval", "t_quantile"]


class Interval(NamedTuple):
    """A mean, and half of the interval around it; NaN where one value tells nothing of it."""

    mean: float
    half: float


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> Interval:
    """The mean of values with its confidence interval.

    Raises:
        statistics.StatisticsError: there are none.
    """
    mean = statistics.fmean(values)
    if len(values) < 2:
        return Interval(mean, math.nan)
    half = t_quantile(confidence, len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return Interval(mean, half)


@cache
def t_quantile(confidence: float, freedom: int) -> float:
    """What a variable of Student's distribution stays within, in absolute value, with a probability (0 to 1).

    Args:
        confidence: the probability.
        freedom: degrees of freedom, at least 1.
    """
    low, high = 0.0, 1.0
    while _within(high, freedom) < confidence:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < confidence else (low, middle)
    return high


def _within(t: float, freedom: int) -> float:
    """The probability that Student's variable is from -t to t: finite sums (Abramowitz and Stegun 26.7.3 and 4)."""
    angle = math.atan(t / math.sqrt(freedom))
    square = math.cos(angle) ** 2
    term = total = math.cos(angle) if freedom % 2 else 1.0
    for step in range(3 if freedom % 2 else 2, freedom - 1, 2):
        term *= square * (step - 1) / step
        total += term
    if freedom % 2 == 0:
        return math.sin(angle) * total
    return 2 / math.pi * (angle + (math.sin(angle) * total if freedom > 1 else 0.0))
