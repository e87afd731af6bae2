"""How much may be under way where requests have many shapes: rows count alike, and memory is bounded in all."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.testing as npt
import pytest
from onnx import TensorProto

from tests.engine.rig import Rig
from tests.engine.workers import received
from tests.graphs import DOUBLE_LENGTHS, unary
from tests.waiting import wait_until
from toutates.system.errors import InvalidRequest, Overloaded

ALWAYS = 2**62
#: Of one number, in and not out: the outputs of open shape are ONNX Runtime's.
NUMBER_BYTES = 4


def rows(count: int, length: int, start: int = 0) -> Any:
    return (np.arange(count * length, dtype=np.float32) + start).reshape(count, length)


def add(rig: Rig, length: int, count: int = 1, worker: int = 0) -> Any:
    """A request whose context tells its length and rows."""
    one = rig.workers[worker]
    context = (length, count, len(one.answers) + len(contexts_of(rig)))
    one.add(context, rig.lane((length,)), rows(count, length))
    contexts_of(rig).append(context)
    return context


def contexts_of(rig: Rig) -> list[Any]:
    """Those that were taken."""
    if not hasattr(rig, "contexts"):
        rig.contexts = []  # type: ignore[attr-defined]
    return rig.contexts  # type: ignore[attr-defined,no-any-return]


def collect_all(rig: Rig) -> None:
    """Every request that was taken is answered rightly."""
    contexts = contexts_of(rig)
    for (length, count, _), answer in zip(contexts, rig.worker.collect(*contexts), strict=True):
        npt.assert_array_equal(answer, 2 * rows(count, length))


def learn(rig: Rig, lengths: range) -> None:
    """Let every lane know that it is quick."""
    for length in lengths:
        add(rig, length)
        rig.worker.end_round()
        collect_all(rig)
        rig.wait_idle()


# --- rows


def test_as_many_rows_are_taken_as_the_ring_has_whatever_their_shapes() -> None:
    rig = Rig(DOUBLE_LENGTHS, batch_size=4, capacity=4)
    for length in range(1, 17):
        add(rig, length)
    with pytest.raises(Overloaded) as refused:
        add(rig, 17)
    assert str(refused.value) == (
        "model 'm' has 16 of at most 16 rows waiting or running, and this request has 1 more; "
        "try again later, or raise 'capacity' or 'num_executors' in its config.yaml"
    )
    rig.worker.end_round()
    with rig.running():
        collect_all(rig)
        rig.assert_empty()
    assert rig.batches == [(1, 1)] * 16


@pytest.mark.parametrize("seed", range(4))
def test_any_mix_of_shapes_and_sizes_fills_the_ring_to_its_last_row(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rig = Rig(DOUBLE_LENGTHS, batch_size=64, capacity=16)
    taken = 0
    while taken < 1024:
        count = min(int(rng.integers(1, 90 if seed % 2 else 4)), 1024 - taken)
        add(rig, int(rng.integers(1, 200)), count)
        taken += count
        if rng.random() < 0.1:
            rig.worker.end_round()
    assert rig.supertensor.occupancy().rows == rig.supertensor.occupancy().row_capacity == 1024
    with pytest.raises(Overloaded):
        add(rig, 1)
    rig.worker.end_round()
    with rig.running():
        collect_all(rig)
        rig.assert_empty()


def test_rows_that_nobody_came_for_are_given_back_when_the_batch_runs() -> None:
    rig = Rig(DOUBLE_LENGTHS, batch_size=8, capacity=8)
    with rig.running():
        for _ in range(3):
            for length in range(1, 4):
                add(rig, length)
            rig.worker.end_round()
            collect_all(rig)
            rig.assert_empty()


def test_batches_of_a_workers_own_take_a_row_each_too() -> None:
    rig = Rig(DOUBLE_LENGTHS, batch_size=8, capacity=5, quick_ns=ALWAYS)
    with rig.running():
        learn(rig, range(1, 41))
        for length in range(1, 41):
            add(rig, length)
        assert rig.supertensor.occupancy().in_flight == 40
        with pytest.raises(Overloaded):
            add(rig, 41)
        rig.worker.end_round()
        collect_all(rig)
        rig.assert_empty()


def test_a_batch_of_a_workers_own_gets_no_more_rows_than_there_are() -> None:
    rig = Rig(DOUBLE_LENGTHS, batch_size=8, capacity=1, workers=2, quick_ns=ALWAYS)
    with rig.running():
        learn(rig, range(1, 2))
        for turn in range(2):
            rig.workers[1].add(turn, rig.lane((1,)), rows(5, 1))
            rig.workers[1].end_round()  # the first time to see that it is quick
            rig.workers[1].collect(turn)
            rig.wait_idle()
        for _ in range(2):
            add(rig, 1, 3)
            rig.worker.end_round()
            collect_all(rig)
            rig.wait_idle()
        rig.batches.clear()
        rig.workers[1].add("other", rig.lane((1,)), rows(5, 1))
        for _ in range(3):
            add(rig, 1)
        assert rig.batches == []
        add(rig, 1)
        assert rig.batches == [(3, 3)]
        for worker in rig.workers:
            worker.end_round()
        collect_all(rig)
        rig.assert_empty()


def test_a_request_that_is_refused_leaves_nothing_counted() -> None:
    rig = Rig(DOUBLE_LENGTHS, batch_size=4, capacity=4)
    add(rig, 1, 3)
    with pytest.raises(Overloaded):
        add(rig, 2, 14)
    with pytest.raises(InvalidRequest, match="batch-size must be <= 16 for 'm'"):
        add(rig, 2, 17)
    assert rig.supertensor.budget.rows == 3
    add(rig, 2, 13)
    rig.worker.end_round()
    with rig.running():
        collect_all(rig)
        rig.assert_empty()


# --- whose turn it is


def test_a_shape_that_fills_batch_after_batch_does_not_keep_another_from_its_turn() -> None:
    rig = Rig(DOUBLE_LENGTHS, batch_size=2, capacity=8)
    with rig.running():
        rig.wait_idle()
        rig.gate.clear()
        add(rig, 1, 2)
        wait_until(lambda: rig.supertensor.occupancy().running == 1)
        add(rig, 1, 2)  # waits, full
        add(rig, 7)  # open
        add(rig, 1, 2)
        add(rig, 1, 2)
        rig.worker.end_round()
        rig.gate.set()
        collect_all(rig)
    assert [count for count, _ in rig.batches] == [2, 2, 1, 2, 2]


# --- memory


def test_buffers_are_made_for_few_rows_and_grow_with_what_comes() -> None:
    length = 1000
    # To each of the 64 rows that there may be, memory of two.
    rig = Rig(DOUBLE_LENGTHS, batch_size=16, capacity=4, capacity_bytes=2 * 64 * length * NUMBER_BYTES)
    with rig.running():
        lane = rig.packed((length,))
        assert (lane.room, lane.batch_rows) == (1, 16)
        seen = []
        for _ in range(6):
            add(rig, length)
            rig.worker.end_round()
            collect_all(rig)
            seen.append(lane.room)
        rig.gate.clear()
        for _ in range(20):
            add(rig, length)
        rig.worker.end_round()
        rig.gate.set()
        collect_all(rig)
        rig.assert_empty()
        assert lane.room == 16
        add(rig, length, 16)
        rig.worker.end_round()
        collect_all(rig)
    assert seen[-1] == 2  # one caller at a time fills one row, and then never two
    assert rig.batches[-1] == (16, 1)


def test_a_request_has_room_in_one_batch_if_that_takes_as_many_rows() -> None:
    rig = Rig(DOUBLE_LENGTHS, batch_size=16, capacity=4, capacity_bytes=2 * 64 * 4000)
    with rig.running():
        assert rig.packed((1000,)).room == 1
        add(rig, 1000, 9)
        rig.worker.end_round()
        collect_all(rig)
    assert rig.batches == [(9, 1)]
    assert rig.packed((1000,)).room == 16  # twice the nine, as far as a batch takes them


def test_buffers_for_more_rows_than_come_keep_no_other_shape_out() -> None:
    length = 100
    # Rows of the largest size for which as many as the ring has are promised.
    rig = Rig(DOUBLE_LENGTHS, batch_size=16, capacity=4, capacity_bytes=2 * 64 * (length + 64) * NUMBER_BYTES)
    with rig.running():
        for other in range(64):  # each shape has had a full batch
            add(rig, length + other, 16)
            rig.worker.end_round()
            collect_all(rig)
        rig.gate.clear()
        for other in range(64):
            add(rig, length + other)
        occupancy = rig.supertensor.occupancy()
        assert occupancy.rows == 64
        assert occupancy.in_flight_bytes <= occupancy.capacity_bytes
        rig.worker.end_round()
        rig.gate.set()
        collect_all(rig)
        rig.assert_empty()


def test_rows_above_the_bound_of_memory_are_refused_by_its_key() -> None:
    rig = Rig(DOUBLE_LENGTHS, batch_size=8, capacity=8, capacity_bytes=10_000)
    for count in (1, 9):
        with pytest.raises(
            InvalidRequest, match=r"needs \d+ bytes, and all batches of model 'm' may take 10000; split it"
        ):
            add(rig, 2501, count)
    add(rig, 2000)
    with pytest.raises(Overloaded) as refused:
        add(rig, 501)
    assert str(refused.value) == (
        "model 'm' has batches of 8000 of at most 10000 bytes waiting or running, and this request needs 2004 more; "
        "try again later, or raise 'capacity_bytes' in its config.yaml"
    )
    with pytest.raises(Overloaded, match="'capacity_bytes'"):
        add(rig, 100, 8)  # needs one batch
    with pytest.raises(Overloaded, match="'capacity_bytes'"):
        add(rig, 30, 20)  # needs several
    add(rig, 500)
    rig.worker.end_round()
    with rig.running():
        collect_all(rig)
        rig.assert_empty()


@pytest.mark.parametrize("quick_ns", [0, ALWAYS])
def test_ever_new_shapes_hold_no_more_memory_than_is_allowed(quick_ns: int) -> None:
    bound = 200_000
    rig = Rig(DOUBLE_LENGTHS, batch_size=16, capacity=16, capacity_bytes=bound, quick_ns=quick_ns)
    most = refused = 0
    with rig.running():
        if not quick_ns:
            rig.gate.clear()
        for turn, length in enumerate(np.random.default_rng(1).permutation(3000)[:400] + 1):
            try:
                add(rig, int(length))
            except Overloaded:
                refused += 1
                rig.worker.end_round()
                rig.gate.set()
                collect_all(rig)
                rig.assert_empty()
                rig.gate.clear()
            most = max(most, rig.supertensor.occupancy().in_flight_bytes)
            with rig.supertensor.lock:
                lanes = rig.supertensor.lanes
                assert lanes.spare_bytes == sum(batch.memory_bytes for lane in lanes for batch in lane.spare)
            if turn % 50 == 0:
                rig.worker.end_round()
        rig.gate.set()
        rig.worker.end_round()
        collect_all(rig)
        rig.assert_empty()
    assert most <= bound
    if not quick_ns:  # else each runs at once
        assert refused
        assert most > bound / 2


def test_arrays_that_are_kept_are_counted_until_they_have_run() -> None:
    rig = Rig(unary("Identity", ["n", "m"], TensorProto.STRING), batch_size=4, capacity=4, capacity_bytes=10_000)
    lane, submitter = rig.lane((2,)), rig.worker.port

    def submit(context: str, count: int, held_bytes: int) -> None:
        submitter.add_gathered(lane, count, context, [received(np.full((count, 2), b"x", object))], held_bytes)

    submit("a", 1, 8000)
    with pytest.raises(Overloaded, match=r"this request needs 2001 more; .* 'capacity_bytes'"):
        submit("b", 1, 2001)
    submit("split", 6, 900)
    assert rig.supertensor.occupancy().in_flight_bytes == 8900
    rig.worker.end_round()
    with rig.running():
        rig.worker.collect("a", "split")
        rig.assert_empty()
        submit("b", 1, 2000)
        rig.worker.end_round()
        rig.worker.collect("b")
