"""Requests whose rows are kept while their parts run: what is counted, what callers are told, and what is left."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from tests.e2e.dependent_models import graph, node
from tests.engine.rig import Rig
from tests.waiting import wait_until
from toutates.engine.deadlines.supertensor import DeadlineSuperTensor
from toutates.engine.result import BatchResult
from toutates.engine.supertensor import SuperTensor
from toutates.system.errors import ExecutionFailed, InvalidRequest, Overloaded

ROWS, BYTES = 10, 80


def _filter() -> bytes:
    """Rows whose first number is below a thousand."""
    nodes = [
        node("Gather", "x first", "column", axis=1),
        node("Less", "column most", "keep"),
        node("Compress", "x keep", "y", axis=0),
    ]
    made = graph(nodes, [("x", 1, ["n", 2])], [("y", 1, ["m", 2])], first=np.int64(0), most=np.float32(1000))
    return bytes(made.SerializeToString())


def rig_of(**given: Any) -> Rig:
    rig = Rig(_filter(), batch_size=4, capacity=8, **given)
    rig.supertensor.keeps_split = True
    return rig


def rows_of(left_out: int | None = None) -> np.ndarray[Any, np.dtype[np.float32]]:
    made = np.arange(2 * ROWS, dtype=np.float32).reshape(ROWS, 2)
    if left_out is not None:
        made[left_out, 0] = 2_000
    return made


def results_of(rig: Rig, count: int) -> list[BatchResult]:
    """The next results, as a consumer gets them."""
    return [rig.worker.results.get(timeout=120) for _ in range(count)]


@pytest.mark.parametrize("executors", [1, 3])
@pytest.mark.parametrize("has_target", [False, True])
def test_parts_are_told_together_and_a_run_with_other_rows_in_their_place(executors: int, has_target: bool) -> None:
    make = partial(DeadlineSuperTensor, target_ns=60 * 10**9, executors=executors)
    rig = rig_of(executors=executors, make=make if has_target else SuperTensor)
    lane = rig.lane((2,))
    rig.worker.add("whole", lane, rows_of())
    rig.worker.end_round()
    budget = rig.supertensor.budget
    held = 3 * 4 * lane.row_memory
    assert budget.memory_bytes == held + BYTES, "the rows that are kept are counted"
    with rig.running():
        parts = results_of(rig, 3)
        found = [part for result in parts for *_, part in result.pending if part is not None]
        assert [index for _, index in found] == [0, 1, 2]
        rig.assert_empty()

        rig.worker.add("other", lane, rows_of(5))
        rig.worker.end_round()
        [result] = results_of(rig, 1)
        assert [(context, first, rows, part) for context, first, rows, part in result.pending] == [
            ("other", 0, ROWS, None)
        ]
        outputs = result.outputs
        assert outputs is not None
        assert outputs.forms is not None
        assert outputs.forms[0][1] == (ROWS - 1, 2)
        assert outputs.data[0] == np.delete(rows_of(), 5, 0).tobytes()
        rig.assert_empty()
        assert not rig.supertensor.joins
        # From then on it is not divided.
        rig.worker.add("later", lane, rows_of())
        rig.worker.end_round()
        [result] = results_of(rig, 1)
        assert result.pending == [("later", 0, ROWS, None)]
        rig.assert_empty()


def test_a_request_whose_part_fails_is_told_once_and_leaves_nothing() -> None:
    rig = rig_of()
    rig.worker.add("left", rig.lane((2,)), rows_of(5))
    rig.worker.end_round()
    rig.unwanted.add("left")
    with rig.running():
        [result] = results_of(rig, 1)
        assert result.error is not None
        rig.assert_empty()
        rig.unwanted.clear()
        rig.faults["is_wanted"] = ZeroDivisionError()
        rig.worker.add("broken", rig.lane((2,)), rows_of(5))
        rig.worker.end_round()
        [result] = results_of(rig, 1)
        assert isinstance(result.error, ExecutionFailed)
        rig.assert_empty()
        assert rig.worker.results.empty()


def test_what_would_be_kept_is_within_the_bound() -> None:
    rig = rig_of(capacity_bytes=230)
    with pytest.raises(InvalidRequest, match="needs 240 bytes"):
        rig.worker.add("more", rig.lane((2,)), rows_of())
    rig.worker.end_round()
    rig.worker.add("whole", rig.lane((2,)), rows_of()[:4])
    rig.worker.end_round()
    with rig.running():
        results_of(rig, 1)
        rig.assert_empty()


def test_others_hear_before_a_request_is_run_whole_and_it_fails_alone() -> None:
    heard: list[int] = []

    def allocate(shape: tuple[int, ...], dtype: Any) -> Any:
        if shape[0] > 8:  # all rows of one that was divided
            heard.append(rig.worker.results.qsize())
            raise MemoryError
        return np.empty(shape, dtype)

    rig = rig_of(allocate=allocate)
    lane = rig.lane((2,))
    rig.worker.add("other", lane, rows_of(5))
    rig.worker.add("beside", lane, rows_of()[:1])
    rig.worker.end_round()
    with rig.running():
        wait_until(lambda: bool(heard))  # before somebody takes what is there
        found = {result.pending[0][0]: result for result in results_of(rig, 2)}
        assert isinstance(found["other"].error, ExecutionFailed)
        assert found["beside"].error is None
        assert heard == [1]
        rig.assert_empty()


def test_a_request_that_is_refused_keeps_nothing() -> None:
    rig = rig_of()
    lane = rig.lane((2,))
    for number in range(3):
        rig.worker.add(number, lane, rows_of())
    with pytest.raises(Overloaded):
        rig.worker.add("refused", lane, rows_of())
    rig.worker.end_round()
    with rig.running():
        wait_until(lambda: rig.worker.results.qsize() == 9)
        rig.assert_empty()
