"""Which executor runs the next batch: an idle one in its own thread, or one whose session a worker uses meanwhile.

**Inline runs.** Where the model is small, handing a batch to another thread and its outcome back costs more than
running it. A worker whose batch is *quick* (``Lane.run_ns``: by what such runs have taken, below ``quick_ns``)
therefore claims an idle executor and runs the batch inline, on its own thread with that executor's session, while the
executor's thread sleeps. No session is ever used by two threads, no more than ``num_executors`` run at a time, and with
no executor idle a batch waits as any other.

**Delay.** Where batches wait for more rows, one of the idle executors, the *timekeeper*, sleeps no longer than until
the first such batch is due. No other thread has a timer.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Lock
from typing import Final

from toutates.engine.batch_queue import BatchQueue
from toutates.engine.lane import Batch
from toutates.engine.result import BatchResult

__all__ = ["Deliver", "Dispatcher", "ExecutorHandle", "InlineRun"]

#: In an executor's inbox: no batch, but a reason to look again. Never run.
LOOK: Final = Batch.__new__(Batch)

#: Takes the outcome of a batch for the port of this number.
Deliver = Callable[[int, BatchResult], None]


class ExecutorHandle:
    """An executor as the dispatcher knows it.

    Attributes:
        inbox: where its thread waits for the next batch while the executor is idle; None ends it.
        waits_for_inbox: whether the executor is idle, claimed by a worker, or has something in its inbox. It becomes
            True under the lock, and False in the executor's own thread.
    """

    def __init__(self) -> None:
        self.inbox: SimpleQueue[Batch | None] = SimpleQueue()
        self.waits_for_inbox = False

    def run_inline(self, batch: Batch, deliver: Deliver) -> None:
        """Run ``batch``, and what comes meanwhile, on the calling thread, which has claimed this executor for it."""
        raise NotImplementedError


#: An executor that the caller has claimed, and the batch to run with it: ``ExecutorHandle.run_inline``.
InlineRun = tuple[ExecutorHandle, Batch]


class Dispatcher:
    """Brings the batches of a SuperTensor to its executors. Its methods but ``take`` are called with the lock held.

    Args:
        lock: the SuperTensor's.
        queue: the batches.
        quick_ns: batches whose runs take less may be run inline; 0 leaves all to the executors' threads.
        keeps_time: whether batches may wait for more rows.
        clock_ns: tells the time, monotonic nanoseconds.

    Attributes:
        idle: the executors that are neither at work nor claimed.
    """

    def __init__(
        self,
        lock: Lock,
        queue: BatchQueue,
        *,
        quick_ns: int,
        keeps_time: bool = False,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._lock = lock
        self._queue = queue
        self._quick_ns = quick_ns
        self._keeps_time = keeps_time
        self._clock_ns = clock_ns
        self.idle: list[ExecutorHandle] = []
        #: the idle executor that wakes up by itself, and when
        self._timekeeper: ExecutorHandle | None = None
        self._wakes_ns = 0

    def dispatch(self, *, inline: bool) -> InlineRun | None:
        """Give idle executors the batches that are ready.

        Args:
            inline: whether the caller would run a quick one inline.

        Returns:
            What the caller is to run.
        """
        run: InlineRun | None = None
        while self.idle:
            batch = self._queue.next(seal_busy=True)
            if batch is None:
                break
            executor = self.idle.pop()
            # ``Lane.is_quick`` written out, which saves the call.
            if inline and run is None and batch.lane.run_ns[batch.rows.bit_length()] < self._quick_ns:
                run = executor, batch
            else:
                executor.inbox.put(batch)
        if self._keeps_time:
            self._keep_time()
        return run

    def take(self, executor: ExecutorHandle) -> Batch | None:
        """Wait for the next batch of an executor, in its own thread. None: the executor ends.

        An executor whose last thread ended while it waited is still idle, claimed, or has a batch, and waits on.
        """
        if self._keeps_time:
            return self._take_in_time(executor)
        with self._lock:
            batch = None
            if not executor.waits_for_inbox:
                batch = self._queue.next(seal_busy=False)
                if batch is None:
                    if self._queue.finished:
                        return None
                    self.idle.append(executor)
                    executor.waits_for_inbox = True
        if batch is None:
            batch = executor.inbox.get()
            executor.waits_for_inbox = False
        return batch

    def end_inline(self, executor: ExecutorHandle, *, more: bool) -> Batch | None:
        """A batch has run inline: the executor is idle again, or has the batch that is ready by now.

        Args:
            executor: that the caller has claimed.
            more: whether the caller would run another batch; else the executor's own thread gets it.

        Returns:
            The next batch, if it is quick, for the caller to run with the same executor.
        """
        batch = self._queue.next(seal_busy=False)
        if batch is None:
            self.idle.append(executor)
            if self._keeps_time:
                self._keep_time()
        elif more and batch.lane.is_quick(batch.rows, self._quick_ns):
            return batch
        else:
            executor.inbox.put(batch)
        return None

    def dismiss(self) -> None:
        """End the idle executors."""
        while self.idle:
            self.idle.pop().inbox.put(None)

    def clear(self) -> None:
        """Forget all executors, once they have ended."""
        self._timekeeper = None

    # --- batches that wait for more rows -----------------------------------------------------------------------------

    def _keep_time(self) -> None:
        """Have an idle executor, if there is one, wake up when the first open batch is due."""
        due_ns = self._queue.next_due_ns()
        if not due_ns or not self.idle:
            return
        if self._timekeeper not in self.idle:
            self._timekeeper = self.idle[0]
        elif due_ns >= self._wakes_ns:
            return
        self._wakes_ns = due_ns
        self._timekeeper.inbox.put(LOOK)

    def _take_in_time(self, executor: ExecutorHandle) -> Batch | None:
        """``take`` where batches may wait for more rows."""
        found: Batch | None = LOOK
        while found is LOOK:
            timeout_s: float | None = None
            with self._lock:
                if self._timekeeper is executor:
                    self._timekeeper = None
                if executor in self.idle:  # else it is claimed, or has a batch by now
                    self.idle.remove(executor)
                    executor.waits_for_inbox = False
                if not executor.waits_for_inbox:
                    batch = self._queue.next(seal_busy=False)
                    if batch is not None:
                        self._keep_time()
                        return batch
                    if self._queue.finished:
                        return None
                    due_ns = self._queue.next_due_ns()
                    if due_ns and self._timekeeper not in self.idle:
                        self._timekeeper, self._wakes_ns = executor, due_ns
                        timeout_s = max(0.0, (due_ns - self._clock_ns()) / 1e9)
                    self.idle.append(executor)
                    executor.waits_for_inbox = True
            try:
                found = executor.inbox.get(timeout=timeout_s)
            except Empty:
                found = LOOK
        executor.waits_for_inbox = False
        return found
