"""Requests of decoupled versions: what is sent arrives in order and once, is counted by place, and is bounded."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from tests.waiting import wait_until
from toutates.engine import open_request as module
from toutates.engine.open_request import OpenRequest, Patience, Responses
from toutates.engine.response_counters import MAX_PLACES, ResponseCounters
from toutates.engine.result import BatchResult, Outputs
from toutates.engine.servable import Consumer
from toutates.system.errors import ExecutionFailed


@dataclass
class Taking:
    """Takes results, and keeps them until the test says that they were taken."""

    results: list[BatchResult] = field(default_factory=list)
    wanted: bool = True
    left: bool = False
    unread: int = 0

    def consumer(self) -> Consumer:
        return Consumer(
            self.results.append,
            self.results.append,
            lambda callback: None,
            lambda context, by_ns: self.wanted,
            may_have_left=lambda context: self.left,
            unread_bytes=lambda context: self.unread,
        )

    def open(self, responses: Responses | None = None) -> OpenRequest:
        return OpenRequest(self.consumer(), ("context", 0, 3, None), 0, responses or Responses())


def outputs(size: int) -> Outputs:
    return Outputs((np.zeros(size, np.uint8),), (size,), ((size,),), in_arrays=True)


def seen(result: BatchResult) -> tuple[Any, ...]:
    kind = "outputs" if result.outputs else type(result.error).__name__ if result.error else "end"
    return (*result.pending[0][::2], kind, result.more)


def test_responses_come_in_order_and_nothing_after_the_last() -> None:
    taking = Taking()
    responses = Responses()
    request = taking.open(responses)
    request.respond(outputs(4), 1, final=False)
    request.respond(ExecutionFailed("x"), final=False)
    request.respond(None, final=True)
    request.respond(outputs(4), 1, final=True)
    assert [seen(result) for result in taking.results] == [
        ("context", 1, "outputs", True),
        ("context", 0, "ExecutionFailed", True),
        ("context", 0, "end", False),
    ]
    assert request.is_over
    assert not request.is_wanted
    counted = responses.counters.statistics()
    assert [(one.success, one.fail, one.empty, one.cancel) for one in counted.values()] == [
        (1, 0, 0, 0),
        (0, 1, 0, 0),
        (0, 0, 1, 0),
    ]


def test_nobody_waits_for_a_request_whose_caller_has_left_or_may_have() -> None:
    taking = Taking()
    request = taking.open()
    found = []
    for taking.left, taking.wanted in ((False, True), (True, True), (False, False)):
        found.append(request.is_wanted)
    assert found == [True, False, False]


def test_a_model_that_sends_faster_than_is_taken_waits() -> None:
    taking = Taking()
    responses = Responses()
    first, second = taking.open(responses), taking.open(responses)
    first.respond(outputs(module.MAX_HANDED_OVER - 100), 1, final=False)
    sender = threading.Thread(target=lambda: second.respond(outputs(10_000), 1, final=True))
    sender.start()
    wait_until(lambda: second._lock.locked())
    assert len(taking.results) == 1
    taken = taking.results[0].taken
    assert taken is not None
    taken()
    sender.join()
    assert len(taking.results) == 2
    # Where nobody waits any more, it does not wait either.
    taking.wanted = False
    first.respond(outputs(module.MAX_HANDED_OVER), 1, final=True)
    assert len(taking.results) == 3


def test_a_request_ends_where_nothing_is_taken_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STUCK_S", 0.0)
    taking = Taking()
    responses = Responses()
    first, second = taking.open(responses), taking.open(responses)
    first.respond(outputs(module.MAX_HANDED_OVER), 1, final=False)
    second.respond(outputs(4), 1, final=False)
    assert [seen(result)[2:] for result in taking.results] == [("outputs", True), ("Overloaded", False)]
    assert taking.results[1].taken is None
    assert second.is_over


def test_a_caller_that_does_not_read_has_its_request_ended_and_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LONGEST_WAIT_S", 0.01)
    taking, other = Taking(), Taking()
    responses = Responses()
    request, others = taking.open(responses), other.open(responses)
    taking.unread = module.MAX_UNREAD_BYTES - 1_000
    request.respond(outputs(1_000), 1, final=False)
    request.respond(outputs(1_000), 1, final=False)
    request.respond(outputs(1_000), 1, final=True)
    assert [seen(result)[2:] for result in taking.results] == [("outputs", True), ("Overloaded", False)]
    assert "64 MiB" in str(taking.results[1].error)
    assert not request.is_wanted
    others.respond(outputs(1_000), 1, final=True)
    assert [seen(result)[2:] for result in other.results] == [("outputs", False)]


def test_a_response_is_sent_as_soon_as_its_caller_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LONGEST_WAIT_S", 120.0)
    taking = Taking()
    request = taking.open()
    taking.unread = module.MAX_UNREAD_BYTES
    sender = threading.Thread(target=lambda: request.respond(outputs(4), 1, final=True))
    sender.start()
    wait_until(lambda: request._lock.locked())
    taking.unread = 0
    sender.join()
    assert [seen(result)[2:] for result in taking.results] == [("outputs", False)]


def test_all_waits_of_an_instance_take_a_part_of_its_time() -> None:
    now = [100.0]
    patience = Patience(lambda: now[0])
    assert patience.take() == module.LONGEST_WAIT_S
    assert patience.take() == 0.0
    now[0] += 2.0
    assert patience.take() == pytest.approx(0.2)
    patience.give_back(0.1)
    assert patience.take() == pytest.approx(0.1)
    now[0] += 1_000.0
    assert patience.take() == module.LONGEST_WAIT_S


def test_a_response_that_cannot_be_handed_over_ends_its_request() -> None:
    taken: list[BatchResult] = []

    def finish(result: BatchResult) -> None:
        if result.outputs is not None:
            raise MemoryError
        taken.append(result)

    request = OpenRequest(Consumer(finish, finish, lambda callback: None), ("c", 0, 1, None), 0, Responses())
    request.respond(outputs(4), 1, final=False)
    assert [seen(result) for result in taken] == [("c", 0, "ExecutionFailed", False)]
    assert request.is_over


def test_places_beyond_the_last_are_counted_together() -> None:
    counters = ResponseCounters()
    for place in (0, MAX_PLACES - 1, MAX_PLACES, 10**9):
        counters.add(place, "success", 5)
    statistics = counters.statistics()
    assert len(statistics) == MAX_PLACES
    assert (statistics[MAX_PLACES - 1].success, statistics[MAX_PLACES - 1].success_ns) == (3, 15)
