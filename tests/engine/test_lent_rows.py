"""Large rows that are run where they were received, and what becomes of the message's memory."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.testing as npt
import pytest
from onnx import TensorProto, helper

from tests.engine.rig import Rig
from tests.engine.workers import inline_time
from tests.graphs import DOUBLE_LENGTHS, double, model, tensor
from tests.waiting import wait_until
from toutates.engine import executor, lane_table, long_copies
from toutates.engine.lane import LEAST_LENT_BYTES, Batch
from toutates.engine.long_copies import STEP_BYTES
from toutates.engine.submitter import ALIGNMENT
from toutates.system.errors import ExecutionFailed, InvalidRequest, ModelNotReady, Overloaded

#: Any run is quick, once there was one of its size.
ALWAYS = 2**61
LENGTH: Final = LEAST_LENT_BYTES // 4
ROW: Final = np.arange(LENGTH, dtype=np.float32)


class Message(mmap.mmap):
    """The memory of one message, with a row of numbers in it."""

    @classmethod
    def of(cls, row: Any = ROW, start: int = ALIGNMENT) -> Message:
        """A message with a row from ``start`` on."""
        message = cls(-1, start + row.nbytes)
        message[start:] = row.tobytes()
        return message

    @property
    def is_free(self) -> bool:
        """Whether nobody has a view of it."""
        try:
            self.resize(super().__len__())
        except BufferError:
            return False
        return True


class Running:
    """A rig that lends, whose model is known to be quick, and which notes where its runs have read."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        #: of each run: whether the rows were lent, and the batch
        self.runs: list[tuple[bool, Batch]] = []
        [runs] = self.rig.runs

        def noted(batch: Batch, first: int, rows: int) -> Any:
            self.runs.append((bool(batch.lent_at), batch))
            return runs.backend.run(batch, first, rows)

        runs.instead = noted

    def add(self, context: Any, buffer: Any, start: int = ALIGNMENT, *, length: int = LENGTH, worker: int = 0) -> None:
        """Add a request of one row."""
        submitter = self.rig.workers[worker].port
        writer = submitter.writer(self.rig.packed((length,)))
        submitter.add_packed(writer, 1, context, buffer, (start, start + 4 * length))

    def answer(self, context: Any, worker: int = 0) -> Any:
        """The answer of a request whose round ends."""
        self.rig.workers[worker].end_round()
        [answer] = self.rig.workers[worker].collect(context)
        return answer

    @property
    def lent(self) -> list[bool]:
        """Of each run, whether the rows were lent."""
        return [lent for lent, _ in self.runs]


def quick(content: bytes = DOUBLE_LENGTHS, length: int = LENGTH, **settings: Any) -> Running:
    rig = Rig(content, quick_ns=ALWAYS, lends=True, **settings)
    rig.lane((length,)).note_run(1, 1_000)
    return Running(rig)


@pytest.fixture
def running() -> Iterator[Running]:
    running = quick(workers=2)
    with running.rig.running():
        running.rig.wait_idle()
        yield running
        running.rig.assert_empty()


@pytest.mark.parametrize("content", [DOUBLE_LENGTHS, double(["n", LENGTH])], ids=["dynamic outputs", "known outputs"])
def test_a_large_row_is_run_where_it_was_received_and_its_memory_is_free_with_the_answer(content: bytes) -> None:
    running = quick(content)
    with running.rig.running():
        running.rig.wait_idle()
        for number in range(3):
            message = Message.of(ROW + number)
            running.add(number, message)
            assert message.is_free
            npt.assert_array_equal(running.answer(number)[0], 2 * (ROW + number))
    assert running.lent == [True] * 3
    running.rig.assert_empty()


