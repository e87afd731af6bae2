"""Which batch runs next, and when: the queue alone, by a clock that the tests turn."""

from __future__ import annotations

import pytest

from tests.engine.parts import Clock, some_batch
from toutates.engine.batch_queue import BatchQueue
from toutates.engine.budget import Bounds, Budget
from toutates.engine.lane import Batch, Lane


class Queue(BatchQueue):
    """A queue with its budget and clock."""

    def __init__(self, *, delay_ns: int = 0, enough_rows: int = 8) -> None:
        open_batches: dict[Lane, Batch] = {}
        self.budget = Budget("m", Bounds(1_000, waiting=1_000), open_batches)
        self.clock = Clock()
        super().__init__(
            open_batches,
            self.budget,
            delay_ns=delay_ns,
            enough_rows=enough_rows,
            clock_ns=self.clock,
        )

    def open_one(self, order: int = 1, *, rows: int = 1, busy: int = 0) -> Batch:
        """An open batch of a lane of its own, with as many requests as rows."""
        batch = some_batch(order, rows=rows, busy=busy)
        self.budget.count(batch, rows, rows)
        for _ in range(rows):
            self.budget.count_waiting(batch)
        self.add_open(batch)
        return batch

    def seal_one(self, order: int = 1, *, busy: int = 0) -> Batch:
        """A sealed one."""
        batch = self.open_one(order, busy=busy)
        self.seal(batch)
        return batch


def test_sealed_batches_run_in_their_order_and_one_that_is_written_to_is_passed_over() -> None:
    queue = Queue()
    busy, first, second = queue.seal_one(1, busy=1), queue.seal_one(2), queue.seal_one(3)
    assert queue.in_flight == 3
    assert [queue.next(seal_busy=True) for _ in range(3)] == [first, second, None]
    busy.busy = 0
    assert queue.next(seal_busy=False) is busy
    assert queue.running == {busy, first, second}
    assert queue.in_flight == 3


@pytest.mark.parametrize("opened", [1, 3])
def test_an_open_batch_runs_before_a_sealed_one_if_it_was_opened_before_it(opened: int) -> None:
    queue = Queue()
    sealed, open_one = queue.seal_one(2), queue.open_one(opened)
    expected = [open_one, sealed] if opened == 1 else [sealed, open_one]
    assert [queue.next(seal_busy=False), queue.next(seal_busy=False)] == expected
    assert not queue.open
    assert not queue.sealed


def test_the_first_open_batch_that_nobody_writes_to_runs() -> None:
    queue = Queue()
    busy, first, _ = queue.open_one(1, busy=1), queue.open_one(2), queue.open_one(3)
    assert queue.next(seal_busy=False) is first
    assert busy in queue.open.values()


def test_open_batches_that_are_written_to_are_sealed_when_an_executor_could_run_them() -> None:
    queue = Queue()
    busy = queue.open_one(1, busy=1)
    assert queue.next(seal_busy=False) is None
    assert list(queue.open.values()) == [busy]
    assert queue.next(seal_busy=True) is None
    assert list(queue.sealed) == [busy]
    busy.busy -= 1
    assert queue.next(seal_busy=False) is busy


def test_open_batches_are_not_sealed_while_a_sealed_one_is_ready() -> None:
    queue = Queue()
    busy, ready = queue.open_one(1, busy=1), queue.seal_one(2)
    assert queue.next(seal_busy=True) is ready
    assert list(queue.open.values()) == [busy]


def test_a_batch_that_runs_counts_the_rows_that_it_has_and_its_requests_wait_no_more() -> None:
    queue = Queue()
    batch = queue.open_one(rows=3)
    queue.budget.count_more(batch, 5)  # which never come
    assert queue.budget.waiting == 3
    assert queue.next(seal_busy=False) is batch
    assert (queue.budget.rows, queue.budget.waiting, batch.requests) == (3, 0, 0)


def test_a_batch_waits_until_its_delay_is_over() -> None:
    queue = Queue(delay_ns=100)
    batch = queue.open_one()
    assert queue.next_due_ns() == queue.clock.now_ns + 100
    queue.clock.now_ns += 99
    assert queue.next(seal_busy=True) is None
    assert queue.requests_of_next(5) == 0
    queue.clock.now_ns += 1
    assert queue.requests_of_next(5) == 1
    assert queue.next(seal_busy=True) is batch


@pytest.mark.parametrize("rows", [3, 4])
def test_a_batch_with_enough_rows_does_not_wait(rows: int) -> None:
    queue = Queue(delay_ns=100, enough_rows=4)
    batch = queue.open_one(rows=rows)
    assert queue.next(seal_busy=True) is (batch if rows == 4 else None)


def test_a_batch_that_waits_does_not_keep_one_that_is_due_from_running() -> None:
    queue = Queue(delay_ns=100, enough_rows=4)
    queue.open_one(1)
    full = queue.open_one(2, rows=4)
    assert queue.next(seal_busy=True) is full


def test_nothing_waits_in_a_queue_that_is_closed() -> None:
    queue = Queue(delay_ns=100)
    batch = queue.open_one()
    queue.closed = True
    assert not queue.finished
    assert queue.next(seal_busy=False) is batch
    assert not queue.finished
    queue.running.discard(batch)
    assert queue.finished


def test_the_next_batch_to_be_due_is_the_first_that_nobody_writes_to() -> None:
    queue = Queue(delay_ns=100)
    assert queue.next_due_ns() == 0
    began_ns = queue.clock.now_ns
    queue.open_one(1, busy=1)
    queue.clock.now_ns += 10
    queue.open_one(2)
    queue.clock.now_ns += 10
    queue.open_one(3)
    assert queue.next_due_ns() == began_ns + 110


def test_requests_of_the_batches_that_could_run_now_are_counted_in_their_order() -> None:
    queue = Queue()
    queue.seal_one(1, busy=1)
    queue.open_one(2, rows=4)
    queue.open_one(3, rows=2)
    assert [queue.requests_of_next(batches) for batches in range(4)] == [0, 1, 5, 7]
