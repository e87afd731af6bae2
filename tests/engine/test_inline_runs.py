"""Quick batches, which a worker runs inline: on its own thread, with an idle executor that it claims."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.testing as npt
import pytest
from onnx import TensorProto

from tests.engine.rig import Rig
from tests.engine.workers import received
from tests.graphs import DOUBLE, gather, unary
from tests.waiting import wait_until
from toutates.engine.dispatcher import MAX_INLINE_BATCHES
from toutates.engine.lane import MOVING_NS, Lane
from toutates.system.errors import ExecutionFailed, Overloaded

#: Any run is quick, once there was one of its size.
ALWAYS = 2**61


def rows(count: int, start: int = 0) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    return (np.arange(count * 4, dtype=np.float32) + start).reshape(count, 4)


def learn(rig: Rig, lane: Lane, *sizes: int) -> None:
    """Make batches of these numbers of rows known to be quick."""
    for size in sizes:
        lane.note_run(size, 1_000)
    rig.wait_idle()


def in_thread(rig: Rig, worker: int) -> threading.Thread:
    """End a worker's round in a thread of its own, as far as the gate lets it."""
    thread = threading.Thread(target=rig.workers[worker].end_round)
    thread.start()
    return thread


def end_rounds_while_the_first_runs(rig: Rig, end_round: Callable[[], None]) -> threading.Thread:
    """Have the first worker end its round by this function, and the others theirs while it runs; returns its thread."""
    rig.gate.clear()
    runner = threading.Thread(target=end_round)
    runner.start()
    wait_until(lambda: rig.supertensor.occupancy().idle_executors == 0)
    for worker in rig.workers[1:]:
        worker.end_round()
    rig.gate.set()
    for worker in rig.workers:
        worker.collect("a")
    runner.join()
    return runner


def test_a_batch_runs_in_its_workers_thread_once_its_like_is_known_to_be_quick() -> None:
    rig = Rig(DOUBLE, quick_ns=ALWAYS)
    with rig.running():
        rig.wait_idle()
        for context in range(3):
            rig.worker.add(context, rig.lane((4,)), rows(2, context))
            rig.worker.end_round()
            if context:
                assert not rig.worker.results.empty()  # it ran before the round was over
            npt.assert_array_equal(rig.worker.collect(context)[0], 2 * rows(2, context))
            rig.wait_idle()
        assert [thread is threading.current_thread() for thread in rig.ran_in] == [False, True, True]
        rig.worker.add("of another size", rig.lane((4,)), rows(8))
        rig.worker.collect("of another size")
        assert rig.ran_in[-1] is rig.threads[0]


def test_a_model_that_is_not_quick_enough_stays_with_its_executors() -> None:
    rig = Rig(DOUBLE, quick_ns=1)
    with rig.running():
        for context in range(3):
            rig.worker.add(context, rig.lane((4,)), rows(1))
            rig.worker.end_round()
            rig.worker.collect(context)
    assert set(rig.ran_in) == {rig.threads[0]}


def test_runs_off_the_cpu_are_never_held_to_be_quick() -> None:
    rig = Rig(DOUBLE, quick_ns=ALWAYS)
    rig.sessions[0].on_cpu = False
    with rig.running():
        for context in range(3):
            rig.worker.add(context, rig.lane((4,)), rows(1, context))
            rig.worker.end_round()
            npt.assert_array_equal(rig.worker.collect(context)[0], 2 * rows(1, context))
    assert set(rig.ran_in) == {rig.threads[0]}


def test_what_a_run_takes_falls_at_once_and_rises_slowly() -> None:
    lane = Rig(DOUBLE).lane((4,))
    assert not lane.is_quick(1, ALWAYS)
    lane.note_run(4, 10_000)
    assert lane.is_quick(4, 10_001)
    assert lane.is_quick(7, 10_001)  # of as many bits
    assert not lane.is_quick(4, 10_000)
    assert not lane.is_quick(8, ALWAYS)
    lane.note_run(5, 90_000)
    assert lane.is_quick(4, 20_001)
    assert not lane.is_quick(4, 20_000)
    lane.note_run(6, 5_000)
    assert lane.is_quick(4, 5_001)


