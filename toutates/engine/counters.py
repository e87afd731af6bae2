"""Counters of one model version: plain numbers, each written by one thread only, added up when they are read.

A reader may see a request in one counter and not yet in the next; it never sees a torn number, because each is one
attribute, or one place of a list, holding an int. Monotonic counters promise no more, and so no request takes a lock.

Times and sizes are also counted in *buckets*, lists of BUCKETS numbers. Bucket ``k`` of times holds those up to
``BUCKET_NS << k`` nanoseconds that bucket ``k - 1`` does not, so that bucket 3 ends at 100 us; bucket ``k`` of sizes
those up to ``1 << k``. The last bucket is far above any value.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any, Final

from toutates.engine.result import Timing

__all__ = [
    "BUCKETS",
    "BUCKET_NS",
    "BatchCounters",
    "CacheCounters",
    "Durations",
    "ExecutorCounters",
    "VersionCounters",
    "WorkerCounters",
    "size_bucket",
    "time_bucket",
]

#: Where the first bucket of times ends.
BUCKET_NS: Final = 12_500
#: Enough for every time of 63 bits.
BUCKETS: Final = 64


def time_bucket(ns: int) -> int:
    """The bucket of a time in nanoseconds. The request path has this written out, which saves the call."""
    return ((ns - 1) // BUCKET_NS).bit_length()


def size_bucket(size: int) -> int:
    """The bucket of a size. A size of 0 is in the first bucket, as 1 is."""
    return (size - 1).bit_length() if size else 0


def _buckets() -> list[int]:
    return [0] * BUCKETS


class Durations:
    """Times of one kind.

    Attributes:
        buckets: how many times there were, by bucket.
        sum_ns: their sum.
    """

    __slots__ = ("buckets", "sum_ns")

    def __init__(self) -> None:
        self.buckets = _buckets()
        self.sum_ns = 0

    def add(self, ns: int) -> None:
        """Count one more."""
        self.buckets[((ns - 1) // BUCKET_NS).bit_length()] += 1
        self.sum_ns += ns


@dataclass(slots=True)
class WorkerCounters:
    """Requests of one worker. Durations are nanoseconds; a request is charged its whole batch's compute time.

    Attributes:
        success: requests answered.
        cached: requests in ``success`` whose answer was not computed (``Timing.cached``).
        success_ns: from arrival to answer.
        rows: rows of the requests answered; one of a request that has none, as Triton counts it.
        fail: requests that failed after they were queued.
        rejected: requests in ``fail`` whose deadline could not be met.
        broken: requests in ``fail`` whose run failed, or returned outputs that cannot be sent.
        other: the rest of ``fail``.
        cancel: requests whose caller left after they were queued.
        fail_ns: from arrival to the end, of failed and cancelled requests.
        overloaded: requests refused because the ring was full; these and ``refused`` are in no other counter.
        refused: requests refused for what they were.
        late: requests refused because their answer would have come after their deadline; in no other counter.
        queue_ns, input_ns, infer_ns, output_ns: the parts of ``success_ns`` that Triton reports.
        last_ms: Unix time of the last batch, milliseconds.
        durations: buckets of requests answered, by the time from arrival to answer.
        queued: buckets of them by the time from arrival until an executor took the batch.
        starts, runs, replies: buckets of them by the time from then until the computation started, from its start to
            its end, and from its end until the answer was written.
        sizes: buckets of them by their number of rows.
    """

    success: int = 0
    cached: int = 0
    success_ns: int = 0
    rows: int = 0
    fail: int = 0
    rejected: int = 0
    broken: int = 0
    other: int = 0
    fail_ns: int = 0
    cancel: int = 0
    overloaded: int = 0
    refused: int = 0
    late: int = 0
    queue_ns: int = 0
    input_ns: int = 0
    infer_ns: int = 0
    output_ns: int = 0
    last_ms: int = 0
    durations: list[int] = field(default_factory=_buckets)
    queued: list[int] = field(default_factory=_buckets)
    starts: list[int] = field(default_factory=_buckets)
    runs: list[int] = field(default_factory=_buckets)
    replies: list[int] = field(default_factory=_buckets)
    sizes: list[int] = field(default_factory=_buckets)

    def count_answered(self, groups: list[tuple[int, int, int]], timing: Timing, now_ns: int, unix_ms: int) -> None:
        """Requests of one batch were answered at ``now_ns``; each is charged the whole batch's time, as by Triton.

        Args:
            groups: arrival, rows of one, and how many requests: those that came together are counted together.
            timing: of their batch.
            now_ns: monotonic.
            unix_ms: the time of day.
        """
        if timing.cached:
            self._count_cached(groups, timing, now_ns)
            return
        taken_ns = timing.taken_ns
        durations, queued, sizes = self.durations, self.queued, self.sizes
        answered = all_rows = arrivals = 0
        for arrival_ns, rows, count in groups:
            answered += count
            all_rows += (rows or 1) * count
            arrivals += arrival_ns * count
            durations[((now_ns - arrival_ns - 1) // BUCKET_NS).bit_length()] += count
            queued[((taken_ns - arrival_ns - 1) // BUCKET_NS).bit_length()] += count
            sizes[(rows - 1).bit_length() if rows else 0] += count
        start_ns = timing.started_ns - taken_ns
        run_ns = timing.ended_ns - timing.started_ns
        self.starts[((start_ns - 1) // BUCKET_NS).bit_length()] += answered
        self.runs[((run_ns - 1) // BUCKET_NS).bit_length()] += answered
        # Steps of an ensemble that ran side by side add up to more time than has passed.
        self.replies[((max(now_ns - timing.ended_ns, 1) - 1) // BUCKET_NS).bit_length()] += answered
        self.success += answered
        self.success_ns += answered * now_ns - arrivals
        self.rows += all_rows
        self.queue_ns += answered * taken_ns - arrivals
        self.input_ns += answered * start_ns
        self.infer_ns += answered * run_ns
        self.output_ns += answered * (timing.done_ns - timing.ended_ns)
        self.last_ms = unix_ms

    def _count_cached(self, groups: list[tuple[int, int, int]], timing: Timing, now_ns: int) -> None:
        """Requests were answered at ``now_ns`` for which nothing was computed: as Triton, they have no rows."""
        for arrival_ns, _, count in groups:
            self.durations[(max(now_ns - arrival_ns - 1, 0) // BUCKET_NS).bit_length()] += count
            self.queued[(max(timing.taken_ns - arrival_ns - 1, 0) // BUCKET_NS).bit_length()] += count
            self.success += count
            self.cached += count
            self.success_ns += count * (now_ns - arrival_ns)
            self.queue_ns += count * (timing.taken_ns - arrival_ns)


_all_of = attrgetter(*[counter.name for counter in fields(WorkerCounters)])


@dataclass(slots=True)
class BatchCounters:
    """Batches of one size.

    Attributes:
        count: how many have run.
        input_ns, infer_ns, output_ns: time before, in and after their computation.
        real_elements: of versions with padding, elements of the rows along the dimension that is padded.
        padded_elements: the same with the padding.
    """

    count: int = 0
    input_ns: int = 0
    infer_ns: int = 0
    output_ns: int = 0
    real_elements: int = 0
    padded_elements: int = 0


class ExecutorCounters:
    """Batches of one executor.

    Attributes:
        by_rows: by number of rows.
        durations: buckets by the time from when the batch was taken until its outputs were ready.
        runs: buckets by the time of the computation alone.
    """

    __slots__ = ("by_rows", "durations", "runs")

    def __init__(self) -> None:
        self.by_rows: dict[int, BatchCounters] = {}
        self.durations = _buckets()
        self.runs = _buckets()

    def add(self, rows: int, requests: int, timing: Timing, *, times: int = 1) -> None:
        """One batch has run, or ``times`` of them alike; called by the executor itself."""
        counters = self.by_rows.get(rows)
        if counters is None:
            counters = self._new_size(rows)
        run_ns = timing.ended_ns - timing.started_ns
        counters.count += times
        counters.input_ns += times * (timing.started_ns - timing.taken_ns)
        counters.infer_ns += times * run_ns
        counters.output_ns += times * (timing.done_ns - timing.ended_ns)
        self.durations[((timing.done_ns - timing.taken_ns - 1) // BUCKET_NS).bit_length()] += times
        self.runs[((run_ns - 1) // BUCKET_NS).bit_length()] += times

    def add_elements(self, rows: int, real: int, padded: int) -> None:
        """The elements of a batch of padded rows, with and without the padding; called by the executor itself."""
        counters = self.by_rows.get(rows) or self._new_size(rows)
        counters.real_elements += real
        counters.padded_elements += padded

    def _new_size(self, rows: int) -> BatchCounters:
        # Replaced as a whole, so that a reader in another thread never walks a dict that grows.
        counters = BatchCounters()
        self.by_rows = {**self.by_rows, rows: counters}
        return counters


@dataclass(slots=True)
class CacheCounters:
    """Requests of a version that were looked up in the response cache. Changed with the cache's lock held.

    Attributes:
        hits: answers that were there, or that another request under way has brought.
        misses: requests that were computed.
        hit_ns, miss_ns: time of the look-ups; that of a miss has the insertion's too.
    """

    hits: int = 0
    misses: int = 0
    hit_ns: int = 0
    miss_ns: int = 0


@dataclass(slots=True)
class VersionCounters:
    """All counters of a model version: one set per worker and per executor, and those of the response cache."""

    workers: list[WorkerCounters] = field(default_factory=list)
    executors: list[ExecutorCounters] = field(default_factory=list)
    cache: CacheCounters = field(default_factory=CacheCounters)

    def requests(self) -> WorkerCounters:
        """The workers' counters added up; ``last_ms`` is the latest."""
        total = WorkerCounters()
        if not self.workers:
            return total
        if len(self.workers) == 1:  # a tenth of the time that adding up takes
            own: list[Any] = [one.copy() if isinstance(one, list) else one for one in _all_of(self.workers[0])]
            return WorkerCounters(*own)
        for counter in fields(WorkerCounters):
            values = [getattr(worker, counter.name) for worker in self.workers]
            if counter.name == "last_ms":
                total.last_ms = max(values, default=0)
            elif isinstance(getattr(total, counter.name), list):
                setattr(total, counter.name, _add_up(values))
            else:
                setattr(total, counter.name, sum(values))
        return total

    def batches(self) -> dict[int, BatchCounters]:
        """The executors' counters added up, by batch size, ascending; one without rows is of size 1, as with Triton."""
        total: dict[int, BatchCounters] = {}
        for executor in self.executors:
            for rows, counters in executor.by_rows.items():
                sums = total.setdefault(rows or 1, BatchCounters())
                for counter in fields(BatchCounters):
                    setattr(sums, counter.name, getattr(sums, counter.name) + getattr(counters, counter.name))
        return dict(sorted(total.items()))

    def batch_durations(self) -> list[int]:
        """Buckets of the executors' batches by the time from when they were taken until their outputs were ready."""
        return _add_up([executor.durations for executor in self.executors])

    def batch_runs(self) -> list[int]:
        """Buckets of the executors' batches by the time of the computation alone."""
        return _add_up([executor.runs for executor in self.executors])


def _add_up(buckets: list[list[int]]) -> list[int]:
    if len(buckets) == 1:
        return buckets[0].copy()
    return list(map(sum, zip(_buckets(), *buckets, strict=True)))
