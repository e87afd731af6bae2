"""The executors of a version in the pool: they have its threads while they have batches, and none of their own.

One in whose run a thread died gets no other one until a pause is over, as ``executor_threads`` has it. A version needs
no task for this while it is served: there is one from its first death on, or from when it is closed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import trio

from toutates.engine import executor_threads as rules
from toutates.engine.executor import Executor
from toutates.engine.pool import ExecutorPool, PoolShare
from toutates.engine.servable import Host

__all__ = ["PooledExecutors"]

logger = logging.getLogger(__name__)


#: How long the executors of a version that is closed may take to end before that is watched. Seconds.
_SOON_S: Final = 0.1


@dataclass(slots=True)
class _Deaths:
    """Of the threads that an executor had: how many in a row, when it got another one, and how many at the end."""

    count: int = 0
    since: float = 0.0
    at_the_end: int = 0


class PooledExecutors:
    """The executors of one model version.

    Args:
        model: its name.
        version: its number.
        executors: all executors of the version. The list is emptied: when they have ended, nobody refers to them.
        pool: that has threads.
    """

    def __init__(self, model: str, version: int, executors: list[Executor], pool: ExecutorPool) -> None:
        self._model = model
        self._version = version
        self._executors = executors
        self._pool = pool
        self._count = self._running = len(executors)
        self._deaths: dict[int, _Deaths] = {}
        #: that have died, and are not replaced yet
        self._dead: list[tuple[Executor, int, BaseException]] = []
        self._pausing = 0
        self._on_news: Callable[[], None] | None = None
        self._closed = trio.Event()
        self._workers_ended = trio.Event()
        self._ended = trio.Event()
        self._nursery: trio.Nursery | None = None
        self._host: Host | None = None

    @property
    def ready(self) -> bool:
        """Whether some executor can have a thread."""
        return self._pausing < self._count

    def start(self, host: Host, on_news: Callable[[], None]) -> None:
        """Have the executors take batches.

        Args:
            host: of the version.
            on_news: called once, in this thread, when a thread has died in a run, or the version is closed. ``run`` is
                to be called then.
        """
        self._host, self._on_news = host, on_news
        token = trio.lowlevel.current_trio_token()
        share = PoolShare()
        self._pool.open()
        while self._executors:
            executor = self._executors.pop()
            executor.join_pool(self._pool, share, _Link(self, token, len(self._executors)))
            del executor
        if self._closed.is_set() or self._workers_ended.is_set():
            self._tell_news()

    async def run(self, host: Host) -> None:
        """Return once all executors have ended, or are left behind. ``start`` need not have been called."""
        if self._host is None:
            news = trio.Event()
            self.start(host, news.set)
            await news.wait()
        if not self._dead:
            with trio.move_on_after(_SOON_S):
                await self._ended.wait()
                return
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self._leave_in_time)
            nursery.start_soon(self._say_what_does_not_end)
            dead, self._dead = self._dead, []
            while dead:
                nursery.start_soon(self._replace, *dead.pop())
            await self._ended.wait()
            nursery.cancel_scope.cancel()

    def note_closed(self) -> None:
        """The version is to be freed: its executors end as soon as they have run what they have."""
        self._closed.set()
        self._tell_news()

    def note_that_workers_ended(self) -> None:
        """The workers have ended, so that nobody waits for answers any more."""
        self._workers_ended.set()
        self._tell_news()

    def _tell_news(self) -> None:
        on_news, self._on_news = self._on_news, None
        if on_news is not None:
            on_news()

    def count_end(self) -> None:
        """One executor has ended."""
        self._running -= 1
        if not self._running:
            self._ended.set()

    def note_death(self, executor: Executor, number: int, death: BaseException) -> None:
        """A thread has died in a run of an executor, which waits for another one."""
        if self._nursery is None:
            self._dead.append((executor, number, death))
            self._tell_news()
        else:
            self._nursery.start_soon(self._replace, executor, number, death)

    async def _replace(self, executor: Executor, number: int, death: BaseException) -> None:
        host = self._host
        assert host is not None
        host.on_death()
        deaths = self._deaths.setdefault(number, _Deaths())
        deaths.count = 1 if trio.current_time() - deaths.since >= rules.FORGET_S else deaths.count + 1
        name = f"executor-{number} {self._model}"
        pause_s = rules.note_death(name, self._version, deaths.count, death)
        del death
        if self._workers_ended.is_set():
            deaths.at_the_end += 1
            if deaths.at_the_end == rules.MAX_DEATHS_AT_THE_END:
                self.count_end()
                return
        self._mark(1, host)
        with trio.move_on_after(pause_s):
            await self._workers_ended.wait()
        self._mark(-1, host)
        deaths.since = trio.current_time()
        executor.look()

    def _mark(self, more: int, host: Host) -> None:
        """Count executors that pause, and tell the host if that changes ``ready``."""
        was_ready = self.ready
        self._pausing += more
        if self.ready is not was_ready:
            host.on_ready_change()

    async def _leave_in_time(self) -> None:
        """Stop waiting for runs that have not ended some time after the last worker."""
        await self._workers_ended.wait()
        await trio.sleep(rules.LAST_RUN_S)
        logger.error(
            "%d executors of model '%s' version %d have not ended their runs, and are left behind",
            self._running,
            self._model,
            self._version,
            extra={"model": self._model, "version": self._version},
        )
        self._ended.set()

    async def _say_what_does_not_end(self) -> None:
        """Log it if runs go on for long in a version that is to be freed."""
        await self._closed.wait()
        await trio.sleep(rules.SAID_AFTER_S)
        rules.say_what_does_not_end(self._model, self._version, self._running)


class _Link:
    """Tells the executors' owner, in its thread, what becomes of one of them.

    Args:
        owner: of the executors.
        token: of its Trio thread.
        number: of the executor.
    """

    def __init__(self, owner: PooledExecutors, token: trio.lowlevel.TrioToken, number: int) -> None:
        self._owner, self._token, self._number = owner, token, number

    def end(self) -> None:
        """See ``Owner``."""
        try:
            self._token.run_sync_soon(self._owner.count_end)
        except trio.RunFinishedError:
            pass  # it was left behind

    def die(self, executor: Executor, death: BaseException) -> None:
        """See ``Owner``."""
        try:
            self._token.run_sync_soon(self._owner.note_death, executor, self._number, death)
        except trio.RunFinishedError:
            pass
