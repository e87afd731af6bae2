"""The turns of those who change models by the management API: one change of a model at a time, others beside it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from weakref import WeakValueDictionary

import trio

from toutates.api.torchserve.answers import Problem
from toutates.system.thread_pools import ThreadPool

__all__ = ["IMPORTS", "Turns"]

_MOST_IMPORTS: Final = 16
#: Its threads unpack archives, and wait for the turn of their model.
IMPORTS: Final = ThreadPool("imports", _MOST_IMPORTS)
#: The most imports that wait for a turn. Each has unpacked its archive.
_MOST_WAITING: Final = 16


class Turns:
    """The turns of the models of one repository, on the main thread."""

    def __init__(self) -> None:
        self._turns: WeakValueDictionary[str, trio.Semaphore] = WeakValueDictionary()

    def of(self, model: str) -> trio.Semaphore:
        """The turn of who changes a model. It is kept as long as somebody has it, or waits for it."""
        return self._turns.setdefault(model, trio.Semaphore(1))

    @contextmanager
    def of_in_thread(self, model: str) -> Iterator[None]:
        """The same, for one of the threads of imports.

        Raises:
            Problem: too many wait already.
        """
        turn = trio.from_thread.run_sync(self.of, model)
        trio.from_thread.run(_acquire, turn)
        try:
            yield
        finally:
            trio.from_thread.run_sync(turn.release)


async def _acquire(turn: trio.Semaphore) -> None:
    """Wait for a turn. Meanwhile another import may run, for a model that nobody changes.

    Raises:
        Problem: too many wait already.
    """
    try:
        turn.acquire_nowait()
        return
    except trio.WouldBlock:
        pass
    limiter = IMPORTS.limiter
    if limiter.total_tokens >= _MOST_IMPORTS + _MOST_WAITING:
        text = "Too many archives wait for models that are being changed; try again later."
        raise Problem(503, "ServiceUnavailableException", text)
    limiter.total_tokens += 1
    try:
        await turn.acquire()
    finally:
        limiter.total_tokens -= 1
