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
from itertools import islice
from operator import add
from typing import Final

import trio

from toutates.engine.counters import BUCKET_NS, BUCKETS, WorkerCounters, size_bucket
from toutates.engine.statistics import Occupancy, VersionStatistics
from toutates.models.table import ModelTable, ServedVersion
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
#: The break between two steps of a sample, as a multiple of the time of a step: others have most of the thread, and
#: metrics of very many models come no later for it.
BREAK: Final = 4
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


def _plus(left: list[int], right: list[int]) -> list[int]:
    return list(map(add, left, right))


def _minus(left: list[int], right: list[int]) -> list[int]:
    if left == right:
        return [0] * len(left)
    return [a - b if a > b else 0 for a, b in zip(left, right, strict=True)]


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

    def add(self, part: _Counts | None) -> None:
        """Add a difference in place of the oldest; None for one without anything."""
        oldest = self._parts.popleft()
        if part is not None and not (any(part.durations) or any(part.batches)):
            part = None
        self._parts.append(part)
        if part is not None:
            self.durations = _plus(self.durations, part.durations)
            self.batches = _plus(self.batches, part.batches)
        if oldest is not None:
            self.durations = _minus(self.durations, oldest.durations)
            self.batches = _minus(self.batches, oldest.batches)


class _Version:
    """What is kept of one model version between samples.

    Attributes:
        counts: that it had.
        window: of the differences.
        history: requests per second.
        activity: how many requests had come to an end.
        quiet: in so many samples no further one has.
        sample: the last one.
    """

    def __init__(self) -> None:
        self.counts = _Counts()
        self.window = _Window()
        self.history = Series(MODEL_HISTORY)
        self.activity = -1
        self.quiet = 0
        self.sample: VersionSample | None = None


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


