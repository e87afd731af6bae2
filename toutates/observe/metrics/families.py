"""Families of series: metrics with the values that a scrape has read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from toutates.observe.metrics.spec import Kind, MetricSpec

__all__ = ["Distribution", "Family", "Labels", "Named", "Series", "bucket_bounds", "named_labels"]

#: By kind, the suffix that samples have and the family's name in OpenMetrics has not.
_SUFFIXES: Final = {Kind.COUNTER: "_total", Kind.INFO: "_info"}


@dataclass(frozen=True, slots=True)
class Distribution:
    """The value of one series of a histogram.

    Attributes:
        bounds: upper bounds of the buckets, made by ``bucket_bounds``.
        counts: measurements in each bucket alone; the last bucket has no bound.
        total: the sum of all measurements.
    """

    bounds: tuple[str, ...]
    counts: Sequence[int]
    total: float

    def cumulated(self) -> list[int]:
        """The number of measurements up to each bound; the last number is that of all."""
        return list(accumulate(self.counts))


def bucket_bounds(bounds: Sequence[float]) -> tuple[str, ...]:
    """Upper bounds of buckets, ascending, as the text has them, with "+Inf" for the last bucket."""
    return (*(repr(float(bound)) for bound in bounds), "+Inf")


#: Values of labels in the order of ``MetricSpec.labels``; before them pairs of name and value, of further labels.
Labels = tuple[str | tuple[str, str], ...]
#: One series: its labels and its value.
Series = tuple[Labels, float | Distribution]
#: A metric's name, and its series.
Named = tuple[str, Sequence[Series]]


def named_labels(names: tuple[str, ...], labels: Labels) -> list[tuple[str, str]]:
    """Names and values of a series' labels."""
    own = len(labels) - len(names)
    named = [label for label in labels[:own] if not isinstance(label, str)]
    values = [label for label in labels[own:] if isinstance(label, str)]
    assert len(named) + len(values) == len(labels), labels
    return named + list(zip(names, values, strict=True))


@dataclass(slots=True)
class Family:
    """One metric with its series.

    Attributes:
        spec: the metric.
        series: its series.
    """

    spec: MetricSpec
    series: Sequence[Series]

    @property
    def openmetrics_type(self) -> str:
        """The family's type in OpenMetrics.

        For Triton's counters it is ``unknown``, because OpenMetrics has no counter without ``_total``, and the metrics
        have to keep Triton's names. Prometheus computes with both types alike.
        """
        return "unknown" if self.spec.foreign_counter else self.spec.kind.value

    @property
    def openmetrics_name(self) -> str:
        """The family's name in OpenMetrics, to which its samples add the suffix of their type."""
        return self.spec.name.removesuffix(_SUFFIXES.get(self.spec.kind, ""))
