"""The table of lanes: which are kept, and the memory of their spare batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.testing as npt
import pytest

from tests.engine.rig import Rig
from tests.graphs import DOUBLE_LENGTHS
from toutates.engine import lane_table as lane_table_module


def rows(count: int, length: int = 4, start: int = 0) -> Any:
    return (np.arange(count * length, dtype=np.float32) + start).reshape(count, length)


def spare_bytes(rig: Rig) -> int:
    """What the lanes that are kept hold, counted from their batches."""
    lanes = rig.supertensor.lanes
    return sum(sum(array.nbytes for array in batch.arrays) for lane in lanes for batch in lane.spare)


def run(rig: Rig, length: int, count: int = 1) -> Any:
    rig.worker.add((length, count), rig.lane((length,)), rows(count, length))
    rig.worker.end_round()
    [answer] = rig.worker.collect((length, count))
    rig.worker.answers.clear()
    return answer


def test_equal_shapes_share_a_lane() -> None:
    rig = Rig(DOUBLE_LENGTHS)
    assert rig.lane((3,)) is rig.lane((3,))
    assert rig.lane((3,)) is not rig.lane((4,))


def test_the_lane_not_looked_up_for_longest_is_forgotten_with_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_table_module, "MAX_LANES", 2)
    rig = Rig(DOUBLE_LENGTHS)
    with rig.running():
        first = rig.packed((1,))
        for length in (1, 2, 1, 3):  # at 3, 2 is the one not looked up for longest
            run(rig, length)
        assert rig.packed((1,)) is first
        occupancy = rig.supertensor.occupancy()
        assert (occupancy.lanes, occupancy.spare_bytes) == (2, spare_bytes(rig))
        assert occupancy.spare_bytes == 8 * 4 * (1 + 3)


def test_batches_of_very_large_rows_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_table_module, "MAX_SPARE_ROW_BYTES", 4 * 3)
    rig = Rig(DOUBLE_LENGTHS)
    with rig.running():
        run(rig, 4)
        assert rig.supertensor.occupancy().spare_bytes == 0
        run(rig, 3)
        assert rig.supertensor.occupancy().spare_bytes == spare_bytes(rig) > 0


def test_a_forgotten_lane_that_is_still_used_is_kept_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_table_module, "MAX_LANES", 1)
    rig = Rig(DOUBLE_LENGTHS)
    with rig.running():
        planned = rig.packed((1,))
        run(rig, 2)
        assert planned not in rig.supertensor.lanes
        for turn in range(2):
            rig.worker.add(turn, planned, rows(1, 1))
            rig.worker.end_round()
            rig.worker.collect(turn)
        assert rig.supertensor.lane(planned.row_shapes) is planned
        assert len(planned.spare) == 1
        assert rig.supertensor.occupancy().spare_bytes == spare_bytes(rig) == 8 * 4


def test_a_forgotten_lane_that_a_plan_holds_is_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_table_module, "MAX_LANES", 1)
    rig = Rig(DOUBLE_LENGTHS)
    planned = rig.packed((1,))
    rig.lane((2,))
    assert rig.supertensor.occupancy().lanes == 1
    assert rig.lane((1,)) is planned


def test_a_lane_in_use_outlives_any_number_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_table_module, "MAX_LANES", 4)
    rig = Rig(DOUBLE_LENGTHS)
    with rig.running():
        planned = rig.packed((1,))
        run(rig, 1)
        [batch] = planned.spare
        bindings = dict(batch.bindings)
        for length in range(2, 40):
            run(rig, length)
            if length % 3 == 0:  # its plan does not look it up again
                rig.worker.add(length, planned, rows(1, 1))
                rig.worker.end_round()
                rig.worker.collect(length)
        assert planned.spare == [batch]
        assert batch.bindings == bindings  # of the same objects
        assert rig.supertensor.occupancy().lanes == 4


def test_spare_memory_is_bounded_and_counted_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    bound = 8 * 4 * 10  # ten floats per row of a batch
    monkeypatch.setattr(lane_table_module, "MAX_SPARE_BYTES", bound)
    rig = Rig(DOUBLE_LENGTHS, capacity=3)
    with rig.running():
        for length in (2, 7, 4, 1, 11, 3, 3, 10, 1):
            npt.assert_array_equal(run(rig, length), 2 * rows(1, length))
            occupancy = rig.supertensor.occupancy()
            assert occupancy.spare_bytes == spare_bytes(rig) <= bound
        assert rig.packed((11,)).spare == []  # larger than the bound by itself
        assert len(rig.packed((1,)).spare) == 1
        assert rig.packed((10,)).spare == []  # dropped to make room for the one above
