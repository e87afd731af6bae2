"""What can be read of a model version from outside the engine: frozen records, the same for every kind of model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from toutates.engine.counters import BatchCounters, WorkerCounters

__all__ = ["Occupancy", "VersionStatistics"]


@dataclass(frozen=True, slots=True)
class Occupancy:
    """How full a version is.

    Attributes:
        in_flight: batches open, sealed or running.
        running: those of them that an executor has, or is about to have.
        capacity: how many there can be if all are full.
        waiting: requests whose batch is not running; one whose rows were split counts in each of its batches.
        rows: of all batches in flight.
        row_capacity: the most there can be.
        in_flight_bytes: memory of the batches in flight, and of arrays that are kept for them.
        capacity_bytes: the most there can be.
        idle_executors: executors that wait for a batch.
        lanes: shapes of rows that have a lane.
        spare_bytes: memory of batches that wait to be used again.
        buffer_bytes: memory of buffers, of these and of the batches in flight.
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
        requests: what was counted of requests, by all workers together.
        batches: what was counted of batches, by their number of rows, ascending.
        batch_durations, batch_runs: buckets of batches, see ``counters``: of the time from when one was taken until
            its outputs were ready, and of the computation alone.
        occupancy: how full the version is.
        batch_size: most rows that are run together; 1 where the model is not batched.
        executors: how many it has, or should have.
        pool_threads: threads that its backends have beside those of the executors.
        memory_kind: of the buffers, in Triton's words: CPU or CPU_PINNED.
    """

    requests: WorkerCounters
    batches: Mapping[int, BatchCounters]
    batch_durations: list[int]
    batch_runs: list[int]
    occupancy: Occupancy
    batch_size: int
    executors: int
    pool_threads: int = 0
    memory_kind: str = "CPU"
