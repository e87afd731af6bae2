"""Threads that do one job after the other, and outlast what the jobs have made.

``own_thread`` says what free-threaded Python does with an object whose last reference another thread drops: the thread
that made it frees it, when it next runs Python code. A thread that waits for its next job runs none. So whoever has
dropped what such threads have made calls ``tidy``, which has each of them do so.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final, Generic, TypeVar

import trio

from toutates.system.own_thread import name_for_the_system

__all__ = ["SharedThreads", "name_this_thread"]

T = TypeVar("T")

_IDLE_NAME: Final = "loader"
#: Seconds that ``tidy`` waits for a thread, which may have got a job meanwhile.
_TIDY_S: Final = 1.0


class _Job(Generic[T]):
    """A job, and what has become of it."""

    def __init__(self, name: str, work: Callable[[], T], on_done: Callable[[], object]) -> None:
        self.name, self.work, self.on_done = name, work, on_done
        self.results: list[T] = []
        self.errors: list[BaseException] = []

    def do(self) -> None:
        try:
            self.results.append(self.work())
        except BaseException as error:
            self.errors.append(error)


class SharedThreads:
    """Up to so many threads, each made when it is needed. They belong to one Trio thread.

    Args:
        count: how many; whoever calls ``run`` has no more jobs than that under way.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._inboxes: list[SimpleQueue[_Job[object] | None]] = []
        self._idle: list[SimpleQueue[_Job[object] | None]] = []
        self._threads: list[threading.Thread] = []

    async def run(self, work: Callable[[], T], name: str) -> T:
        """Do ``work`` in a thread; returns its result, or raises its error. If cancelled, it still waits for it.

        Args:
            work: to be done.
            name: of the thread meanwhile.

        Raises:
            RuntimeError: the system has no thread left.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        done = trio.Event()
        token = trio.lowlevel.current_trio_token()

        def tell() -> None:
            try:
                token.run_sync_soon(done.set)
            except trio.RunFinishedError:
                pass

        job = _Job(name, work, tell)
        inbox = self._idle.pop() if self._idle else self._start()
        inbox.put(job)  # type: ignore[arg-type]  # a job of T is one of object
        try:
            with trio.CancelScope(shield=True):
                await done.wait()
        finally:
            self._idle.append(inbox)
        try:
            if job.errors:
                raise job.errors.pop()
            return job.results.pop()
        finally:
            del job

    def begin(self, work: Callable[[], T], name: str, on_done: Callable[[T], object]) -> None:
        """Have ``work`` done in a thread, without waiting for it.

        Args:
            work: to be done. It raises nothing.
            name: of the thread meanwhile.
            on_done: called with its result, in the Trio thread. It raises nothing.

        Raises:
            RuntimeError: the system has no thread left.
        """
        token = trio.lowlevel.current_trio_token()
        inbox = self._idle.pop() if self._idle else self._start()

        def end() -> None:
            self._idle.append(inbox)
            on_done(results.pop())

        def tell() -> None:
            try:
                token.run_sync_soon(end)
            except trio.RunFinishedError:
                pass

        job = _Job(name, work, tell)
        results = job.results
        inbox.put(job)  # type: ignore[arg-type]  # a job of T is one of object

    def _start(self) -> SimpleQueue[_Job[object] | None]:
        assert len(self._threads) < self._count
        inbox: SimpleQueue[_Job[object] | None] = SimpleQueue()
        thread = threading.Thread(target=_work, args=(inbox,), name=_IDLE_NAME, daemon=True)
        thread.start()
        self._threads.append(thread)
        self._inboxes.append(inbox)
        return inbox

    def tidy(self) -> None:
        """Have idle threads free what they have made and nothing refers to any more. Blocks until they have."""
        for seen in self.nudge():
            seen.wait(_TIDY_S)

    def nudge(self) -> list[threading.Event]:
        """Have idle threads do the same, soon; returns what is set by each of them when it is done.

        Those that are at work come to it by themselves.
        """
        seen = []
        for inbox in list(self._idle):
            done = threading.Event()
            inbox.put(_Job("", _nothing, done.set))
            seen.append(done)
        return seen

    def end(self) -> None:
        """End the threads, which have no jobs, and wait for them."""
        for inbox in self._inboxes:
            inbox.put(None)
        for thread in self._threads:
            thread.join()
        self._inboxes, self._idle, self._threads = [], [], []


def name_this_thread(name: str) -> None:
    """Name the calling thread, for Python and for the system."""
    threading.current_thread().name = name
    name_for_the_system(name)


def _nothing() -> None:
    """The job of a thread that is to free what it can."""


def _work(inbox: SimpleQueue[_Job[object] | None]) -> None:
    """A thread: do what comes until there is None."""
    while (job := inbox.get()) is not None:
        if job.name:
            name_this_thread(job.name)
            job.do()
            name_this_thread(_IDLE_NAME)
        on_done = job.on_done
        del job
        on_done()
        del on_done
