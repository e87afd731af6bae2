"""Outcomes leave in the order of their requests, whatever order they come in and whatever thread brings them."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import pytest

from toutates.engine.ordered.order import Order, Place
from toutates.engine.result import BatchResult, Outputs, Split, Timing
from toutates.engine.servable import Consumer
from toutates.system.errors import ExecutionFailed, Overloaded, RequestError

NEVER = Timing(0, 0, 0, 0)


def consumer(finish: Callable[[BatchResult], None]) -> Consumer:
    return Consumer(finish, finish, lambda callback: None)


def outcome(*places: Place, size: int = 4, error: RequestError | None = None, part: Any = None) -> BatchResult:
    outputs = None if error is not None else Outputs((bytes(size),), (size,), ((size,),))
    pending = [(place, at, place.rows, part) for at, place in enumerate(places)]
    return BatchResult(pending, outputs, error, NEVER)


class Heard:
    """A consumer, and what it has heard: contexts, by result."""

    def __init__(self) -> None:
        self.results: list[BatchResult] = []
        self.consumer = consumer(self.results.append)

    @property
    def contexts(self) -> list[list[Any]]:
        return [[request[0] for request in result.pending] for result in self.results]


def test_an_outcome_waits_for_those_before_it() -> None:
    order, heard = Order("m", 10, 100), Heard()
    places = [order.begin(heard.consumer, at, 1) for at in range(4)]
    order.take(outcome(places[1], places[2]))
    order.take(outcome(places[3], error=ExecutionFailed("no")))
    assert heard.contexts == []
    assert order.statistics() == (4, 4, 4)
    order.take(outcome(places[0]))
    assert heard.contexts == [[0], [1, 2], [3]]
    assert str(heard.results[-1].error) == "no"
    assert order.statistics() == (0, 0, 0)


def test_neighbours_of_one_batch_are_one_result_for_each_consumer() -> None:
    order, one, other = Order("m", 10, 100), Heard(), Heard()
    places = [order.begin(who.consumer, at, 1) for at, who in enumerate((one, one, other, one))]
    order.take(outcome(*places))
    assert one.contexts == [[0, 1], [3]]
    assert other.contexts == [[2]]
    assert [request[1] for request in one.results[0].pending] == [0, 1]


def test_a_request_that_was_refused_keeps_nobody_waiting() -> None:
    order, heard = Order("m", 10, 100), Heard()
    first, second = (order.begin(heard.consumer, at, 1) for at in range(2))
    order.take(outcome(second))
    order.withdraw(first)
    assert heard.contexts == [[1]]


def test_a_split_request_leaves_its_place_with_its_last_part() -> None:
    order, heard = Order("m", 10, 100), Heard()
    first, second = (order.begin(heard.consumer, at, 2) for at in range(2))
    split = Split(2)
    order.take(outcome(first, part=(split, 1)))
    order.take(outcome(second))
    assert heard.contexts == [[0]]
    order.take(outcome(first, part=(split, 0)))
    assert heard.contexts == [[0], [0], [1]]


def test_responses_of_a_decoupled_request_leave_as_they_come_while_it_is_the_first() -> None:
    order, heard = Order("m", 10, 100), Heard()
    first, second = (order.begin(heard.consumer, at, 1) for at in range(2))

    def response(place: Place, *, more: bool) -> BatchResult:
        result = outcome(place)
        result.more = more
        result.taken = lambda: None
        return result

    order.take(response(second, more=True))
    order.take(response(first, more=True))
    assert heard.contexts == [[0]]
    assert heard.results[0].more
    assert heard.results[0].taken is not None
    order.take(response(first, more=False))
    assert heard.contexts == [[0], [0], [1]]
    order.take(response(second, more=False))
    assert [result.more for result in heard.results] == [True, False, True, False]
    assert order.statistics() == (0, 0, 0)


def test_what_is_held_is_bounded_by_rows_and_by_bytes() -> None:
    order, heard = Order("m", 4, 100), Heard()
    first = order.begin(heard.consumer, 0, 1)
    others = [order.begin(heard.consumer, at, 1) for at in range(1, 4)]
    with pytest.raises(Overloaded, match="'m' answers in order, and 4 rows"):
        order.begin(heard.consumer, 9, 1)
    order.take(outcome(*others, size=101))
    order.take(outcome(first))
    last = order.begin(heard.consumer, 9, 8)  # more than may be, but alone
    order.take(outcome(last))
    first, second = (order.begin(heard.consumer, at, 1) for at in range(2))
    order.take(outcome(second, size=101))
    with pytest.raises(Overloaded, match="101 bytes") as refused:
        order.begin(heard.consumer, 9, 1)
    assert refused.value.retry_after_s is not None
    order.take(outcome(first))
    assert order.statistics() == (0, 0, 0)


def test_a_consumer_that_fails_keeps_nobody_waiting(caplog: pytest.LogCaptureFixture) -> None:
    order, heard = Order("m", 10, 100), Heard()

    def fail(result: BatchResult) -> None:
        raise ValueError

    first = order.begin(consumer(fail), 0, 1)
    second = order.begin(heard.consumer, 1, 1)
    order.take(outcome(second))
    order.take(outcome(first))
    assert heard.contexts == [[1]]
    assert "1 requests wait for nothing" in caplog.text


def test_threads_that_bring_outcomes_at_once_do_not_mix_them_up() -> None:
    order, heard = Order("m", 10_000, 10**9), Heard()
    places = [order.begin(heard.consumer, at, 1) for at in range(2_000)]
    shuffled = random.Random(1).sample(places, len(places))

    def take(own: list[Place]) -> None:
        for place in own:
            order.take(outcome(place))

    threads = [threading.Thread(target=take, args=(shuffled[at::4],)) for at in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [context for contexts in heard.contexts for context in contexts] == list(range(2_000))
    assert order.statistics() == (0, 0, 0)
