"""How much may be under way: the budget alone."""

from __future__ import annotations

import pytest

from tests.engine.parts import some_batch
from toutates.engine.budget import Bounds, Budget
from toutates.engine.lane import Batch, Lane
from toutates.system.errors import InvalidRequest, Overloaded, QueueFull

#: A row of ``some_batch(1)``, in bytes.
ROW_BYTES = 4


class Books:
    """A budget and its open batches."""

    def __init__(self, rows: int = 64, memory_bytes: int = 2**40, waiting: int = 0) -> None:
        self.open: dict[Lane, Batch] = {}
        self.budget = Budget("m", Bounds(rows, memory_bytes, waiting), self.open)

    def open_one(self, rows: int = 1, order: int = 1) -> Batch:
        """An open batch with room for 8 rows, of which some are reserved and counted."""
        batch = some_batch(order, rows=rows)
        self.budget.count(batch, rows, rows)
        self.budget.memory_bytes += batch.memory_bytes
        self.open[batch.lane] = batch
        return batch

    def numbers(self, batch: Batch) -> tuple[int, int, int, int]:
        """Rows counted and ahead, in all and of the batch."""
        return self.budget.rows, self.budget.ahead, batch.counted, batch.ahead


def test_an_open_batch_counts_rows_ahead_that_later_ones_take() -> None:
    books = Books()
    batch = books.open_one()
    assert books.numbers(batch) == (8, 7, 8, 7)  # an eighth of the 63 left
    batch.rows = 8
    books.budget.count_exactly(batch)
    assert books.numbers(batch) == (8, 0, 8, 0)


def test_few_rows_are_counted_ahead_where_few_are_left_and_none_below_a_quarter() -> None:
    books = Books(rows=20)
    first, second, last = books.open_one(4, 1), books.open_one(4, 2), books.open_one(5, 3)
    assert (first.ahead, second.ahead) == (2, 1)
    assert (last.counted, last.ahead) == (5, 0)
    assert (books.budget.rows, books.budget.ahead) == (16, 3)


def test_rows_that_are_counted_once_more_are_not_ahead_twice() -> None:
    books = Books(rows=40)
    batch = books.open_one()
    assert books.numbers(batch) == (5, 4, 5, 4)
    batch.rows = 5
    books.budget.count_more(batch, 1)
    assert books.numbers(batch) == (8, 2, 8, 2)
    books.budget.count_exactly(batch)
    assert books.numbers(batch) == (5, 0, 5, 0)


def test_rows_counted_ahead_are_given_back_when_others_need_them() -> None:
    books = Books(rows=32)
    batch = books.open_one()
    assert books.budget.rows == 4
    books.budget.check_rows(31)
    assert books.numbers(batch) == (1, 0, 1, 0)
    with pytest.raises(Overloaded, match="has 1 of at most 32 rows waiting or running, and this request has 32 more"):
        books.budget.check_rows(32)


def test_a_batch_takes_as_many_more_rows_as_there_are() -> None:
    books = Books(rows=10)
    batch = books.open_one(5)
    other = books.open_one(3, 2)
    books.budget.count_more(batch, 2)
    assert books.budget.rows == 10
    batch.rows = 7
    with pytest.raises(Overloaded):
        books.budget.count_more(other, 1)
    assert (batch.counted, other.counted) == (7, 3)


@pytest.mark.parametrize(("rows", "fits"), [(24, True), (25, False)])
def test_a_request_of_several_batches_fits_if_its_rows_do(rows: int, fits: bool) -> None:
    books = Books(rows=32)
    batch = books.open_one(8)
    if fits:
        books.budget.check_fit(batch.lane, rows, 0)
    else:
        with pytest.raises(Overloaded):
            books.budget.check_fit(batch.lane, rows, 0)
    with pytest.raises(InvalidRequest, match="batch-size must be <= 32 for 'm'"):
        books.budget.check_fit(batch.lane, 33, 0)


def test_rows_counted_ahead_are_those_of_the_next_request_of_their_batch() -> None:
    books = Books(rows=32)
    batch = books.open_one()
    assert books.numbers(batch) == (4, 3, 4, 3)
    books.budget.check_fit(batch.lane, 31, 0)
    assert books.numbers(batch) == (4, 3, 4, 3)


@pytest.mark.parametrize(("held_bytes", "fits"), [(16, True), (17, False)])
def test_a_request_of_several_batches_fits_if_its_memory_does(held_bytes: int, fits: bool) -> None:
    # The open batch has room for 8 rows, of which 3 are free. 10 rows need memory for 7 more, 28 bytes.
    books = Books(rows=32, memory_bytes=8 * ROW_BYTES + 28 + 16)
    batch = books.open_one(5)
    if fits:
        books.budget.check_fit(batch.lane, 10, held_bytes)
    else:
        with pytest.raises(Overloaded, match="has batches of 32 of at most 76 bytes"):
            books.budget.check_fit(batch.lane, 10, held_bytes)


def test_a_request_that_needs_more_memory_than_there_can_be_is_the_callers_mistake() -> None:
    books = Books(rows=32, memory_bytes=100)
    lane = some_batch(1).lane
    books.budget.check_fit(lane, 10, 60)
    with pytest.raises(InvalidRequest, match="this request needs 101 bytes"):
        books.budget.check_fit(lane, 10, 61)


def test_buffers_leave_each_row_that_may_come_its_share_of_the_memory() -> None:
    # 16 rows, a share of 10 bytes each.
    books = Books(rows=16, memory_bytes=320)
    lane = some_batch(5).lane  # 20 bytes a row
    books.budget.rows = 4
    assert books.budget.buffer_rows(lane, 1) == 8  # (320 - 120) // 20 = 10, and the lane wants 8
    books.budget.memory_bytes = 100
    assert books.budget.buffer_rows(lane, 1) == 5
    books.budget.ahead = 2
    assert books.budget.buffer_rows(lane, 1) == 4
    assert books.budget.buffer_rows(lane, 7) == 7  # what is needed now goes before shares
    with pytest.raises(Overloaded):
        books.budget.buffer_rows(lane, 12)
    with pytest.raises(InvalidRequest):
        books.budget.buffer_rows(lane, 17)


def test_as_many_requests_wait_as_may_and_those_about_to_run_are_not_among_them() -> None:
    books = Books(waiting=2)
    batch = books.open_one()
    assert batch.ahead == 0  # where requests are counted, each is looked at anyway
    for _ in range(2):
        books.budget.check_waiting(0)
        books.budget.count_waiting(batch)
    with pytest.raises(QueueFull, match="Exceeds maximum queue size: 2 requests wait for model 'm'"):
        books.budget.check_waiting(0)
    books.budget.check_waiting(1)
    books.budget.start(batch)
    assert (books.budget.waiting, batch.requests) == (0, 0)


def test_a_request_of_several_batches_does_not_fit_by_rows_that_are_only_counted_ahead() -> None:
    books = Books(rows=32)
    batch = books.open_one()
    assert batch.ahead == 3
    with pytest.raises(Overloaded):
        books.budget.check_fit(batch.lane, 32, 0)
    books.budget.check_fit(batch.lane, 31, 0)
