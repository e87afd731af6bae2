"""Metrics that a model version keeps beside those of every version, as they are told at a scrape."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

__all__ = ["COUNTER", "GAUGE", "HISTOGRAM", "MOST_SERIES", "ModelSeries", "lasting", "sum_series"]

COUNTER: Final = "counter"
GAUGE: Final = "gauge"
HISTOGRAM: Final = "histogram"
#: Series of one model version.
MOST_SERIES: Final = 1_000


@dataclass(frozen=True, slots=True)
class ModelSeries:
    """One series.

    Attributes:
        name: of its family.
        kind: COUNTER, GAUGE or HISTOGRAM.
        help: of the family.
        labels: name and value of each, sorted.
        bounds: upper bounds of a histogram's buckets, ascending, without the last, which has none.
        values: the value; of a histogram the measurements in each bucket alone, and their sum.
        ours: whether it is one of the server's own metrics, which describe themselves, and none of the model's code.
    """

    name: str
    kind: str
    help: str
    labels: tuple[tuple[str, str], ...]
    bounds: tuple[float, ...]
    values: tuple[float, ...]
    ours: bool = False


def sum_series(parts: Iterable[ModelSeries]) -> tuple[ModelSeries, ...]:
    """Series of several sources; those of the same family and labels are added up. MOST_SERIES at most."""
    sums: dict[object, ModelSeries] = {}
    for one in parts:
        key = one.name, one.kind, one.labels, one.bounds, one.ours
        known = sums.get(key)
        if known is not None:
            values = tuple([a + b for a, b in zip(known.values, one.values, strict=True)])
            sums[key] = replace(known, values=values)
        elif len(sums) < MOST_SERIES:
            sums[key] = one
    return tuple(sums.values())


def lasting(parts: Iterable[ModelSeries]) -> tuple[ModelSeries, ...]:
    """What stays in the sums when the source of the series is gone: all that only grows."""
    return tuple([one for one in parts if one.kind != GAUGE])
