"""Threads for what blocks, by kind: however long the jobs of one kind take, those of another do not wait for them.

Trio's own threads are 40 for everything, so that 40 slow downloads would hold up what reads a small file. So nothing
runs there (``tests/system/test_thread_pools.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, TypeVarTuple, cast

import trio

__all__ = ["ThreadPool"]

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class ThreadPool:
    """One kind of jobs. Each run of Trio has threads of its own for it.

    Args:
        name: of the threads.
        most: of them at a time; further jobs wait for their turn.
    """

    def __init__(self, name: str, most: float) -> None:
        self.name = name
        self._most = most
        self._limiter = trio.lowlevel.RunVar[trio.CapacityLimiter](name)

    @property
    def limiter(self) -> trio.CapacityLimiter:
        """That of the run of Trio that goes on in this thread."""
        try:
            return self._limiter.get()
        except LookupError:
            limiter = trio.CapacityLimiter(self._most)
            self._limiter.set(limiter)
            return limiter

    async def run(
        self, work: Callable[[*Ts], T], *arguments: *Ts, name: str = "", abandon_on_cancel: bool = False
    ) -> T:
        """Run what blocks in a thread.

        Args:
            work: what is run.
            arguments: of it.
            name: of the thread; "" for the pool's.
            abandon_on_cancel: whether the thread is left to itself when the caller is cancelled.
        """
        failed: list[BaseException] = []
        result = await trio.to_thread.run_sync(
            _run,
            failed,
            work,
            arguments,
            thread_name=name or self.name,
            limiter=self.limiter,
            abandon_on_cancel=abandon_on_cancel,
        )
        if not failed:
            return cast("T", result)
        raise failed.pop()


def _run(failed: list[BaseException], work: Callable[[*Ts], T], arguments: tuple[*Ts]) -> T | None:
    """Do a job. An error is handed over, for Trio's frames would refer to one that is raised or returned.

    That is a circle of the error, its traceback, and all that frames of the job refer to, such as a client's message.
    """
    try:
        return work(*arguments)
    except BaseException as error:
        failed.append(error)
        return None
