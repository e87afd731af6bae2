"""What is counted of requests and batches, and in which buckets."""

from __future__ import annotations

import pytest

from toutates.engine.counters import (
    BUCKET_NS,
    BUCKETS,
    Durations,
    ExecutorCounters,
    VersionCounters,
    WorkerCounters,
    size_bucket,
    time_bucket,
)
from toutates.engine.result import Timing


def used(buckets: list[int]) -> dict[int, int]:
    """The buckets that something is in."""
    return {at: count for at, count in enumerate(buckets) if count}


@pytest.mark.parametrize(
    ("ns", "bucket"), [(1, 0), (BUCKET_NS, 0), (BUCKET_NS + 1, 1), (100_000, 3), (100_001, 4), (2**62, 49)]
)
def test_a_time_is_in_the_bucket_that_ends_at_it_or_after_it(ns: int, bucket: int) -> None:
    durations = Durations()
    durations.add(ns)
    assert time_bucket(ns) == bucket < BUCKETS
    assert used(durations.buckets) == {bucket: 1}
    assert durations.sum_ns == ns


@pytest.mark.parametrize(("size", "bucket"), [(0, 0), (1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (64, 6), (65, 7)])
def test_a_size_is_in_the_bucket_that_ends_at_it_or_after_it(size: int, bucket: int) -> None:
    assert size_bucket(size) == bucket


def test_requests_of_a_batch_are_charged_its_whole_time_from_their_own_arrival() -> None:
    counters = WorkerCounters()
    ms = 1_000_000
    timing = Timing(taken_ns=10 * ms, started_ns=11 * ms, ended_ns=13 * ms, done_ns=16 * ms)
    # Two requests of three rows that came together, and one without rows.
    counters.count_answered([(2 * ms, 3, 2), (9 * ms, 0, 1)], timing, 20 * ms, 77)
    assert (counters.success, counters.rows, counters.last_ms) == (3, 7, 77)
    assert counters.success_ns == (18 + 18 + 11) * ms
    assert counters.queue_ns == (8 + 8 + 1) * ms
    assert (counters.input_ns, counters.infer_ns, counters.output_ns) == (3 * ms, 6 * ms, 9 * ms)
    assert used(counters.durations) == {time_bucket(18 * ms): 2, time_bucket(11 * ms): 1}
    assert used(counters.queued) == {time_bucket(8 * ms): 2, time_bucket(1 * ms): 1}
    assert used(counters.starts) == {time_bucket(1 * ms): 3}
    assert used(counters.runs) == {time_bucket(2 * ms): 3}
    assert used(counters.replies) == {time_bucket(7 * ms): 3}
    assert used(counters.sizes) == {size_bucket(3): 2, size_bucket(0): 1}


def test_a_request_is_in_the_bucket_that_ends_at_its_time() -> None:
    counters = WorkerCounters()
    ns = BUCKET_NS
    counters.count_answered([(0, 4, 1)], Timing(2 * ns, 3 * ns, 5 * ns, 6 * ns), 9 * ns, 0)
    for buckets, multiple in (
        (counters.durations, 9),
        (counters.queued, 2),
        (counters.starts, 1),
        (counters.runs, 2),
        (counters.replies, 4),
    ):
        assert used(buckets) == {time_bucket(multiple * ns): 1}
    assert used(counters.sizes) == {2: 1}


def test_batches_of_all_executors_are_counted_by_their_times() -> None:
    executors = [ExecutorCounters(), ExecutorCounters()]
    ns = BUCKET_NS
    executors[0].add(1, 1, Timing(0, ns, 3 * ns, 4 * ns))
    executors[1].add(2, 1, Timing(0, ns, 3 * ns, 4 * ns))
    executors[1].add(0, 1, Timing(ns, ns, 2 * ns, 9 * ns))
    version = VersionCounters([], executors)
    assert used(version.batch_durations()) == {2: 2, 3: 1}
    assert used(version.batch_runs()) == {1: 2, 0: 1}
    assert {rows: batch.count for rows, batch in version.batches().items()} == {1: 2, 2: 1}
    assert version.batches()[1].output_ns == 8 * ns
