"""The garbage collector of a process that serves: what it looks at in one go is bounded, for it stops everybody.

A full collection visits every object that was made since the last freeze: half a second, where strangers have the
server keep 400,000 calls. Nearly everything here is freed by its references, so the collector finds little. What a
long collection leaves is frozen: it was looked at once, and is again when the process has nothing to do.

Python without the GIL has no generations: each collection visits all objects, frozen ones too. It collects only then,
and where memory has grown much since, by an eighth of what there is; that takes 0.1 us per object.
"""

from __future__ import annotations

import gc
import resource
import time
from typing import Any, Final

import trio

from toutates.system.interpreter import free_threaded
from toutates.system.memory import available_memory

__all__ = ["keep_collections_short"]

#: Collections of the middle generation between two full ones. Each adds 7,000 objects at most, so a full one has some
#: 30,000 new ones to look at, in 5 ms.
_BETWEEN: Final = 3
#: What is left by a full collection of this length, of the thread's own time, is frozen.
_LONG_NS: Final = 4_000_000
#: A second in which the process uses no more of a processor than this is quiet; after so many it is idle.
_QUIET_S: Final = 0.02
_IDLE: Final = 30
#: Without the GIL: with so many new objects it is worth a collection when idle.
_WORTH: Final = 10_000


class _Collections:
    """What is known of the collections that happen."""

    def __init__(self) -> None:
        self._began_ns = 0
        self._has_frozen = False
        self._most_growth = available_memory() // 8
        self._peak = 0
        self.note_thorough()

    def note(self, phase: str, info: dict[str, Any]) -> None:
        """In any thread: a collection begins, or has ended."""
        if info["generation"] < 2:
            return
        now_ns = time.thread_time_ns()
        if phase == "start":
            self._began_ns = now_ns
        elif now_ns - self._began_ns > _LONG_NS:
            gc.freeze()
            self._has_frozen = True

    def note_thorough(self) -> None:
        """All objects were looked at."""
        self._has_frozen = False
        self._peak = _peak()

    def are_due(self, *, is_idle: bool) -> bool:
        """Whether all objects are to be looked at."""
        if not free_threaded():
            return is_idle and self._has_frozen
        return _peak() - self._peak > self._most_growth or (is_idle and gc.get_count()[0] > _WORTH)


def _peak() -> int:
    """The most memory that the process has had, bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


async def keep_collections_short(
    idle: int = _IDLE, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Freeze what is there now, and what long collections leave, until it is cancelled.

    What was frozen is looked at again after ``idle`` seconds in which the process had nothing to do.
    """
    thresholds = gc.get_threshold()
    gc.collect(0)
    gc.freeze()
    if free_threaded():
        gc.disable()
    else:
        gc.set_threshold(*thresholds[:2], _BETWEEN)
        gc.collect()  # of nearly nothing: full ones wait until a quarter as much is new as the last has left
    collections = _Collections()
    gc.callbacks.append(collections.note)
    task_status.started()
    quiet = 0
    try:
        while True:
            before_s = time.process_time()
            await trio.sleep(1)
            quiet = quiet + 1 if time.process_time() - before_s <= _QUIET_S else 0
            if collections.are_due(is_idle=quiet >= idle):
                gc.unfreeze()
                gc.collect()
                gc.freeze()
                collections.note_thorough()
    finally:
        gc.callbacks.remove(collections.note)
        gc.set_threshold(*thresholds)
        gc.enable()
