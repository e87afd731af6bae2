"""Rows of different length in one batch: padded, masked, cut back, each its own answer."""

from __future__ import annotations

import random
import threading
from typing import Any

import numpy as np
import numpy.testing as npt
import pytest
from onnx import TensorProto, helper

from tests.engine.rig import Rig
from tests.graphs import TEXTS, model, tensor
from tests.waiting import wait_until
from toutates.engine.drain import UNKNOWN_S
from toutates.engine.lane_table import MAX_LANES
from toutates.engine.lengths import Buckets
from toutates.engine.padded.padding import PaddedInput, Padding
from toutates.engine.result import Outputs
from toutates.models.config.padding import with_made_mask
from toutates.system.errors import ExecutionFailed, InvalidRequest, ModelNotReady, Overloaded, QueueFull, RequestError

INT64 = TensorProto.INT64

IDS, MASK = 0, 1
PADDED = {IDS: PaddedInput(0, 7), MASK: PaddedInput(0)}


class PaddedRig(Rig):
    """A rig whose rows are padded.

    Args:
        padding: how. Requests may leave out the mask.
    """

    def __init__(self, content: bytes, padding: Padding, **rest: Any) -> None:
        self.padding = padding
        super().__init__(content, padding=padding, **rest)

    def served(self, signature: Any) -> Any:
        return with_made_mask(signature, self.padding)


def texts(
    *, batch_size: int = 8, capacity: int = 4, buckets: tuple[int, ...] = (), most: int = 4_096, **rest: Any
) -> Rig:
    padding = Padding(PADDED, MASK, {0: 0}, Buckets(buckets), most)
    return PaddedRig(TEXTS, padding, batch_size=batch_size, capacity=capacity, **rest)


def ids(*lengths: int, first: int = 1) -> Any:
    """Rows of one length of numbers from ``first``."""
    return np.array(
        [np.arange(first + row, first + row + length) % 100 for row, length in enumerate(lengths)], np.int64
    )


def check(outputs: Any, given: Any) -> None:
    """The answer of a request, each output an array."""
    each, total, width = outputs
    npt.assert_array_equal(each, given * 10)
    npt.assert_array_equal(total, given.sum(axis=1, keepdims=True) * 10)
    assert (width >= given.shape[1]).all()


def held(rig: Rig) -> None:
    """Have the only executor stop before a run."""
    rig.wait_idle()
    rig.gate.clear()
    rig.worker.add_shaped("held", ids(50))
    rig.worker.end_round()
    wait_until(lambda: rig.supertensor.occupancy().running == 1)


def test_requests_of_different_length_share_a_batch_and_get_their_own_rows() -> None:
    rig = texts()
    with rig.running():
        held(rig)
        given = {length: ids(length, first=length) for length in (9, 10, 10 + 1, 12)}
        for length, rows in given.items():
            rig.worker.add_shaped(length, rows)
        rig.worker.end_round()
        rig.gate.set()
        rig.worker.collect("held", *given)
        for length, rows in given.items():
            check(rig.worker.answers[length], rows)
            assert rig.worker.answers[length][2] == 12
        assert rig.batches == [(1, 1), (4, 4)]
        rig.assert_empty()


def test_the_mask_of_a_request_is_padded_with_zeros() -> None:
    rig = texts()
    with rig.running():
        mask = np.array([[1, 0, 1, 0, 0, 1, 1, 1, 1], [0, 1, 1, 1, 1, 1, 1, 1, 0]], np.int64)
        rig.worker.add_shaped("masked", ids(9, 9), mask)
        rig.worker.end_round()
        rig.worker.collect("masked")
        npt.assert_array_equal(rig.worker.answers["masked"][0], ids(9, 9) * 10 * mask)
        npt.assert_array_equal(rig.worker.answers["masked"][2], [[10], [10]])


def test_a_request_of_many_rows_is_split_and_joined() -> None:
    rig = texts(most=64)
    with rig.running():
        given = ids(*[10] * 17)
        rig.worker.add_shaped("many", given)
        rig.worker.end_round()
        rig.worker.collect("many")
        check(rig.worker.answers["many"], given)
        assert [rows for rows, _ in rig.batches] == [6, 6, 5]  # 64 elements are 6 rows of 10
        rig.assert_empty()


