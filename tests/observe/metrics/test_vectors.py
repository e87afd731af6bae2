"""Counts as vectors are the same counts."""

from __future__ import annotations

from random import Random

from toutates.engine.counters import ExecutorCounters, VersionCounters, WorkerCounters
from toutates.engine.result import Timing
from toutates.observe.metrics.snapshot import read_counts
from toutates.observe.metrics.vectors import nothing, record_of, vector_of, vector_of_counters


def some_counters(seed: int) -> VersionCounters:
    random = Random(seed)
    counters = VersionCounters([WorkerCounters() for _ in range(3)], [ExecutorCounters() for _ in range(2)])
    for _ in range(200):
        taken = random.randrange(10**9)
        start, end = taken + random.randrange(1, 10**6), taken + random.randrange(10**6, 10**8)
        timing = Timing(taken, start, end, end + 1_000)
        rows = random.randrange(20)
        random.choice(counters.workers).count_answered([(taken - 5_000, rows, 2)], timing, end + 2_000, 7)
        executor = random.choice(counters.executors)
        executor.add(rows, 2, timing)
        executor.add_elements(rows, 5, 9)
        random.choice(counters.workers).fail += 1
    return counters


def test_vector_of_counters_is_what_records_add_up_to() -> None:
    counters = some_counters(1)
    for worker in counters.workers:
        worker.last_ms = 0  # the latest, in records
    assert record_of(vector_of_counters(counters)) == read_counts(counters)


def test_records_become_vectors_and_records_again() -> None:
    counts = read_counts(some_counters(2))
    assert record_of(vector_of(counts)) == counts
    assert record_of(nothing()) == read_counts(VersionCounters())