def test_what_was_bound_to_an_address_is_used_again(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    message, other = Message.of(), Message.of(ROW + 1)
    for number in range(3):
        message[ALIGNMENT:] = (ROW + number).tobytes()
        running.add(number, message)
        npt.assert_array_equal(running.answer(number)[0], 2 * (ROW + number))
    running.add("other", other)
    npt.assert_array_equal(running.answer("other")[0], 2 * (ROW + 1))
    batches = [batch for _, batch in running.runs]
    assert batches[0] is batches[1] is batches[2] is not batches[3]
    assert [len(batch.bindings) for batch in batches] == [1] * 4
    monkeypatch.setattr(lane_table, "MAX_LENT", 2)
    running.add("third", Message.of())
    running.answer("third")
    assert len(running.rig.packed((LENGTH,)).lent) <= 3


def test_outputs_that_are_large_are_not_kept_with_a_batch() -> None:
    running = quick(double(["n", LENGTH]))
    with running.rig.running():
        running.rig.wait_idle()
        running.add("a", Message.of())
        running.answer("a")
    assert running.lent == [True]
    assert not running.rig.packed((LENGTH,)).lent


@pytest.mark.parametrize("kind", ["bytes", "bytearray", "memoryview", "not aligned", "small"])
def test_rows_that_cannot_stay_are_copied(running: Running, kind: str) -> None:
    message = Message.of(start=ALIGNMENT + 4 if kind == "not aligned" else ALIGNMENT)
    buffer: Any = {"bytes": bytes, "bytearray": bytearray, "memoryview": memoryview}.get(kind, lambda same: same)(
        message
    )
    length = LENGTH - 1 if kind == "small" else LENGTH
    running.rig.lane((length,)).note_run(1, 1_000)
    running.add("a", buffer, ALIGNMENT + 4 if kind == "not aligned" else ALIGNMENT, length=length)
    npt.assert_array_equal(running.answer("a")[0], 2 * ROW[:length])
    assert running.lent == [False]


def test_a_request_of_more_rows_than_a_batch_takes_is_copied() -> None:
    running = quick(batch_size=2, capacity=8)
    rows = np.stack([ROW + number for number in range(8)])
    message: Any = Message.of(rows.reshape(-1))
    with running.rig.running():
        running.rig.wait_idle()
        submitter = running.rig.worker.port
        writer = submitter.writer(running.rig.packed((LENGTH,)))
        submitter.add_packed(writer, 8, "a", message, (ALIGNMENT, ALIGNMENT + rows.nbytes))
        npt.assert_array_equal(running.answer("a"), 2 * rows)
    assert not any(running.lent)


def test_rows_of_several_inputs_are_copied() -> None:
    node = helper.make_node("Add", ["a", "b"], ["y"])
    shape: list[int | str | None] = ["n", LENGTH]
    running = Running(
        Rig(model([node], [tensor("a", shape), tensor("b", shape)], [tensor("y", shape)]), quick_ns=ALWAYS, lends=True)
    )
    rig = running.rig
    lane = rig.packed((LENGTH,), (LENGTH,))
    lane.note_run(1, 1_000)
    message: Any = Message.of(np.concatenate([ROW, ROW + 1]))
    ends = [ALIGNMENT, ALIGNMENT + ROW.nbytes, ALIGNMENT + ROW.nbytes, ALIGNMENT + 2 * ROW.nbytes]
    with rig.running():
        rig.wait_idle()
        rig.worker.port.add_packed(rig.worker.port.writer(lane), 1, "a", message, ends)
        npt.assert_array_equal(running.answer("a")[0], 2 * ROW + 1)
    assert running.lent == [False]


def test_rows_of_a_model_that_is_not_quick_or_whose_executors_are_busy_are_copied() -> None:
    slow = Running(Rig(DOUBLE_LENGTHS, quick_ns=1, lends=True))
    with slow.rig.running():
        slow.rig.wait_idle()
        slow.add("a", Message.of())
        npt.assert_array_equal(slow.answer("a")[0], 2 * ROW)
    busy = quick()
    message = Message.of()
    busy.add("a", message)  # no executor has begun
    assert message.is_free
    with busy.rig.running():
        npt.assert_array_equal(busy.answer("a")[0], 2 * ROW)
    assert slow.lent + busy.lent == [False, False]


def test_rows_are_copied_where_the_round_has_no_time_left(running: Running) -> None:
    with inline_time(1):
        for context in range(3):
            running.add(context, Message.of())
        for context in range(3):
            npt.assert_array_equal(running.answer(context)[0], 2 * ROW)
    assert running.lent[0]
    assert not any(running.lent[1:])
    assert running.rig.ran_in[0] is threading.current_thread()
    assert set(running.rig.ran_in[1:]) == {running.rig.threads[0]}


class Clocks:
    """The clocks of executors, in place of ``time``: a run takes so long by each of them.

    Attributes:
        cpu_reads: how often CPU time was read.
    """

    def __init__(self, wall_ns: int, cpu_ns: int) -> None:
        self.wall_ns, self.cpu_ns = wall_ns, cpu_ns
        self.now_ns = self.cpu_now_ns = self.cpu_reads = 0

    def monotonic_ns(self) -> int:
        self.now_ns += self.wall_ns
        return self.now_ns

    def thread_time_ns(self) -> int:
        self.cpu_reads += 1
        self.cpu_now_ns += self.cpu_ns
        return self.cpu_now_ns


def test_a_run_that_was_interrupted_does_not_count_as_one_that_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(double(["n", LENGTH]), quick_ns=10_000_000, lends=True)
    lane = rig.lane((LENGTH,))
    lane.note_run(1, 1_000)
    running = Running(rig)
    clocks = Clocks(wall_ns=5_000, cpu_ns=5_000)

    def ask(times: int) -> None:
        for _ in range(times):
            running.add("a", Message.of())
            running.answer("a")

    with rig.running():
        rig.wait_idle()
        monkeypatch.setattr(executor, "time", clocks)
        ask(2)
        assert not clocks.cpu_reads  # the clock alone says that they are quick
        clocks.wall_ns = 10**9
        ask(3)
        assert clocks.cpu_reads == 2 * 2
        assert lane.is_quick(1, 10_001)
        clocks.cpu_ns = 10**9
        ask(1)
        assert not lane.is_quick(1, 10_000_000)
        ask(1)
        monkeypatch.undo()
    assert running.lent == [True] * 6 + [False]


def test_once_no_run_takes_long_any_more_they_are_measured_by_the_clock_again(monkeypatch: pytest.MonkeyPatch) -> None:
    running = quick()
    clocks = Clocks(wall_ns=5_000, cpu_ns=5_000)
    with running.rig.running():
        running.rig.wait_idle()
        running.rig.executors[0]._doubts = 3
        monkeypatch.setattr(executor, "time", clocks)
        for _ in range(5):
            running.add("a", Message.of())
            running.answer("a")
        monkeypatch.undo()
    assert clocks.cpu_reads == 2 * 3
    assert running.lent == [True] * 5


def test_a_row_joins_the_batch_that_others_share(running: Running) -> None:
    rig = running.rig
    lane = rig.packed((LENGTH,))
    rig.worker.port._reserve_parts(lane, 1)  # what a worker does whose round is not over
    running.add("b", Message.of(), worker=1)
    assert not running.runs
    rig.worker.end_round()
    rig.worker.port.commit()
    npt.assert_array_equal(running.answer("b", worker=1)[0], 2 * ROW)
    assert running.lent == [False]


def held(running: Running, message: Message, context: str = "a") -> threading.Thread:
    """Have worker 0 run a message's row, as far as the gate lets it."""
    thread = running.rig.hold(running.add, context, message)
    assert not message.is_free
    return thread


def test_memory_is_kept_and_counted_as_long_as_a_run_reads_it(running: Running) -> None:
    message = Message.of()
    thread = held(running, message)
    budget, occupancy = running.rig.supertensor.budget, running.rig.supertensor.occupancy()
    assert (budget.rows, budget.memory_bytes) == (1, ROW.nbytes)
    assert (occupancy.rows, occupancy.in_flight_bytes) == (1, ROW.nbytes)
    running.rig.gate.set()
    thread.join()
    assert message.is_free
    npt.assert_array_equal(running.answer("a")[0], 2 * ROW)


def test_a_version_that_is_closed_while_a_run_reads_a_message_answers_and_takes_no_more() -> None:
    running = quick()
    with running.rig.running():
        running.rig.wait_idle()
        message, other = Message.of(), Message.of()
        thread = held(running, message)
        running.rig.supertensor.close()
        with pytest.raises(ModelNotReady):
            running.add("b", other)
        running.rig.gate.set()
        thread.join()
        npt.assert_array_equal(running.answer("a")[0], 2 * ROW)
        assert message.is_free
        assert other.is_free
    running.rig.supertensor.free()
    assert not running.rig.supertensor.lanes.spare_bytes


def test_a_request_that_nobody_waits_for_any_more_is_not_run_and_its_memory_is_free(running: Running) -> None:
    running.rig.unwanted.add("reset")
    running.rig.deadlines["late"] = 1
    for context in ("reset", "late"):
        message = Message.of()
        running.add(context, message)
        assert message.is_free
        assert str(running.answer(context)) == "Deadline Exceeded"
    assert not running.runs


def test_a_run_that_fails_fails_its_request_and_frees_the_memory() -> None:
    indices = np.full(LEAST_LENT_BYTES // 8, 7, np.int64)
    node = helper.make_node("Gather", ["table", "x"], ["y"])
    content = model(
        [node],
        [tensor("x", ["n", "length"], TensorProto.INT64)],
        [tensor("y", ["n", "length"])],
        table=np.array([10, 20, 30], np.float32),
    )
    running = quick(content, len(indices))
    rig = running.rig
    with rig.running():
        rig.wait_idle()
        for number in (7, 2):
            message: Any = Message.of(np.full_like(indices, number))
            lane = rig.packed((len(indices),))
            spans = (ALIGNMENT, ALIGNMENT + indices.nbytes)
            rig.worker.port.add_packed(rig.worker.port.writer(lane), 1, number, message, spans)
            outcome = running.answer(number)
            if number == 7:
                assert isinstance(outcome, ExecutionFailed)
            else:
                npt.assert_array_equal(outcome[0], np.full(len(indices), 30, np.float32))
            del outcome
            rig.worker.errors.clear()
            rig.worker.seen.clear()
            assert message.is_free
    assert running.lent == [True, True]
    rig.assert_empty()


def test_rows_that_are_lent_are_within_the_bounds() -> None:
    running = quick(capacity_bytes=ROW.nbytes * 3 // 2, capacity=1, batch_size=2, workers=2)
    rig = running.rig
    with rig.running():
        rig.wait_idle()
        thread = held(running, Message.of())
        with pytest.raises(Overloaded):
            running.add("b", Message.of(), worker=1)
        rig.gate.set()
        thread.join()
        long = np.zeros(2 * LENGTH, np.float32)
        rig.lane((2 * LENGTH,)).note_run(1, 1_000)
        with pytest.raises(InvalidRequest, match="all batches of model 'm' may take"):
            running.add("c", Message.of(long), length=2 * LENGTH)
        npt.assert_array_equal(running.answer("a")[0], 2 * ROW)
    rig.assert_empty()


def test_an_output_that_is_the_input_is_a_copy_of_it() -> None:
    """ONNX Runtime returns the memory that is bound."""
    rows: list[int | str | None] = ["n", "length"]
    content = model(
        [helper.make_node("Neg", ["x"], ["y"])], [tensor("x", rows)], [tensor("y", rows), tensor("x", rows)]
    )
    running = quick(content)
    with running.rig.running():
        running.rig.wait_idle()
        message = Message.of()
        running.add("a", message)
        running.rig.worker.end_round()
        running.rig.worker.collect("a")
        message[:] = bytes(ALIGNMENT + ROW.nbytes)
        negated, same = running.rig.worker.answers["a"]
        npt.assert_array_equal(negated[0], -ROW)
        npt.assert_array_equal(same[0], ROW)
    assert running.lent == [True]


@pytest.mark.parametrize("kind", [bytes, bytearray])
def test_a_row_that_is_copied_and_takes_long_leaves_rounds_to_others(
    running: Running, kind: type[bytes | bytearray]
) -> None:
    """The message is read-only, or a body, and so cannot be lent; the rounds between are those of other requests."""
    length = 5 * STEP_BYTES // 8
    large = np.arange(length, dtype=np.float32)
    worker = running.rig.workers[0]
    message: Any = kind(bytes(ALIGNMENT) + large.tobytes())
    running.add("large", message, length=length)
    for number in range(2):  # the third step is the last one
        running.add(number, bytes(ALIGNMENT) + ROW.tobytes())
        npt.assert_array_equal(running.answer(number)[0], 2 * ROW)
        assert "large" not in [context for _, batch in running.runs for own in batch.pending for context, *_ in own]
    worker.end_round()
    [answer] = worker.collect("large")
    npt.assert_array_equal(answer[0], 2 * large)


def test_copies_take_turns(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes ten steps is there before what takes thirty-two, which came first."""
    monkeypatch.setattr(long_copies, "STEP_BYTES", STEP_BYTES // 8)
    larger, large = np.arange(STEP_BYTES, dtype=np.float32), np.arange(5 * STEP_BYTES // 16, dtype=np.float32)
    worker = running.rig.workers[0]
    for context, row in (("larger", larger), ("large", large)):
        running.add(context, bytes(ALIGNMENT) + row.tobytes(), length=len(row))
    while worker.callbacks:
        worker.end_round()
    answers = worker.collect("larger", "large")
    for answer, row in zip(answers, (larger, large), strict=True):
        npt.assert_array_equal(answer[0], 2 * row)
    assert list(worker.answers) == ["large", "larger"]


def test_what_a_worker_was_copying_when_it_ended_holds_up_nobody(running: Running) -> None:
    length = 5 * STEP_BYTES // 8
    running.add("large", bytes(ALIGNMENT + 4 * length), length=length)
    running.rig.workers[0].end_round()
    running.rig.close(workers_ended=True)
    wait_until(lambda: running.rig.supertensor.queue.finished)


def test_a_copy_that_fails_fails_its_request_only(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    length = 5 * STEP_BYTES // 8
    large = np.arange(length, dtype=np.float32)
    worker = running.rig.workers[0]
    for context in ("failing", "other"):
        running.add(context, bytes(ALIGNMENT) + large.tobytes(), length=length)
    callbacks, worker.callbacks = worker.callbacks, []
    monkeypatch.setattr(long_copies, "STEP_BYTES", None)
    with pytest.raises(TypeError):
        callbacks[0]()
    monkeypatch.undo()
    for callback in callbacks[1:]:
        callback()
    for _ in range(3):
        worker.end_round()
    failed, answer = worker.collect("failing", "other")
    assert isinstance(failed, ExecutionFailed)
    npt.assert_array_equal(answer[0], 2 * large)
