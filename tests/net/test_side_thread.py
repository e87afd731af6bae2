"""The thread beside a worker's: jobs of connections take turns, and its end drops what waits."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from tests.waiting import PATIENCE_S
from toutates.net import side_thread
from toutates.net.side_thread import SideThread


def test_connections_take_turns_and_the_end_drops_what_waits() -> None:
    begun, go_on, done = threading.Event(), threading.Event(), threading.Event()
    order: list[str] = []

    def call_soon(callback: Callable[[], None]) -> None:
        callback()
        if len(order) == 5:
            done.set()

    side = SideThread("side", call_soon)

    def job(name: str) -> Callable[[], Callable[[], None]]:
        return lambda: lambda: order.append(name)

    def first() -> Callable[[], None]:
        begun.set()
        assert go_on.wait(PATIENCE_S)
        return lambda: order.append("first")

    side.put("a", first)
    assert begun.wait(PATIENCE_S)
    for connection, name in (("a", "a1"), ("a", "a2"), ("b", "b1"), ("b", "b2")):
        side.put(connection, job(name))
    go_on.set()
    assert done.wait(PATIENCE_S)
    assert order == ["first", "a1", "b1", "a2", "b2"]
    side.stop()
    side.put("a", job("late"))
    side.stop()
    assert order[-1] == "b2"


def test_a_thread_that_was_never_needed_ends_at_once() -> None:
    SideThread("side", lambda callback: None).stop()


def test_who_waits_hears_of_jobs_that_are_done_at_once_and_not_of_others() -> None:
    go_on, over = threading.Event(), threading.Event()
    done: list[str] = []
    side = SideThread("side", lambda callback: callback())

    def job() -> Callable[[], None]:
        return lambda: done.append("job")

    def long() -> Callable[[], None]:
        assert go_on.wait(PATIENCE_S)
        return over.set

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(side_thread, "PROMPT_S", PATIENCE_S)
        side.wait()  # there is nothing to wait for
        for count in range(1, 4):
            side.put("a", job)
            side.wait()
            assert done == ["job"] * count
        patch.setattr(side_thread, "PROMPT_S", 0.0)
        side.put("a", long)
        side.wait()
        patch.setattr(side_thread, "PROMPT_S", PATIENCE_S)
        for _ in range(side_thread.LEFT_OUT):
            side.wait()  # not for the one that lasts
        go_on.set()
        assert over.wait(PATIENCE_S)
        side.put("a", job)
        side.wait()
        assert len(done) == 4
    side.stop()
