"""``max_queue_size``: how many requests may wait, whatever rows they have; those that run are not among them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.testing as npt
import pytest

from tests.engine.rig import Rig
from tests.graphs import DOUBLE, DOUBLE_LENGTHS
from tests.waiting import wait_until
from toutates.system.errors import Overloaded, QueueFull

ALWAYS = 2**62


def rows(count: int, length: int = 4) -> Any:
    return np.arange(count * length, dtype=np.float32).reshape(count, length)


def run_one(rig: Rig) -> None:
    """Have the only executor busy until the gate opens."""
    rig.wait_idle()
    rig.gate.clear()
    rig.worker.add("running", rig.lane((4,)), rows(1))
    rig.worker.end_round()
    wait_until(lambda: rig.supertensor.occupancy().running == 1)


def test_requests_wait_up_to_the_bound_while_a_batch_runs_and_no_more() -> None:
    rig = Rig(DOUBLE, batch_size=32, capacity=9, max_queue_size=8)
    with rig.running():
        run_one(rig)
        for context in range(8):
            rig.worker.add(context, rig.lane((4,)), rows(1))
        with pytest.raises(QueueFull) as refused:
            rig.worker.add("late", rig.lane((4,)), rows(1))
        assert str(refused.value) == (
            "Exceeds maximum queue size: 8 requests wait for model 'm'; "
            "try again later, or raise 'max_queue_size' in its config.yaml (now 8)"
        )
        rig.worker.end_round()
        rig.gate.set()
        rig.worker.collect("running", *range(8))
        rig.worker.add("late", rig.lane((4,)), rows(1))
        rig.worker.end_round()
        rig.worker.collect("late")
        rig.assert_empty()
    assert rig.batches == [(1, 1), (8, 8), (1, 1)]


def test_a_request_counts_once_however_many_rows_it_has_and_batches_they_need() -> None:
    rig = Rig(DOUBLE, batch_size=4, capacity=20, max_queue_size=3)
    with rig.running():
        run_one(rig)
        rig.worker.add("whole", rig.lane((4,)), rows(4))
        rig.worker.add("split", rig.lane((4,)), rows(30))
        rig.worker.add("part", rig.lane((4,)), rows(3))
        for count in (1, 9):
            with pytest.raises(QueueFull, match="3 requests wait"):
                rig.worker.add("late", rig.lane((4,)), rows(count))
        rig.worker.end_round()
        rig.gate.set()
        for context, count in (("whole", 4), ("split", 30), ("part", 3)):
            npt.assert_array_equal(rig.worker.collect(context)[0], 2 * rows(count))
        rig.assert_empty()


def test_requests_of_all_shapes_wait_in_one_queue() -> None:
    rig = Rig(DOUBLE_LENGTHS, batch_size=8, capacity=8, max_queue_size=4)
    with rig.running():
        run_one(rig)
        for length in range(1, 5):
            rig.worker.add(length, rig.lane((length,)), rows(1, length))
        with pytest.raises(QueueFull):
            rig.worker.add(5, rig.lane((5,)), rows(1, 5))
        rig.worker.end_round()
        rig.gate.set()
        rig.worker.collect(1, 2, 3, 4)
        rig.assert_empty()


@pytest.mark.parametrize("quick_ns", [0, ALWAYS])
def test_requests_that_an_idle_executor_is_about_to_take_do_not_wait(quick_ns: int) -> None:
    rig = Rig(DOUBLE_LENGTHS, batch_size=32, capacity=8, max_queue_size=2, quick_ns=quick_ns)
    with rig.running():
        rig.wait_idle()
        for context in range(10):  # one batch, which is run when the round ends
            rig.worker.add(context, rig.lane((4,)), rows(1))
        for length in (1, 2):
            rig.worker.add(("other", length), rig.lane((length,)), rows(1, length))
        with pytest.raises(QueueFull, match="2 requests wait"):
            rig.worker.add("late", rig.lane((3,)), rows(1, 3))
        rig.worker.end_round()
        rig.worker.collect(*range(10), ("other", 1), ("other", 2))
        rig.assert_empty()


def test_requests_that_nobody_waits_for_any_more_leave_the_queue_with_their_batch() -> None:
    rig = Rig(DOUBLE, batch_size=2, capacity=8, max_queue_size=4)
    with rig.running():
        run_one(rig)
        for context in range(4):
            rig.worker.add(context, rig.lane((4,)), rows(1))
        rig.unwanted = {0, 1, 2, 3}
        rig.worker.end_round()
        rig.gate.set()
        rig.worker.collect("running", 0, 1, 2, 3)
        rig.assert_empty()


def test_rows_are_bounded_beside_the_queue() -> None:
    rig = Rig(DOUBLE, batch_size=2, capacity=2, max_queue_size=100)
    with rig.running():
        run_one(rig)
        rig.worker.add("a", rig.lane((4,)), rows(3))
        with pytest.raises(Overloaded, match="'capacity'") as refused:
            rig.worker.add("b", rig.lane((4,)), rows(1))
        assert type(refused.value) is Overloaded
        assert refused.value.retry_after_s is not None
        rig.worker.end_round()
        rig.gate.set()
        rig.worker.collect("a")
        rig.assert_empty()
