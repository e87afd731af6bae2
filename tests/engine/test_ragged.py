"""Rows of different shape joined end to end: what the model is told of them, and each request its own answer."""

from __future__ import annotations

import random
import threading
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.testing as npt
import pytest
from onnx import TensorProto, helper

from tests.engine.rig import Rig
from tests.graphs import SEGMENTS, model, tensor
from tests.signatures import spec
from tests.waiting import wait_until
from toutates.engine.ragged.backend import RaggedBackend
from toutates.engine.ragged.ragged import BatchInput, BatchInputKind, Ragged
from toutates.engine.ragged.waiting import RowsInOrder
from toutates.engine.result import Outputs
from toutates.models.config.ragged import MadeInput, RaggedSettings, ScatteredOutput
from toutates.models.config.settings import ModelSettings
from toutates.system.errors import ExecutionFailed, InvalidRequest, Overloaded, QueueFull

INT32, INT64 = TensorProto.INT32, TensorProto.INT64

SETTINGS = RaggedSettings(
    {"values": (-1, -1)},
    (MadeInput("offsets", "offsets", "values", "INT32"),),
    MappingProxyType({"scaled": ScatteredOutput("values", (-1, -1))}),
)
VALUES = 0
OFFSETS = BatchInput(spec("offsets", "INT32"), "offsets", VALUES)


class RaggedRig(Rig):
    """A rig whose backends join rows.

    Args:
        ragged: how.
        settings: the same, as config.yaml has it.
    """

    def __init__(self, content: bytes, ragged: Ragged, settings: RaggedSettings, **rest: Any) -> None:
        self.ragged = ragged
        super().__init__(content, settings=ModelSettings(ragged=settings), padding=ragged, **rest)

    def run_signature(self) -> Any:
        return self.ragged.run_signature(self.signature)

    def backend(self, session: Any) -> Any:
        return RaggedBackend(session, self.ragged, self.signature, "m")


def segments(*, most: int = 1_000, **rest: Any) -> Rig:
    ragged = Ragged(frozenset({VALUES}), (OFFSETS,), {1: VALUES}, most)
    return RaggedRig(SEGMENTS, ragged, SETTINGS, **rest)


def row(length: int, first: int = 1) -> Any:
    return (np.arange(first, first + length, dtype=np.int64) % 100).reshape(1, length)


def add(rig: Rig, name: Any, values: Any, worker: int = 0) -> None:
    rig.workers[worker].add_shaped(name, values, np.array([[3 + values.size]]))


def check(outputs: Any, values: Any) -> None:
    total, scaled = outputs
    npt.assert_array_equal(total, [[values.sum() * (3 + values.size)]])
    npt.assert_array_equal(scaled, values * 2)


def held(rig: Rig) -> None:
    """Have the only executor stop before a run."""
    rig.wait_idle()
    rig.gate.clear()
    add(rig, "held", row(1))
    rig.worker.end_round()
    wait_until(lambda: rig.supertensor.occupancy().running == 1)


# --- what the model is told ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("counts", [6, 4]),
        ("ends", [6, 10]),
        ("offsets", [0, 6, 10]),
        ("longest", [0, 0, 0, 0, 0, 0]),
        ("shapes", [[3, 1], [3, 1], [2, 2]]),
        ("flat_shapes", [3, 1, 3, 1, 2, 2]),
    ],
)
@pytest.mark.parametrize("datatype", ["INT32", "INT64", "FP32"])
def test_two_rows_of_one_request_and_one_of_another(kind: BatchInputKind, expected: Any, datatype: str) -> None:
    made = BatchInput(spec("made", datatype), kind, 0).of([2, 1], [(3, 1), (2, 2)])
    npt.assert_array_equal(made, expected)
    assert made.dtype == {"INT32": np.int32, "INT64": np.int64, "FP32": np.float32}[datatype]


def test_the_first_that_wait_run_together_as_long_as_they_fit() -> None:
    waiting: RowsInOrder[str] = RowsInOrder(4, 100)
    for name, rows, elements in (("a", 1, 60), ("b", 2, 20), ("c", 1, 1), ("d", 1, 500), ("e", 4, 1), ("f", 1, 0)):
        waiting.add(name, rows, elements)
    taken = [waiting.take() for _ in range(4)]
    assert [chosen.entries for chosen in taken] == [["a", "b"], ["c"], ["d"], ["e"]]
    assert [(chosen.rows, chosen.real) for chosen in taken] == [(3, 100), (1, 1), (1, 500), (4, 4)]
    assert (len(waiting), waiting.rows, waiting.oldest) == (1, 1, "f")


# --- batches ---------------------------------------------------------------------------------------------------------


