"""The thread beside a worker's: jobs of connections take turns, and its end drops what waits."""

from __future__ import annotations

import threading
from collections.abc import Callable

from tests.waiting import PATIENCE_S
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
