"""Rates, percentiles and their history of the last seconds and minutes, from the counters.

Counters have totals since the start. The sampler reads them once a second and keeps the differences, so that the status
page shows the last minutes as soon as it is opened, and the same to everybody. It keeps a fixed amount per model
version. It reads plain numbers, and takes each version's lock once, for constant time.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import trio

from toutates.engine.counters import BUCKET_NS, BUCKETS, size_bucket
from toutates.engine.statistics import Occupancy, VersionStatistics
from toutates.models.table import ServedVersion
from toutates.observe.processes.resources import CpuSum, cpu_seconds, resident_bytes
from toutates.observe.status.history import NOTHING, Series
from toutates.observe.view import ServerView

__all__ = [
    "ERROR_KINDS",
    "HISTORY",
    "LONG_STEP",
    "MODEL_HISTORY",
    "SERIES",
    "Sampler",
    "VersionSample",
    "WorkerSample",
    "percentile_ms",
]

#: Seconds between two samples, and the least pause as a multiple of the time that a sample took.
INTERVAL_S: Final = 1.0
PAUSE: Final = 50
#: Points in the history of the server, and in that of a model version; a point per sample.
HISTORY: Final = 300
MODEL_HISTORY: Final = 60
#: Samples per point of the long history, which reaches back an hour.
LONG_STEP: Final = 12
#: Names of the histories.
SERIES: Final = ("requests", "failures", "p50", "p99", "waiting", "busy")
#: Samples over which percentiles and distributions are taken.
WINDOW: Final = 10
#: Model versions sampled at a time, which takes about a millisecond.
AT_ONCE: Final = 16

#: Why requests were not answered. Each such request is of one kind.
ERROR_KINDS: Final = (
    "execution",
    "deadline",
    "other failures",
    "cancelled by caller",
    "ring full",
    "invalid request",
    "unknown model",
    "in-flight limit",
    "unreadable request",
)


def percentile_ms(buckets: Sequence[int], share: float) -> float:
    """A percentile in milliseconds: the duration that ``share`` of those in ``buckets`` do not exceed, or NOTHING.

    Within a bucket durations are taken to be spread evenly.
    """
    total = sum(buckets)
    if not total:
        return NOTHING
    rank = share * total
    below = 0
    for bucket, count in enumerate(buckets):
        if count and below + count >= rank:
            start_ns = BUCKET_NS << bucket - 1 if bucket else 0
            end_ns = BUCKET_NS << bucket
            return (start_ns + (end_ns - start_ns) * (rank - below) / count) / 1e6
        below += count
    return (BUCKET_NS << len(buckets) - 1) / 1e6


@dataclass(slots=True)
class _Counts:
    """The counts of a version, or the difference between two readings of them."""

    success: int = 0
    rows: int = 0
    errors: list[int] = field(default_factory=lambda: [0] * len(ERROR_KINDS))
    durations: list[int] = field(default_factory=lambda: [0] * BUCKETS)
    batches: list[int] = field(default_factory=lambda: [0] * BUCKETS)
    busy_ns: int = 0

    def minus(self, other: _Counts) -> _Counts:
        """The difference. Negative numbers become 0: they are from reading a counter while it was written."""
        return _Counts(
            max(0, self.success - other.success),
            max(0, self.rows - other.rows),
            _minus(self.errors, other.errors),
            _minus(self.durations, other.durations),
            _minus(self.batches, other.batches),
            max(0, self.busy_ns - other.busy_ns),
        )

    def add(self, other: _Counts) -> None:
        self.success += other.success
        self.rows += other.rows
        self.errors = _plus(self.errors, other.errors)
        self.durations = _plus(self.durations, other.durations)
        self.batches = _plus(self.batches, other.batches)
        self.busy_ns += other.busy_ns


def _plus(left: Sequence[int], right: Sequence[int]) -> list[int]:
    return [a + b for a, b in zip(left, right, strict=True)]


def _minus(left: Sequence[int], right: Sequence[int]) -> list[int]:
    return [max(0, a - b) for a, b in zip(left, right, strict=True)]


def _read(statistics: VersionStatistics) -> _Counts:
    requests = statistics.requests
    errors = [
        requests.broken,
        requests.rejected,
        requests.fail - requests.broken - requests.rejected,
        requests.cancel,
        requests.overloaded,
        requests.refused,
    ]
    counts = _Counts(requests.success, requests.rows, errors + [0] * (len(ERROR_KINDS) - len(errors)))
    counts.durations = requests.durations
    for rows, batch in statistics.batches.items():
        counts.batches[size_bucket(rows)] += batch.count
        counts.busy_ns += batch.input_ns + batch.infer_ns + batch.output_ns
    return counts


@dataclass(slots=True)
class VersionSample:
    """One model version as of the last sample.

    Attributes:
        occupancy: how full it is.
        batch_size: most rows in one run.
        executors: how many it has.
        busy: how many of them had a batch on average; if no batch has ended, how many have one now.
        success: requests answered since its load.
        failed: requests that failed since its load.
        requests_per_s, rows_per_s, failed_per_s: in the last sample.
        durations: buckets of requests over the window.
        batches: buckets of batch sizes over the window.
        history: requests per second.
    """

    occupancy: Occupancy
    batch_size: int
    executors: int
    busy: float
    success: int
    failed: int
    requests_per_s: float
    rows_per_s: float
    failed_per_s: float
    durations: list[int]
    batches: list[int]
    history: Series


class _Window:
    """The sum of the last WINDOW differences. Differences without any request are kept as None.

    Attributes:
        durations, batches: the sums of their buckets.
    """

    def __init__(self) -> None:
        self.durations = [0] * BUCKETS
        self.batches = [0] * BUCKETS
        self._parts: deque[_Counts | None] = deque([None] * WINDOW)

    def add(self, part: _Counts) -> None:
        """Add a difference in place of the oldest."""
        oldest = self._parts.popleft()
        something = any(part.durations) or any(part.batches)
        self._parts.append(part if something else None)
        if something:
            self.durations = _plus(self.durations, part.durations)
            self.batches = _plus(self.batches, part.batches)
        if oldest is not None:
            self.durations = _minus(self.durations, oldest.durations)
            self.batches = _minus(self.batches, oldest.batches)


class _Version:
    """What is kept of one model version between samples."""

    def __init__(self) -> None:
        self.counts = _Counts()
        self.window = _Window()
        self.history = Series(MODEL_HISTORY)


@dataclass(slots=True)
class WorkerSample:
    """One worker as of the last sample.

    Attributes:
        load: share of a CPU that its thread used; NOTHING where it is not known.
        late_ms: its event-loop lag when last measured, milliseconds.
        connections: open connections.
        open_calls: calls under way, counted every two seconds.
    """

    name: str
    load: float
    late_ms: float
    connections: int
    open_calls: int


#: Versions from which on those that nobody has asked for are not sampled: each takes 0.2 ms and some kilobytes.
MANY: Final = 1_000
#: Such versions that are passed over at a time.
IDLE_AT_ONCE: Final = 1_000


class Sampler:
    """Takes the samples. Belongs to one Trio run, whose tasks may read it.

    Args:
        view: of the server.
        clock: monotonic seconds.

    Attributes:
        sequence: samples taken so far.
        requests, failures, p50, p99, waiting, busy: the server's history, a value per sample: per second, milliseconds,
            requests, and executors.
        long: the same with a value per LONG_STEP samples: their mean, for ``p99`` the largest.
        memory_bytes: resident memory of the process, or of all of them.
        cpu_load: CPUs that the process used, or all of them; NOTHING until it is known.
        versions: the last sample of every version that is loaded; of more than MANY, of those that were asked for.
        workers: the last sample of every worker.
        total: the difference of all versions in the last sample.
        interval_s: the time that the last sample covers, seconds.
        durations, batches: buckets of all versions over the window.
        errors: requests that were not answered since the start, in the order of ERROR_KINDS.
        received_per_s, sent_per_s: bytes per second of all connections.
    """

    def __init__(self, view: ServerView, clock: Callable[[], float] = time.monotonic) -> None:
        self.sequence = 0
        self.requests, self.failures, self.p50, self.p99, self.waiting, self.busy = (Series(HISTORY) for _ in range(6))
        self.long = {name: Series(HISTORY) for name in SERIES}
        self.memory_bytes = 0
        self.cpu_load = NOTHING
        self._process_cpu_s = time.process_time()
        self._cpu_sum = CpuSum()
        self.versions: dict[ServedVersion, VersionSample] = {}
        self.workers: list[WorkerSample] = []
        self.total = _Counts()
        self.interval_s = INTERVAL_S
        self.durations = [0] * BUCKETS
        self.batches = [0] * BUCKETS
        self.errors = [0] * len(ERROR_KINDS)
        self.received_per_s = self.sent_per_s = 0.0
        self._view = view
        self._clock = clock
        self._sampled_s = clock()
        self._known: dict[ServedVersion, _Version] = {}
        self._cpu_s: dict[str, float | None] = {}
        self._infer_errors = [0] * len(ERROR_KINDS)
        #: time, and bytes received and sent by then; workers count them every two seconds only
        self._traffic: deque[tuple[float, int, int]] = deque([(clock(), 0, 0)], maxlen=WINDOW)
        self._window = _Window()

    async def run(self) -> None:
        """Sample until cancelled, for 2 % of the time at most."""
        while True:
            took_s = 0.0
            began_s = time.thread_time()
            for _ in self.sample():
                took_s += time.thread_time() - began_s
                await trio.lowlevel.checkpoint()
                began_s = time.thread_time()
            await trio.sleep(max(INTERVAL_S, PAUSE * took_s))

    def sample(self) -> Iterator[None]:
        """Take one sample in steps, between which other tasks may run."""
        now_s = self._clock()
        interval_s = max(now_s - self._sampled_s, 1e-3)
        self._sampled_s = now_s
        total = _Counts()
        samples: dict[ServedVersion, VersionSample] = {}
        known: dict[ServedVersion, _Version] = {}
        served = self._view.get_table().served()
        has_many = len(served) > MANY
        for number, version in enumerate(served):
            if has_many and version not in self._known and not _was_asked(version):
                if number % IDLE_AT_ONCE == IDLE_AT_ONCE - 1:
                    yield
                continue
            known[version] = self._known.get(version) or _Version()
            samples[version] = self._sample_version(version, known[version], interval_s, total)
            if number % AT_ONCE == AT_ONCE - 1:
                yield
        self._known = known  # without versions that are gone
        self._count_unserved(total)
        self._sample_workers(interval_s)
        for index, count in enumerate(total.errors):
            self.errors[index] += count
        self._window.add(total)
        self.total, self.interval_s, self.versions = total, interval_s, samples
        self.durations, self.batches = self._window.durations, self._window.batches
        self.requests.add(total.success / interval_s)
        self.failures.add(sum(total.errors) / interval_s)
        self.p50.add(percentile_ms(total.durations, 0.5))
        self.p99.add(percentile_ms(total.durations, 0.99))
        self.waiting.add(sum(sample.occupancy.waiting for sample in samples.values()))
        self.busy.add(sum(sample.busy for sample in samples.values()))
        self.sequence += 1
        if not self.sequence % LONG_STEP:
            for name, series in self.long.items():
                values = [value for value in getattr(self, name).last(LONG_STEP) if value != NOTHING]
                whole = max if name == "p99" else _mean
                series.add(whole(values) if values else NOTHING)
        self._sample_process(interval_s)
        yield

    def _sample_version(
        self, version: ServedVersion, known: _Version, interval_s: float, total: _Counts
    ) -> VersionSample:
        statistics = version.servable.statistics()
        counts = _read(statistics)
        since = counts.minus(known.counts)
        known.counts = counts
        known.window.add(since)
        total.add(since)
        known.history.add(since.success / interval_s)
        occupancy, executors = statistics.occupancy, statistics.executors
        busy = since.busy_ns / interval_s / 1e9 or executors - occupancy.idle_executors
        return VersionSample(
            occupancy=occupancy,
            batch_size=statistics.batch_size,
            executors=executors,
            busy=min(busy, executors),
            success=counts.success,
            failed=sum(counts.errors),
            requests_per_s=since.success / interval_s,
            rows_per_s=since.rows / interval_s,
            failed_per_s=sum(since.errors) / interval_s,
            durations=known.window.durations,
            batches=known.window.batches,
            history=known.history,
        )

    def _count_unserved(self, total: _Counts) -> None:
        """Count requests that came to no version."""
        errors = [0] * len(ERROR_KINDS)
        for infer in list(self._view.infer):
            errors[6] += infer.counters.unknown
            errors[7] += infer.counters.overloaded
            errors[8] += infer.counters.invalid
        for index, count in enumerate(_minus(errors, self._infer_errors)):
            total.errors[index] += count
        self._infer_errors = errors

    def _sample_process(self, interval_s: float) -> None:
        pids = [one.pid for one in self._view.processes() if one.pid is not None]
        if pids:
            used_s = self._cpu_sum.update({pid: cpu_seconds(pid) for pid in pids})
            self.memory_bytes = sum(map(resident_bytes, pids))
        else:
            used_s = time.process_time()
            self.memory_bytes = resident_bytes()
        self.cpu_load = (used_s - self._process_cpu_s) / interval_s
        self._process_cpu_s = used_s

    def _sample_workers(self, interval_s: float) -> None:
        self.workers = []
        received = sent = 0
        for worker in list(self._view.workers):
            before_s = self._cpu_s.get(worker.name)
            now_s = self._cpu_s[worker.name] = worker.cpu_seconds
            load = NOTHING if before_s is None or now_s is None else (now_s - before_s) / interval_s
            traffic = worker.traffic
            received += traffic.received_bytes
            sent += traffic.sent_bytes
            late_ms = worker.lateness.last_ns / 1e6
            self.workers.append(WorkerSample(worker.name, load, late_ms, worker.connections, traffic.open_calls))
        since_s, received_before, sent_before = self._traffic[0]
        self._traffic.append((self._sampled_s, received, sent))
        seconds = max(self._sampled_s - since_s, 1e-3)
        self.received_per_s = max(0, received - received_before) / seconds
        self.sent_per_s = max(0, sent - sent_before) / seconds


def _was_asked(version: ServedVersion) -> bool:
    """Whether there was a request for a version."""
    return any(
        one.success or one.fail or one.cancel or one.overloaded or one.refused or one.late
        for one in version.servable.counters.workers
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
