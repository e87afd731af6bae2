"""The counts of model versions, added up over threads, and over the versions of a model.

Prometheus takes a counter that falls for one that was reset, and counts its whole value as new. If the counts of a
version left its model's sum when the version is unloaded or replaced, the sum would fall. So they stay in the sum as
long as any version of the model is served. When none is, the model's series end, and begin at 0 with its next version.
Metrics with the version as a label, such as Triton's, do not need this.

Nothing here refers to a version, so that a slow scrape keeps none from being freed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from operator import is_
from typing import Any, Final

from toutates.engine.counters import BUCKETS, BatchCounters, CacheCounters, VersionCounters, WorkerCounters, size_bucket
from toutates.engine.model_metrics import ModelSeries
from toutates.engine.statistics import Forecast, Occupancy
from toutates.models.table import ServedVersion
from toutates.observe.metrics.families import Labels

__all__ = ["SETTLED_S", "Counts", "Retired", "VersionSnapshot", "minus", "read_counts", "read_version"]

#: Seconds after which a version that is gone counts no more requests.
SETTLED_S: Final = 600.0


def _buckets() -> list[int]:
    return [0] * BUCKETS


@dataclass(slots=True)
class Counts:
    """All counts of a version, or of several.

    Attributes:
        requests: those of all workers.
        batches: those of all executors, of all sizes together.
        batch_rows: rows of these batches.
        batch_sizes, batch_durations, batch_runs: buckets; see ``toutates.engine.counters``.
    """

    requests: WorkerCounters = field(default_factory=WorkerCounters)
    batches: BatchCounters = field(default_factory=BatchCounters)
    batch_rows: int = 0
    batch_sizes: list[int] = field(default_factory=_buckets)
    batch_durations: list[int] = field(default_factory=_buckets)
    batch_runs: list[int] = field(default_factory=_buckets)

    def __add__(self, other: Counts) -> Counts:
        sums: Counts = _plus(self, other)
        sums.requests.last_ms = max(self.requests.last_ms, other.requests.last_ms)
        return sums


def read_counts(counters: VersionCounters) -> Counts:
    """Add up the counts of all threads."""
    return _counts(counters.requests(), counters.batches(), counters.batch_durations(), counters.batch_runs())


def _counts(
    requests: WorkerCounters, batches: Mapping[int, BatchCounters], durations: list[int], runs: list[int]
) -> Counts:
    counts = Counts(requests, batch_durations=durations, batch_runs=runs)
    for rows, own in batches.items():
        counts.batches = _plus(counts.batches, own)
        counts.batch_rows += rows * own.count
        counts.batch_sizes[size_bucket(rows)] += own.count
    return counts


def _plus(one: Any, other: Any) -> Any:
    """The sum of two numbers, of two lists item by item, or of two records field by field."""
    if isinstance(one, int):
        return one + other
    if isinstance(one, list):
        return [a + b for a, b in zip(one, other, strict=True)]
    return type(one)(*(_plus(getattr(one, each.name), getattr(other, each.name)) for each in fields(one)))


def minus(one: Counts, other: Counts) -> Counts:
    """What is left of ``one`` without ``other``."""
    left: Counts = _minus(one, other)
    left.requests.last_ms = one.requests.last_ms
    return left


def _minus(one: Any, other: Any) -> Any:
    if isinstance(one, int):
        return one - other
    if isinstance(one, list):
        return [a - b for a, b in zip(one, other, strict=True)]
    return type(one)(*(_minus(getattr(one, each.name), getattr(other, each.name)) for each in fields(one)))


@dataclass(frozen=True, slots=True)
class VersionSnapshot:
    """One version as it was at a scrape.

    Attributes:
        model, number: the version's name.
        batch_size: most rows in one run.
        executors: how many it has, those that are being replaced included.
        load_ns: how long loading took.
        counts: its counts.
        occupancy: how full it was.
        tags: further labels of Triton's metrics, from ``metric_tags`` of the model's configuration, sorted.
        own_metrics: those that its kind of models has beside all others, and what the model's code counts by itself.
        cache: requests that were looked up in the response cache; None of a version without.
        forecast: of its runs; None of a version without a latency target.
    """

    model: str
    number: str
    batch_size: int
    executors: int
    load_ns: int
    counts: Counts
    occupancy: Occupancy
    tags: tuple[tuple[str, str], ...] = ()
    own_metrics: tuple[ModelSeries, ...] = ()
    cache: CacheCounters | None = None
    forecast: Forecast | None = None

    @property
    def labels(self) -> tuple[str, str]:
        """The labels model and version."""
        return self.model, self.number

    def triton_labels(self, *reason: str) -> Labels:
        """The labels of Triton's metrics in their alphabetical order: tags, model, a reason if any, version."""
        return (*self.tags, self.model, *reason, self.number)


def read_version(version: ServedVersion) -> VersionSnapshot:
    """Take a snapshot of a version."""
    read = version.servable.statistics()
    return VersionSnapshot(
        version.model,
        str(version.number),
        read.batch_size,
        read.executors,
        version.load_ns,
        _counts(read.requests, read.batches, read.batch_durations, read.batch_runs),
        read.occupancy,
        tuple(sorted((f"_{key}", value) for key, value in version.stated.metric_tags.items())),
        read.own_metrics,
        read.cache,
        read.forecast,
    )


class Retired:
    """The counts of versions that are gone, by model; see the head of the module for why they are kept."""

    def __init__(self) -> None:
        #: counters of the versions that were served at the last update
        self._served: dict[str, Sequence[VersionCounters]] = {}
        self._seen: Mapping[str, Sequence[VersionCounters]] | None = None
        #: counters of versions that are gone but may still answer requests, and since when they are
        self._leaving: dict[str, list[tuple[float, VersionCounters]]] = {}
        self._gone: dict[str, Counts] = {}

    def update(self, served: Mapping[str, Sequence[VersionCounters]], now: float) -> None:
        """Take note of versions that are not served any more.

        Args:
            served: counters of the versions that are served, by model; the same mapping as long as they are the same.
            now: monotonic seconds.
        """
        if served is not self._seen:
            self._see(served, now)
        for name, leaving in self._leaving.items():
            while leaving and now - leaving[0][0] >= SETTLED_S:
                self._gone[name] = self._gone.get(name, Counts()) + read_counts(leaving.pop(0)[1])

    def _see(self, served: Mapping[str, Sequence[VersionCounters]], now: float) -> None:
        for name, before in self._served.items():
            found = served.get(name)
            if found is None:
                self._leaving.pop(name, None)
                self._gone.pop(name, None)
                continue
            if len(before) == len(found) and all(map(is_, before, found)):
                continue
            for counters in before:
                if all(counters is not one for one in found):
                    self._leaving.setdefault(name, []).append((now, counters))
        self._seen, self._served = served, dict(served)

    @property
    def models(self) -> list[str]:
        """Names of models that have such counts."""
        return list({**self._gone, **self._leaving})

    def counts(self, model: str) -> Iterable[Counts]:
        """The counts of a model's versions that are gone."""
        if model in self._gone:
            yield self._gone[model]
        for _, counters in self._leaving.get(model, ()):
            yield read_counts(counters)
