"""Takes the metrics that handlers report. They are kept for their batch, and not published."""

from __future__ import annotations

from typing import Any, NamedTuple

__all__ = ["Metric", "MetricsStore"]

#: Metrics of one batch that are kept.
MAX_KEPT = 1_000


class Metric(NamedTuple):
    """One reported value."""

    name: str
    value: Any
    unit: str
    idx: Any
    dimensions: Any


class MetricsStore:
    """The metrics of the batch under way, as ``store``."""

    def __init__(self) -> None:
        self.store: list[Metric] = []

    def reset(self) -> None:
        """Forget all of them."""
        self.store = []

    def add_metric(
        self, name: str, value: Any, unit: str = "", idx: Any = None, dimensions: Any = None, **_: Any
    ) -> None:
        """Report a value."""
        if len(self.store) < MAX_KEPT:
            self.store.append(Metric(name, value, unit, idx, dimensions))

    def add_counter(self, name: str, value: Any, idx: Any = None, dimensions: Any = None) -> None:
        """Report what is counted."""
        self.add_metric(name, value, "count", idx, dimensions)

    def add_time(self, name: str, value: Any, idx: Any = None, unit: str = "ms", dimensions: Any = None) -> None:
        """Report a time."""
        self.add_metric(name, value, unit, idx, dimensions)

    def add_size(self, name: str, value: Any, idx: Any = None, unit: str = "MB", dimensions: Any = None) -> None:
        """Report a size."""
        self.add_metric(name, value, unit, idx, dimensions)

    def add_percent(self, name: str, value: Any, idx: Any = None, dimensions: Any = None) -> None:
        """Report a share."""
        self.add_metric(name, value, "percent", idx, dimensions)

    def add_error(self, name: str, value: Any, dimensions: Any = None) -> None:
        """Report an error."""
        self.add_metric(name, value, "", None, dimensions)
