"""The ring of batches: rows in, runs, answers out, and what is refused."""

from __future__ import annotations

from queue import SimpleQueue

import numpy as np
import numpy.testing as npt
import pytest

from tests.engine.rig import Rig
from tests.graphs import DOUBLE
from tests.waiting import wait_until
from toutates.engine.result import BatchResult
from toutates.engine.servable import Consumer
from toutates.engine.submitter import Submitter
from toutates.system.errors import InvalidRequest, ModelNotReady, Overloaded


def rows(count: int, start: int = 0) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    return (np.arange(count * 4, dtype=np.float32) + start).reshape(count, 4)


def test_rows_go_in_run_and_come_back_and_their_batch_is_used_again() -> None:
    rig = Rig(DOUBLE)
    lane = rig.packed((4,))
    with rig.running():
        for start in range(5):
            rig.worker.add(start, lane, rows(3, start))
            assert rig.supertensor.occupancy().in_flight == 1
            rig.worker.end_round()
            [answer] = rig.worker.collect(start)
            npt.assert_array_equal(answer, 2 * rows(3, start))
        occupancy = rig.supertensor.occupancy()
        assert (occupancy.in_flight, occupancy.capacity, occupancy.lanes) == (0, 4, 1)
        assert len(lane.spare) == 1
        assert occupancy.spare_bytes == lane.batch_bytes == 8 * (16 + 16)


def test_requests_of_one_round_run_together() -> None:
    rig = Rig(DOUBLE)
    with rig.running():
        rig.wait_idle()
        for context in range(3):
            rig.worker.add(context, rig.lane((4,)), rows(2, context))
        rig.worker.end_round()
        for context, answer in enumerate(rig.worker.collect(0, 1, 2)):
            npt.assert_array_equal(answer, 2 * rows(2, context))
    assert rig.batches == [(6, 3)]


def test_requests_of_two_workers_run_together_and_each_gets_its_own() -> None:
    rig = Rig(DOUBLE, workers=2)
    for worker in rig.workers:
        worker.add("a", rig.lane((4,)), rows(1, worker.number))
    for worker in rig.workers:
        worker.end_round()
    with rig.running():
        for worker in rig.workers:
            npt.assert_array_equal(worker.collect("a")[0], 2 * rows(1, worker.number))
    assert rig.batches == [(2, 2)]


def test_an_idle_executor_takes_a_batch_at_the_rounds_end_and_a_batch_grows_while_it_is_busy() -> None:
    rig = Rig(DOUBLE)
    with rig.running():
        rig.wait_idle()
        rig.gate.clear()
        rig.worker.add("first", rig.lane((4,)), rows(1))
        rig.worker.end_round()
        wait_until(lambda: rig.supertensor.occupancy().idle_executors == 0)
        for context in range(4):
            rig.worker.add(context, rig.lane((4,)), rows(1))
            rig.worker.end_round()
        assert rig.supertensor.occupancy().in_flight == 2
        rig.gate.set()
        rig.worker.collect("first", 0, 1, 2, 3)
    assert rig.batches == [(1, 1), (4, 4)]


def test_a_port_that_is_made_while_another_one_has_a_batch_to_itself_adds_to_it_too() -> None:
    rig = Rig(DOUBLE, quick_ns=10**9)
    results: SimpleQueue[BatchResult] = SimpleQueue()
    with rig.running():
        rig.wait_idle()
        lane = rig.packed((4,))
        lane.note_run(1, 1_000)  # known to be quick
        way = rig.worker.port.writer(lane)
        rig.worker.add("first", lane, rows(1))
        assert way.batch is not None
        second = Submitter(
            rig.supertensor, Consumer(results.put, results.put, rig.worker.at_round_end, lambda *_: True)
        )
        content = rows(1, 7).tobytes()
        second.add_packed(way, 1, "second", content, (0, len(content)))
        rig.worker.end_round()
        npt.assert_array_equal(rig.worker.collect("first")[0], 2 * rows(1))
        result = results.get(timeout=120)
        [(context, first, count, _)] = result.pending
        assert (context, count) == ("second", 1)
        assert result.outputs is not None
        answer = np.frombuffer(result.outputs.rows(0, first, 1, batched=True), np.float32)
        npt.assert_array_equal(answer, 2 * rows(1, 7)[0])
    assert rig.batches == [(2, 2)]