def test_a_request_that_fails_does_not_fail_its_batch() -> None:
    rig = texts()
    with rig.running():
        held(rig)
        good = {length: ids(length) for length in (20, 18)}
        for length, rows in good.items():
            rig.worker.add_shaped(length, rows)
        rig.worker.add_shaped("bad", np.full((1, 19), 1_000, np.int64))
        rig.worker.end_round()
        rig.gate.set()
        rig.worker.collect("held", "bad", *good)
        assert isinstance(rig.worker.errors["bad"], ExecutionFailed)
        for length, rows in good.items():
            check(rig.worker.answers[length], rows)
        rig.assert_empty()


def test_any_lengths_at_any_time_get_their_own_answers() -> None:
    rng = random.Random(3)
    rig = texts(batch_size=16, capacity=64, workers=2, executors=2)
    given = {number: ids(*[rng.randint(1, 90)] * rng.randint(1, 4), first=rng.randint(0, 9)) for number in range(300)}

    def work(own: int) -> None:
        worker = rig.workers[own]
        for number in range(own, 300, 2):
            worker.add_shaped(number, given[number])
            if rng.random() < 0.2:
                worker.end_round()
        worker.end_round()
        worker.collect(*range(own, 300, 2))

    with rig.running():
        threads = [threading.Thread(target=work, args=(own,)) for own in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for number, rows in given.items():
            check(rig.workers[number % 2].answers[number], rows)
        rig.assert_empty()
    total = [one for counters in rig.counters for one in counters.by_rows.values()]
    real = sum(one.real_elements for one in total)
    assert real == sum(rows.size for rows in given.values())
    assert real <= sum(one.padded_elements for one in total) <= 1.25 * real


def test_a_quick_batch_runs_in_the_workers_thread() -> None:
    rig = texts(quick_ns=2**40)
    with rig.running():
        for at in range(3):
            rig.wait_idle()
            rig.worker.add_shaped(at, ids(30))
            rig.worker.end_round()
            rig.worker.collect(at)
        assert rig.ran_in[-1] is threading.current_thread()
        check(rig.worker.answers[2], ids(30))


def test_as_many_rows_as_run_together_do_not_wait_for_the_rounds_end() -> None:
    rig = texts(batch_size=4)
    with rig.running():
        for at in range(4):
            rig.worker.add_shaped(at, ids(5))
        rig.worker.collect(*range(4))
        assert [rows for rows, _ in rig.batches] == [4]


def test_rows_wait_for_company_where_the_model_asks_for_it() -> None:
    rig = texts(delay_ns=2**60, enough_rows=3)
    with rig.running():
        for at in range(3):
            assert not rig.batches
            rig.worker.add_shaped(at, ids(10 + at))
            rig.worker.end_round()
        rig.worker.collect(*range(3))
        assert rig.batches == [(3, 3)]


def test_what_waits_when_the_version_closes_is_answered() -> None:
    rig = texts(delay_ns=2**60, enough_rows=100)
    with rig.running():
        rig.worker.add_shaped("last", ids(10))
        rig.worker.end_round()
        rig.supertensor.close()
        rig.worker.collect("last")
        with pytest.raises(ModelNotReady):
            rig.worker.add_shaped("late", ids(10))


# --- bounds ----------------------------------------------------------------------------------------------------------


def test_more_rows_than_may_be_under_way_are_refused() -> None:
    rig = texts(batch_size=2, capacity=2)
    with rig.running():
        rig.worker.add_shaped("before", ids(5))
        rig.worker.end_round()
        rig.worker.collect("before")
        held(rig)
        for at in range(3):
            rig.worker.add_shaped(at, ids(5))
        with pytest.raises(Overloaded, match="has 4 of at most 4 rows") as refused:
            rig.worker.add_shaped("late", ids(5))
        assert refused.value.retry_after_s not in (None, UNKNOWN_S), "by what the run before has taken"
        rig.worker.end_round()
        rig.gate.set()
        rig.worker.collect("held", 0, 1, 2)
        rig.assert_empty()


def test_more_bytes_than_may_be_under_way_are_refused() -> None:
    rig = texts(capacity_bytes=4_000)
    with rig.running():
        with pytest.raises(InvalidRequest, match="all batches of model 'm' may take 4000"):
            rig.worker.add_shaped("large", ids(*[90] * 4))
        held(rig)
        rig.worker.add_shaped("fits", ids(90))
        with pytest.raises(Overloaded, match="bytes waiting or running"):
            rig.worker.add_shaped("late", ids(90, 90))
        rig.worker.end_round()
        rig.gate.set()
        rig.worker.collect("held", "fits")
        rig.assert_empty()


def test_rows_that_are_kept_while_their_parts_run_are_within_the_bound() -> None:
    rig = texts(capacity_bytes=4_000, most=100)
    rig.supertensor.keeps_split = True
    with rig.running():
        with pytest.raises(InvalidRequest, match="needs 4416 bytes"):
            rig.worker.add_shaped("large", ids(90, 90))
        rig.worker.add_shaped("fits", ids(40, 40, 40, 40))
        rig.worker.end_round()
        rig.worker.collect("fits")
        rig.assert_empty()


def test_requests_that_wait_are_bounded() -> None:
    rig = texts(max_queue_size=2)
    with rig.running():
        held(rig)
        for at in range(2):
            rig.worker.add_shaped(at, ids(5 + at))
        with pytest.raises(QueueFull, match="2 requests wait"):
            rig.worker.add_shaped("late", ids(5))
        rig.worker.end_round()
        assert rig.supertensor.occupancy().waiting == 2
        rig.gate.set()
        rig.worker.collect("held", 0, 1)
        rig.assert_empty()


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ([ids(0)], "has no elements along the dimension that is padded; send 1 or more"),
        ([ids(9)], "input 'ids' for model 'm' has 9 elements along the dimension that is padded; the model takes 8"),
        ([ids(5), ids(6)], "inputs 'ids' and 'mask' for model 'm' have 5 and 6 elements along the dimension"),
        ([ids()[:0].reshape(0, 3)], "the batch dimension for model 'm' is 0; send 1 row or more"),
    ],
)
def test_rows_that_cannot_be_padded_are_refused(given: list[Any], text: str) -> None:
    rig = texts(buckets=(4, 8))
    with pytest.raises(InvalidRequest, match=text):
        rig.worker.add_shaped("bad", *given)
    rig.assert_empty()


