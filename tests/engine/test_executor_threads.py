"""Threads of executors that die, by Trio's clock, which does not wait."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock

from tests.waiting import wait_until
from toutates.engine import executor_threads as executor_threads_module
from toutates.engine.executor_threads import (
    FIRST_PAUSE_S,
    FORGET_S,
    MAX_DEATHS_AT_THE_END,
    MAX_PAUSE_S,
    ExecutorThreads,
)
from toutates.engine.servable import Host


class Mortal:
    """An executor whose threads die until its lives are used up. Each life is a function, which is called first."""

    def __init__(self, *lives: Callable[[], object]) -> None:
        self.lives = list(lives)
        self.names: list[str] = []

    def run(self) -> None:
        """One thread."""
        self.names.append(threading.current_thread().name)
        if self.lives:
            self.lives.pop(0)()
            raise RuntimeError("it died")


class Story:
    """The threads of some executors, and what their host heard, at which seconds."""

    def __init__(self, *executors: Mortal) -> None:
        self.threads = ExecutorThreads("m", 3, [cast(Any, executor) for executor in executors])
        self.deaths: list[float] = []
        self.ready: list[tuple[float, bool]] = []

    def tell(self) -> None:
        """Run until all executors have ended."""

        async def run() -> None:
            began = trio.current_time()

            def now() -> float:
                return round(trio.current_time() - began, 6)

            self.token = trio.lowlevel.current_trio_token()
            host = Host(
                take_cpus=lambda: (),
                anywhere=(),
                on_death=lambda: self.deaths.append(now()),
                on_ready_change=lambda: self.ready.append((now(), self.threads.ready)),
            )
            await self.threads.run(host)

        trio.run(run, clock=MockClock(autojump_threshold=0))

    def live(self, seconds: float) -> None:
        """Let a thread live for so long."""
        trio.from_thread.run(trio.sleep, seconds, trio_token=self.token)


def at_once() -> None:
    """A life without length."""


def test_a_thread_that_dies_is_replaced_at_once_and_then_after_pauses_that_double() -> None:
    executor = Mortal(*[at_once] * 11)
    story = Story(executor)
    story.tell()
    pauses = [0, *(FIRST_PAUSE_S * 2**number for number in range(7)), MAX_PAUSE_S, MAX_PAUSE_S]
    expected = [0.0]
    for pause in pauses:
        expected.append(round(expected[-1] + pause, 6))
    assert story.deaths == expected
    assert executor.names == ["executor-0 m"] * 12


def test_the_only_executor_is_not_ready_while_it_has_no_thread() -> None:
    story = Story(Mortal(at_once, at_once))
    story.tell()
    assert story.ready == [(0, False), (0, True), (0, False), (FIRST_PAUSE_S, True)]
    assert story.threads.ready


def test_a_version_is_ready_while_one_of_its_executors_has_a_thread() -> None:
    other = Mortal()
    story = Story(Mortal(*[at_once] * 5), other)
    story.tell()
    assert len(story.deaths) == 5
    assert story.ready == []
    assert other.names == ["executor-1 m"]


@pytest.mark.parametrize("life_s", [FORGET_S - 1, FORGET_S])
def test_the_death_of_a_thread_that_has_lived_long_is_the_first_one_again(life_s: float) -> None:
    executor = Mortal(at_once, at_once, lambda: story.live(life_s), at_once)
    story = Story(executor)
    story.tell()
    pause_s = 0 if life_s == FORGET_S else 2 * FIRST_PAUSE_S
    died = FIRST_PAUSE_S + life_s
    assert story.deaths == [0, 0, pytest.approx(died), pytest.approx(died + pause_s)]


def test_when_no_worker_is_left_a_thread_is_replaced_without_pauses_and_a_few_times_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The clock jumps while threads run, which take no time of its own.
    monkeypatch.setattr(executor_threads_module, "LAST_RUN_S", math.inf)
    executor = Mortal(*[at_once] * 20)
    story = Story(executor)
    executor.lives[3] = lambda: story.token.run_sync_soon(story.threads.note_that_workers_ended)
    story.tell()
    before = [0, 0, FIRST_PAUSE_S, 3 * FIRST_PAUSE_S]
    assert story.deaths[:4] == [pytest.approx(at) for at in before]
    assert len(story.deaths) - 3 in (MAX_DEATHS_AT_THE_END, MAX_DEATHS_AT_THE_END + 1)
    assert story.deaths[-1] - story.deaths[3] <= 4 * FIRST_PAUSE_S


def test_when_no_worker_is_left_a_run_that_does_not_end_is_left_behind(caplog: pytest.LogCaptureFixture) -> None:
    may_end = threading.Event()
    executor = Mortal()
    story = Story(executor)

    def live() -> None:
        story.token.run_sync_soon(story.threads.note_that_workers_ended)
        may_end.wait(120)

    executor.lives.append(live)
    story.tell()
    assert "executor-0 m of version 3 has not ended its run, and is left behind" in caplog.text
    assert story.deaths == []
    may_end.set()


def test_a_run_of_an_unloaded_version_that_does_not_end_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    executor = Mortal()
    story = Story(executor)

    def live() -> None:
        story.token.run_sync_soon(story.threads.note_closed)
        wait_until(lambda: "have not ended" in caplog.text)

    executor.lives.append(live)
    story.tell()
    assert "version 3 of model 'm' has been unloaded for 30 s, and 1 of its runs have not ended" in caplog.text


def test_a_thread_that_cannot_be_started_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    executor = Mortal()
    story = Story(executor)
    start = threading.Thread.start
    refused = [RuntimeError("can't start new thread"), MemoryError()]

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith("executor-") and refused:
            raise refused.pop()
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    story.tell()
    assert story.deaths == [0, 0]
    assert executor.names == ["executor-0 m"]
    assert "executor-0 m of version 3 died (1 in a row); it is replaced at once" in caplog.text
    assert "executor-0 m of version 3 died (2 in a row); it is replaced in 0.1 s" in caplog.text
