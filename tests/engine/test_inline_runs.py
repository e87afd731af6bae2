"""Quick batches, which a worker runs inline: on its own thread, with an idle executor that it claims."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import numpy.testing as npt
import pytest
from onnx import TensorProto

from tests.engine.support import Rig, inline_time, received, wait_until
from tests.graphs import DOUBLE, DOUBLE_LENGTHS, gather, unary
from toutates.engine.dispatcher import MAX_INLINE_BATCHES
from toutates.engine.lane import MOVING_NS, Lane
from toutates.engine.lengths import Buckets
from toutates.engine.padded.padding import PaddedInput, Padding
from toutates.engine.policies.rules import BatchingRules
from toutates.engine.result import Separate
from toutates.system.errors import ExecutionFailed, Overloaded
from toutates.system.inline_time import INLINE_TIME

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
        rig.worker.submitter.add_gathered(lane, 1, "a", [strings], 1_000_000)
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


# --- the time that a round has for inline runs


def add_one(rig: Rig, context: Any) -> None:
    """Add a request of one row."""
    if hasattr(rig.worker, "padded"):
        rig.worker.add_padded(context, rows(1))
    else:
        rig.worker.add(context, rig.lane((4,)), rows(1))


def in_one_round(rigs: Sequence[Rig], context: Any) -> list[bool]:
    """Ask each of these models once in one round of the calling thread; returns which have run inline."""
    for rig in rigs:
        rig.wait_idle()
        add_one(rig, context)
    for rig in rigs:
        rig.worker.end_round()
    for rig in rigs:
        npt.assert_array_equal(rig.worker.collect(context)[0], 2 * rows(1))
    return [rig.ran_in[-1] is threading.current_thread() for rig in rigs]


@pytest.mark.parametrize(
    "settings",
    [
        dict,
        lambda: {"max_queue_size": 8},
        lambda: {"target_ns": 10**12},
        lambda: {"padding": Padding({0: PaddedInput(0)}, None, {0: 0}, Buckets(()), 4_096)},
        lambda: {"rules": BatchingRules(8, (2, 4), 0, 3, 2)},
    ],
    ids=["batches of its own", "shared batches", "latency target", "padded rows", "queue policies"],
)
def test_a_round_runs_batches_of_all_models_inline_until_its_time_is_over(
    settings: Callable[[], dict[str, Any]],
) -> None:
    rigs = [Rig(DOUBLE_LENGTHS, quick_ns=ALWAYS, **settings()) for _ in range(5)]
    with ExitStack() as stack:
        for rig in rigs:
            stack.enter_context(rig.running())
        in_one_round(rigs, "first runs")
        assert in_one_round(rigs, "no bound") == [True] * 5
        for number in range(2):
            with inline_time(1):  # the run that begins last takes more than is left
                assert in_one_round(rigs, number) == [True] + [False] * 4
        with inline_time(0):
            assert in_one_round(rigs, "no time") == [False] * 5
        with inline_time(10**12):
            assert in_one_round(rigs, "time enough") == [True] * 5


def test_what_came_meanwhile_is_left_to_the_executor_where_the_rounds_time_is_over() -> None:
    rig = Rig(DOUBLE, workers=3, quick_ns=ALWAYS)
    lane = rig.lane((4,))

    def end_short_round() -> None:
        with inline_time(1):
            rig.worker.end_round()

    with rig.running():
        learn(rig, lane, 1)
        for worker in rig.workers:
            worker.add("a", lane, rows(1))
        runner = end_rounds_while_the_first_runs(rig, end_short_round)
    assert rig.ran_in == [runner, rig.threads[0], rig.threads[0]]


def test_runs_that_fail_take_of_the_rounds_time_and_batches_that_are_not_run_do_not() -> None:
    one, other = (Rig(gather(), quick_ns=ALWAYS) for _ in range(2))
    with one.running(), other.running():
        for rig in (one, other):
            learn(rig, rig.lane((1,)), 1, 2)
        one.unwanted = {"late"}
        one.worker.add("late", one.lane((1,)), np.array([[1]]))
        one.worker.add("broken", one.lane((1,)), np.array([[9]]))
        with inline_time(1):
            one.worker.end_round()
            other.worker.add("after a failure", other.lane((1,)), np.array([[1]]))
            other.worker.end_round()
        other.worker.collect("after a failure")
        assert other.ran_in == [other.threads[0]]
        other.wait_idle()
        one.worker.add("late", one.lane((1,)), np.array([[1]]))
        with inline_time(1):
            one.worker.end_round()
            other.worker.add("after nothing", other.lane((1,)), np.array([[1]]))
            other.worker.end_round()
        other.worker.collect("after nothing")
        assert other.ran_in == [other.threads[0], threading.current_thread()]


def test_requests_that_are_run_one_by_one_take_of_the_rounds_time_until_the_last_has_run() -> None:
    rig = Rig(gather(), quick_ns=ALWAYS)
    lane = rig.lane((1,))
    with rig.running():
        learn(rig, lane, 1, 2, 4)
        for context in range(4):
            rig.worker.add(context, lane, np.array([[9]]))
        with inline_time(10**12):
            rig.worker.end_round()
            took_ns = 10**12 - INLINE_TIME.left_ns
        rig.worker.collect(0, 1, 2, 3)
    first, *_, last = [result.timing for result in rig.worker.seen]
    assert first.done_ns < last.done_ns
    assert took_ns == last.done_ns - first.taken_ns


def test_a_run_whose_requests_are_answered_by_others_ends_as_any(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(DOUBLE, quick_ns=ALWAYS)
    lane = rig.lane((4,))

    with rig.running():
        learn(rig, lane, 1)
        monkeypatch.setattr(rig.sessions[0], "run", lambda batch, first, rows: Separate([]))
        rig.worker.add("a", lane, rows(1))
        with inline_time(1):
            rig.worker.end_round()
        assert rig.ran_in == [threading.current_thread()]
        assert rig.supertensor.occupancy().idle_executors == 1


def test_requests_of_a_batch_that_fails_are_tried_by_its_executor_where_they_are_many() -> None:
    count = MAX_INLINE_BATCHES + 1
    rig = Rig(gather(), quick_ns=ALWAYS)
    lane = rig.lane((1,))
    with rig.running():
        learn(rig, lane, count)
        for context in range(count):
            rig.worker.add(context, lane, np.array([[9 if context == 2 else 1]]))
        with inline_time(10**12):
            rig.worker.end_round()
            assert INLINE_TIME.left_ns < 10**12
        answers = rig.worker.collect(*range(count))
    assert [isinstance(answer, ExecutionFailed) for answer in answers] == [context == 2 for context in range(count)]
    npt.assert_array_equal(answers[0], [[20]])
    assert rig.ran_in == [rig.threads[0]] * (count - 1)


def apart(rig: Rig, lane: Any, *given: np.ndarray[Any, Any]) -> tuple[Any, threading.Thread]:
    """What becomes of requests that a thread beside the worker runs together, and that thread."""
    results: list[Any] = []
    requests = [(len(one), at, one.tobytes(), (0, one.nbytes)) for at, one in enumerate(given)]
    submitter = rig.worker.submitter
    writer = submitter.writer(lane)
    thread = threading.Thread(target=lambda: results.append(submitter.run_apart(writer, requests)))
    thread.start()
    thread.join()
    return results[0] if results else "an error", thread


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


def test_whoever_runs_requests_beside_a_worker_gives_the_executor_back(monkeypatch: pytest.MonkeyPatch) -> None:
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
        with monkeypatch.context() as patch, ExitStack() as failing:
            patch.setattr(threading, "excepthook", lambda *_: None)

            def fail(*_: object) -> None:
                raise MemoryError

            patch.setattr(rig.worker.submitter, "_copy", fail)
            failing.callback(patch.undo)
            assert apart(rig, lane, rows(1))[0] == "an error"
        occupancy = rig.supertensor.occupancy()
        assert (occupancy.idle_executors, occupancy.rows, occupancy.in_flight) == (1, 0, 0)
        [result], _ = apart(rig, lane, rows(1))
        assert result.error is None
