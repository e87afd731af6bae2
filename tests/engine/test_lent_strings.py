"""Large BYTES that are run where they were received, and what becomes of the message's memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pytest
from onnx import TensorProto, helper

from tests.engine.rig import Rig
from tests.engine.test_lent_rows import ALWAYS, Message
from tests.engine.workers import inline_time
from tests.graphs import model, tensor, unary
from tests.waiting import PATIENCE_S, wait_until
from toutates.engine.lane import LEAST_LENT_BYTES, Batch, GatheredLane
from toutates.engine.long_copies import STEP_BYTES
from toutates.engine.submitter import StringPort
from toutates.protocol import strings
from toutates.protocol.strings import EncodedStrings
from toutates.system.errors import ExecutionFailed, InvalidRequest, ModelNotReady, Overloaded

#: y = x: outputs of any size.
SAME: Final = unary("Identity", ["n", "m"], TensorProto.STRING)
#: y = the number that x says: outputs that are known beforehand, of strings that C reads as far as their 0.
NUMBERS: Final = model(
    [helper.make_node("Cast", ["x"], ["y"], to=TensorProto.DOUBLE)],
    [tensor("x", ["n", 1], TensorProto.STRING)],
    [tensor("y", ["n", 1], TensorProto.DOUBLE)],
)
START: Final = 9
LARGE: Final = b"\xff\0" * (LEAST_LENT_BYTES // 2)


def number(value: float) -> bytes:
    """A large element that says a number."""
    return b" " * LEAST_LENT_BYTES + str(value).encode()


def message_of(*elements: bytes, behind: bytes = b"9") -> tuple[Message, int]:
    """The memory of a message that ends with these elements, and where they end."""
    content = EncodedStrings.of(elements, (len(elements),)).content
    end = START + len(content)
    message = Message(-1, end + len(behind))
    message[START:] = content + behind
    return message, end


class Running:
    """A rig whose model is known to be quick, and which notes where its runs have read."""

    def __init__(
        self, content: bytes = SAME, *, shape: tuple[int, ...] = (1,), is_quick: bool = True, **settings: Any
    ) -> None:
        self.rig = Rig(content, **{"lends": True, "quick_ns": ALWAYS, **settings})
        self.shape = shape
        #: of each run: whether the rows were lent, and the batch
        self.runs: list[tuple[bool, Batch]] = []
        if is_quick:
            self.rig.lane(shape).note_run(1, 1_000)
        [runs] = self.rig.runs

        def noted(batch: Batch, first: int, rows: int) -> Any:
            self.runs.append((bool(batch.lent_at), batch))
            return runs.backend.run(batch, first, rows)

        runs.instead = noted

    def add(self, context: Any, buffer: Any, end: int, *, worker: int = 0, rows: int = 1) -> None:
        """Add a request, as a service does it."""
        lane = self.rig.lane(self.shape)
        port = StringPort(self.rig.workers[worker].port)
        way: Any = port.way(lane.row_shapes)
        assert way is lane
        port.add_packed(lane, rows, context, buffer, (START, end))

    def answer(self, context: Any, worker: int = 0) -> Any:
        """The answer of a request whose round ends."""
        self.rig.workers[worker].end_round()
        [answer] = self.rig.workers[worker].collect(context)
        return answer

    @property
    def lent(self) -> list[bool]:
        """Of each run, whether the rows were lent."""
        return [lent for lent, _ in self.runs]


@pytest.fixture
def running() -> Iterator[Running]:
    running = Running(workers=2)
    with running.rig.running():
        running.rig.wait_idle()
        yield running
        running.rig.assert_empty()


def test_a_large_element_is_run_where_it_was_received_and_its_memory_is_free_with_the_answer(running: Running) -> None:
    for turn in range(3):
        element = LARGE + bytes([turn])
        message, end = message_of(element)
        running.add(turn, message, end)
        assert message.is_free
        assert message[START:end] == EncodedStrings.of([element], (1,)).content
        assert running.answer(turn).tolist() == [[element]]
    assert running.lent == [True] * 3
    batches = [batch for _, batch in running.runs]
    assert batches[0] is batches[1] is batches[2]
    assert len(running.rig.lane((1,)).lent) == 1
    assert not running.rig.lane((1,)).spare


def test_known_outputs_stay_bound_and_what_is_behind_an_element_does_not_belong_to_it() -> None:
    running = Running(NUMBERS)
    answers = []
    with running.rig.running():
        running.rig.wait_idle()
        for value in (1.5, 2.5, 3.5):
            message, end = message_of(number(value), behind=b"9")
            running.add(value, message, end)
            assert message.is_free
            answers.append(running.answer(value))
    assert [answer.tolist() for answer in answers] == [[[1.5]], [[2.5]], [[3.5]]]  # none was overwritten by the next
    assert running.lent == [True] * 3
    running.rig.assert_empty()


@pytest.mark.parametrize(
    "elements",
    [
        [LARGE, b"", b"short", LARGE[:100]],
        [b"", b"0123456789abcdef", b"0123456789abcde", LARGE],
        [LARGE] * 4,
    ],
    ids=["first", "last", "all"],
)
def test_elements_of_one_request_are_right_whatever_their_lengths(elements: Sequence[bytes]) -> None:
    running = Running(shape=(4,))
    with running.rig.running():
        running.rig.wait_idle()
        message, end = message_of(*elements)
        running.add("a", message, end)
        assert message.is_free
        assert running.answer("a").tolist() == [list(elements)]
    assert running.lent == [True]
    running.rig.assert_empty()


def test_several_rows_of_one_request_are_one_batch(running: Running) -> None:
    running.rig.lane((1,)).note_run(3, 1_000)
    elements = [LARGE, b"b", LARGE + b"c"]
    message, end = message_of(*elements)
    running.add("a", message, end, rows=3)
    assert running.answer("a").tolist() == [[element] for element in elements]
    assert running.lent == [True]
    assert running.rig.batches == [(3, 1)]


@pytest.mark.parametrize(
    "kind", ["bytes", "bytearray", "memoryview", "small", "no room behind", "many", "too many rows"]
)
def test_elements_that_cannot_stay_are_copied(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if kind == "many":
        monkeypatch.setattr(strings, "MANY_ELEMENTS", 1)
    running = Running(NUMBERS, batch_size=2, capacity=8)
    rows = {"many": 2, "too many rows": 3}.get(kind, 1)
    running.rig.lane((1,)).note_run(rows, 1_000)
    values = [1.5, 2.5, 3.5][:rows]
    elements = [b"1.5"] if kind == "small" else [number(value) for value in values]
    message, end = message_of(*elements, behind=b"" if kind == "no room behind" else b"9")
    before = message[:]
    convert: Any = {"bytes": bytes, "bytearray": bytearray, "memoryview": memoryview}.get(kind, lambda same: same)
    with running.rig.running():
        running.rig.wait_idle()
        running.add("a", convert(message), end, rows=rows)
        del convert
        assert message.is_free
        assert running.answer("a").tolist() == [[value] for value in values]
    assert not any(running.lent)
    assert message[:] == before
    running.rig.assert_empty()


def test_a_lane_lends_only_where_its_one_input_is_bytes() -> None:
    concat = helper.make_node("Concat", ["a", "b"], ["y"], axis=1)
    shape: list[int | str | None] = ["n", "m"]
    two = [tensor(name, shape, TensorProto.STRING) for name in "ab"]
    both = Rig(model([concat], two, [tensor("y", shape, TensorProto.STRING)]), lends=True)
    lanes = [
        both.lane((1,), (1,)),
        Rig(unary("Neg", shape), lends=True).lane((0,)),
        Rig(SAME).lane((1,)),
        Rig(SAME, lends=True).lane((1,)),
    ]
    assert all(isinstance(lane, GatheredLane) for lane in lanes)
    assert [lane.lends_strings for lane in lanes] == [False, False, False, True]


def test_elements_of_a_model_that_is_not_quick_or_whose_executors_are_busy_are_copied() -> None:
    for running in (Running(quick_ns=1), Running(is_quick=False)):
        with running.rig.running():
            running.rig.wait_idle()
            running.add("a", *message_of(LARGE))
            assert running.answer("a").tolist() == [[LARGE]]
        assert running.lent == [False]
    busy = Running()
    message, end = message_of(LARGE)
    busy.add("a", message, end)  # no executor has begun
    assert message.is_free
    with busy.rig.running():
        assert busy.answer("a").tolist() == [[LARGE]]
    assert busy.lent == [False]


def test_elements_are_copied_where_the_round_has_no_time_left(running: Running) -> None:
    with inline_time(0):
        running.add("a", *message_of(LARGE))
        assert running.answer("a").tolist() == [[LARGE]]
    assert running.lent == [False]
    assert running.rig.ran_in == running.rig.threads


def test_elements_join_the_batch_that_others_share(running: Running) -> None:
    rig = running.rig
    small, end = message_of(b"small")
    running.add("a", small, end)
    running.add("b", *message_of(LARGE), worker=1)
    assert not running.runs
    rig.workers[1].end_round()
    assert running.answer("a").tolist() == [[b"small"]]
    assert running.answer("b", worker=1).tolist() == [[LARGE]]
    assert running.lent == [False]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (EncodedStrings.of([LARGE, b"b"], (2,)).content, "unexpected number of string elements 2"),
        (EncodedStrings.of([LARGE], (1,)).content[:-1], "incomplete string data"),
        (EncodedStrings.of([LARGE], (1,)).content + b"\0", "incomplete string length indicator"),
    ],
    ids=["too many", "cut", "more"],
)
def test_wrong_elements_are_refused_before_anything_is_reserved(running: Running, content: bytes, text: str) -> None:
    message = Message(-1, START + len(content) + 5)
    message[START : START + len(content)] = content
    before = message[:]
    with pytest.raises(InvalidRequest, match=text) as caught:
        running.add("a", message, START + len(content))
    del caught
    assert message.is_free
    assert message[:] == before
    running.rig.assert_empty()


def test_what_is_wrong_with_many_elements_is_told_with_the_request_it_is_wrong_with(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are located when the batch runs, where nobody puts these words before the text."""
    monkeypatch.setattr(strings, "MANY_ELEMENTS", 1)
    running.shape = (3,)
    running.add("a", *message_of(LARGE, b"b"))
    assert str(running.answer("a")).startswith("[request id: <id_unknown>] expected 3 string elements")