def test_what_receiving_large_rows_takes_is_no_part_of_what_a_run_takes() -> None:
    lane = Rig(DOUBLE).lane((4,))
    lane.row_memory = 1_048_576
    lane.note_run(1, 17 * MOVING_NS)
    left_ns = MOVING_NS
    assert lane.is_quick(1, left_ns + 1)
    assert not lane.is_quick(1, left_ns)
    lane.note_run(1, 10_000)
    assert lane.is_quick(1, 1)


def test_bytes_that_are_kept_for_a_batch_count_as_received_with_it() -> None:
    rig = Rig(unary("Identity", ["n", 1], TensorProto.STRING))
    lane = rig.lane((1,))
    noted: list[tuple[int, int, int]] = []

    def note(*what: Any) -> bool:
        noted.append(what[:3])
        return True

    lane.note_run = note
    with rig.running():
        strings = received(np.array([[b"x" * 100]], object))
        rig.worker.port.add_gathered(lane, 1, "a", [strings], 1_000_000)
        rig.worker.end_round()
        rig.worker.collect("a")
    [(rows_of_run, _, moved_bytes)] = noted
    assert (rows_of_run, moved_bytes) == (1, 1_000_000)


def test_workers_do_not_wait_for_each_others_rounds() -> None:
    rig = Rig(DOUBLE, workers=2, quick_ns=ALWAYS)
    lane = rig.lane((4,))
    one, other = rig.workers
    with rig.running():
        learn(rig, lane, 1)
        one.add("a", lane, rows(1))
        other.add("b", lane, rows(1, 5))
        other.end_round()
        npt.assert_array_equal(other.collect("b")[0], 2 * rows(1, 5))
        assert rig.supertensor.occupancy().in_flight == 1
        one.end_round()
        one.collect("a")
        assert rig.supertensor.occupancy().in_flight == 0
    assert rig.batches == [(1, 1), (1, 1)]
    assert set(rig.ran_in) == {threading.current_thread()}


def test_a_workers_own_batch_runs_as_soon_as_it_is_full() -> None:
    rig = Rig(DOUBLE, batch_size=3, quick_ns=ALWAYS)
    lane = rig.lane((4,))
    with rig.running():
        learn(rig, lane, 1, 2)
        for context in range(4):
            rig.worker.add(context, lane, rows(1, context))
        assert rig.batches == [(3, 3)]
        rig.worker.end_round()
        for context, answer in enumerate(rig.worker.collect(0, 1, 2, 3)):
            npt.assert_array_equal(answer, 2 * rows(1, context))
    assert rig.batches == [(3, 3), (1, 1)]


def test_rows_that_do_not_fit_a_workers_own_batch_go_into_the_next() -> None:
    rig = Rig(DOUBLE, batch_size=4, quick_ns=ALWAYS)
    lane = rig.lane((4,))
    with rig.running():
        learn(rig, lane, 1, 2, 4)
        rig.worker.add("a", lane, rows(3))
        rig.worker.add("b", lane, rows(2, 7))
        assert rig.batches == [(3, 1)]
        rig.worker.add("split", lane, rows(9, 20))
        rig.worker.end_round()
        a, b, split = rig.worker.collect("a", "b", "split")
    npt.assert_array_equal(a, 2 * rows(3))
    npt.assert_array_equal(b, 2 * rows(2, 7))
    npt.assert_array_equal(split, 2 * rows(9, 20))


