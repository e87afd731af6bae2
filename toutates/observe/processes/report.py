"""What one process tells the parent of itself, once a second: everything that metrics and the status page read.

The names of things are told when the table of models has changed, the numbers always.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Final

import msgspec
from google.protobuf.message import DecodeError

from toutates.engine.cache.store import CacheStatistics
from toutates.engine.counters import BUCKETS, Durations, WorkerCounters
from toutates.engine.statistics import VersionStatistics
from toutates.infer.counters import InferCounters
from toutates.infer.traffic.copies import ShadowCounts
from toutates.infer.traffic.counting import NewestOr
from toutates.models.demand import DemandState
from toutates.models.load_counters import LoadCounters
from toutates.models.table import ModelState, ModelTable, ServedVersion
from toutates.net.housekeeping import Traffic
from toutates.net.schedule import Lateness
from toutates.observe.view import ServerView
from toutates.protocol.datatypes import BY_NAME
from toutates.protocol.model_config_pb2 import ModelConfig
from toutates.protocol.signature import TensorSpec
from toutates.repositories.interface import RepositoryStatistics
from toutates.system.logs.recent import RecentWarning, RecentWarnings
from toutates.system.text import writable

__all__ = [
    "InferReport",
    "ModelReport",
    "Report",
    "Reporter",
    "RepositoryReport",
    "ServedReport",
    "StepReport",
    "TensorReport",
    "VersionReport",
    "WorkerReport",
    "read_report",
]

#: Versions that are read at a time, which takes about a millisecond.
AT_ONCE: Final = 16


@dataclass(frozen=True, slots=True)
class TensorReport:
    """A tensor, as ``TensorSpec`` has it."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    optional: bool


@dataclass(frozen=True, slots=True)
class ServedReport:
    """A version that is loaded; ``serial`` is another one once it is loaded anew.

    ``graph`` is of an ensemble: the part of its ModelConfig that its picture is drawn of, serialized; else empty.
    """

    serial: int
    inputs: tuple[TensorReport, ...]
    outputs: tuple[TensorReport, ...]
    batched: bool
    load_ns: int
    advice: str
    tags: dict[str, str]
    graph: bytes = b""


@dataclass(frozen=True, slots=True)
class VersionReport:
    """A version, as the table of models has it."""

    number: int
    state: str
    reason: str
    served: ServedReport | None


@dataclass(frozen=True, slots=True)
class ModelReport:
    """A model, as the table of models has it."""

    name: str
    problem: str
    versions: tuple[VersionReport, ...]


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """A worker's numbers."""

    name: str
    connections: int
    traffic: Traffic
    limit_hits: dict[str, int]
    lateness: Lateness
    cpu_seconds: float | None


@dataclass(frozen=True, slots=True)
class StepReport:
    """Times of one kind (``Durations``)."""

    buckets: list[int]
    sum_ns: int


@dataclass(frozen=True, slots=True)
class InferReport:
    """Requests of one worker by one transport; ``steps`` has the first two steps by model."""

    counters: InferCounters
    seen: int
    steps: dict[str, tuple[StepReport, StepReport]]


@dataclass(frozen=True, slots=True)
class RepositoryReport:
    """A repository's numbers."""

    name: str
    statistics: RepositoryStatistics


@dataclass(slots=True)
class Report:
    """A process at one moment.

    Attributes:
        models: the table of models; None where it is the same as in the last report.
        complete: whether the initial load has ended.
        statistics: of every version that is loaded, in the order of ``models``.
        workers, infer, loading, repositories, dropped_log_lines, traces, response_cache, demand: as ``ServerView``
            has them.
        warnings: the last ones of the log.
        traffic, shadows: see ``TrafficCounts``.
        rules: of aliases and traffic, as JSON, and what is wrong with them; None where ``models`` is.
    """

    models: list[ModelReport] | None
    complete: bool
    statistics: list[VersionStatistics]
    workers: list[WorkerReport] = field(default_factory=list)
    infer: list[InferReport] = field(default_factory=list)
    loading: LoadCounters = field(default_factory=LoadCounters)
    repositories: list[RepositoryReport] = field(default_factory=list)
    dropped_log_lines: int = 0
    traces: tuple[int, int] = (0, 0)
    warnings: list[RecentWarning] = field(default_factory=list)
    response_cache: CacheStatistics | None = None
    traffic: list[tuple[NewestOr, int]] = field(default_factory=list)
    shadows: list[tuple[NewestOr, ShadowCounts]] = field(default_factory=list)
    rules: tuple[bytes, str] | None = None
    demand: DemandState | None = None


_STATES: Final = frozenset(state.value for state in ModelState)
_DECODER: Final = msgspec.msgpack.Decoder(Report)


