"""The garbage collector of a process that serves: what it looks at in one go is bounded, for it stops everybody.

A full collection visits every object that was made since the last freeze: half a second, where strangers have the
server keep 400,000 calls. Nearly everything here is freed by its references, so the collector finds little. What a
long collection leaves is frozen: it was looked at once, and is again when the process has nothing to do, or, some
minutes later, where that takes no longer than others may wait. CPython gives back all that is frozen or nothing, and
looks at a generation in one go, so there are no steps by which more could be looked at while requests come.

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
#: Seconds after which what was frozen is looked at again though requests come, if that takes no longer than this.
_RARELY_S: Final = 300.0
MOST_NS: Final = 20_000_000
#: To count what is frozen takes a fifth of the time of looking at it, at most.
_COUNTING: Final = 5
#: Without the GIL: with so many new objects it is worth a collection when idle.
_WORTH: Final = 10_000


class _Collections:
    """What is known of the collections that happen.

    Args:
        rarely_s: see ``_RARELY_S``.
    """

    def __init__(self, rarely_s: float) -> None:
        self._rarely_s = rarely_s
        self._began_ns = 0
        self._most_growth = available_memory() // 8
        self.look()

    def note(self, phase: str, info: dict[str, Any]) -> None:
        """In any thread: a collection begins, or has ended."""
        if info["generation"] < 2:
            return
        now_ns = time.thread_time_ns()
        if phase == "start":
            self._began_ns = now_ns
        elif now_ns - self._began_ns > _LONG_NS:
            gc.freeze()
            self._frozen_ns += now_ns - self._began_ns

    def look(self) -> None:
        """Look at all objects."""
        began_ns = time.thread_time_ns()
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        if not free_threaded():
            # Objects differ: those of modules take four times as long as small lists.
            self._per_object_ns = (time.thread_time_ns() - began_ns) / max(gc.get_freeze_count(), 1)
        #: for how long what was frozen since has been looked at
        self._frozen_ns = 0
        self._peak = _peak()
        self._looked_s = time.monotonic()

    def are_due(self, *, is_idle: bool) -> bool:
        """Whether all objects are to be looked at."""
        if not free_threaded():
            return self._frozen_ns > 0 and (is_idle or self._are_short())
        return _peak() - self._peak > self._most_growth or (is_idle and gc.get_count()[0] > _WORTH)

    def _are_short(self) -> bool:
        """Whether it is some minutes since all objects were looked at, and others can wait for that."""
        if time.monotonic() - self._looked_s < self._rarely_s:
            return False
        self._looked_s = time.monotonic()
        if self._frozen_ns > MOST_NS * _COUNTING:
            return False
        # Of what was frozen most is freed by its references.
        return gc.get_freeze_count() * self._per_object_ns <= MOST_NS


def _peak() -> int:
    """The most memory that the process has had, bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


async def keep_collections_short(
    idle: int = _IDLE, rarely_s: float = _RARELY_S, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Freeze what is there now, and what long collections leave, until it is cancelled.

    What was frozen is looked at again after ``idle`` seconds in which the process had nothing to do, or after
    ``rarely_s`` where that is short.
    """
    thresholds = gc.get_threshold()
    collections = _Collections(rarely_s)
    if free_threaded():
        gc.disable()
    else:
        gc.set_threshold(*thresholds[:2], _BETWEEN)
        gc.collect()  # of nearly nothing: full ones wait until a quarter as much is new as the last has left
    gc.callbacks.append(collections.note)
    task_status.started()
    quiet = 0
    try:
        while True:
            before_s = time.process_time()
            await trio.sleep(1)
            quiet = quiet + 1 if time.process_time() - before_s <= _QUIET_S else 0
            if collections.are_due(is_idle=quiet >= idle):
                collections.look()
    finally:
        gc.callbacks.remove(collections.note)
        gc.set_threshold(*thresholds)
        gc.enable()