def test_a_batch_waits_where_the_only_executor_is_claimed_and_is_run_by_who_claimed_it() -> None:
    rig = Rig(DOUBLE, workers=2, quick_ns=ALWAYS)
    lane = rig.lane((4,))
    one, other = rig.workers
    with rig.running():
        learn(rig, lane, 1)
        rig.gate.clear()
        one.add("a", lane, rows(1))
        runner = in_thread(rig, 0)
        wait_until(lambda: rig.supertensor.occupancy().idle_executors == 0)
        other.add("b", lane, rows(1))
        other.end_round()  # does not stop at the gate
        rig.gate.set()
        one.collect("a")
        other.collect("b")
        runner.join()
    assert rig.ran_in == [runner, runner]


def test_a_worker_goes_back_to_its_own_work_after_a_few_inline_batches() -> None:
    others = 6
    rig = Rig(DOUBLE, workers=1 + others, capacity=16, quick_ns=ALWAYS)
    lane = rig.lane((4,))
    with rig.running():
        learn(rig, lane, 1)
        for worker in rig.workers:
            worker.add("a", lane, rows(1))  # while the executor is idle: to each a batch of its own
        runner = end_rounds_while_the_first_runs(rig, rig.worker.end_round)
    assert rig.ran_in == [runner] * MAX_INLINE_BATCHES + [rig.threads[0]] * (1 + others - MAX_INLINE_BATCHES)


def test_two_workers_claim_an_executor_each() -> None:
    rig = Rig(DOUBLE, workers=2, executors=2, quick_ns=ALWAYS)
    lane = rig.lane((4,))
    with rig.running():
        learn(rig, lane, 1)
        rig.gate.clear()
        for worker in rig.workers:
            worker.add("a", lane, rows(1))
        runners = [in_thread(rig, 0), in_thread(rig, 1)]
        wait_until(lambda: rig.supertensor.occupancy().idle_executors == 0)
        rig.gate.set()
        for runner in runners:
            runner.join()
        for worker in rig.workers:
            worker.collect("a")
    assert set(rig.ran_in) == set(runners)


def test_a_request_that_makes_an_inline_batch_fail_fails_alone() -> None:
    rig = Rig(gather(), quick_ns=ALWAYS)
    lane = rig.lane((1,))
    with rig.running():
        learn(rig, lane, 1, 2)
        rig.worker.add("fine", lane, np.array([[1]]))
        rig.worker.add("broken", lane, np.array([[9]]))
        rig.worker.end_round()
        fine, broken = rig.worker.collect("fine", "broken")
        npt.assert_array_equal(fine, [[20]])
        assert isinstance(broken, ExecutionFailed)
        occupancy = rig.supertensor.occupancy()
        assert (occupancy.in_flight, occupancy.idle_executors) == (0, 1)


def test_own_batches_count_in_the_ring() -> None:
    rig = Rig(DOUBLE, workers=2, capacity=1, quick_ns=ALWAYS)
    lane = rig.lane((4,))
    one, other = rig.workers
    with rig.running():
        learn(rig, lane, 3, 4)
        one.add("a", lane, rows(5))
        with pytest.raises(Overloaded):
            other.add("b", lane, rows(4))
        one.end_round()
        other.add("b", lane, rows(4))
        other.end_round()
        other.collect("b")


def test_an_executor_that_is_claimed_ends_when_the_ring_is_closed() -> None:
    rig = Rig(DOUBLE, quick_ns=ALWAYS)
    lane = rig.lane((4,))
    rig.start()
    learn(rig, lane, 1)
    rig.gate.clear()
    rig.worker.add("a", lane, rows(1))
    runner = in_thread(rig, 0)
    wait_until(lambda: rig.supertensor.occupancy().idle_executors == 0)
    rig.close()
    runner.join()
    rig.worker.collect("a")


def test_own_rows_of_a_worker_that_ended_in_the_middle_of_its_round_do_not_keep_executors() -> None:
    rig = Rig(DOUBLE, quick_ns=ALWAYS)
    lane = rig.lane((4,))
    rig.start()
    learn(rig, lane, 1)
    rig.worker.add("a", lane, rows(1))
    rig.unwanted = {"a"}
    rig.close(workers_ended=True)
    assert rig.supertensor.occupancy().in_flight == 0
    assert rig.batches == []


