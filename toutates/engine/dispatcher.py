"""Which executor runs the next batch: an idle one in its own thread, or one whose session a worker uses meanwhile.

**Inline runs.** Where the model is small, handing a batch to another thread and its outcome back costs more than
running it. A worker whose batch is *quick* (``Lane.run_ns``: by what such runs have taken, below ``quick_ns``)
therefore claims an idle executor and runs the batch inline, on its own thread with that executor's session, while the
executor's thread sleeps. No session is ever used by two threads, no more than ``num_executors`` run at a time, and with
no executor idle a batch waits as any other.

**The pool.** Executors that have no threads of their own are given a thread when they get a batch (``pool``). While the
pool has no thread to spare, an executor waits there without a batch, and takes one when it is its turn: until then the
batch grows.

**Delay.** Where batches wait for more rows, somebody looks when the first of them is due. For executors in the pool it
is a thread of the pool, which keeps time for all versions (``due_batches``). Of executors with threads of their own it
is an idle one, the *timekeeper*, which sleeps no longer. No other thread has a timer.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Lock
from typing import Final, Protocol

from toutates.engine.batch_queue import BatchQueue
from toutates.engine.due_batches import DueBatches
from toutates.engine.lane import Batch
from toutates.engine.pool import ExecutorPool, PoolShare
from toutates.engine.result import BatchResult, Timing

__all__ = ["LOOK", "MAX_INLINE_BATCHES", "Deliver", "Dispatcher", "ExecutorHandle", "Inbox", "InlineRun"]

#: Batches that a worker runs inline at most before it goes on with its round: its own, and those that came meanwhile.
#: As many requests of a batch that failed are run one by one.
MAX_INLINE_BATCHES: Final = 4

#: In an executor's inbox: no batch, but a reason to look again. Never run.
LOOK: Final = Batch.__new__(Batch)

#: Takes the outcome of a batch for the port of this number.
Deliver = Callable[[int, BatchResult], None]


class Inbox(Protocol):
    """Takes what an executor is to do."""

    def put(self, item: Batch | None, /) -> None:
        """Have the executor run a batch, look for one (``LOOK``), or end (None)."""
        ...

    def get(self, block: bool = True, timeout: float | None = None) -> Batch | None:
        """Wait for it; only of an executor with a thread of its own."""
        ...


class ExecutorHandle:
    """An executor as the dispatcher knows it.

    Attributes:
        inbox: where its thread waits for the next batch while the executor is idle; None ends it. That of an executor
            of the pool brings it there.
        waits_for_inbox: of an executor with a thread of its own, whether it is idle, claimed by a worker, or has
            something in its inbox. It becomes True under the lock, and False in the executor's own thread.
    """

    def __init__(self) -> None:
        self.inbox: Inbox = SimpleQueue()
        self.waits_for_inbox = False

    def run_inline(self, batch: Batch, deliver: Deliver, most: int = MAX_INLINE_BATCHES) -> None:
        """Run ``batch``, and what comes meanwhile, on the calling thread, which has claimed this executor for it.

        Args:
            batch: to be run.
            deliver: takes the outcomes.
            most: batches that are run at most; executors have the others.
        """
        raise NotImplementedError

    def work_with(self, batch: Batch, pool: ExecutorPool) -> Callable[[], object] | None:
        """Run a batch, and what comes meanwhile, on the calling thread, which is one of the pool.

        Returns:
            What is to be called when the thread has nothing of it any more.

        Raises:
            BaseException: the thread is to end; the executor knows it.
        """
        raise NotImplementedError

    def run_claimed(self, batch: Batch) -> Timing | None:
        """Run a batch without pending requests on the calling thread, which has claimed this executor for it.

        Returns:
            When it ran. None where it did not: it would have to wait for its turn, or has failed for whatever reason.
        """
        raise NotImplementedError


#: An executor that the caller has claimed, and the batch to run with it: ``ExecutorHandle.run_inline``.
InlineRun = tuple[ExecutorHandle, Batch]


class Dispatcher:
    """Brings the batches of a SuperTensor to its executors.

    Its methods are called with the lock held, but for those that say otherwise.

    Args:
        lock: the SuperTensor's.
        queue: the batches.
        quick_ns: batches whose runs take less may be run inline; 0 leaves all to the executors' threads.
        keeps_time: whether batches may wait for more rows.
        clock_ns: tells the time, monotonic nanoseconds.

    Attributes:
        idle: the executors that are neither at work nor claimed.
        keeps_time: as given.
        pool: that has threads for the executors; None where they have their own.
        handed: executors, each with what it is to do, the first one first, for whoever lets go of the lock to call
            ``hand_over``. An executor that is woken while the lock is held may have the waker's core, and then wait for
            the lock.
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
        self.keeps_time = keeps_time
        self.pool: ExecutorPool | None = None
        #: whether what waits can be told without taking it
        self._gathers = type(queue) is BatchQueue
        self._clock_ns = clock_ns
        self.idle: list[ExecutorHandle] = []
        self.handed: list[tuple[ExecutorHandle, Batch]] = []
        #: the idle executor that wakes up by itself, and when
        self._timekeeper: ExecutorHandle | None = None
        self._wakes_ns = 0
        #: in the pool, who looks when a batch is due
        self._due: DueBatches | None = None

    def dispatch(self, *, inline: bool) -> InlineRun | None:
        """Have idle executors given the batches that are ready, by ``hand_over``.

        Args:
            inline: whether the caller would run a quick one inline.

        Returns:
            What the caller is to run.
        """
        run: InlineRun | None = None
        while self.idle:
            if self._is_pool_busy() and self._is_better_gathered(inline=inline and run is None):
                if self._due is None or self.handed:  # what looks for due batches would have the thread before those
                    self.handed.append((self.idle.pop(), LOOK))
                else:
                    self._due.look_soon()
                break
            batch = self._queue.next(seal_busy=True)
            if batch is None:
                break
            executor = self.idle.pop()
            # ``Lane.is_quick`` written out, which saves the call.
            if inline and run is None and batch.lane.run_ns[batch.rows.bit_length()] < self._quick_ns:
                run = executor, batch
            else:
                self.handed.append((executor, batch))
        if self.keeps_time:
            self._keep_time()
        return run

    def hand_over(self) -> None:
        """Give executors what was found for them. Called without the lock, where ``handed`` has some."""
        handed = self.handed
        while handed:
            try:
                executor, batch = handed.pop(0)  # the pool may have a thread for one of them only
            except IndexError:  # another thread has handed it over
                return
            executor.inbox.put(batch)

    def _is_pool_busy(self) -> bool:
        pool = self.pool
        if pool is None:
            return False
        return pool.is_busy_with(len(self.handed)) if self.handed else pool.is_busy

    def _is_better_gathered(self, *, inline: bool) -> bool:
        """Whether an executor that has to wait for a thread is better given a batch when it has one."""
        if not self._gathers:
            return False
        first = self._queue.first_ready()
        return first is not None and not (inline and first.lane.is_quick(first.rows, self._quick_ns))

    def join(self, executor: ExecutorHandle, pool: ExecutorPool, share: PoolShare) -> None:
        """An executor is in the pool, and idle. Takes the lock.

        Args:
            executor: that is there.
            pool: the same for all executors.
            share: of the version.
        """
        with self._lock:
            self.pool = pool
            if self.keeps_time and self._due is None:
                self._due = DueBatches(self.run_due, pool, share)
            executor.waits_for_inbox = True
            self.idle.append(executor)
            self.dispatch(inline=False)
            if self._queue.finished:
                self.dismiss()
        self.hand_over()

    def take_now(self, executor: ExecutorHandle, *, first: bool, waits: bool) -> Batch | None:
        """The next batch of an executor of the pool, which has a thread; None: it is idle now, and has none any more.

        Takes the lock.

        Args:
            executor: that is neither idle nor claimed.
            first: whether it has waited for this, so that rows that are being written are to run next.
            waits: whether others wait for the thread.

        Returns:
            The batch; ``LOOK`` where there may be one, and the executor is to ask for it when it is its turn again.
        """
        with self._lock:
            queue = self._queue
            if waits and self._gathers and queue.first_ready() is not None:
                return LOOK
            batch = queue.next(seal_busy=first)
            if batch is None:
                self.idle.append(executor)
                if self.keeps_time:
                    self._keep_time(is_done=True)
                if queue.finished:
                    self.dismiss()
            return batch

    def run_due(self, pool: ExecutorPool) -> Callable[[], object] | None:
        """Run the batch that has waited for long enough on the calling thread, which is one of the pool.

        Other executors that are idle have what else is due. Takes the lock. See ``Pooled.work``.
        """
        run: InlineRun | None = None
        with self._lock:
            while self.idle and (batch := self._queue.next(seal_busy=False)) is not None:
                executor = self.idle.pop()
                if run is None:
                    run = executor, batch
                else:
                    self.handed.append((executor, batch))
            self._keep_time(is_done=run is None)
        self.hand_over()
        return run[0].work_with(run[1], pool) if run is not None else None

    def take(self, executor: ExecutorHandle) -> Batch | None:
        """Wait for the next batch of an executor, in its own thread. None: the executor ends. Takes the lock.

        An executor whose last thread ended while it waited is still idle, claimed, or has a batch, and waits on.
        """
        if self.keeps_time:
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
            The next batch, if it is quick, for the caller to run with the same executor. Another one is handed over by
            ``hand_over``.
        """
        batch = self._queue.next(seal_busy=False)
        if batch is None:
            self.idle.append(executor)
            if self.keeps_time:
                self._keep_time()
        elif more and batch.lane.is_quick(batch.rows, self._quick_ns):
            return batch
        else:
            self.handed.append((executor, batch))
        return None

    def dismiss(self) -> None:
        """End the idle executors."""
        while self.idle:
            self.idle.pop().inbox.put(None)

    def clear(self) -> None:
        """Forget all executors, once they have ended."""
        self._timekeeper = None
        if self._due is not None:
            self._due.end()
            self._due = None

    # --- batches that wait for more rows -----------------------------------------------------------------------------

    def _keep_time(self, *, is_done: bool = False) -> None:
        """Where executors are idle, have somebody look when the first open batch is due.

        ``is_done`` is for ``ExecutorPool.call_at``.
        """
        due_ns = self._queue.next_due_ns()
        if not due_ns or not self.idle:
            return
        if self._due is not None:
            self._due.look_at(due_ns, is_done=is_done)
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
