"""Repositories block, so whatever is asked of them runs in threads: looks, downloads, and what is local by itself."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, TypeVar

from toutates.repositories.interface import Repository
from toutates.repositories.local.repository import LocalRepository
from toutates.system.placement import running_on
from toutates.system.thread_pools import ThreadPool

__all__ = ["FIRST_LOOKS", "LOOKS", "fetches_of", "has_all_here", "in_thread"]

T = TypeVar("T")

#: At the start, when any number of repositories may not answer.
FIRST_LOOKS: Final = ThreadPool("first look", math.inf)
LOOKS: Final = ThreadPool("look", 32)
_DOWNLOADS: Final = ThreadPool("fetch", 8)
_LOCAL: Final = ThreadPool("fetch here", 8)


async def in_thread(
    cpus: tuple[int, ...],
    pool: ThreadPool,
    work: Callable[[], T],
    *,
    name: str = "",
    abandon_on_cancel: bool = False,
) -> T:
    """Run what blocks in a thread.

    Args:
        cpus: where it runs, see ``placement.running_on``. Threads that it starts inherit them.
        pool: whose threads it is one of.
        work: what is run.
        name: of the thread; "" for the pool's.
        abandon_on_cancel: whether the thread is left to itself when the caller is cancelled.
    """

    def run() -> T:
        with running_on(cpus, cpus):
            return work()

    return await pool.run(run, name=name, abandon_on_cancel=abandon_on_cancel)


def has_all_here(repository: Repository) -> bool:
    """Whether nothing of a repository has to be fetched from elsewhere."""
    return getattr(repository.fetch, "__func__", None) is LocalRepository.fetch


def fetches_of(repository: Repository) -> ThreadPool:
    """The threads that make a repository's models ready: what lies here does not wait for downloads."""
    return _LOCAL if has_all_here(repository) else _DOWNLOADS