@pytest.mark.parametrize(("queue", "delay_ns"), [(8, 0), (0, 1)], ids=["bounded queue", "delay"])
def test_workers_have_no_batches_of_their_own_where_requests_are_counted_or_wait(queue: int, delay_ns: int) -> None:
    rig = Rig(DOUBLE, workers=2, quick_ns=ALWAYS, max_queue_size=queue, delay_ns=delay_ns, enough_rows=2)
    lane = rig.lane((4,))
    with rig.running():
        learn(rig, lane, 1, 2)
        for worker in rig.workers:
            worker.add("a", lane, rows(1, worker.number))
        assert rig.supertensor.occupancy().in_flight == 1
        for worker in rig.workers:
            worker.end_round()
        for worker in rig.workers:
            npt.assert_array_equal(worker.collect("a")[0], 2 * rows(1, worker.number))


# --- beside the worker


def apart(
    rig: Rig, lane: Any, *given: np.ndarray[Any, Any], most_bytes: int | None = None
) -> tuple[Any, threading.Thread]:
    """What becomes of requests that a thread beside the worker runs together, and that thread.

    Args:
        most_bytes: of each, which its message ends with; None for all.
    """
    results: list[Any] = []
    requests = [(len(one), at, one.tobytes()[:most_bytes], (0, one.nbytes)) for at, one in enumerate(given)]
    submitter = rig.worker.port
    writer = submitter.writer(lane)

    def run() -> None:
        try:
            results.append(submitter.run_apart(writer, requests))
        except ValueError as error:
            results.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return results[0], thread


def test_requests_are_run_by_a_thread_beside_their_worker() -> None:
    rig = Rig(DOUBLE, batch_size=4, quick_ns=ALWAYS)
    lane = rig.lane((4,))
    with rig.running():
        rig.wait_idle()
        assert apart(rig, lane, rows(1))[0] is None  # nobody knows whether that is quick
        learn(rig, lane, 1, 2, 4)
        [result], thread = apart(rig, lane, rows(1), rows(2, 7))
        assert [request[:3] for request in result.pending] == [(0, 0, 1), (1, 1, 2)]
        made = np.frombuffer(result.outputs.data[0], np.float32).reshape(3, 4)
        npt.assert_array_equal(made, 2 * np.concatenate([rows(1), rows(2, 7)]))
        assert rig.ran_in == [thread]
        assert apart(rig, lane, rows(3), rows(2))[0] is None  # no batch has room for them
        rig.worker.add("before", lane, rows(1))
        [result], _ = apart(rig, lane, rows(1))
        rig.worker.end_round()
        rig.worker.collect("before")
        assert rig.worker.results.empty()
        assert rig.supertensor.occupancy().rows == 0


def test_whoever_runs_requests_beside_a_worker_gives_the_executor_back() -> None:
    rig = Rig(DOUBLE, quick_ns=ALWAYS)
    lane = rig.lane((4,))
    with rig.running():
        learn(rig, lane, 1)
        rig.gate.clear()
        rig.worker.add("a", lane, rows(1))
        runner = in_thread(rig, 0)
        wait_until(lambda: rig.supertensor.occupancy().idle_executors == 0)
        assert apart(rig, lane, rows(1))[0] is None  # others have it
        rig.gate.set()
        rig.worker.collect("a")
        runner.join()
        assert isinstance(apart(rig, lane, rows(1), most_bytes=8)[0], ValueError)
        occupancy = rig.supertensor.occupancy()
        assert (occupancy.idle_executors, occupancy.rows, occupancy.in_flight) == (1, 0, 0)
        [result], _ = apart(rig, lane, rows(1))
        assert result.error is None
