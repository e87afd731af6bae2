"""Lanes of arrays, element types, and the order of rows that several workers add."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import numpy.testing as npt
import pytest
from onnx import TensorProto, helper

from tests.engine.rig import Rig
from tests.graphs import gather, model, tensor, unary
from toutates.engine.lane import GatheredLane, PackedLane
from toutates.protocol.strings import MANY_ELEMENTS
from toutates.system.errors import ExecutionFailed, Overloaded

STRINGS = unary("Identity", ["n", 2], TensorProto.STRING)


def texts(*values: str) -> Any:
    return np.array([value.encode() for value in values], object).reshape(-1, 2)


def test_bytes_are_gathered_run_together_and_come_back() -> None:
    rig = Rig(STRINGS)
    lane = rig.lane((2,))
    assert isinstance(lane, GatheredLane)
    assert lane.batch_bytes == 0
    with rig.running():
        rig.worker.add("a", lane, texts("one", "two", "three", "four"))
        rig.worker.add("b", lane, texts("", "żółw"))
        rig.worker.end_round()
        a, b = rig.worker.collect("a", "b")
    npt.assert_array_equal(a, texts("one", "two", "three", "four"))
    npt.assert_array_equal(b, texts("", "żółw"))
    assert rig.batches == [(3, 2)]


def test_rows_of_two_workers_are_run_in_the_order_of_their_reservation_not_of_their_arrival() -> None:
    rig = Rig(STRINGS, workers=2)
    lane = rig.lane((2,))
    one, other = rig.workers
    one.add("a", lane, texts("1", "1"))
    other.add("b", lane, texts("2", "2"))
    one.add("c", lane, texts("3", "3", "4", "4"))
    # As if the first worker had been interrupted between reserving rows and appending them.
    [batch] = rig.supertensor.queue.open.values()
    batch.pieces.reverse()
    one.end_round()
    other.end_round()
    with rig.running():
        npt.assert_array_equal(one.collect("a")[0], texts("1", "1"))
        npt.assert_array_equal(other.collect("b")[0], texts("2", "2"))
        npt.assert_array_equal(one.collect("c")[0], texts("3", "3", "4", "4"))
    assert rig.batches == [(4, 3)]


def test_gathered_rows_are_split_over_batches_and_joined() -> None:
    rig = Rig(STRINGS, batch_size=2)
    rows = texts(*(str(number) for number in range(10)))
    with rig.running():
        rig.worker.add("split", rig.lane((2,)), rows)
        rig.worker.end_round()
        npt.assert_array_equal(rig.worker.collect("split")[0], rows)


def test_gathered_rows_of_several_requests_are_counted() -> None:
    rig = Rig(unary("Identity", ["n", "m"], TensorProto.STRING), batch_size=4, capacity=1)
    for context in range(3):
        rig.worker.add(context, rig.lane((2,)), texts("a", "b"))
    rig.worker.add(3, rig.lane((1,)), texts("a", "b").reshape(2, 1)[:1])
    with pytest.raises(Overloaded):
        rig.worker.add("late", rig.lane((1,)), texts("a", "b").reshape(2, 1)[:1])
    rig.worker.end_round()
    with rig.running():
        rig.worker.collect(*range(4))
        rig.assert_empty()


def test_rows_of_no_bytes_and_requests_of_no_rows_are_gathered() -> None:
    rig = Rig(unary("Neg", ["n", "length"]))
    empty_rows = rig.lane((0,))
    assert isinstance(empty_rows, GatheredLane)
    with rig.running():
        rig.worker.add("three", empty_rows, np.empty((3, 0), np.float32))
        rig.worker.add("none", empty_rows, np.empty((0, 0), np.float32))
        rig.worker.add("two", empty_rows, np.empty((2, 0), np.float32))
        rig.worker.end_round()
        shapes = [answer.shape for answer in rig.worker.collect("three", "none", "two")]
    assert shapes == [(3, 0), (0, 0), (2, 0)]
    assert rig.batches == [(5, 3)]


def test_a_failing_request_among_gathered_ones_fails_alone_beside_one_without_rows() -> None:
    # Gather fails for an index out of bounds; text makes the lane a gathered one.
    nodes = [helper.make_node("Gather", ["table", "x"], ["y"]), helper.make_node("Identity", ["text"], ["same"])]
    inputs = [tensor("x", ["n", 1], TensorProto.INT64), tensor("text", ["n", 1], TensorProto.STRING)]
    outputs = [tensor("y", ["n", 1]), tensor("same", ["n", 1], TensorProto.STRING)]
    rig = Rig(model(nodes, inputs, outputs, table=np.array([10, 20], np.float32)))
    lane = rig.lane((1,), (1,))

    def add(context: str, *indices: int) -> None:
        array = np.array(indices, np.int64).reshape(-1, 1)
        rig.worker.add(context, lane, array, np.full(array.shape, context.encode(), object))

    with rig.running():
        rig.wait_idle()
        for context, indices in {"broken": (7,), "none": (), "fine": (1, 0), "none too": ()}.items():
            add(context, *indices)
        rig.worker.end_round()
        broken, none, fine, _ = rig.worker.collect("broken", "none", "fine", "none too")
    assert isinstance(broken, ExecutionFailed)
    assert none.shape == (0, 1)
    npt.assert_array_equal(fine, [[20], [10]])
    npt.assert_array_equal(rig.worker.answers["fine"][1], [[b"fine"], [b"fine"]])


@pytest.mark.parametrize("length", [3, 0], ids=["packed", "gathered"])
@pytest.mark.parametrize("name", ["BOOL", "UINT8", "INT64", "FLOAT16", "FLOAT", "DOUBLE", "BFLOAT16"])
def test_every_element_type_comes_back_bit_for_bit(name: str, length: int) -> None:
    rig = Rig(unary("Identity", ["n", "length"], TensorProto.DataType.Value(name)))
    lane = rig.lane((length,))
    assert isinstance(lane, PackedLane if length else GatheredLane)
    dtype = rig.signature.inputs[0].datatype.numpy
    rows = np.arange(1, 2 * length + 1).reshape(2, length).astype(dtype)
    with rig.running():
        rig.worker.add("a", lane, rows)
        rig.worker.add("b", lane, rows[:1])
        rig.worker.end_round()
        a, b = rig.worker.collect("a", "b")
    npt.assert_array_equal(a, rows)
    npt.assert_array_equal(b, rows[:1])
    assert a.dtype == dtype


def test_bfloat16_is_computed_as_such_in_bound_and_in_gathered_batches() -> None:
    nodes = [helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT)]
    x = tensor("x", ["n", "length"], TensorProto.BFLOAT16)
    rig = Rig(model(nodes, [x], [tensor("y", ["n", "length"])]))
    one_and_minus_two = np.array([[0x3F80, 0xC000]], np.uint16)
    with rig.running():
        rig.worker.add("packed", rig.lane((2,)), one_and_minus_two)
        rig.worker.add("gathered", rig.lane((0,)), np.empty((1, 0), np.uint16))
        rig.worker.end_round()
        packed, gathered = rig.worker.collect("packed", "gathered")
    npt.assert_array_equal(packed, [[1, -2]])
    assert gathered.shape == (1, 0)


def test_optional_inputs_given_and_left_out_have_lanes_of_their_own() -> None:
    kind = helper.make_optional_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, [2]))
    nodes = [helper.make_node("OptionalHasElement", ["x"], ["given"]), helper.make_node("Identity", ["z"], ["y"])]
    inputs = [helper.make_value_info("x", kind), tensor("z", [2])]
    rig = Rig(model(nodes, inputs, [tensor("given", [], TensorProto.BOOL), tensor("y", [2])], opset=18))
    z, x = np.array([1, 2], np.float32), np.array([3, 4], np.float32)
    with rig.running():
        rig.worker.add("without", rig.lane((2,), inputs=[0]), z)
        rig.worker.add("with", rig.lane((2,), (2,)), z, x)
        rig.worker.end_round()
        without, given = rig.worker.collect("without", "with")
    assert (bool(without), bool(given)) == (False, True)
    npt.assert_array_equal(rig.worker.answers["with"][1], z)


def test_a_scalar_text_of_an_unbatched_model_is_gathered() -> None:
    rig = Rig(unary("Identity", [], TensorProto.STRING))
    with rig.running():
        rig.worker.add("a", rig.lane(()), np.array(b"hello", object))
        rig.worker.end_round()
        [answer] = rig.worker.collect("a")
    assert answer.shape == ()
    assert answer.item() == b"hello"


def test_a_gathered_request_that_fails_alone_gets_its_reason() -> None:
    rig = Rig(gather())
    lane = GatheredLane(rig.signature, ((0, (1,)),), 8)
    with rig.running():
        rig.worker.add("a", lane, np.array([[9]]))
        rig.worker.end_round()
        [error] = rig.worker.collect("a")
    assert isinstance(error, ExecutionFailed)
    assert str(error).startswith("onnx runtime error 2: ")


def test_texts_of_many_elements_are_never_looked_for_in_a_worker_however_quick_the_model_is() -> None:
    rig = Rig(unary("Identity", ["n", "m"], TensorProto.STRING), quick_ns=10**12)
    few, many = rig.lane((2,)), rig.lane((MANY_ELEMENTS + 1,))
    few.note_run(1, 1)
    many.note_run(1, 1)
    with rig.running():
        for context, lane, count in (("few", few, 2), ("many", many, MANY_ELEMENTS + 1)):
            rig.wait_idle()
            rig.worker.add(context, lane, np.full((1, count), b"", object))
            rig.worker.end_round()
            [answer] = rig.worker.collect(context)
            assert answer.shape == (1, count)
    assert rig.ran_in == [threading.current_thread(), rig.threads[0]]