def test_lengths_leave_nothing_behind() -> None:
    rig = texts(capacity=64)
    with rig.running():
        for length in range(1, 400):
            rig.worker.add_shaped(length, ids(length))
            rig.worker.end_round()
        rig.worker.collect(*range(1, 400))
        buckets = len(Buckets().up_to(512))
        assert len(rig.supertensor.lanes) <= buckets + 1 <= MAX_LANES
        assert rig.supertensor.occupancy().spare_bytes == 0
        rig.assert_empty()


# --- outputs ---------------------------------------------------------------------------------------------------------


def test_an_output_without_the_length_of_its_rows_is_an_error() -> None:
    halves = model(
        [helper.make_node("Slice", ["ids", "zero", "two", "one"], ["half"])],
        [tensor("ids", ["n", "length"], INT64)],
        [tensor("half", ["n", "other"], INT64)],
        zero=np.array([0], np.int64),
        two=np.array([2], np.int64),
        one=np.array([1], np.int64),
    )
    rig = PaddedRig(halves, Padding({0: PaddedInput(0)}, None, {0: 0}))
    with rig.running():
        rig.worker.add_shaped("odd", ids(9))
        rig.worker.end_round()
        rig.worker.collect("odd")
        assert str(rig.worker.errors["odd"]) == (
            "model 'm' returned output 'half' with 2 elements along dimension 1, which is cut back, and the rows were "
            "padded to 10"
        )


def test_large_outputs_are_cut_back_in_arrays() -> None:
    wide = model(
        [helper.make_node("Mul", ["x", "two"], ["y"])],
        [tensor("x", ["n", 3, "length"])],
        [tensor("y", ["n", 3, "length"])],
        two=np.array(2, np.float32),
    )
    rig = PaddedRig(wide, Padding({0: PaddedInput(1, 0.5)}, None, {0: 1}, most_elements=2**20))
    with rig.running():
        held_rows = np.ones((1, 3, 4), np.float32)
        rig.wait_idle()
        rig.gate.clear()
        rig.worker.add_shaped("held", held_rows)
        rig.worker.end_round()
        wait_until(lambda: rig.supertensor.occupancy().running == 1)
        given = {
            length: np.random.default_rng(length).normal(size=(2, 3, length)).astype(np.float32)
            for length in (9_000, 9_001)
        }
        for length, rows in given.items():
            rig.worker.add_shaped(length, rows)
        rig.worker.end_round()
        rig.gate.set()
        rig.worker.collect("held", *given)
        assert rig.batches[-1] == (4, 2)
        for length, rows in given.items():
            npt.assert_array_equal(rig.worker.answers[length][0], rows * 2)
        assert all(isinstance(result.shared_outputs, Outputs) for result in rig.worker.seen)


def test_what_is_raised_is_an_error_of_the_request() -> None:
    rig = texts()
    rig.supertensor.close()
    with pytest.raises(RequestError):
        rig.worker.add_shaped("late", ids(3))