def test_a_full_batch_runs_before_the_round_ends() -> None:
    rig = Rig(DOUBLE, batch_size=2)
    with rig.running():
        rig.worker.add("full", rig.lane((4,)), rows(2))
        rig.worker.collect("full")


def test_a_batch_that_becomes_full_later_in_the_round_runs_before_its_end() -> None:
    rig = Rig(DOUBLE, batch_size=2)
    with rig.running():
        rig.worker.add("a", rig.lane((4,)), rows(1))
        rig.worker.add("b", rig.lane((4,)), rows(1))
        rig.worker.collect("a", "b")


def test_rows_that_are_not_committed_do_not_run() -> None:
    rig = Rig(DOUBLE)
    with rig.running():
        rig.worker.add("a", rig.lane((4,)), rows(1))
        rig.wait_idle()
        assert rig.supertensor.occupancy().in_flight == 1
        rig.worker.end_round()
        rig.worker.collect("a")


def test_a_worker_that_commits_nothing_in_a_round_asks_for_nothing_at_the_next() -> None:
    rig = Rig(DOUBLE, batch_size=2)
    lane = rig.lane((4,))
    rig.worker.add("full", lane, rows(2))
    assert rig.worker.callbacks == []  # committed when it became full
    rig.worker.add("a", lane, rows(1))
    rig.worker.add("b", lane, rows(1))
    assert len(rig.worker.callbacks) == 1
    with rig.running():
        rig.worker.end_round()
        rig.worker.collect("full", "a", "b")


def test_a_round_that_never_ends_does_not_keep_an_idle_executor_from_another_workers_rows() -> None:
    # Two workers whose rounds always overlap: at every commit the other one is in the middle of its own.
    rig = Rig(DOUBLE, workers=2, capacity=8)
    lane = rig.lane((4,))
    with rig.running():
        rig.wait_idle()
        rig.workers[0].add(0, lane, rows(1))
        for turn in range(1, 20):
            rig.workers[turn % 2].add(turn, lane, rows(1))
            rig.workers[(turn - 1) % 2].end_round()
            if turn >= 2:
                rig.workers[turn % 2].collect(turn - 2)
        rig.workers[1].end_round()
        rig.workers[1].collect(19)


def test_a_batch_sealed_over_a_workers_head_runs_once_that_worker_commits() -> None:
    rig = Rig(DOUBLE, workers=2)
    lane = rig.lane((4,))
    one, other = rig.workers
    with rig.running():
        rig.wait_idle()
        one.add("a", lane, rows(1))
        other.add("b", lane, rows(1))
        other.end_round()
        one.add("c", lane, rows(1))  # goes into a new batch, because the first one is sealed
        assert rig.supertensor.occupancy().in_flight == 2
        assert rig.batches == []
        one.end_round()
        one.collect("a", "c")
        other.collect("b")
    assert rig.batches == [(2, 2), (1, 1)]


def test_overload_is_said_at_once_and_ends_when_a_batch_has_run() -> None:
    rig = Rig(DOUBLE, batch_size=2, capacity=2)
    lane = rig.lane((4,))
    for context in range(2):
        rig.worker.add(context, lane, rows(2))
    with pytest.raises(Overloaded, match=r"model 'm' has 4 of at most 4 rows waiting or running, .* raise 'capacity'"):
        rig.worker.add("late", lane, rows(1))
    with rig.running():
        rig.worker.collect(0, 1)
        wait_until(lambda: rig.supertensor.occupancy().in_flight == 0)
        rig.worker.add("late", lane, rows(1))
        rig.worker.end_round()
        npt.assert_array_equal(rig.worker.collect("late")[0], 2 * rows(1))


