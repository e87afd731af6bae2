"""Faults where none should be: in a run, beside it, on the way to a worker, and of the executors' threads."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from queue import SimpleQueue
from typing import Any

import numpy as np
import numpy.testing as npt
import pytest
from onnx import TensorProto, helper

from tests.engine.rig import Rig
from tests.graphs import DOUBLE, DOUBLE_LENGTHS, gather, model, tensor, unary
from tests.waiting import wait_until
from toutates.backends.onnx.session import ModelSession
from toutates.engine.result import BatchResult
from toutates.protocol.strings import EncodedStrings
from toutates.system.errors import ExecutionFailed, Overloaded
from toutates.system.logs.limit import PERIOD_NS

#: Any run is quick, once there was one of its size.
ALWAYS = 2**61


def rows(count: int, start: int = 0) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    return (np.arange(count * 4, dtype=np.float32) + start).reshape(count, 4)


def raising(error: BaseException) -> Callable[..., Any]:
    def fail(*arguments: object, **more: object) -> Any:
        raise error

    return fail


def assert_serves(rig: Rig, context: str = "afterwards") -> None:
    """Every executor and every batch of the ring are there to be used."""
    for at in range(rig.supertensor.capacity + len(rig.threads)):
        rig.worker.add((context, at), rig.lane((4,)), rows(2, at))
        rig.worker.end_round()
        npt.assert_array_equal(rig.worker.collect((context, at))[0], 2 * rows(2, at))
    wait_until(lambda: rig.supertensor.occupancy().in_flight == 0)
    rig.wait_idle()


# --- a run that raises


@pytest.mark.parametrize("quick", [False, True], ids=["in its thread", "inline"])
@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("a bug"), ExecutionFailed("a reason")], ids=type)
@pytest.mark.parametrize("where", ["run", "on_batch", "is_wanted"])
def test_whatever_raises_with_a_batch_its_callers_are_told_and_nothing_is_lost(
    quick: bool, error: Exception, where: str
) -> None:
    rig = Rig(DOUBLE, workers=2, quick_ns=ALWAYS if quick else 0)
    with rig.running():
        rig.wait_idle()
        if quick:
            rig.lane((4,)).note_run(2, 1_000)
            rig.lane((4,)).note_run(1, 1_000)
        with rig.runs[0].raising(error) if where == "run" else nullcontext():
            if where != "run":
                rig.faults[where] = error
            for worker in rig.workers:
                worker.add("a", rig.lane((4,)), rows(1))
                worker.add("b", rig.lane((4,)), rows(1))
            for worker in rig.workers:
                worker.end_round()
            for worker in rig.workers:
                for answer in worker.collect("a", "b"):
                    assert isinstance(answer, ExecutionFailed)
        rig.faults.clear()
        assert_serves(rig)
        assert rig.supertensor.occupancy().spare_bytes > 0
    for thread in rig.threads:
        assert not thread.is_alive()


def test_errors_that_come_with_every_batch_are_logged_once_in_a_while(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig(DOUBLE)

    def count_logged() -> int:
        return caplog.text.count("running a batch of model 'm' failed outside ONNX Runtime")

    with caplog.at_level(logging.ERROR), rig.running(), rig.runs[0].raising(OSError("a disk")):
        for at in range(20):
            rig.worker.add(at, rig.lane((4,)), rows(1))
            rig.worker.end_round()
            rig.worker.collect(at)
        assert count_logged() == 1
        now_ns = time.monotonic_ns
        monkeypatch.setattr(time, "monotonic_ns", lambda: now_ns() + PERIOD_NS)
        rig.worker.add("later", rig.lane((4,)), rows(1))
        rig.worker.end_round()
        rig.worker.collect("later")
        assert count_logged() == 2


def test_a_run_out_of_memory_fails_those_who_ask_for_it_alone() -> None:
    """y = x, by way of max(x) numbers."""
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["most"], keepdims=0),
        helper.make_node("Reshape", ["most", "one"], ["shape"]),
        helper.make_node("ConstantOfShape", ["shape"], ["zeros"]),
        helper.make_node("ReduceSum", ["zeros"], ["nothing"], keepdims=0),
        helper.make_node("Cast", ["nothing"], ["as_int"], to=TensorProto.INT64),
        helper.make_node("Add", ["x", "as_int"], ["y"]),
    ]
    shapes = [tensor(name, ["n", 1], TensorProto.INT64) for name in "xy"]
    rig = Rig(model(nodes, shapes[:1], shapes[1:], one=np.array([1])))
    for context, number in enumerate((3, 2**50, 5, 2**62, 7)):
        rig.worker.add(context, rig.lane((1,)), np.array([[number]]))
    rig.worker.end_round()
    with rig.running():
        one, large, two, beyond, three = rig.worker.collect(*range(5))
        assert [answer.item() for answer in (one, two, three)] == [3, 5, 7]
        assert isinstance(large, ExecutionFailed)
        assert str(large).startswith("onnx runtime error 1: ")
        assert "Failed to allocate memory" in str(large)
        assert isinstance(beyond, ExecutionFailed)
        assert "overflow" in str(beyond)
    assert sorted(rig.batches) == [(1, 1)] * 3


# --- what a model returns


class Odd(ModelSession):
    """A session whose model may return anything.

    Attributes:
        returned: in place of its output; None for that.
    """

    returned: Any = None

    def run_bound_dynamic(self, binding: Any) -> list[Any]:
        return super().run_bound_dynamic(binding) if self.returned is None else [self.returned]


@contextmanager
def returning(rig: Rig, returned: Any) -> Iterator[None]:
    """Have the model return something for the length of a block."""
    [session] = rig.sessions
    assert isinstance(session, Odd)
    session.returned = returned
    yield
    session.returned = None


@pytest.mark.parametrize("width", [4, "width"], ids=["known outputs", "dynamic outputs"])
def test_numbers_that_are_none_are_passed_on(width: int | str) -> None:
    rig = Rig(unary("Sqrt", ["n", width]))
    with rig.running():
        rig.worker.add("a", rig.lane((4,)), np.array([[4, -1, np.nan, np.inf]], np.float32))
        rig.worker.end_round()
        npt.assert_array_equal(rig.worker.collect("a")[0], [[2, np.nan, np.nan, np.inf]])


@pytest.mark.parametrize(
    ("returned", "text"),
    [
        (np.zeros((2, 4), np.float64), "FP64 [2, 4], expected FP32 [2, -1] for a batch of 2 rows"),
        (EncodedStrings.of([b""] * 8, (2, 4)), "BYTES [2, 4], expected FP32 [2, -1] for a batch of 2 rows"),
        (np.zeros((2, 4), np.complex64), "complex64 [2, 4], expected FP32 [2, -1] for a batch of 2 rows"),
        (np.zeros((3, 4), np.float64), "FP64 [3, 4], expected FP32 [2, -1] for a batch of 2 rows"),
    ],
)
def test_what_the_model_did_not_promise_is_named_and_nobodys_answer(returned: Any, text: str) -> None:
    rig = Rig(DOUBLE_LENGTHS, make_session=Odd)
    with rig.running():
        with returning(rig, returned):
            rig.worker.add("a", rig.lane((4,)), rows(2))
            rig.worker.end_round()
            [error] = rig.worker.collect("a")
        assert isinstance(error, ExecutionFailed)
        assert str(error) == f"model 'm' returned output 'y' as {text}"
        assert_serves(rig)


@pytest.mark.parametrize("shape", [(3, 4), (1, 4), (0, 4), ()])
def test_another_number_of_rows_is_all_of_one_request_and_parts_several(
    shape: tuple[int, ...], caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig(DOUBLE_LENGTHS, make_session=Odd)
    with rig.running():
        with returning(rig, np.ones(shape, np.float32)):
            rig.worker.add("a", rig.lane((4,)), rows(2))
            rig.worker.end_round()
            npt.assert_array_equal(rig.worker.collect("a")[0], np.ones(shape))
            joined = [rig.supertensor.joins]
            for name in "bcd":
                rig.worker.add(name, rig.lane((4,)), rows(2))
            rig.worker.end_round()
            for name in "bcd":
                npt.assert_array_equal(rig.worker.collect(name)[0], np.ones(shape))
        assert [*joined, rig.supertensor.joins] == [True, False]
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert_serves(rig)


@pytest.mark.parametrize("batched", [True, False])
def test_a_size_that_the_graph_fixes_and_the_model_does_not_keep_is_sent_and_named_once(
    batched: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """y is the first max(x) columns of x, whatever the graph says of it."""
    first: int | str = "n" if batched else 2
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["most"], keepdims=0),
        helper.make_node("Cast", ["most"], ["columns"], to=TensorProto.INT64),
        helper.make_node("Reshape", ["columns", "one"], ["end"]),
        helper.make_node("Slice", ["x", "start", "end", "axis"], ["y"]),
    ]
    shapes = tensor("x", [first, "k", 4]), tensor("y", [first, "k", 4])
    one, start, axis = (np.array([number]) for number in (1, 0, 2))
    rig = Rig(model(nodes, shapes[:1], shapes[1:], one=one, start=start, axis=axis))
    assert rig.signature.batched is batched
    with rig.running():
        lane = rig.lane((5, 4) if batched else (2, 5, 4))
        for columns in (4, 3, 2, 4):
            rig.worker.add("a", lane, np.full((2, 5, 4), columns, np.float32))
            rig.worker.end_round()
            npt.assert_array_equal(rig.worker.collect("a")[0], np.full((2, 5, columns), columns))
            rig.worker.answers.clear()
    declared = "[-1, -1, 4]" if batched else "[2, -1, 4]"
    [said] = [record.getMessage() for record in caplog.records if "declared" in record.getMessage()]
    assert said.startswith(
        f"model 'm': output 'y' is declared {declared} and came as [2, 5, 3], which is sent as it is"
    )


def test_outputs_of_a_squeezed_and_of_a_scalar_kind_are_what_was_promised() -> None:
    for content, rows_given in ((unary("Neg", ["n"]), 3), (unary("Neg", []), 1)):
        rig = Rig(content)
        rig.sessions[0].on_cpu = False  # so that they are looked at
        with rig.running():
            rig.worker.add("a", rig.lane(()), np.ones(rows_given, np.float32), rows=rows_given)
            rig.worker.end_round()
            npt.assert_array_equal(np.ravel(rig.worker.collect("a")[0]), [-1] * rows_given)


# --- outcomes that do not arrive


def test_a_worker_that_cannot_be_told_does_not_keep_the_others_waiting(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(DOUBLE, workers=3)
    failures = [MemoryError(), MemoryError(), RuntimeError("a bug")]
    one, other, last = rig.workers

    def refuse_once(result: BatchResult) -> None:
        if failures:
            raise failures.pop()
        other.results.put(result)

    one.finish = raising(RuntimeError("never"))
    other.finish = refuse_once
    failures[1:] = []
    for worker in rig.workers:
        worker.add("a", rig.lane((4,)), rows(1))
    for worker in rig.workers:
        worker.end_round()
    with rig.running():
        npt.assert_array_equal(last.collect("a")[0], 2 * rows(1))
        # The second try is an error, which takes less to deliver.
        assert str(other.collect("a")[0]) == "internal error"
        wait_until(lambda: rig.supertensor.occupancy().in_flight == 0)
        one.finish = None
        assert_serves(rig)
    assert "handing a batch's outcome to port 0 failed" in caplog.text
    assert "handing an error to port 0 failed; 1 requests wait for nothing" in caplog.text
    assert "handing an error to port 1" not in caplog.text


# --- rows that do not come in


@pytest.mark.parametrize("quick", [False, True], ids=["in its thread", "inline"])
def test_a_split_request_whose_copy_fails_is_answered_with_nobodys_rows(quick: bool) -> None:
    """Its rows are reserved, and hold what was there before. They run, inline before the error has come back."""
    rig = Rig(DOUBLE, batch_size=2, quick_ns=ALWAYS if quick else 0)
    lane = rig.packed((4,))
    with rig.running():
        rig.wait_idle()
        for size in (1, 2):
            lane.note_run(size, 1_000)
        assert_serves(rig)
        submitter = rig.worker.port
        with pytest.raises(ValueError, match="memoryview assignment"):  # the buffer ends within the second batch
            submitter.add_packed(submitter.writer(lane), 5, "split", bytes(3 * 16), [0, 5 * 16])
        rig.worker.end_round()
        wait_until(lambda: rig.supertensor.occupancy().in_flight == 0)
        assert rig.worker.results.empty()
        assert_serves(rig, "later")


def test_an_array_that_cannot_be_kept_is_answered_with_nobodys_rows() -> None:
    rig = Rig(unary("Identity", ["n", 1], TensorProto.STRING), batch_size=2)
    lane = rig.lane((1,))
    with rig.running():
        rig.worker.add("before", lane, np.array([[b"x"]], object))
        with pytest.raises(TypeError):
            rig.worker.port.add_gathered(lane, 3, "broken", [None])
        rig.worker.end_round()
        assert rig.worker.collect("before")[0].tolist() == [[b"x"]]
        wait_until(lambda: rig.supertensor.occupancy().in_flight == 0)
        assert "broken" not in rig.worker.answers
        assert rig.worker.results.empty()


def test_a_batch_for_which_there_is_no_memory_is_turned_away() -> None:
    has_memory = False

    def allocate(shape: tuple[int, ...], dtype: Any) -> Any:
        if not has_memory:
            raise MemoryError
        return np.empty(shape, dtype)

    rig = Rig(DOUBLE, allocate=allocate)
    with rig.running():
        with pytest.raises(Overloaded, match=r"model 'm': no memory for one more batch of 8 rows, which takes 256"):
            rig.worker.add("a", rig.lane((4,)), rows(1))
        with pytest.raises(Overloaded):
            rig.worker.add("split", rig.lane((4,)), rows(20))
        has_memory = True
        assert rig.supertensor.occupancy().in_flight == 0
        assert_serves(rig)


# --- threads that die


class Ended(BaseException):
    """No Exception."""


def test_what_is_no_exception_ends_the_thread_when_its_callers_have_been_told() -> None:
    rig = Rig(DOUBLE, capacity=2)
    deaths: list[BaseException] = []
    [executor] = rig.executors

    def run() -> None:
        try:
            executor.run()
        except BaseException as death:
            deaths.append(death)

    rig.threads = [threading.Thread(target=run)]
    rig.worker.add("a", rig.lane((4,)), rows(1))
    rig.worker.end_round()
    with rig.runs[0].raising(Ended()):
        rig.start()
        [error] = rig.worker.collect("a")
        assert str(error) == "running the batch failed: Ended"
        rig.threads[0].join(120)
    assert [type(death) for death in deaths] == [Ended]
    assert rig.supertensor.occupancy().in_flight == 0
    # It has no thread, and is offered nothing: what comes waits for the next thread.
    assert rig.supertensor.occupancy().idle_executors == 0
    rig.worker.add("b", rig.lane((4,)), rows(1))
    rig.worker.end_round()
    rig.threads = [threading.Thread(target=run)]
    with rig.running():
        npt.assert_array_equal(rig.worker.collect("b")[0], 2 * rows(1))
        assert_serves(rig)


def test_what_is_no_exception_does_not_end_the_thread_that_runs_inline() -> None:
    rig = Rig(DOUBLE, quick_ns=ALWAYS)
    with rig.running():
        rig.wait_idle()
        rig.lane((4,)).note_run(1, 1_000)
        with rig.runs[0].raising(Ended()):
            rig.worker.add("a", rig.lane((4,)), rows(1))
            rig.worker.end_round()
            assert not rig.worker.results.empty()
        assert str(rig.worker.collect("a")[0]) == "running the batch failed: Ended"
        assert rig.supertensor.occupancy().idle_executors == 1
        assert_serves(rig)


@pytest.mark.parametrize("when", ["idle", "with a batch in its inbox", "inline"])
def test_an_executor_whose_thread_ended_while_it_waited_goes_on_where_it_was(when: str) -> None:
    """Nothing in the loop can end it there; should anything, its place among the idle ones must not be taken twice."""
    rig = Rig(DOUBLE, quick_ns=ALWAYS)
    [executor] = rig.executors
    supertensor = rig.supertensor

    class Interrupted:
        """An inbox whose ``get`` is interrupted."""

        def get(self) -> None:
            raise Ended

    inbox = executor.inbox
    assert isinstance(inbox, SimpleQueue)
    executor.inbox = Interrupted()  # type: ignore[assignment]
    with pytest.raises(Ended):
        executor.run()
    executor.inbox = inbox
    assert supertensor.occupancy().idle_executors == 1
    rig.worker.add("a", rig.lane((4,)), rows(1))
    if when == "with a batch in its inbox":
        rig.worker.end_round()
        assert not inbox.empty()
    if when == "inline":
        rig.lane((4,)).note_run(1, 1_000)
        rig.gate.clear()
        thread = threading.Thread(target=rig.worker.end_round)
        thread.start()
        wait_until(lambda: supertensor.occupancy().idle_executors == 0)
    with rig.running():
        rig.gate.set()
        if when == "inline":
            thread.join(120)
        rig.worker.end_round()
        npt.assert_array_equal(rig.worker.collect("a")[0], 2 * rows(1))
        rig.wait_idle()
        assert supertensor.occupancy().idle_executors == 1
        assert_serves(rig)
    assert inbox.empty()


# --- profiles


@pytest.mark.parametrize("fault", ["cut short", "missing", "raises"])
def test_a_profile_that_cannot_be_written_takes_no_request_down(
    fault: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    prefix = tmp_path / ("missing/profile" if fault == "missing" else "profile")
    rig = Rig(gather(), profile=(prefix, 2))
    session = rig.sessions[0].session
    write_profile = session.end_profiling

    def write_half() -> str:
        path = str(write_profile())
        os.truncate(path, os.path.getsize(path) // 2)
        return path

    if fault == "cut short":
        monkeypatch.setattr(session, "end_profiling", write_half)
    if fault == "raises":
        monkeypatch.setattr(session, "end_profiling", raising(OSError("No space left on device")))
    with rig.running():
        for at in range(4):
            rig.worker.add(at, rig.lane((1,)), np.array([[1]]))
            rig.worker.end_round()
            npt.assert_array_equal(rig.worker.collect(at)[0], [[20]])
    assert caplog.text.count("the profile of model 'm' could not be written: ") == 1