#: Versions from which on those that nobody has asked for are not sampled: each takes 50 us and some kilobytes.
MANY: Final = 1_000
#: Versions from which on one to which nothing has come is read every so many samples only: requests may wait in it.
SOME: Final = 50
QUIET_STEP: Final = 10
#: Of more than MANY, those to which nothing has come for the whole of MODEL_HISTORY are not read. So many of them are
#: looked at for each sample, in turn, whether something has come since. Of fewer they are read once a MODEL_HISTORY.
RESTING_AT_ONCE: Final = 1_000
#: Versions that are passed over at a time.
IDLE_AT_ONCE: Final = 1_000
#: How many quiet versions take as long as one that is read.
QUIET_PER_READ: Final = 20


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
        versions: the last sample of every version that is loaded; of more than MANY, of those that were asked for. What
            has not changed is not read again.
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
        self._table: ModelTable | None = None
        self._has_some = self._has_many = False
        #: versions that are sampled
        self._known: dict[ServedVersion, _Version] = {}
        #: of very many, those that have rested for long, the one that is looked at next first
        self._resting: dict[ServedVersion, _Version] = {}
        #: of very many, those that nobody has asked for, with the counters that come with the first request
        self._unasked: list[tuple[ServedVersion, list[WorkerCounters]]] = []
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
                step_s = time.thread_time() - began_s
                took_s += step_s
                await trio.sleep(BREAK * step_s)
                began_s = time.thread_time()
            await trio.sleep(max(INTERVAL_S, PAUSE * took_s))

    def sample(self) -> Iterator[None]:
        """Take one sample in steps, between which other tasks may run."""
        now_s = self._clock()
        interval_s = max(now_s - self._sampled_s, 1e-3)
        self._sampled_s = now_s
        total = _Counts()
        table = self._view.get_table()
        if table is not self._table:
            yield from self._divide(table)
        yield from self._find_asked()
        effort = waiting = 0
        busy = 0.0
        for version, known in list(self._known.items()):
            effort += QUIET_PER_READ * self._sample_version(version, known, interval_s, total)
            sample = self.versions[version]
            waiting += sample.occupancy.waiting
            busy += sample.busy
            if self._has_many and known.quiet >= MODEL_HISTORY and not sample.occupancy.in_flight:
                self._resting[version] = self._known.pop(version)
            effort += 1
            if effort >= QUIET_PER_READ * AT_ONCE:
                effort = 0
                yield
        self._count_unserved(total)
        self._sample_workers(interval_s)
        for index, count in enumerate(total.errors):
            self.errors[index] += count
        self._window.add(total)
        self.total, self.interval_s = total, interval_s
        self.durations, self.batches = self._window.durations, self._window.batches
        self.requests.add(total.success / interval_s)
        self.failures.add(sum(total.errors) / interval_s)
        self.p50.add(percentile_ms(total.durations, 0.5))
        self.p99.add(percentile_ms(total.durations, 0.99))
        self.waiting.add(waiting)
        self.busy.add(busy)
        self.sequence += 1
        if not self.sequence % LONG_STEP:
            for name, series in self.long.items():
                values = [value for value in getattr(self, name).last(LONG_STEP) if value != NOTHING]
                whole = max if name == "p99" else _mean
                series.add(whole(values) if values else NOTHING)
        self._sample_process(interval_s)
        yield

    def _divide(self, table: ModelTable) -> Iterator[None]:
        """The table is another one: find out which versions are sampled."""
        served = table.served()
        self._table, self._has_some, self._has_many = table, len(served) > SOME, len(served) > MANY
        before, resting = self._known, self._resting
        self._known, self._resting, self._unasked = {}, {}, []
        for number, version in enumerate(served):
            if version in before:
                self._known[version] = before[version]
            elif version in resting:
                (self._resting if self._has_many else self._known)[version] = resting[version]
            elif self._has_many and not _activity_of(version):
                self._unasked.append((version, version.servable.counters.workers))
            else:
                self._known[version] = _Version()
            if number % IDLE_AT_ONCE == IDLE_AT_ONCE - 1:
                yield
        for version in self.versions.keys() - self._known.keys() - self._resting.keys():
            del self.versions[version]

    def _find_asked(self) -> Iterator[None]:
        """Find versions to which requests have come after none for long."""
        asked = []
        for start in range(0, len(self._unasked), IDLE_AT_ONCE):
            some = self._unasked[start : start + IDLE_AT_ONCE]
            asked += [version for version, workers in some if workers and _activity_of(version)]
            yield
        if asked:
            self._known |= {version: _Version() for version in asked}
            self._unasked = [one for one in self._unasked if one[0] not in self._known]
        for version, known in list(islice(self._resting.items(), RESTING_AT_ONCE)):
            del self._resting[version]
            has_news = _activity_of(version) != known.activity
            (self._known if has_news else self._resting)[version] = known

    def _sample_version(self, version: ServedVersion, known: _Version, interval_s: float, total: _Counts) -> bool:
        """Sample a version, and add it to ``total``; returns whether it was read."""
        activity, sample = _activity_of(version), known.sample
        known.quiet = 0 if activity != known.activity else known.quiet + 1
        rests = known.quiet > MODEL_HISTORY
        step = MODEL_HISTORY if rests else QUIET_STEP
        if self._has_some and sample is not None and known.quiet % step and not sample.occupancy.in_flight:
            if not rests:  # else all of this is nothing already
                known.window.add(None)
                known.history.add(0.0)
                sample.requests_per_s = sample.rows_per_s = sample.failed_per_s = sample.busy = 0.0
                sample.durations, sample.batches = known.window.durations, known.window.batches
            return False
        known.activity = activity
        known.sample = self.versions[version] = self._read_version(version, known, interval_s, total)
        return True

    def _read_version(
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


def _activity_of(version: ServedVersion) -> int:
    """How many requests for a version have come to an end."""
    workers = version.servable.counters.workers
    return sum([one.success + one.fail + one.cancel + one.overloaded + one.refused + one.late for one in workers])


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
