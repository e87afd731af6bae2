"""The batches of a version in the pool that have waited for more rows for as long as they may."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from toutates.engine.pool import ExecutorPool, PoolShare

__all__ = ["DueBatches"]

#: After what ought never to be raised, another look.
_RETRY_NS: Final = 10_000_000


class DueBatches:
    """Has a thread of the pool when the first of them is due (``pool.Sleeper``), which runs it.

    Args:
        run: takes the first one, if it is due, and runs it on the calling thread; as ``Pooled.work``.
        pool: of the executors.
        share: of the version.
    """

    __slots__ = ("_pool", "_run", "at_ns", "is_called", "share")

    def __init__(
        self,
        run: Callable[[ExecutorPool], Callable[[], object] | None],
        pool: ExecutorPool,
        share: PoolShare,
    ) -> None:
        self._run: Callable[[ExecutorPool], Callable[[], object] | None] | None = run
        self._pool = pool
        self.share = share
        self.at_ns = 0
        self.is_called = False
        pool.expect_times()

    def look_at(self, at_ns: int, *, is_done: bool = False) -> None:
        """Look at a time, monotonic nanoseconds; sooner if that is so already. With the lock of the version.

        Not if it is about to look anyway: then it finds out itself when to look next.

        Args:
            at_ns: the time.
            is_done: see ``ExecutorPool.call_at``.
        """
        if not self.is_called and not 0 < self.at_ns <= at_ns:
            self._pool.call_at(self, at_ns, is_done=is_done)

    def look_soon(self) -> None:
        """Look as soon as there is a thread. With the lock of the version."""
        self._pool.call(self)

    def work(self, pool: ExecutorPool) -> Callable[[], object] | None:
        """See ``Pooled``."""
        self.is_called = False
        run = self._run
        return run(pool) if run is not None else None

    def die(self, death: BaseException) -> None:
        """See ``Pooled``. The executor has been told, if there was one."""
        if self._run is not None:
            self._pool.call_at(self, time.monotonic_ns() + _RETRY_NS)

    def end(self) -> None:
        """Let go of the version."""
        self._run = None
        self._pool.forget(self)
