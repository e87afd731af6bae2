"""The view of the server that metrics, the status page and dumps are made from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from toutates.api.dataplane.plane import ServerIdentity
from toutates.engine.cache.store import CacheStatistics
from toutates.infer.counters import InferCounters
from toutates.infer.observing import FirstSteps
from toutates.infer.traffic.counting import TrafficCounts
from toutates.models.demand import DemandState
from toutates.models.load_counters import LoadCounters
from toutates.models.table import ModelTable
from toutates.net.housekeeping import Traffic
from toutates.net.schedule import Lateness
from toutates.repositories.interface import RepositoryStatistics
from toutates.system.client_text import without_paths

__all__ = [
    "ProcessState",
    "ServerView",
    "WatchedInfer",
    "WatchedObserver",
    "WatchedRepository",
    "WatchedWorker",
    "health_answer",
]


class WatchedWorker(Protocol):
    """What is watched of a worker: a ``net.Worker``, or the copy of one in another process."""

    @property
    def name(self) -> str: ...
    @property
    def connections(self) -> int: ...
    @property
    def traffic(self) -> Traffic: ...
    @property
    def limit_hits(self) -> dict[str, int]: ...
    @property
    def lateness(self) -> Lateness: ...
    @property
    def cpu_seconds(self) -> float | None: ...


class WatchedObserver(Protocol):
    """What is watched of an ``infer.observing.Observer``."""

    @property
    def seen(self) -> int: ...
    @property
    def steps(self) -> Mapping[str, FirstSteps]: ...


class WatchedInfer(Protocol):
    """What is watched of an ``InferService``."""

    @property
    def counters(self) -> InferCounters: ...
    @property
    def observer(self) -> WatchedObserver: ...


class WatchedRepository(Protocol):
    """What is watched of a ``Repository``."""

    @property
    def name(self) -> str: ...

    def statistics(self) -> RepositoryStatistics: ...


@dataclass(frozen=True, slots=True)
class ProcessState:
    """One of the server's processes, where there are several.

    Attributes:
        name: "parent", or the process's number.
        pid: None while it has none.
        serves: whether it serves and answers; of the parent, whether it runs.
        restarts: how often it was started again.
    """

    name: str
    pid: int | None
    serves: bool
    restarts: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class ServerView:
    """References to what is watched. Any thread may read it, and no reader changes anything. The server changes what it
    refers to at any time: so read numbers one by one, and copy dicts and lists before iterating over them.

    Attributes:
        identity: name and version, as ServerMetadata has them.
        started_s: Unix time at which the server began to start.
        workers: by number; none until the models are loaded.
        infer: inference of each worker, which has counters and an observer.
        get_table: returns the table of models in force.
        repositories: where models come from.
        loading: counters of loads and unloads.
        dropped_log_lines: returns how many lines of the log were not written so far.
        traces: returns how many requests had their spans sent, and how many had them lost.
        is_live: returns whether the server answers; False once it shuts down.
        unready_reason: returns why it is not ready, a sentence without a full stop; "" if it is ready.
        processes: returns the server's processes, where there are several.
        metrics_models: how many models have series of their own in /metrics, at most.
        traffic: returns what became of the requests of names with traffic.
        response_cache: returns what the response cache holds and has done; None where there is none.
        demand: returns how it stands with loading on demand; None where models are not.
    """

    identity: ServerIdentity
    started_s: float
    workers: Sequence[WatchedWorker]
    infer: Sequence[WatchedInfer]
    get_table: Callable[[], ModelTable]
    repositories: Sequence[WatchedRepository]
    loading: LoadCounters
    dropped_log_lines: Callable[[], int]
    traces: Callable[[], tuple[int, int]]
    is_live: Callable[[], bool]
    unready_reason: Callable[[], str]
    processes: Callable[[], Sequence[ProcessState]] = tuple
    response_cache: Callable[[], CacheStatistics | None] = lambda: None
    traffic: Callable[[], TrafficCounts] = TrafficCounts
    metrics_models: int = 200
    demand: Callable[[], DemandState | None] = lambda: None

    def is_ready(self) -> bool:
        """Whether the server is ready, as ServerReady answers."""
        return not self.unready_reason()


def health_answer(state: str, reason: str, *, tells: bool) -> tuple[int, str]:
    """What a probe gets: the status of HTTP, and a line.

    Args:
        state: "live" or "ready".
        reason: why the server is not; "" if it is.
        tells: whether the line has the reason. Where callers are known it has not, for it may name models of others.
    """
    if not reason:
        return 200, f"{state}\n"
    return 503, f"not {state}: {without_paths(reason)}\n" if tells else f"not {state}\n"
