"""Executors: failures of a run, callers that have left, and the numbers that are kept."""

from __future__ import annotations

import logging
import time

import numpy as np
import numpy.testing as npt
import pytest

from tests.engine.rig import Rig
from tests.graphs import DOUBLE, gather
from tests.waiting import wait_until
from toutates.engine.counters import BatchCounters, ExecutorCounters, VersionCounters, WorkerCounters
from toutates.engine.result import Timing
from toutates.system.errors import ExecutionFailed, TooLate

FINE, BROKEN = np.array([[1]]), np.array([[9]])


def test_a_request_that_fails_alone_gets_onnx_runtimes_reason() -> None:
    rig = Rig(gather())
    with rig.running():
        rig.worker.add("a", rig.lane((1,)), BROKEN)
        rig.worker.end_round()
        [error] = rig.worker.collect("a")
    assert isinstance(error, ExecutionFailed)
    assert str(error).startswith("onnx runtime error 1: Non-zero status code returned while running Gather node.")
    assert "out of data bounds" in str(error)
    assert rig.batches == []


def test_a_request_that_makes_a_batch_fail_fails_alone() -> None:
    rig = Rig(gather(), workers=2)
    for worker in rig.workers:
        worker.add("fine", rig.lane((1,)), np.array([[0], [1]]))
        worker.add("broken", rig.lane((1,)), BROKEN)
        worker.add("fine too", rig.lane((1,)), np.array([[2]]))
    for worker in rig.workers:
        worker.end_round()
    with rig.running():
        for worker in rig.workers:
            fine, broken, too = worker.collect("fine", "broken", "fine too")
            npt.assert_array_equal(fine, [[10], [20]])
            npt.assert_array_equal(too, [[30]])
            assert isinstance(broken, ExecutionFailed)
        wait_until(lambda: rig.supertensor.occupancy().in_flight == 0)
        rig.worker.answers.clear()
        rig.worker.add("fine", rig.lane((1,)), FINE)
        rig.worker.end_round()
        npt.assert_array_equal(rig.worker.collect("fine")[0], [[20]])
    assert sorted(rig.batches) == [(1, 1), (1, 1), (1, 1), (2, 1), (2, 1)]


def test_a_batch_whose_deadline_has_passed_is_not_run() -> None:
    rig = Rig(DOUBLE)
    rig.worker.add("late", rig.lane((4,)), np.ones((1, 4), np.float32))
    rig.worker.end_round()
    rig.deadlines = {"late": time.monotonic_ns() - 1}
    with rig.running():
        [error] = rig.worker.collect("late")
    assert isinstance(error, TooLate)
    assert str(error) == "Deadline Exceeded"
    assert rig.batches == []


def test_a_batch_that_would_be_too_late_is_not_run_while_others_wait_and_is_run_when_none_do() -> None:
    rig = Rig(DOUBLE, batch_size=2)
    lane = rig.packed((4,))
    lane.note_wall(2, 60 * 10**9)  # such batches take a minute
    for context in ("hopeless", "patient", "last"):
        rig.worker.add(context, lane, np.ones((2, 4), np.float32))
    rig.worker.end_round()
    soon_ns = time.monotonic_ns() + 80 * 10**9  # half as long again is not left
    rig.deadlines = {"hopeless": soon_ns, "last": soon_ns}
    with rig.running():
        hopeless, patient, last = rig.worker.collect("hopeless", "patient", "last")
    assert isinstance(hopeless, TooLate)
    npt.assert_array_equal(patient, np.full((2, 4), 2, np.float32))
    npt.assert_array_equal(last, patient)
    assert rig.batches == [(2, 1), (2, 1)]
    assert 0 < lane.wall_ns[2] < 60 * 10**9  # what they took is learnt


def test_how_long_batches_take_is_an_average_by_their_size() -> None:
    lane = Rig(DOUBLE).packed((4,))
    lane.note_wall(2, 800)
    lane.note_wall(3, 1_600)
    lane.note_wall(2, 100)
    lane.note_wall(4, 50)
    assert lane.wall_ns[2:4] == [800, 50]  # 800, 900, 800


def test_a_request_that_nobody_waits_for_is_not_tried_again_by_itself() -> None:
    rig = Rig(gather())
    rig.worker.add("broken", rig.lane((1,)), BROKEN)
    rig.worker.add("left", rig.lane((1,)), FINE)
    rig.worker.end_round()
    rig.unwanted = {"left"}
    with rig.running():
        broken, left = rig.worker.collect("broken", "left")
    assert isinstance(broken, ExecutionFailed)
    assert isinstance(left, TooLate)  # and not what is wrong with the other
    assert rig.batches == []