def test_more_rows_than_the_ring_holds_are_the_callers_mistake_and_leave_nothing_behind() -> None:
    rig = Rig(DOUBLE, batch_size=2, capacity=2)
    with rig.running():
        rig.wait_idle()
        with pytest.raises(InvalidRequest, match=r"inference request batch-size must be <= 4 for 'm'"):
            rig.worker.add("large", rig.lane((4,)), rows(5))
        assert rig.supertensor.occupancy().in_flight == 0
        rig.worker.add("whole ring", rig.lane((4,)), rows(4))
        npt.assert_array_equal(rig.worker.collect("whole ring")[0], 2 * rows(4))


def test_rows_of_a_request_are_split_over_batches_and_joined_in_order() -> None:
    rig = Rig(DOUBLE, batch_size=4, capacity=4, executors=2)
    lane = rig.lane((4,))
    rig.worker.add("first", lane, rows(3, 100))
    rig.worker.add("split", lane, rows(9))  # 1 + 4 + 4
    rig.worker.add("last", lane, rows(2, 50))
    rig.worker.end_round()
    with rig.running():
        first, split, last = rig.worker.collect("first", "split", "last")
    npt.assert_array_equal(first, 2 * rows(3, 100))
    npt.assert_array_equal(split, 2 * rows(9))
    npt.assert_array_equal(last, 2 * rows(2, 50))
    assert sorted(rig.batches) == [(2, 1), (4, 1), (4, 1), (4, 2)]


def test_a_split_takes_all_of_its_rows_or_none() -> None:
    rig = Rig(DOUBLE, batch_size=4, capacity=2)
    lane = rig.lane((4,))
    rig.worker.add("a", lane, rows(3))
    with pytest.raises(Overloaded):
        rig.worker.add("six do not fit into five", lane, rows(6))
    assert rig.supertensor.occupancy().in_flight == 1
    rig.worker.add("five do", lane, rows(5))
    rig.worker.end_round()
    with rig.running():
        npt.assert_array_equal(rig.worker.collect("five do")[0], 2 * rows(5))
        assert len(rig.worker.collect("a")[0]) == 3
    assert rig.batches == [(4, 2), (4, 1)]


def test_a_closed_ring_refuses_rows_and_runs_what_it_has() -> None:
    rig = Rig(DOUBLE, executors=2)
    lane = rig.lane((4,))
    rig.worker.add("a", lane, rows(1))
    rig.supertensor.close()
    rig.worker.end_round()
    with pytest.raises(ModelNotReady, match="Server is stopping, scheduler for model has stopped accepting new"):
        rig.worker.add("b", rig.lane((4,)), rows(8))
    rig.start()
    rig.worker.collect("a")
    for thread in rig.threads:
        thread.join(120)
        assert not thread.is_alive()


@pytest.mark.parametrize("busy", [False, True])
def test_closing_ends_idle_and_busy_executors(busy: bool) -> None:
    rig = Rig(DOUBLE, executors=3)
    rig.start()
    rig.wait_idle()
    if busy:
        rig.gate.clear()
        rig.worker.add("a", rig.lane((4,)), rows(1))
        rig.worker.end_round()
    rig.close()
    if busy:
        rig.worker.collect("a")


@pytest.mark.parametrize("started", [False, True])
@pytest.mark.parametrize("sealed", [False, True])
def test_rows_of_a_worker_that_ended_in_the_middle_of_its_round_do_not_keep_executors(
    sealed: bool, started: bool
) -> None:
    rig = Rig(DOUBLE, workers=2, batch_size=2)
    if started:
        rig.start()
        rig.wait_idle()
    rig.workers[0].add("a", rig.lane((4,)), rows(1))
    if sealed:
        rig.workers[1].add("b", rig.lane((4,)), rows(1))
        rig.workers[1].end_round()
    rig.unwanted = {"a", "b"}
    if not started:
        rig.start()
    rig.close(workers_ended=True)
    assert rig.supertensor.occupancy().in_flight == 0
    assert rig.batches == []
