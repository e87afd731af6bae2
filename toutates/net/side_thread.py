"""A thread beside a worker's, for what would hold up its other connections.

It does one job of each connection in turn, and is started by the first job. So a client that sends nothing but large
jobs has its own slowed down, and those of other clients by one job each.

Without the GIL it gives way to every other thread where processors are scarce. With the GIL it must not: it would be
kept from its processor while it holds the GIL, and so would the worker. With twice as many busy processes as processors
a worker's turns were the same in either case (99th percentile 5 to 14 ms), but the longest were 29 and 33 ms without
giving way, 44 and 94 with it, and large requests took a twelfth of the time.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Final, TypeVar

from toutates.system.errors import ExecutionFailed, Overloaded, RequestError, anew
from toutates.system.interpreter import gil_enabled

__all__ = ["Job", "SideThread", "outcome_of", "told"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: How much the thread gives way without the GIL: a tenth of the weight of others on the same processor.
NICENESS: Final = 10

#: How long the worker waits for jobs that are done at once: small ones take some 50 us, the way to the thread and back
#: included, and to be woken from its sleep for their outcome would take as much again.
PROMPT_S: Final = 0.0002
#: Waits that are left out after one that was too short, so that jobs that last cost the worker 1 % of that.
LEFT_OUT: Final = 100

#: Runs in the thread, and returns what is to be called on the worker's thread then, or None. It raises nothing.
Job = Callable[[], Callable[[], None] | None]


def outcome_of(work: Callable[[], T], what: str) -> T | RequestError:
    """What the work of a job returns, or the error with which its request is answered. It raises nothing.

    Args:
        work: done at once, in the thread that calls this.
        what: the work, for the log where it fails by a bug, such as "reading a request for model 'm'".
    """
    try:
        return work()
    except Exception as error:
        return told(error, what)


def told(error: Exception, what: str) -> RequestError:
    """The error with which a request is answered whose job has raised this one: without the frames, which keep much.

    Args:
        error: what was raised, and is being handled.
        what: see ``outcome_of``.
    """
    if isinstance(error, RequestError):
        return anew(error)
    if isinstance(error, MemoryError):
        return Overloaded("the server is out of memory")
    logger.error("%s failed", what, exc_info=error)
    return ExecutionFailed("internal error")


class SideThread:
    """The thread and its jobs. Used by one worker.

    Args:
        name: of the thread.
        call_soon: the worker's.
        ring: releases the lock that the thread sleeps on, now or in a moment.

    Attributes:
        waiting: the jobs by connection, the one that is next in turn first; to look at only.
    """

    def __init__(
        self,
        name: str,
        call_soon: Callable[[Callable[[], None]], None],
        ring: Callable[[threading.Lock], None] = lambda bell: bell.release(),
    ) -> None:
        self._name = name
        self._ring = ring
        self._call_soon = call_soon
        self._thread: threading.Thread | None = None
        #: held for as long as the thread sleeps: a condition of ``threading`` makes a lock for each wait
        self._bell = threading.Lock()
        self._bell.acquire()
        #: guards the next three
        self._lock = threading.Lock()
        self.waiting: OrderedDict[object, deque[Job]] = OrderedDict()
        self._asleep = False
        self._stopped = False
        #: held but while somebody waits until the jobs are done, and they are
        self._over = threading.Lock()
        self._over.acquire()
        self._awaited = False
        #: how often ``wait`` is left out yet
        self._left_out = 0

    def put(self, connection: object, job: Job) -> None:
        """Have a job of a connection done.

        Raises:
            RuntimeError: the system has no thread for it.
        """
        if self._thread is None:
            thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            thread.start()
            self._thread = thread
        with self._lock:
            self.waiting.setdefault(connection, deque()).append(job)
            wakes, self._asleep = self._asleep, False
        if wakes:
            self._ring(self._bell)

    def wait(self) -> None:
        """Wait until all jobs are done, for PROMPT_S at most, rather than sleep and be woken by the first of them.

        Once that was too short, the next waits are left out.
        """
        if self._left_out:
            self._left_out -= 1
            return
        with self._lock:
            if self._asleep or self._stopped or self._thread is None:
                return
            self._awaited = True
        if not self._over.acquire(timeout=PROMPT_S):
            with self._lock:
                too_short, self._awaited = self._awaited, False
            if too_short:
                self._left_out = LEFT_OUT
            else:
                self._over.acquire()

    def stop(self) -> None:
        """End the thread, once it has finished its present job; the others are dropped."""
        with self._lock:
            self._stopped = True
            self.waiting.clear()
            wakes, self._asleep = self._asleep, False
        if wakes:
            self._bell.release()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        if not gil_enabled():
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        while (job := self._next()) is not None:
            then = job()
            if then is not None:
                self._call_soon(then)
            del job, then  # while it waits, the thread keeps nothing

    def _next(self) -> Job | None:
        """The next job; None once the thread is to end."""
        while True:
            with self._lock:
                if self._stopped:
                    return None
                if self.waiting:
                    connection, jobs = next(iter(self.waiting.items()))
                    job = jobs.popleft()
                    if jobs:
                        self.waiting.move_to_end(connection)
                    else:
                        del self.waiting[connection]
                    return job
                self._asleep = True
                if self._awaited:
                    self._awaited = False
                    self._over.release()
            self._bell.acquire()