def test_a_part_of_a_split_request_that_fails_fails_the_request() -> None:
    rig = Rig(gather(), batch_size=2)
    rig.worker.add("split", rig.lane((1,)), np.array([[0], [1], [2], [9]]))
    with rig.running():
        [error] = rig.worker.collect("split")
    assert isinstance(error, ExecutionFailed)


def test_a_batch_that_nobody_waits_for_is_not_run_and_its_memory_is_free_again() -> None:
    rig = Rig(DOUBLE, workers=2)
    rows = np.ones((1, 4), np.float32)
    for worker in rig.workers:
        worker.add("a", rig.lane((4,)), rows)
    for worker in rig.workers:
        worker.end_round()
    rig.unwanted = {"a"}
    with rig.running():
        for worker in rig.workers:
            assert isinstance(worker.collect("a")[0], TooLate)
        assert rig.batches == []
        rig.worker.add("b", rig.lane((4,)), rows)
        rig.worker.end_round()
        rig.worker.collect("b")
    assert rig.batches == [(1, 1)]


def test_a_batch_is_run_for_the_one_who_still_waits() -> None:
    rig = Rig(DOUBLE)
    rows = np.ones((1, 4), np.float32)
    rig.unwanted = {"left"}
    rig.worker.add("left", rig.lane((4,)), rows)
    rig.worker.add("stays", rig.lane((4,)), 3 * rows)
    rig.worker.end_round()
    with rig.running():
        npt.assert_array_equal(rig.worker.collect("stays")[0], 6 * rows)
    assert rig.batches == [(2, 2)]


def test_an_error_outside_onnx_runtime_is_logged_and_told_without_its_text(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = Rig(DOUBLE)
    with caplog.at_level(logging.ERROR), rig.running():
        with rig.runs[0].raising(OSError("/secret/path")):
            rig.worker.add("a", rig.lane((4,)), np.ones((1, 4), np.float32))
            rig.worker.end_round()
            [error] = rig.worker.collect("a")
        assert str(error) == "running the batch failed: OSError"
        rig.worker.add("b", rig.lane((4,)), np.ones((1, 4), np.float32))
        rig.worker.end_round()
        npt.assert_array_equal(rig.worker.collect("b")[0], np.full((1, 4), 2))
    assert "/secret/path" in caplog.text


def test_timing_is_in_order() -> None:
    rig = Rig(DOUBLE)
    with rig.running():
        rig.worker.add("a", rig.lane((4,)), np.ones((1, 4), np.float32))
        rig.worker.end_round()
        rig.worker.collect("a")
    timing = rig.worker.seen[0].timing
    assert 0 < timing.taken_ns <= timing.started_ns <= timing.ended_ns <= timing.done_ns


def test_counters_of_a_version_are_the_sums_of_its_workers_and_executors() -> None:
    workers = [
        WorkerCounters(success=1, success_ns=10, rows=4, queue_ns=1, last_ms=7),
        WorkerCounters(success=2, success_ns=20, rows=8, fail=3, fail_ns=5, cancel=1, last_ms=5),
    ]
    executors = [ExecutorCounters(), ExecutorCounters()]
    executors[0].add(8, 3, Timing(0, 1, 3, 6))
    executors[0].add(8, 3, Timing(0, 1, 3, 6))
    executors[1].add(8, 1, Timing(0, 10, 30, 60))
    executors[1].add(2, 1, Timing(0, 1, 1, 1))
    version = VersionCounters(workers, executors)
    assert version.requests() == WorkerCounters(
        success=3, success_ns=30, rows=12, fail=3, fail_ns=5, cancel=1, queue_ns=1, last_ms=7
    )
    assert version.batches() == {2: BatchCounters(1, 1, 0, 0), 8: BatchCounters(3, 12, 24, 36)}
    assert list(version.batches()) == [2, 8]
    assert VersionCounters().requests() == WorkerCounters()
    assert VersionCounters().batches() == {}


def test_rows_requests_and_batches_are_counted_by_the_executor_that_ran_them() -> None:
    rig = Rig(DOUBLE)
    with rig.running():
        for count in (1, 3, 3):
            rig.worker.add(count, rig.lane((4,)), np.ones((count, 4), np.float32))
            rig.worker.end_round()
            rig.worker.collect(count)
            rig.worker.answers.clear()
    counts = {rows: batch.count for rows, batch in VersionCounters([], rig.counters).batches().items()}
    assert counts == {1: 1, 3: 2}


def test_a_reader_never_walks_a_dict_that_grows() -> None:
    counters = ExecutorCounters()
    counters.add(1, 1, Timing(0, 0, 0, 0))
    before = counters.by_rows
    counters.add(2, 1, Timing(0, 0, 0, 0))
    assert list(before) == [1]
