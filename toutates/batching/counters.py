"""Counters of one model version: plain numbers, each written by one thread only, added up when somebody asks.

A reader may see a request in one counter and not yet in the next; it never sees a torn number, because each is one
attribute holding an int. That is what monotonic counters promise, and it keeps locks off the way of a request.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from toutates.batching.result import Timing

__all__ = ["BatchCounters", "ExecutorCounters", "VersionCounters", "WorkerCounters"]


@dataclass(slots=True)
class WorkerCounters:
    """Requests of one worker. Durations are nanoseconds; a request is charged its whole batch's compute time.

    Attributes:
        success: requests answered.
        success_ns: from arrival to answer.
        rows: rows of the requests answered.
        fail: requests that failed after they were queued.
        cancel: requests whose caller left after they were queued.
        fail_ns: from arrival to the end of both kinds.
        queue_ns, input_ns, infer_ns, output_ns: the parts of ``success_ns`` that Triton reports.
        last_ms: Unix time of the last batch, milliseconds.
    """

    success: int = 0
    success_ns: int = 0
    rows: int = 0
    fail: int = 0
    fail_ns: int = 0
    cancel: int = 0
    queue_ns: int = 0
    input_ns: int = 0
    infer_ns: int = 0
    output_ns: int = 0
    last_ms: int = 0


@dataclass(slots=True)
class BatchCounters:
    """Batches of one size."""

    count: int = 0
    input_ns: int = 0
    infer_ns: int = 0
    output_ns: int = 0


class ExecutorCounters:
    """Batches of one executor, by number of rows."""

    __slots__ = ("by_rows",)

    def __init__(self) -> None:
        self.by_rows: dict[int, BatchCounters] = {}

    def add(self, rows: int, requests: int, timing: Timing) -> None:
        """One batch has run; called by the executor itself."""
        counters = self.by_rows.get(rows)
        if counters is None:
            # Replaced as a whole, so that a reader in another thread never walks a dict that grows.
            counters = BatchCounters()
            self.by_rows = {**self.by_rows, rows: counters}
        counters.count += 1
        counters.input_ns += timing.started_ns - timing.taken_ns
        counters.infer_ns += timing.ended_ns - timing.started_ns
        counters.output_ns += timing.done_ns - timing.ended_ns


@dataclass(slots=True)
class VersionCounters:
    """All counters of a model version: one set per worker and per executor."""

    workers: list[WorkerCounters] = field(default_factory=list)
    executors: list[ExecutorCounters] = field(default_factory=list)

    def requests(self) -> WorkerCounters:
        """The workers' counters added up; ``last_ms`` is the latest."""
        total = WorkerCounters()
        for counter in fields(WorkerCounters):
            values = [getattr(worker, counter.name) for worker in self.workers]
            setattr(total, counter.name, max(values, default=0) if counter.name == "last_ms" else sum(values))
        return total

    def batches(self) -> dict[int, BatchCounters]:
        """The executors' counters added up, by batch size, ascending."""
        total: dict[int, BatchCounters] = {}
        for executor in self.executors:
            for rows, counters in executor.by_rows.items():
                sums = total.setdefault(rows, BatchCounters())
                for counter in fields(BatchCounters):
                    setattr(sums, counter.name, getattr(sums, counter.name) + getattr(counters, counter.name))
        return dict(sorted(total.items()))
