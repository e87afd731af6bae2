"""Answers that grow with the number of models are made beside the worker's thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from tests.waiting import wait_until
from toutates.api.rest import slow_answers
from toutates.api.rest.answers import Answer, json_answer
from toutates.api.rest.slow_answers import CHEAP_NS, SlowAnswers
from toutates.models.table import ModelTable
from toutates.net.side_thread import SideThread
from toutates.system.errors import InvalidRequest

TABLE, OTHER = ModelTable({}), ModelTable({})


class Caller:
    """A call, and the answers that it got."""

    def __init__(self) -> None:
        self.connection = self
        self.answers: list[tuple[Any, ...]] = []

    def reply(self, *answer: Any) -> None:
        self.answers.append(answer)


class Worker:
    """A worker whose thread is the test's: calls of other threads are made by ``run``."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.soon: list[Callable[[], None]] = []

    def run(self, calls: int) -> None:
        wait_until(lambda: len(self.soon) >= calls)
        for call in self.soon[:calls]:
            call()
        del self.soon[:calls]


@pytest.fixture
def worker() -> Worker:
    return Worker()


@pytest.fixture
def state() -> SimpleNamespace:
    return SimpleNamespace(table=TABLE)


@pytest.fixture
def slow(worker: Worker, state: SimpleNamespace) -> Iterator[SlowAnswers]:
    side = SideThread("side", worker.soon.append)
    kept: Any = worker
    yield SlowAnswers(kept, side, lambda: state.table)
    side.stop()


def ask(slow: SlowAnswers, make: Callable[[], Answer], key: str = "key") -> Caller:
    caller = Caller()
    call: Any = caller
    slow.answer(call, key, make)
    return caller


def spend(ms: float) -> None:
    until = time.thread_time() + ms / 1e3
    while time.thread_time() < until:
        pass


def test_an_answer_is_made_in_another_thread_once_for_all_who_wait(slow: SlowAnswers, worker: Worker) -> None:
    held = threading.Event()
    made: list[int] = []

    def make() -> Answer:
        made.append(threading.get_ident())
        held.wait(120)
        return json_answer(len(made))

    first = ask(slow, make)
    wait_until(lambda: bool(made))
    # These came when the first answer had begun. What happened in between would not be in it.
    later = [ask(slow, make) for _ in range(3)]
    held.set()
    worker.run(2)
    assert first.answers == [json_answer(1)]
    assert [caller.answers for caller in later] == [[json_answer(2)]] * 3
    assert len(made) == 2
    assert threading.get_ident() not in made


@pytest.mark.parametrize(("ms", "again"), [(0, True), (5, False)])
def test_an_answer_that_took_long_is_sent_again_for_a_while(
    slow: SlowAnswers, worker: Worker, state: SimpleNamespace, ms: float, again: bool
) -> None:
    made: list[int] = []

    def make() -> Answer:
        spend(ms)
        made.append(1)
        return json_answer(len(made))

    ask(slow, make)
    worker.run(1)
    soon = ask(slow, make)
    if again:
        worker.run(1)
    assert soon.answers == [json_answer(2 if again else 1)]
    worker.now_ns += 10_000_000_000
    late = ask(slow, make)
    worker.run(1)
    state.table = OTHER
    changed = ask(slow, make)
    worker.run(1)
    assert [late.answers, changed.answers] == [[json_answer(len(made) - 1)], [json_answer(len(made))]]


@pytest.mark.parametrize(("error", "status"), [(InvalidRequest("no"), 400), (MemoryError(), 503), (KeyError(), 500)])
def test_an_error_is_the_answer(slow: SlowAnswers, worker: Worker, error: Exception, status: int) -> None:
    def make() -> Answer:
        raise error

    caller = ask(slow, make)
    worker.run(1)
    assert caller.answers[0][0] == status


def test_without_a_thread_the_next_call_is_not_lost(
    slow: SlowAnswers, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        with pytest.raises(Exception, match="no thread"):
            ask(slow, lambda: json_answer(1))
    caller = ask(slow, lambda: json_answer(2))
    worker.run(1)
    assert caller.answers == [json_answer(2)]


def test_answers_of_callers_that_come_and_go_are_not_kept_for_ever(
    slow: SlowAnswers, worker: Worker, state: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slow_answers, "MOST_KEPT", 3)
    for number in range(5):
        ask(slow, partial(answer_after, CHEAP_NS / 1e6 + 1), key=f"caller {number}")
        worker.run(1)
    assert len(slow._made) == 3
    state.table = OTHER  # what is kept keeps no model of a table that is gone
    ask(slow, partial(answer_after, CHEAP_NS / 1e6 + 1), key="another one")
    worker.run(1)
    assert [made.table for made in slow._made.values()] == [OTHER]
    ask(slow, partial(answer_after, 0), key="one that took no time")
    worker.run(1)
    assert len(slow._made) == 1


def answer_after(ms: float) -> Answer:
    spend(ms)
    return json_answer({})
