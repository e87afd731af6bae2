"""The executors of a version in the pool: they have its threads while they have batches, and none of their own."""

from __future__ import annotations

import logging

import trio

from toutates.engine.executor import Executor
from toutates.engine.executor_threads import LAST_RUN_S, SAID_AFTER_S
from toutates.engine.pool import ExecutorPool, PoolShare

__all__ = ["PooledExecutors"]

logger = logging.getLogger(__name__)


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
        self._running = len(executors)
        self._closing = trio.Event()
        self._workers_ended = trio.Event()
        self._ended = trio.Event()

    async def run(self) -> None:
        """Return once all executors have ended, or are left behind."""
        token = trio.lowlevel.current_trio_token()

        def on_end() -> None:
            try:
                token.run_sync_soon(self._count_end)
            except trio.RunFinishedError:
                pass  # it was left behind

        share = PoolShare()
        while self._executors:
            number = len(self._executors) - 1
            name = f"executor-{number} {self._model} of version {self._version}"
            self._executors.pop().join_pool(self._pool, name, share, on_end)
        # One task while the version is served; the others are needed by its end alone.
        await self._closing.wait()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._leave_in_time)
            nursery.start_soon(self._say_what_does_not_end)
            await self._ended.wait()
            nursery.cancel_scope.cancel()

    def note_closed(self) -> None:
        """The version is to be freed: its executors end as soon as they have run what they have."""
        self._closing.set()

    def note_that_workers_ended(self) -> None:
        """Nobody waits for answers any more."""
        self._workers_ended.set()
        self._closing.set()

    def _count_end(self) -> None:
        self._running -= 1
        if not self._running:
            self._ended.set()

    async def _leave_in_time(self) -> None:
        """Stop waiting for runs that have not ended some time after the last worker."""
        await self._workers_ended.wait()
        await trio.sleep(LAST_RUN_S)
        logger.error(
            "%d runs of model '%s' version %d have not ended, and are left behind",
            self._running,
            self._model,
            self._version,
            extra={"model": self._model, "version": self._version},
        )
        self._ended.set()

    async def _say_what_does_not_end(self) -> None:
        """Log it if runs go on for long in a version that is to be freed."""
        await trio.sleep(SAID_AFTER_S)
        logger.warning(
            "version %d of model '%s' has been unloaded for %g s, and %d of its runs have not ended: its memory is not "
            "freed until they do, and a run that hangs stays until the server is restarted",
            self._version,
            self._model,
            SAID_AFTER_S,
            self._running,
            extra={"model": self._model, "version": self._version},
        )
