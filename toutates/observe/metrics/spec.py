"""What there is to say of a metric."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

__all__ = ["Kind", "MetricSpec", "Presence", "of_models"]


class Kind(Enum):
    """Types of Prometheus. INFO is a gauge that is always 1, and says something in its labels."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    INFO = "info"


class Presence(Enum):
    """When a metric has series."""

    ALWAYS = "always"
    MODELS = "as long as a model is loaded"
    GPUS = "where NVML finds a GPU"


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One metric.

    Attributes:
        name: as Prometheus's text format shows it; of a histogram without ``_bucket``, ``_sum`` and ``_count``.
        kind: its type.
        labels: names of its labels, ``le`` left out.
        unit: of its value, for the reader.
        help: what it is, in a line.
        action: what an operator does when it moves.
        presence: when it has series.
    """

    name: str
    kind: Kind
    labels: tuple[str, ...]
    unit: str
    help: str
    action: str
    presence: Presence = Presence.ALWAYS

    @property
    def foreign_counter(self) -> bool:
        """Whether it is a counter whose name has no ``_total``, which OpenMetrics has no counter for."""
        return self.kind is Kind.COUNTER and not self.name.endswith("_total")


def of_models(name: str, kind: Kind, labels: tuple[str, ...], unit: str, help_text: str, action: str) -> MetricSpec:
    """A metric that has series as long as a model is loaded."""
    return MetricSpec(name, kind, labels, unit, help_text, action, Presence.MODELS)