def test_requests_of_different_shape_share_a_batch_and_get_their_own_part() -> None:
    rig = segments()
    with rig.running():
        held(rig)
        given = {length: row(length, first=length) for length in (3, 90, 1, 0)}
        for length, values in given.items():
            add(rig, length, values)
        rig.worker.end_round()
        rig.gate.set()
        rig.worker.collect("held", *given)
        for length, values in given.items():
            check(rig.worker.answers[length], values)
        assert rig.batches == [(1, 1), (4, 4)]
        rig.assert_empty()


def test_a_batch_has_no_more_elements_than_it_may_and_a_longer_request_runs_alone() -> None:
    rig = segments(most=50)
    with rig.running():
        held(rig)
        given = {length: row(length) for length in (20, 30, 10, 80, 5)}
        for length, values in given.items():
            add(rig, length, values)
        rig.worker.end_round()
        rig.gate.set()
        rig.worker.collect("held", *given)
        for length, values in given.items():
            check(rig.worker.answers[length], values)
        assert [rows for rows, _ in rig.batches] == [1, 2, 1, 1, 1]


def test_a_request_that_fails_does_not_fail_its_batch() -> None:
    rig = segments()
    with rig.running():
        held(rig)
        add(rig, "good", row(20))
        add(rig, "bad", np.full((1, 3), 1_000, np.int64))
        add(rig, "also good", row(4))
        rig.worker.end_round()
        rig.gate.set()
        rig.worker.collect("held", "good", "bad", "also good")
        assert isinstance(rig.worker.errors["bad"], ExecutionFailed)
        check(rig.worker.answers["good"], row(20))
        check(rig.worker.answers["also good"], row(4))
        rig.assert_empty()