def read_report(message: bytes) -> Report:
    """A report from its bytes.

    Raises:
        msgspec.DecodeError: they are none.
    """
    report = _DECODER.decode(message)
    lists = [
        buckets
        for one in report.statistics
        for buckets in (
            one.batch_durations,
            one.batch_runs,
            *(getattr(one.requests, each.name) for each in fields(WorkerCounters)),
        )
        if isinstance(buckets, list)
    ]
    lists += [step.buckets for one in report.infer for steps in one.steps.values() for step in steps]
    if any(len(buckets) != BUCKETS for buckets in lists):
        raise msgspec.ValidationError(f"counts are not in {BUCKETS} buckets")
    for model in report.models or ():
        for version in model.versions:
            tensors = () if version.served is None else (*version.served.inputs, *version.served.outputs)
            if version.state not in _STATES or not all(one.datatype in BY_NAME for one in tensors):
                raise msgspec.ValidationError(f"no such state or datatype, of model {model.name!r}")
            try:
                ModelConfig.FromString(b"" if version.served is None else version.served.graph)
            except DecodeError as error:
                raise msgspec.ValidationError(f"no graph, of model {model.name!r}") from error
    return report


class Reporter:
    """Makes the reports of this process. Used in one Trio run, one report at a time.

    Args:
        view: of the server.
        warnings: the last ones of the log.
    """

    def __init__(self, view: ServerView, warnings: RecentWarnings) -> None:
        self._view = view
        self._warnings = warnings
        self._told: ModelTable | None = None
        self._serials: dict[ServedVersion, int] = {}
        self._last_serial = 0

    def pieces(self, *, whole: bool = False) -> Iterator[bytes]:
        """Make one; it is the last piece, those before it are empty. Between two pieces other work may run.

        Args:
            whole: whether it has the table of models in any case.
        """
        view, table = self._view, self._view.get_table()
        models = None if table is self._told and not whole else self._models(table)
        statistics = []
        for number, version in enumerate(table.served()):
            statistics.append(version.servable.statistics())
            if number % AT_ONCE == AT_ONCE - 1:
                yield b""
        report = Report(
            models,
            table.complete,
            statistics,
            [
                WorkerReport(
                    one.name, one.connections, one.traffic, one.limit_hits.copy(), one.lateness, one.cpu_seconds
                )
                for one in view.workers
            ],
            [
                InferReport(
                    one.counters,
                    one.observer.seen,
                    {
                        _text(name): (_step(steps.to_plan), _step(steps.to_copy))
                        for name, steps in one.observer.steps.items()
                    },
                )
                for one in view.infer
            ],
            view.loading,
            [RepositoryReport(_text(one.name), one.statistics()) for one in list(view.repositories)],
            view.dropped_log_lines(),
            view.traces(),
            list(self._warnings.latest()),
            view.response_cache(),
            demand=view.demand(),
        )
        counts = view.traffic()
        if models is not None:
            rules = {key: dict(names) for key, names in table.traffic.document.items()}
            report.rules = msgspec.json.encode(rules), _text(table.traffic_problem)
        report.traffic.extend((_texts(key), count) for key, count in counts.requests.items())
        report.shadows.extend((_texts(key), replace(one, last=_text(one.last))) for key, one in counts.shadows.items())
        message = msgspec.msgpack.encode(report)
        self._told = table
        yield message

    def _models(self, table: ModelTable) -> list[ModelReport]:
        serials = {}
        for version in table.served():
            if version not in self._serials:
                self._last_serial += 1
            serials[version] = self._serials.get(version, self._last_serial)
        self._serials = serials
        return [
            ModelReport(
                _text(model.name),
                _text(model.problem),
                tuple(
                    VersionReport(
                        entry.number,
                        entry.state.value,
                        _text(entry.reason),
                        None if entry.served is None else self._served(entry.served),
                    )
                    for entry in model.versions.values()
                ),
            )
            for model in table.models.values()
        ]

    def _served(self, version: ServedVersion) -> ServedReport:
        signature = version.signature
        return ServedReport(
            self._serials[version],
            _tensors(signature.inputs),
            _tensors(signature.outputs),
            signature.batched,
            version.load_ns,
            version.advice,
            dict(version.stated.metric_tags),
            _graph(version.stated),
        )


def _texts(key: NewestOr) -> NewestOr:
    name, model, version = key
    return _text(name), _text(model), version


def _graph(config: ModelConfig) -> bytes:
    if not config.HasField("ensemble_scheduling"):
        return b""
    parts = ModelConfig(
        name=config.name, input=config.input, output=config.output, ensemble_scheduling=config.ensemble_scheduling
    )
    return parts.SerializeToString(deterministic=True)


def _tensors(specs: tuple[TensorSpec, ...]) -> tuple[TensorReport, ...]:
    return tuple(TensorReport(_text(one.name), one.datatype.name, one.shape, one.optional) for one in specs)


def _step(durations: Durations) -> StepReport:
    return StepReport(durations.buckets, durations.sum_ns)


def _text(text: str) -> str:
    """Names of models are names of files, which need not be Unicode; the message has to be."""
    return writable(text)