def held(running: Running, message: Message, end: int) -> threading.Thread:
    """Have worker 0 run an element, as far as the gate lets it."""
    thread = running.rig.hold(running.add, "a", message, end)
    assert not message.is_free
    return thread


def test_memory_is_kept_and_counted_as_long_as_a_run_reads_it(running: Running) -> None:
    message, end = message_of(LARGE)
    thread = held(running, message, end)
    budget, occupancy = running.rig.supertensor.budget, running.rig.supertensor.occupancy()
    assert (budget.rows, budget.memory_bytes) == (1, end - START)
    assert (occupancy.rows, occupancy.in_flight_bytes) == (1, end - START)
    running.rig.gate.set()
    thread.join(PATIENCE_S)
    assert message.is_free
    assert running.answer("a").tolist() == [[LARGE]]


def test_elements_that_are_lent_are_within_the_bounds() -> None:
    running = Running(capacity_bytes=len(LARGE) * 3 // 2, capacity=1, batch_size=2, workers=2)
    with running.rig.running():
        running.rig.wait_idle()
        thread = held(running, *message_of(LARGE))
        other, end = message_of(LARGE)
        with pytest.raises(Overloaded) as caught:
            running.add("b", other, end, worker=1)
        running.rig.gate.set()
        thread.join(PATIENCE_S)
        with pytest.raises(InvalidRequest, match="all batches of model 'm' may take") as too_large:
            running.add("c", *message_of(LARGE * 2))
        assert running.answer("a").tolist() == [[LARGE]]
        del caught, too_large
        assert other.is_free
    running.rig.assert_empty()


def test_a_version_that_is_closed_while_a_run_reads_a_message_answers_and_takes_no_more() -> None:
    running = Running()
    with running.rig.running():
        running.rig.wait_idle()
        message, end = message_of(LARGE)
        thread = held(running, message, end)
        running.rig.supertensor.close()
        other, end = message_of(LARGE)
        with pytest.raises(ModelNotReady) as caught:
            running.add("b", other, end)
        running.rig.gate.set()
        thread.join(PATIENCE_S)
        assert running.answer("a").tolist() == [[LARGE]]
        del caught
        assert message.is_free
        assert other.is_free
    running.rig.supertensor.free()


def test_a_request_that_nobody_waits_for_any_more_is_not_run_and_its_memory_is_free(running: Running) -> None:
    running.rig.unwanted.add("reset")
    running.rig.deadlines["late"] = 1
    for context in ("reset", "late"):
        message, end = message_of(LARGE)
        running.add(context, message, end)
        assert message.is_free
        assert str(running.answer(context)) == "Deadline Exceeded"
    assert not running.runs


def test_a_run_that_fails_fails_its_request_and_frees_the_memory() -> None:
    running = Running(NUMBERS)
    with running.rig.running():
        running.rig.wait_idle()
        for element in (b"no number " * LEAST_LENT_BYTES, number(4.5)):
            message, end = message_of(element)
            running.add(element[:9], message, end)
            assert message.is_free  # although the error is there still, and its traceback
            outcome = running.answer(element[:9])
            if element.startswith(b"no"):
                assert isinstance(outcome, ExecutionFailed)
            else:
                assert outcome.tolist() == [[4.5]]
    assert running.lent == [True, True]
    running.rig.assert_empty()


def test_errors_that_wait_for_their_callers_keep_nothing_of_what_was_run() -> None:
    """Of runs of one request and of several, which are then run one by one."""
    running = Running(NUMBERS, is_quick=False, quick_ns=0)
    with running.rig.running():
        for contexts in (["a"], ["b", "c", "d"]):
            for context in contexts:
                running.add(context, *message_of(b"no number"))
            running.rig.worker.end_round()
            for error in running.rig.worker.collect(*contexts):
                assert isinstance(error, ExecutionFailed)
                assert (error.__traceback__, error.__cause__, error.__context__) == (None, None, None)
    running.rig.assert_empty()


@pytest.mark.parametrize(
    "elements", [[b"x" * STEP_BYTES, b"yz"], [b"0123"] * (STEP_BYTES // 8 + 1)], ids=["few", "many"]
)
def test_elements_that_it_takes_long_to_copy_stay_where_they_are_while_they_wait(elements: Sequence[bytes]) -> None:
    running = Running(shape=(len(elements),), is_quick=False)
    with running.rig.running():
        running.rig.wait_idle()
        running.rig.gate.clear()
        message, end = message_of(*elements)
        running.add("a", message, end)
        assert not message.is_free
        running.rig.gate.set()
        assert running.answer("a").tolist() == [list(elements)]
        wait_until(lambda: message.is_free)
    running.rig.assert_empty()
