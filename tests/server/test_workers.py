"""What the server's main thread asks of its workers."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import trio
from trio.testing import wait_all_tasks_blocked

from toutates.server.workers import Workers


class _Worker:
    def __init__(self) -> None:
        self.soon: list[Callable[[], None]] = []
        self.ends: list[Callable[[], None]] = []
        self.call_soon = self.soon.append
        self.at_round_end = self.ends.append


def test_a_version_is_let_go_once_each_worker_has_ended_a_round() -> None:
    """A worker gives a model some of a round's texts at its end only, behind what was asked for from outside."""
    nothing: Any = None
    made: Any = [_Worker(), _Worker()]
    told: list[str] = []

    async def main() -> None:
        workers = Workers(nothing, nothing, nothing)
        services: Any = [SimpleNamespace(worker=worker, let_go=lambda: told.append("looked")) for worker in made * 2]
        workers.all, workers.infer = made, services

        async def let_go() -> None:
            await workers.let_go()
            told.append("let go")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(let_go)
            await wait_all_tasks_blocked()
            for worker in made:
                worker.ends.append(lambda: told.append("texts of the round"))
                worker.soon.pop()()
            await wait_all_tasks_blocked()
            assert told == ["looked"] * 4
            told.clear()
            for worker in made:
                for callback in worker.ends:
                    callback()

    trio.run(main)
    assert told == ["texts of the round", "texts of the round", "let go"]
