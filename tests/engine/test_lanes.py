"""Lanes: rows of several shapes, the memory they keep, and how outputs come out of a batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.testing as npt
import pytest
from onnx import TensorProto, helper

from tests.engine.rig import Rig
from tests.graphs import DOUBLE, DOUBLE_LENGTHS, double, model, tensor, unary
from toutates.backends.onnx import session as session_module
from toutates.engine import lane as lane_module
from toutates.engine import packing as packing_module
from toutates.engine.lane import GatheredLane


def rows(count: int, length: int = 4, start: int = 0) -> Any:
    return (np.arange(count * length, dtype=np.float32) + start).reshape(count, length)


def run(rig: Rig, length: int, count: int = 1) -> Any:
    rig.worker.add((length, count), rig.lane((length,)), rows(count, length))
    rig.worker.end_round()
    [answer] = rig.worker.collect((length, count))
    rig.worker.answers.clear()
    return answer


def test_rows_of_different_shapes_run_in_batches_of_their_own_at_the_same_time() -> None:
    rig = Rig(DOUBLE_LENGTHS, executors=2)
    for length in (1, 5, 9):
        for part in range(2):
            rig.worker.add((length, part), rig.lane((length,)), rows(2, length, part))
    rig.worker.end_round()
    assert rig.supertensor.occupancy().in_flight == 3
    with rig.running():
        for length in (1, 5, 9):
            for part, answer in enumerate(rig.worker.collect((length, 0), (length, 1))):
                npt.assert_array_equal(answer, 2 * rows(2, length, part))
    assert rig.batches == [(4, 2)] * 3


def test_large_rows_make_small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_module, "MAX_BATCH_BYTES", 100)
    rig = Rig(DOUBLE_LENGTHS, batch_size=8)
    assert [rig.packed((length,)).batch_rows for length in (1, 4, 8, 12, 25, 26)] == [8, 6, 3, 2, 1, 1]
    with rig.running():
        npt.assert_array_equal(run(rig, 12, count=5), 2 * rows(5, 12))
    assert sorted(rows for rows, _ in rig.batches) == [1, 2, 2]


def test_bindings_are_kept_per_number_of_rows_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "MAX_BINDINGS", 3)
    rig = Rig(DOUBLE)
    lane = rig.packed((4,))
    with rig.running():
        for count in (1, 2, 3, 4, 1, 1):
            rig.worker.add(count, lane, rows(count))
            rig.worker.end_round()
            npt.assert_array_equal(rig.worker.collect(count)[0], 2 * rows(count))
            rig.worker.answers.clear()
    [batch] = lane.spare
    assert list(batch.bindings) == [(0, 3), (0, 4), (0, 1)]


@pytest.mark.parametrize("content", [DOUBLE, DOUBLE_LENGTHS], ids=["known outputs", "dynamic outputs"])
@pytest.mark.parametrize("length", [4, 40_000], ids=["small", "large"])
def test_outputs_are_not_overwritten_by_the_next_run_in_the_same_memory(content: bytes, length: int) -> None:
    if content is DOUBLE:
        content = double(["n", length])
    rig = Rig(content, batch_size=2, capacity=1)
    lane = rig.packed((length,))
    with rig.running():
        for start in range(3):
            rig.worker.add(start, lane, rows(1, length, start))
            rig.worker.end_round()
            rig.worker.collect(start)
            assert len(lane.spare) == 1
    for start in range(3):
        npt.assert_array_equal(rig.worker.answers[start][0], 2 * rows(1, length, start))


def test_known_outputs_are_bound_beforehand_and_share_their_shapes_with_every_run() -> None:
    known, dynamic = Rig(DOUBLE), Rig(DOUBLE_LENGTHS)
    for rig in (known, dynamic):
        with rig.running():
            run(rig, 4)
            run(rig, 4, count=2)
    first, second = (result.outputs for result in known.worker.seen)
    assert first is not None
    assert second is not None
    assert first.row_shapes is second.row_shapes
    assert known.packed((4,)).spare[0].outputs
    assert dynamic.packed((4,)).spare[0].outputs == []


def test_outputs_too_large_to_be_bound_are_left_to_onnx_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_module, "MAX_BOUND_OUTPUT_BYTES", 100)
    rig = Rig(DOUBLE)
    with rig.running():
        npt.assert_array_equal(run(rig, 4, count=3), 2 * rows(3))
    assert rig.packed((4,)).spare[0].outputs == []


def test_two_workers_slice_large_outputs_through_views_of_their_own() -> None:
    rig = Rig(DOUBLE_LENGTHS, workers=2)
    length = packing_module.LARGE_OUTPUT_BYTES
    for worker in rig.workers:
        worker.add("a", rig.lane((length,)), rows(1, length, worker.number))
    for worker in rig.workers:
        worker.end_round()
    with rig.running():
        views = []
        for worker in rig.workers:
            result = worker.results.get(timeout=120)
            outputs = result.outputs
            assert outputs is not None
            [view] = outputs.data
            assert isinstance(view, memoryview)
            views.append(view)
    # Not only two memoryviews, but of two array objects: the count of exports belongs to what is exported.
    assert views[0].obj is not views[1].obj
    assert views[0] == views[1]


@pytest.mark.parametrize("width", [1, "width"], ids=["known outputs", "dynamic outputs"])
def test_an_output_without_a_row_for_each_row_is_of_its_request(width: int | str) -> None:
    # Keeps the first row alone.
    node = helper.make_node("Compress", ["x", "first"], ["y"], axis=0)
    shapes = tensor("x", ["n", width]), tensor("y", ["rows", width])
    rig = Rig(model([node], shapes[:1], shapes[1:], first=np.array([True])))
    assert rig.signature.batched
    with rig.running():
        rig.worker.add("one", rig.lane((1,)), rows(1, 1))
        rig.worker.end_round()
        npt.assert_array_equal(rig.worker.collect("one")[0], [[0]])
        rig.worker.add("three", rig.lane((1,)), rows(3, 1))
        rig.worker.end_round()
        npt.assert_array_equal(rig.worker.collect("three")[0], [[0]])
        rig.worker.answers.clear()
        rig.worker.add("one", rig.lane((1,)), rows(1, 1))
        rig.worker.end_round()
        rig.worker.collect("one")


def test_rows_without_dimensions_are_bound_without_the_one_that_clients_see() -> None:
    rig = Rig(unary("Neg", ["n"]))
    assert rig.signature.inputs[0].reshape == ()
    assert rig.signature.outputs[0].reshape == ()
    lane = rig.packed(())
    with rig.running():
        rig.worker.add("a", lane, np.array([1, 2, 3], np.float32))
        rig.worker.end_round()
        npt.assert_array_equal(rig.worker.collect("a")[0], [-1, -2, -3])
    [result] = rig.worker.seen
    assert result.outputs is not None
    assert result.outputs.row_shapes == ((),)


@pytest.mark.parametrize("shape", [[2, 3], []], ids=["tensor", "scalar"])
def test_an_unbatched_model_runs_one_request_at_a_time(shape: list[int]) -> None:
    rig = Rig(unary("Neg", shape), batch_size=8)
    assert not rig.signature.batched
    lane = rig.packed(tuple(shape))
    assert lane.batch_rows == 1
    with rig.running():
        values = [np.full(shape, number, np.float32) for number in range(3)]
        for context, value in enumerate(values):
            rig.worker.add(context, lane, value)
        rig.worker.end_round()
        for value, answer in zip(values, rig.worker.collect(0, 1, 2), strict=True):
            npt.assert_array_equal(answer, -value)
            assert answer.shape == tuple(shape)
    assert rig.batches == [(1, 1)] * 3


def test_an_output_of_an_unbatched_model_has_any_rank_where_the_graph_leaves_it_open() -> None:
    node = helper.make_node("Reshape", ["x", "shape"], ["y"])
    inputs = [tensor("x", [6]), tensor("shape", ["rank"], TensorProto.INT64)]
    rig = Rig(model([node], inputs, [tensor("y", None)]))
    assert (rig.signature.batched, rig.signature.outputs[0].graph_shape) == (False, ())
    x = np.arange(6, dtype=np.float32)
    with rig.running():
        rig.worker.add("a", rig.packed((6,), (2,)), x, np.array([2, 3]))
        rig.worker.end_round()
        npt.assert_array_equal(rig.worker.collect("a")[0], x.reshape(2, 3))


def test_a_model_without_inputs_runs() -> None:
    node = helper.make_node("Identity", ["constant"], ["y"])
    rig = Rig(model([node], [], [tensor("y", [2])], constant=np.array([1, 2], np.float32)))
    lane = rig.lane()
    assert isinstance(lane, GatheredLane)
    with rig.running():
        rig.worker.add("a", lane)
        rig.worker.end_round()
        npt.assert_array_equal(rig.worker.collect("a")[0], [1, 2])


def test_several_inputs_are_packed_each_into_its_own_buffer() -> None:
    nodes = [helper.make_node("Cast", ["b"], ["c"], to=TensorProto.FLOAT), helper.make_node("Add", ["a", "c"], ["y"])]
    inputs = [tensor("a", ["n", 2]), tensor("b", ["n", 2], TensorProto.INT64)]
    rig = Rig(model(nodes, inputs, [tensor("y", ["n", 2])]), batch_size=4)
    lane = rig.packed((2,), (2,))
    assert lane.row_bytes == (8, 16)
    a, b = rows(5, 2), np.arange(10).reshape(5, 2) * 100
    with rig.running():
        rig.worker.add("two", lane, a[:2], b[:2])
        rig.worker.add("split", lane, a, b)
        rig.worker.end_round()
        two, split = rig.worker.collect("two", "split")
    npt.assert_array_equal(two, (a + b)[:2])
    npt.assert_array_equal(split, a + b)


def test_requests_without_rows_are_packed_with_the_others() -> None:
    rig = Rig(DOUBLE)
    with rig.running():
        for context, count in enumerate((0, 2, 0)):
            rig.worker.add(context, rig.lane((4,)), rows(count))
        rig.worker.end_round()
        assert [len(answer) for answer in rig.worker.collect(0, 1, 2)] == [0, 2, 0]
        rig.worker.add("alone", rig.lane((4,)), rows(0))
        rig.worker.end_round()
        assert rig.worker.collect("alone")[0].shape == (0, 4)
