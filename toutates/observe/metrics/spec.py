"""The description of a metric."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

__all__ = ["Kind", "MetricSpec", "Presence", "of_models"]


class Kind(Enum):
    """Prometheus's types of metrics. INFO is a gauge of value 1 with the information in its labels."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    INFO = "info"


class Presence(Enum):
    """The times at which a metric has series."""

    ALWAYS = "always"
    MODELS = "as long as a model is loaded"
    PADDED = "of versions with `padding`, once they have run"
    CACHED = "of versions with `response_cache`, where the server has a response cache"
    TEXT_MODELS = "of [text models](text-models.md)"
    TARGETED = "of versions with `latency_target_ms`"
    CACHE = "where the server has a response cache"
    TEXTS = "once an API for text has answered"
    TRAFFIC = "of names with traffic, once they were asked for"
    SHADOWS = "of names with a shadow, once a request was copied"
    DEMAND = "with `--model-control-mode on-demand`"
    GPUS = "where NVML finds a GPU"
    PROCESSES = "with several processes (`--processes`)"


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One metric.

    Attributes:
        name: as in Prometheus's text format; for a histogram without ``_bucket``, ``_sum`` and ``_count``.
        kind: its type.
        labels: names of its labels, without ``le``.
        unit: of its value, for the documentation.
        help: what it measures, in a line.
        action: what its changes mean to an operator.
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
        """Whether it is a counter without ``_total`` in its name, which OpenMetrics does not allow."""
        return self.kind is Kind.COUNTER and not self.name.endswith("_total")


def of_models(name: str, kind: Kind, labels: tuple[str, ...], unit: str, help_text: str, action: str) -> MetricSpec:
    """A metric that has series as long as a model is loaded."""
    return MetricSpec(name, kind, labels, unit, help_text, action, Presence.MODELS)
