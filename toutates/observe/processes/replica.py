"""The sum of all processes, in the form of one server's ``ServerView``: so metrics and the status page are made of it
as they are made of a server of one process.

Counts are added up, and so is what is held or under way. The counts of a process that has ended stay in the sum, and
so do those of a version that a process has loaded anew, because a sum that falls looks to Prometheus like a restart. A
process that does not answer keeps the numbers that it told last.

All methods are for one thread; readers of the parts may be in others, because each part is replaced as a whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, cast

import msgspec

from toutates.engine.cache.store import CacheStatistics
from toutates.engine.counters import (
    BatchCounters,
    CacheCounters,
    Durations,
    ExecutorCounters,
    VersionCounters,
    WorkerCounters,
)
from toutates.engine.model_metrics import ModelSeries, lasting, sum_series
from toutates.engine.servable import Servable
from toutates.engine.statistics import Occupancy, VersionStatistics
from toutates.infer.counters import InferCounters
from toutates.infer.observing import FirstSteps
from toutates.infer.traffic.counting import TrafficCounts, sum_of
from toutates.models.demand import DemandState
from toutates.models.load_counters import LoadCounters
from toutates.models.table import ModelEntry, ModelState, ModelTable, ServedVersion, VersionEntry
from toutates.models.traffic.reading import read_document
from toutates.models.traffic.rules import NO_TRAFFIC, TrafficRules
from toutates.net.housekeeping import Traffic
from toutates.net.schedule import Lateness
from toutates.observe.processes.report import (
    InferReport,
    ModelReport,
    Report,
    RepositoryReport,
    ServedReport,
    WorkerReport,
)
from toutates.observe.view import WatchedInfer, WatchedRepository, WatchedWorker
from toutates.protocol.datatypes import BY_NAME
from toutates.protocol.model_config_pb2 import ModelConfig
from toutates.protocol.signature import Signature, TensorSpec
from toutates.repositories.interface import RepositoryStatistics
from toutates.system.errors import ConfigurationError
from toutates.system.logs.recent import RecentWarning

__all__ = ["Replica"]

#: A model version: its model, and its number.
_Key = tuple[str, int]


@dataclass(frozen=True, slots=True)
class _Counts:
    """What was counted of one version, by one process or by several."""

    requests: WorkerCounters
    batches: ExecutorCounters
    own_metrics: tuple[ModelSeries, ...] = ()

    @classmethod
    def sum(cls, parts: Iterable[_Counts]) -> _Counts:
        all_parts = list(parts)
        counters = VersionCounters([one.requests for one in all_parts], [one.batches for one in all_parts])
        return cls(
            counters.requests(),
            _executor(counters.batches(), counters.batch_durations(), counters.batch_runs()),
            sum_series([series for one in all_parts for series in lasting(one.own_metrics)]),
        )


def _executor(by_rows: Mapping[int, BatchCounters], durations: list[int], runs: list[int]) -> ExecutorCounters:
    counters = ExecutorCounters()
    counters.by_rows, counters.durations, counters.runs = dict(by_rows), durations, runs
    return counters


@dataclass(slots=True)
class _Part:
    """A version in one process."""

    serial: int
    counts: _Counts
    statistics: VersionStatistics


class _Version:
    """A version in all processes: a ``Servable`` as far as it is watched."""

    def __init__(self, first: ServedReport) -> None:
        self.signature = Signature(_tensors(first.inputs), _tensors(first.outputs), first.batched)
        self.tags, self.graph = first.tags, first.graph
        self.counters = VersionCounters()
        self.parts: list[VersionStatistics] = []
        #: what processes have counted that have ended, or have loaded it anew
        self.past: list[_Counts] = []

    def statistics(self) -> VersionStatistics:
        """The sum."""
        counters, parts = self.counters, self.parts
        return VersionStatistics(
            requests=counters.requests(),
            batches=counters.batches(),
            batch_durations=counters.batch_durations(),
            batch_runs=counters.batch_runs(),
            occupancy=_sum_of([one.occupancy for one in parts], Occupancy),
            batch_size=max((one.batch_size for one in parts), default=1),
            executors=sum(one.executors for one in parts),
            pool_threads=sum(one.pool_threads for one in parts),
            memory_kind=parts[0].memory_kind if parts else "CPU",
            own_metrics=sum_series(
                [
                    *(series for one in self.past for series in one.own_metrics),  # none that may fall
                    *(series for part in parts for series in part.own_metrics),
                ]
            ),
            cache=_sum_of(cached, CacheCounters) if (cached := [one.cache for one in parts if one.cache]) else None,
        )

    def is_like(self, served: ServedReport) -> bool:
        config = served.tags == self.tags and served.graph == self.graph
        return config and self.signature == Signature(_tensors(served.inputs), _tensors(served.outputs), served.batched)

    def bury(self, counts: _Counts) -> None:
        """Keep counts in the sum that will not grow any more."""
        self.past = [_Counts.sum([*self.past, counts])]

    def update(self, parts: Iterable[_Part]) -> None:
        current = list(parts)
        everything = [*self.past, *(one.counts for one in current)]
        self.counters.workers = [one.requests for one in everything]
        self.counters.executors = [one.batches for one in everything]
        self.parts = [one.statistics for one in current]


def _tensors(reports: Iterable[Any]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(one.name, BY_NAME[one.datatype], one.shape, one.optional) for one in reports)


def _sum_of(records: Iterable[Any], kind: type[Any]) -> Any:
    """Records of numbers, and of dicts of numbers, added up field by field."""
    all_records = list(records)
    return kind(
        *(
            _total([getattr(one, each.name) for one in all_records], of_dicts=each.default_factory is dict)
            for each in fields(kind)
        )
    )


def _total(values: list[Any], *, of_dicts: bool) -> Any:
    if not of_dicts:
        return sum(values)
    total: Counter[str] = Counter()
    for value in values:
        total.update(value)
    return dict(total)


@dataclass(slots=True)
class _Observer:
    seen: int
    steps: dict[str, FirstSteps]


@dataclass(slots=True)
class _Infer:
    """Inference of another process (``WatchedInfer``)."""

    counters: InferCounters
    observer: _Observer


@dataclass(slots=True)
class _Repository:
    """A repository, as all processes see it (``WatchedRepository``)."""

    name: str
    last: RepositoryStatistics

    def statistics(self) -> RepositoryStatistics:
        return self.last


@dataclass(slots=True)
class _Process:
    """What a process has told."""

    models: list[ModelReport] = field(default_factory=list)
    complete: bool = False
    parts: dict[_Key, _Part] = field(default_factory=dict)
    report: Report | None = None
    rules: tuple[bytes, str] | None = None


class Replica:
    """Adds up the reports.

    Args:
        count: how many processes there are.

    Attributes:
        table, dropped_log_lines, traces, traffic: as ``ServerView`` has them.
        workers, infer, repositories, loading: the same; these stay the same objects.
        warnings: the last ones of all logs, the oldest first.
    """

    def __init__(self, count: int) -> None:
        self.table = ModelTable({}, complete=False)
        self.workers: list[WatchedWorker] = []
        self.infer: list[WatchedInfer] = []
        self.loading = LoadCounters()
        self.repositories: list[WatchedRepository] = []
        self.dropped_log_lines = 0
        self.traces = (0, 0)
        self.response_cache: CacheStatistics | None = None
        self.traffic = TrafficCounts()
        self.demand: DemandState | None = None
        self.warnings: list[RecentWarning] = []
        self._processes = [_Process() for _ in range(count)]
        self._versions: dict[_Key, _Version] = {}
        self._served: dict[_Key, ServedVersion] = {}
        #: of processes that have ended
        self._past_infer: list[InferReport] = []
        self._past_loading = LoadCounters()
        self._past_dropped = 0
        self._past_traces = (0, 0)
        self._past_traffic = TrafficCounts()
        self._past_repositories: dict[str, RepositoryStatistics] = {}

    def update(self, number: int, report: Report) -> None:
        """Take the report of a process. One whose numbers are not of the models that it has told of is passed over."""
        process = self._processes[number]
        models = process.models if report.models is None else report.models
        served = [
            ((model.name, version.number), version.served)
            for model in models
            for version in model.versions
            if version.served is not None
        ]
        if len(served) != len(report.statistics):
            return
        has_changed = report.models is not None or report.complete is not process.complete
        process.models, process.complete, process.report = models, report.complete, report
        process.rules = report.rules or process.rules
        parts = {}
        for (key, version), statistics in zip(served, report.statistics, strict=True):
            counts = _Counts(
                statistics.requests,
                _executor(statistics.batches, statistics.batch_durations, statistics.batch_runs),
                statistics.own_metrics,
            )
            parts[key] = _Part(version.serial, counts, statistics)
        self._take_parts(process, parts)
        if has_changed:
            self._make_table()
        self._add_up()

    def forget(self, number: int) -> None:
        """A process has ended: what it has counted stays, what it held is gone."""
        process = self._processes[number]
        report = process.report
        self._take_parts(process, {})
        self._processes[number] = _Process()
        if report is None:
            return
        workers = [_ended(one.name) for one in report.workers]
        self._processes[number].report = Report(None, False, [], workers=workers)
        self._past_infer = [_sum_of_infer([*self._past_infer, *report.infer])]
        self._past_loading = _sum_of([self._past_loading, report.loading], LoadCounters)
        self._past_dropped += report.dropped_log_lines
        self._past_traces = _pair_sum([self._past_traces, report.traces])
        self._past_traffic = sum_of([self._past_traffic, _traffic_of(report)])
        for one in report.repositories:
            before = self._past_repositories.get(one.name, RepositoryStatistics())
            past = _sum_of_downloads([before, one.statistics])
            self._past_repositories[one.name] = replace(past, cache=None, answers=None, listed_s=None)
        self._make_table()
        self._add_up()

    def _take_parts(self, process: _Process, parts: dict[_Key, _Part]) -> None:
        for key, part in process.parts.items():
            now = parts.get(key)
            if key in self._versions and (now is None or now.serial != part.serial):
                self._versions[key].bury(part.counts)
        process.parts = parts

    def _make_table(self) -> None:
        models: dict[str, ModelEntry] = {}
        known = [(number, process) for number, process in enumerate(self._processes) if process.models]
        versions: dict[str, dict[int, list[tuple[int, Any]]]] = {}
        problems: dict[str, str] = {}
        for number, process in known:
            for model in process.models:
                of_model = versions.setdefault(model.name, {})
                if model.problem:
                    problems.setdefault(model.name, model.problem)
                for version in model.versions:
                    of_model.setdefault(version.number, []).append((number, version))
        kept: dict[_Key, _Version] = {}
        served: dict[_Key, ServedVersion] = {}
        for name, of_model in versions.items():
            entries = {}
            for version_number, told in sorted(of_model.items()):
                key = name, version_number
                first = next((version.served for _, version in told if version.served is not None), None)
                if first is not None:
                    kept[key], served[key] = self._version(key, first)
                entries[version_number] = _entry(version_number, told, served.get(key))
            models[name] = ModelEntry(name, entries, problems.get(name, ""))
        self._versions, self._served = kept, served
        document, problem = next((one.rules for _, one in known if one.rules is not None), (b"{}", ""))
        self.table = ModelTable(
            models,
            complete=bool(known) and all(process.complete for _, process in known),
            traffic=_rules_of(document),
            traffic_problem=problem,
        )

    def _version(self, key: _Key, first: ServedReport) -> tuple[_Version, ServedVersion]:
        version = self._versions.get(key)
        if version is not None and version.is_like(first):
            return version, self._served[key]
        version = _Version(first)
        # Only its statistics, its counters, its signature and its graph are read here.
        servable = cast(Servable, version)
        config = ModelConfig.FromString(first.graph)
        config.metric_tags.update(first.tags)
        return version, ServedVersion(*key, config, servable, load_ns=first.load_ns, advice=first.advice)

    def _add_up(self) -> None:
        for key, version in self._versions.items():
            version.update(process.parts[key] for process in self._processes if key in process.parts)
        told = [(number, one.report) for number, one in enumerate(self._processes) if one.report is not None]
        reports = [report for _, report in told]
        self.workers[:] = [
            replace(one, name=f"{number}/{one.name}") for number, report in told for one in report.workers
        ]
        self.infer[:] = [_infer(one) for one in (*self._past_infer, *(one for each in reports for one in each.infer))]
        loading = _sum_of([self._past_loading, *(report.loading for report in reports)], LoadCounters)
        for each in fields(LoadCounters):
            setattr(self.loading, each.name, getattr(loading, each.name))
        self.dropped_log_lines = self._past_dropped + sum(report.dropped_log_lines for report in reports)
        self.traces = _pair_sum([self._past_traces, *(report.traces for report in reports)])
        caches = [report.response_cache for report in reports if report.response_cache is not None]
        self.response_cache = _sum_of(caches, CacheStatistics) if caches else None
        self.traffic = sum_of([self._past_traffic, *map(_traffic_of, reports)])
        demands = [report.demand for report in reports if report.demand is not None]
        # All of them have the same index.
        self.demand = replace(_sum_of(demands, DemandState), indexed=demands[0].indexed) if demands else None
        self._add_up_repositories([one for report in reports for one in report.repositories])
        self.warnings = sorted((one for report in reports for one in report.warnings), key=lambda one: one.time_s)

    def _add_up_repositories(self, told: list[RepositoryReport]) -> None:
        by_name: dict[str, list[RepositoryStatistics]] = {}
        for one in told:
            by_name.setdefault(one.name, []).append(one.statistics)
        self.repositories[:] = [
            _Repository(name, _sum_of_downloads([*all_of_it, self._past_repositories.get(name, _NOTHING)]))
            for name, all_of_it in by_name.items()
        ]


_NOTHING = RepositoryStatistics()


def _entry(number: int, told: list[tuple[int, Any]], served: ServedVersion | None) -> VersionEntry:
    """A version as all processes have it: READY where all that know it are; else as the first that is not."""
    for process, version in told:
        if version.state != ModelState.READY.value:
            reason = f"process {process}: {version.reason}" if version.reason else ""
            # Without a process in the sentence where all say the same.
            if len({(one.state, one.reason) for _, one in told}) == 1:
                reason = version.reason
            return VersionEntry(number, ModelState(version.state), reason, served)
    return VersionEntry(number, ModelState.READY, told[0][1].reason, served)


def _ended(name: str) -> Any:
    """The worker of a process that has ended: it holds nothing."""
    return WorkerReport(name, 0, Traffic(), {}, Lateness(), None)


def _infer(report: InferReport) -> _Infer:
    steps = {name: FirstSteps(_durations(one), _durations(two)) for name, (one, two) in report.steps.items()}
    return _Infer(report.counters, _Observer(report.seen, steps))


def _durations(report: Any) -> Durations:
    durations = Durations()
    durations.buckets, durations.sum_ns = report.buckets, report.sum_ns
    return durations


def _sum_of_infer(reports: list[InferReport]) -> InferReport:
    steps: dict[str, Any] = {}
    for report in reports:
        for name, pair in report.steps.items():
            before = steps.get(name)
            steps[name] = pair if before is None else tuple(_both(*two) for two in zip(before, pair, strict=True))
    return InferReport(
        _sum_of([one.counters for one in reports], InferCounters), sum(one.seen for one in reports), steps
    )


def _both(one: Any, other: Any) -> Any:
    buckets = [a + b for a, b in zip(one.buckets, other.buckets, strict=True)]
    return type(one)(buckets, one.sum_ns + other.sum_ns)


def _pair_sum(pairs: Iterable[tuple[int, int]]) -> tuple[int, int]:
    first, second = zip(*pairs, strict=True)
    return sum(first), sum(second)


def _sum_of_downloads(parts: list[RepositoryStatistics]) -> RepositoryStatistics:
    """What was downloaded, added up; whether it answers, if it does to all; the oldest listing; the cache is one."""
    answers = [one.answers for one in parts if one.answers is not None]
    listed = [one.listed_s for one in parts if one.listed_s is not None]
    return RepositoryStatistics(
        objects=sum(one.objects for one in parts),
        bytes=sum(one.bytes for one in parts),
        failures=sum(one.failures for one in parts),
        duration_ns=sum(one.duration_ns for one in parts),
        cache=next((one.cache for one in parts if one.cache is not None), None),
        answers=all(answers) if answers else None,
        listed_s=min(listed, default=None),
    )


def _rules_of(document: bytes) -> TrafficRules:
    try:
        return read_document(msgspec.json.decode(document), Path("a process"))
    except (msgspec.DecodeError, ConfigurationError):  # of another version of the server
        return NO_TRAFFIC


def _traffic_of(report: Report) -> TrafficCounts:
    return TrafficCounts(dict(report.traffic), dict(report.shadows))
