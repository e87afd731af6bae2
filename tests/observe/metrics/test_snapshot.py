"""Counts of versions that are gone."""

from __future__ import annotations

from toutates.engine.counters import ExecutorCounters, VersionCounters, WorkerCounters
from toutates.engine.result import Timing
from toutates.observe.metrics.snapshot import SETTLED_S, Counts, Retired, read_counts


def version(*, answered: int = 0) -> VersionCounters:
    """Counters of a version on two workers and two executors."""
    counters = VersionCounters([WorkerCounters(), WorkerCounters()], [ExecutorCounters(), ExecutorCounters()])
    answer(counters, answered)
    return counters


def answer(counters: VersionCounters, count: int) -> None:
    """So many requests of 3 rows, each in a batch of its own that took 100 us, on either worker in turn."""
    timing = Timing(10_000, 20_000, 110_000, 120_000)
    for number in range(count):
        counters.executors[number % 2].add(3, 1, timing)
        counters.workers[number % 2].count_answered([(5_000, 3, 1)], timing, 130_000, 7)


def success_of(retired: Retired, model: str) -> int:
    return sum(counts.requests.success for counts in retired.counts(model))


def test_counts_are_those_of_all_threads() -> None:
    counts = read_counts(version(answered=5))
    assert (counts.requests.success, counts.requests.rows) == (5, 15)
    assert (counts.batches.count, counts.batch_rows) == (5, 15)
    assert counts.batches.infer_ns == 5 * 90_000
    assert counts.batch_sizes[:4] == [0, 0, 5, 0]  # above 2, up to 4 rows
    assert counts.batch_runs[:5] == [0, 0, 0, 5, 0]  # above 50, up to 100 us
    assert counts.batch_durations[:5] == [0, 0, 0, 0, 5]


def test_counts_add_up_field_by_field() -> None:
    one, other = version(answered=2), version(answered=3)
    assert read_counts(one) + read_counts(other) == read_counts(version(answered=5))
    assert read_counts(one) + Counts() == read_counts(one)


def test_what_a_replaced_version_has_counted_stays_with_its_model() -> None:
    retired = Retired()
    first, second, other = version(answered=2), version(), version(answered=7)
    retired.update({"m": [first], "n": [other]}, 0)
    assert success_of(retired, "m") == 0
    retired.update({"m": [second], "n": [other]}, 1)
    assert success_of(retired, "m") == 2
    answer(first, 1)  # of a batch that was under way
    assert success_of(retired, "m") == 3
    assert success_of(retired, "n") == 0


def test_versions_that_are_long_gone_become_one_sum() -> None:
    retired = Retired()
    versions = [version(answered=1) for _ in range(50)]
    for at, one in enumerate(versions):
        retired.update({"m": [one]}, at * SETTLED_S / 10)
    assert success_of(retired, "m") == 49
    assert len(list(retired.counts("m"))) <= 12
    retired.update({"m": [versions[-1]]}, 100 * SETTLED_S)
    assert success_of(retired, "m") == 49
    assert len(list(retired.counts("m"))) == 1


def test_one_of_several_versions_may_go_and_come_back_as_another() -> None:
    retired = Retired()
    one, two = version(answered=4), version(answered=5)
    retired.update({"m": [one, two]}, 0)
    retired.update({"m": [one]}, 1)
    assert success_of(retired, "m") == 5
    retired.update({"m": [one, version()]}, 2)
    assert success_of(retired, "m") == 5


def test_a_model_that_is_gone_leaves_nothing_behind() -> None:
    retired = Retired()
    retired.update({"m": [version(answered=4)]}, 0)
    retired.update({"m": [version()]}, 1)
    retired.update({}, 2)
    assert success_of(retired, "m") == 0
    retired.update({"m": [version()]}, 3)
    assert success_of(retired, "m") == 0
    retired.update({"m": []}, SETTLED_S * 3)
    assert success_of(retired, "m") == 0
