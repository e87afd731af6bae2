"""A thread that lives as long as the objects that it has made, unlike the threads of Trio's pool.

On free-threaded Python an object belongs to the thread that made it. If another thread drops the last reference, the
owner frees the object when it next runs Python code; once the owner has ended, the thread that drops the reference
frees it (PEP 703, "Biased Reference Counting"). An idle thread of Trio's pool sleeps for ten seconds, and when it has
ended, a new thread may get its identifier, and with it its objects. For so long a model that was unloaded or replaced
would hold its memory.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final, TypeVar

import trio

__all__ = ["LeftBehind", "OwnThread", "name_for_the_system"]

T = TypeVar("T")

#: ``prctl(2)``, which takes a microsecond where a file of /proc takes fifty; None elsewhere than on Linux.
_prctl: Final = getattr(ctypes.PyDLL(None), "prctl", None)
_PR_SET_NAME: Final = 15
#: Longest name of a thread on Linux, bytes.
_SYSTEM_NAME_BYTES: Final = 15


class LeftBehind(Exception):
    """A job has not ended, and is not waited for any more. Its thread ends with the process."""


class OwnThread:
    """A thread for one job. It ends when ``end`` is called, or when the job fails.

    Args:
        name: of the thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._may_end = threading.Event()
        self._thread: threading.Thread | None = None

    async def run(self, job: Callable[[], T], leave: trio.Event | None = None) -> T:
        """Run ``job``; returns its result, or raises its error. Call it once. If cancelled, it still waits for the job.

        Args:
            job: to be run.
            leave: once it is set, the job is not waited for any more.

        Raises:
            RuntimeError: the system has no thread left.
            LeftBehind: ``leave`` was set before the job had ended.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        done = trio.Event()
        token = trio.lowlevel.current_trio_token()
        results: list[Future[T]] = []

        def run() -> None:
            result: Future[T] = Future()
            name_for_the_system(self._name)
            try:
                result.set_result(job())
            except BaseException as error:
                result.set_exception(error)
            results.append(result)
            del result  # otherwise an error would refer to itself through its traceback
            name_for_the_system(f"after {self._name}")
            try:
                token.run_sync_soon(done.set)
            except trio.RunFinishedError:
                return  # the job was left behind
            self._may_end.wait()

        thread = threading.Thread(target=run, name=self._name, daemon=True)
        thread.start()
        self._thread = thread
        with trio.CancelScope(shield=True):
            if leave is None:
                await done.wait()
            else:
                await _first(done, leave)
                if not done.is_set():
                    self._thread = None
                    raise LeftBehind
        try:
            return results.pop().result()
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """End the thread and wait for it. What it has made and nothing refers to any more is then freed."""
        self._may_end.set()
        if self._thread is not None:
            self._thread.join()


async def _first(*events: trio.Event) -> None:
    """Return once one of the events is set."""
    async with trio.open_nursery() as nursery:

        async def wait_for(event: trio.Event) -> None:
            await event.wait()
            nursery.cancel_scope.cancel()

        for event in events:
            nursery.start_soon(wait_for, event)


def name_for_the_system(name: str) -> None:
    """Name the calling thread as ``top`` and debuggers see it. Python 3.14 does that itself."""
    if _prctl is not None:
        _prctl(_PR_SET_NAME, name.encode("ascii", "replace")[:_SYSTEM_NAME_BYTES], 0, 0, 0)
