"""What a thread has still to do once it is done with what it is at: one thing after the other, not one inside another.

The outcome of a call between models is handled on the thread that has run it. What handles it may call the next model,
whose batch the same thread may run at once, and so on: without a queue, each of these would lie on the stack of the one
before, and a thread could be kept for ever by others' requests that came into its batches.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final

__all__ = ["MAX_INLINE_COMMITS", "ThreadQueue"]

logger = logging.getLogger(__name__)

#: How often a thread may run batches inline before it leaves the rest to the executors' threads. Each time it may run
#: four batches of 50 us, or of 150 on one core: 2 ms, or 6. A worker's round may have less time (``INLINE_TIME``).
MAX_INLINE_COMMITS: Final = 10


class ThreadQueue(threading.local):
    """Each thread has its own.

    Attributes:
        inline_left: how often the thread may yet run batches inline.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[Callable[[Any], object], Any]] = deque()
        self._is_busy = False
        self.inline_left = 0

    def put(self, handle: Callable[[Any], object], outcome: Any) -> None:
        """Have ``handle(outcome)`` called before the thread leaves what it is at."""
        self._waiting.append((handle, outcome))

    def enter(self) -> bool:
        """The thread begins something; returns what ``leave`` is to be told. A context manager would take 1 us."""
        if self._is_busy:
            return False
        self._is_busy = True
        self.inline_left = MAX_INLINE_COMMITS
        return True

    def leave(self, *, outermost: bool) -> None:
        """The thread is done with it. If it was the outermost, what was put is done now."""
        if not outermost:
            return
        waiting = self._waiting
        try:
            while waiting:
                handle, outcome = waiting.popleft()
                try:
                    handle(outcome)
                except Exception:
                    logger.exception("handling the outcome of a call between models failed")
        finally:
            self._is_busy = False

    def may_run_inline(self) -> bool:
        """Whether the thread may run batches inline once more; that counts."""
        self.inline_left -= 1
        return self.inline_left >= 0
