"""Families of series: metrics with the values that a scrape has read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from toutates.observe.metrics.spec import Kind, MetricSpec

__all__ = ["Distribution", "Family", "Labels", "Named", "Series", "bucket_bounds", "named_labels"]

#: What prometheus_client takes off a family's name, and gives to its samples.
_SUFFIXES: Final = {Kind.COUNTER: "_total", Kind.INFO: "_info"}


@dataclass(frozen=True, slots=True)
class Distribution:
    """The value of one series of a histogram.

    Attributes:
        bounds: what ``bucket_bounds`` has made.
        counts: of each bucket alone, the last one's, which has no bound, too.
        total: the sum of what was measured.
    """

    bounds: tuple[str, ...]
    counts: Sequence[int]
    total: float

    def cumulated(self) -> list[int]:
        """How many were at most each bound; the last is how many there were."""
        return list(accumulate(self.counts))


def bucket_bounds(bounds: Sequence[float]) -> tuple[str, ...]:
    """Upper bounds of buckets, ascending, as they are written; for the last bucket, too, which has none."""
    return (*(repr(float(bound)) for bound in bounds), "+Inf")


#: Values of labels in the order of ``MetricSpec.labels``; before them, labels of the series' own with their names.
Labels = tuple[str | tuple[str, str], ...]
#: The value of one series, and of its labels before it.
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
        spec: which.
        series: its labels, see ``Labels``, and its value.
    """

    spec: MetricSpec
    series: Sequence[Series]

    @property
    def openmetrics_type(self) -> str:
        """The type that OpenMetrics has for it.

        Of Triton's counters it is ``unknown``: OpenMetrics has no counter without ``_total``, and who asked for
        Triton's names would not find what is called otherwise. Prometheus prefers OpenMetrics, and computes with
        either alike.
        """
        return "unknown" if self.spec.foreign_counter else self.spec.kind.value

    @property
    def openmetrics_name(self) -> str:
        """The family's name there, to which the samples add what their type demands."""
        return self.spec.name.removesuffix(_SUFFIXES.get(self.spec.kind, ""))