def test_any_shapes_at_any_time_get_their_own_answers() -> None:
    rng = random.Random(3)
    rig = segments(batch_size=16, capacity=64, workers=2, executors=2)
    given = {number: row(rng.randint(0, 90), first=rng.randint(0, 9)) for number in range(200)}

    def work(own: int) -> None:
        worker = rig.workers[own]
        for number in range(own, 200, 2):
            add(rig, number, given[number], own)
            if rng.random() < 0.2:
                worker.end_round()
        worker.end_round()
        worker.collect(*range(own, 200, 2))

    with rig.running():
        threads = [threading.Thread(target=work, args=(own,)) for own in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for number, values in given.items():
            check(rig.workers[number % 2].answers[number], values)
        assert len(rig.supertensor.lanes) < 100
        rig.assert_empty()


def test_a_quick_batch_of_one_size_runs_in_the_workers_thread_and_one_of_another_does_not() -> None:
    rig = segments(quick_ns=2**40)
    with rig.running():
        for at in range(3):
            rig.wait_idle()
            add(rig, at, row(30))
            rig.worker.end_round()
            rig.worker.collect(at)
        assert rig.ran_in[-1] is threading.current_thread()
        rig.wait_idle()
        add(rig, "larger", row(99))  # how long such a run takes is not known yet
        rig.worker.end_round()
        rig.worker.collect("larger")
        assert rig.ran_in[-1] is not threading.current_thread()


def test_rows_wait_for_company_where_the_model_asks_for_it() -> None:
    rig = segments(delay_ns=2**60, enough_rows=3)
    with rig.running():
        for at in range(3):
            assert not rig.batches
            add(rig, at, row(10 + at))
            rig.worker.end_round()
        rig.worker.collect(*range(3))
        assert rig.batches == [(3, 3)]


def test_nobody_computes_for_those_who_have_gone() -> None:
    rig = segments()
    with rig.running():
        held(rig)
        add(rig, "gone", row(3))
        rig.worker.end_round()
        rig.unwanted.add("gone")
        rig.gate.set()
        rig.worker.collect("held", "gone")
        assert str(rig.worker.errors["gone"]) == "Deadline Exceeded"
        assert rig.batches == [(1, 1)]


# --- rows of one request ---------------------------------------------------------------------------------------------

#: Rows of any size, told by the shape of each: area = height x width of each row, same = the row.
PICTURES = model(
    [
        helper.make_node("ReduceProd", ["shapes"], ["area"], axes=[1], keepdims=1),
        helper.make_node("Identity", ["pixels"], ["same"]),
    ],
    [tensor("pixels", ["all"]), tensor("shapes", ["n", 2], INT32)],
    [tensor("area", ["n", 1], INT32), tensor("same", ["all"])],
)
PICTURE_SETTINGS = RaggedSettings(
    {"pixels": (-1, -1, -1)},
    (MadeInput("shapes", "shapes", "pixels", "INT32"),),
    MappingProxyType({"same": ScatteredOutput("pixels", (-1, -1, -1))}),
)


def pictures(**rest: Any) -> Rig:
    shapes = BatchInput(spec("shapes", "INT32", (2,)), "shapes", 0)
    ragged = Ragged(frozenset({0}), (shapes,), {1: 0}, 2**22)
    return RaggedRig(PICTURES, ragged, PICTURE_SETTINGS, **rest)


def test_requests_of_several_rows_of_two_dimensions() -> None:
    rig = pictures()
    given = {
        shape: np.random.default_rng(7).normal(size=shape).astype(np.float32)
        for shape in ((2, 3, 4), (1, 7, 2), (3, 200, 150), (1, 200, 150))
    }
    with rig.running():
        rig.wait_idle()
        rig.gate.clear()
        rig.worker.add_shaped("held", np.ones((1, 1, 1), np.float32))
        rig.worker.end_round()
        wait_until(lambda: rig.supertensor.occupancy().running == 1)
        for shape, pixels in given.items():
            rig.worker.add_shaped(shape, pixels)
        rig.worker.end_round()
        rig.gate.set()
        rig.worker.collect("held", *given)
        assert rig.batches[-1] == (7, 4)
        for shape, pixels in given.items():
            area, same = rig.worker.answers[shape]
            npt.assert_array_equal(area, [[shape[1] * shape[2]]] * shape[0])
            npt.assert_array_equal(same, pixels)
        assert all(isinstance(result.shared_outputs, Outputs) for result in rig.worker.seen)
        rig.assert_empty()


def test_a_request_is_not_split() -> None:
    rig = pictures(batch_size=2)
    with pytest.raises(InvalidRequest, match="batch-size must be <= 2 for 'm'"):
        rig.worker.add_shaped("many", np.ones((3, 1, 1), np.float32))
    rig.assert_empty()


# --- bounds ----------------------------------------------------------------------------------------------------------


def test_what_may_be_under_way_is_bounded_in_rows_bytes_and_requests() -> None:
    rows = segments(batch_size=1, capacity=2)
    with rows.running():
        held(rows)
        add(rows, 0, row(5))
        with pytest.raises(Overloaded, match="has 2 of at most 2 rows"):
            add(rows, "late", row(5))
        rows.gate.set()
        rows.worker.end_round()
        rows.worker.collect("held", 0)
        rows.assert_empty()
    memory = segments(capacity_bytes=4_000)
    with memory.running():
        with pytest.raises(InvalidRequest, match="all batches of model 'm' may take 4000"):
            add(memory, "large", row(300))
        held(memory)
        add(memory, "fits", row(200))
        with pytest.raises(Overloaded, match="bytes waiting or running"):
            add(memory, "late", row(200))
        memory.gate.set()
        memory.worker.end_round()
        memory.worker.collect("held", "fits")
        memory.assert_empty()
    waiting = segments(max_queue_size=1)
    with waiting.running():
        held(waiting)
        add(waiting, 0, row(5))
        with pytest.raises(QueueFull, match="1 requests wait"):
            add(waiting, "late", row(5))
        waiting.gate.set()
        waiting.worker.end_round()
        waiting.worker.collect("held", 0)
        waiting.assert_empty()


def test_the_memory_of_a_longest_count_is_counted() -> None:
    longest = BatchInput(spec("longest", "INT64"), "longest", 0)
    assert Ragged(frozenset({0}), (longest,)).made_bytes(((0, (1_000,)),)) == 8_000


# --- outputs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "outputs", "text"),
    [
        (
            PICTURE_SETTINGS,
            {0: 0, 1: 0},
            "model 'm' returned output 'area' as int32 [1, 1], expected INT32 of 6 elements: the shapes of input "
            "'pixels' say so",
        ),
    ],
)
def test_outputs_of_another_size_than_promised_are_errors(
    settings: RaggedSettings, outputs: dict[int, int], text: str
) -> None:
    if outputs:
        settings = RaggedSettings(
            settings.inputs,
            settings.made,
            {name: ScatteredOutput("pixels", (-1, -1, -1)) for name in ("area", "same")},
        )
    shapes = BatchInput(spec("shapes", "INT32", (2,)), "shapes", 0)
    rig = RaggedRig(PICTURES, Ragged(frozenset({0}), (shapes,), outputs), settings)
    with rig.running():
        rig.worker.add_shaped("one", np.ones((1, 2, 3), np.float32))
        rig.worker.end_round()
        rig.worker.collect("one")
        assert str(rig.worker.errors["one"]) == text


def test_rows_of_one_shape_may_have_batch_inputs_too() -> None:
    graph = model(
        [helper.make_node("Mul", ["x", "count"], ["y"])],
        [tensor("x", ["n", 3]), tensor("count", ["requests"])],
        [tensor("y", ["n", 3])],
    )
    settings = RaggedSettings({}, (MadeInput("count", "counts", "x", "FP32"),))
    count = BatchInput(spec("count", "FP32"), "counts", 0)
    rig = RaggedRig(graph, Ragged(frozenset(), (count,)), settings)
    with rig.running():
        rig.worker.add_shaped("one", np.ones((1, 3), np.float32))
        rig.worker.end_round()
        assert rig.worker.collect("one")[0].tolist() == [[3, 3, 3]]
