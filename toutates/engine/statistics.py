"""The statistics of a model version: frozen records, the same for every kind of model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from toutates.engine.counters import BatchCounters, CacheCounters, WorkerCounters
from toutates.engine.model_metrics import ModelSeries
from toutates.engine.response_counters import ResponseStatistics

__all__ = ["Forecast", "Occupancy", "VersionStatistics"]


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a version with a latency target expects of its runs.

    Attributes:
        target_ns: within which requests are to be answered.
        fixed_ns: what every run takes, from when an executor gets a batch; 0 before the first run.
        row_ns: what a run takes longer for each row.
        error: how far runs are from that, as a share of it, on average.
    """

    target_ns: int
    fixed_ns: int
    row_ns: int
    error: float


@dataclass(frozen=True, slots=True)
class Occupancy:
    """How full a version is.

    Attributes:
        in_flight: batches open, sealed or running.
        running: batches in flight that an executor has, or is about to have.
        capacity: how many batches can be in flight if all are full.
        waiting: requests whose batch is not running; one whose rows were split counts in each of its batches.
        rows: rows of all batches in flight.
        row_capacity: how many rows can be in flight.
        in_flight_bytes: memory of the batches in flight, and of arrays that are kept for them.
        capacity_bytes: how large ``in_flight_bytes`` can be.
        idle_executors: executors that wait for a batch.
        lanes: shapes of rows that have a lane.
        spare_bytes: memory of batches that wait to be used again.
        buffer_bytes: memory of the buffers of spare batches and of batches in flight.
    """

    in_flight: int
    running: int
    capacity: int
    waiting: int
    rows: int
    row_capacity: int
    in_flight_bytes: int
    capacity_bytes: int
    idle_executors: int
    lanes: int
    spare_bytes: int
    buffer_bytes: int


@dataclass(frozen=True, slots=True)
class VersionStatistics:
    """A model version at one moment. The RPCs, the metrics and the status page read nothing else of it.

    Attributes:
        requests: counters of requests, added up over all workers.
        batches: counters of batches by number of rows, ascending.
        batch_durations, batch_runs: buckets of batches (``counters``): by the time from when a batch was taken until
            its outputs were ready, and by the time of the computation alone.
        occupancy: how full the version is.
        batch_size: most rows that are run together; 1 where the model is not batched.
        executors: how many it has, or should have.
        pool_threads: threads that its backends have beside those of the executors.
        pooled: whether executors have threads of the pool that models share, and none of their own.
        memory_kind: where the buffers are, in Triton's words: CPU or CPU_PINNED.
        own_metrics: those that its kind of models has beside all others, and what the model's code counts by itself.
        responses: of a decoupled version, by their place among those of their request.
        cache: requests that were looked up in the response cache; None of a version without.
        forecast: of its runs; None of a version without a latency target.
    """

    requests: WorkerCounters
    batches: Mapping[int, BatchCounters]
    batch_durations: list[int]
    batch_runs: list[int]
    occupancy: Occupancy
    batch_size: int
    executors: int
    pool_threads: int = 0
    pooled: bool = False
    memory_kind: str = "CPU"
    own_metrics: tuple[ModelSeries, ...] = ()
    responses: Mapping[int, ResponseStatistics] = field(default_factory=dict)
    cache: CacheCounters | None = None
    forecast: Forecast | None = None
