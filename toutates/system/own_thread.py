"""Threads that last as long as what they have made, where Trio would keep them for whatever job comes next.

On free-threaded Python an object belongs to the thread that made it. Where another thread drops the last reference, it
is the owner that frees the object, when it next runs Python code; or, once the owner has ended, whoever drops it (PEP
703, "Biased Reference Counting"). A thread that Trio keeps sleeps for ten seconds, and of one that has ended the next
thread may inherit the identifier, and with it the objects. A model that was unloaded or replaced held its memory for as
long.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Final, TypeVar

import trio

__all__ = ["OwnThread"]

T = TypeVar("T")

_SYSTEM_NAME: Final = Path("/proc/thread-self/comm")
#: What Linux takes of a thread's name.
_SYSTEM_NAME_BYTES: Final = 15


class OwnThread:
    """A thread for one job, whose result it outlasts: it ends in ``end``, or with a job that fails.

    Args:
        name: of the thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._may_end = threading.Event()
        self._thread: threading.Thread | None = None

    async def run(self, job: Callable[[], T]) -> T:
        """Run ``job``, and return or raise what it does. To be called once. Cancelled, it waits for the job as well.

        Raises:
            RuntimeError: the system has no thread left.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        done = trio.Event()
        token = trio.lowlevel.current_trio_token()
        results: list[Future[T]] = []

        def run() -> None:
            result: Future[T] = Future()
            _name_for_the_system(self._name)
            try:
                result.set_result(job())
            except BaseException as error:
                result.set_exception(error)
            results.append(result)
            del result  # or an error would refer to itself by its traceback
            _name_for_the_system(f"after {self._name}")
            token.run_sync_soon(done.set)
            self._may_end.wait()

        thread = threading.Thread(target=run, name=self._name, daemon=True)
        thread.start()
        self._thread = thread
        with trio.CancelScope(shield=True):
            await done.wait()
        try:
            return results.pop().result()
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """Wait for the thread to end, and with it for all that it has made and that nobody needs any more."""
        self._may_end.set()
        if self._thread is not None:
            self._thread.join()


def _name_for_the_system(name: str) -> None:
    """For ``top`` and debuggers; Python does so itself from 3.14 on."""
    try:
        _SYSTEM_NAME.write_bytes(name.encode("ascii", "replace")[:_SYSTEM_NAME_BYTES])
    except OSError:
        pass  # elsewhere than on Linux
