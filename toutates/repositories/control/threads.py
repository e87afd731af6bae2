"""Repositories block, so whatever is asked of them runs in threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import trio

from toutates.system.placement import running_on

__all__ = ["in_thread"]

T = TypeVar("T")


async def in_thread(
    cpus: tuple[int, ...],
    work: Callable[[], T],
    *,
    name: str | None = None,
    limiter: trio.CapacityLimiter | None = None,
    abandon_on_cancel: bool = False,
) -> T:
    """Run what blocks in a thread.

    Args:
        cpus: where it runs, see ``placement.running_on``. Threads that it starts inherit them.
        work: what is run.
        name: of the thread; None for Trio's.
        limiter: of such threads; None for Trio's.
        abandon_on_cancel: whether the thread is left to itself when the caller is cancelled.
    """

    def run() -> T:
        with running_on(cpus, cpus):
            return work()

    return await trio.to_thread.run_sync(run, thread_name=name, limiter=limiter, abandon_on_cancel=abandon_on_cancel)
