"""The pool: threads that run the batches of all models whose executors have none of their own.

There are as many as the machine has cores, however many models there are. An executor of the pool is idle, or waits in
the pool, or has one of its threads; so no model has more runs under way than it has executors. While a thread is idle,
whoever has a batch hands it over directly, and no order is needed.

**Order.** Where executors wait, the one whose model has used the least time is next, in steps of ``QUANTUM_NS``, and of
those that have used as much, the one that came first. A model that was idle begins with some credit, and not with all
the time that it did not use. So one model that is asked for too much takes what others leave. Finding the next one
takes a time that grows with the logarithm of how many wait. Where a model has a latency target, the arbiter of the
turns (``turns``) decides which executors come here at all, by their deadlines.

**Batches grow while they wait.** An executor that waits has no batch yet, wherever its batches can still take rows: it
takes one when it is its turn.

**Runs that last.** While some executor waits and no thread comes free for ``PATIENCE_NS``, the pool gets one more
thread, up to ``MOST_TIMES`` as many, and leaves it to the system to share the cores: a short run does not wait for the
end of a long one, and runs that never end do not stop the others. Threads above the number end when they are idle.

**Batches that wait for more rows** have no thread. Their versions' ``Sleeper`` has the time at which the first of them
is due, and one idle thread, the *timekeeper*, sleeps no longer than until the first of all these times. Who opens a
batch sets its timer, and wakes nobody. When a time has come, the timekeeper does itself what is due, and another idle
thread keeps time if there is one. While none is idle, whichever is done first looks what has become due, and that waits
for its turn with all others.
"""

from __future__ import annotations

import heapq
import logging
import threading
import time
from collections.abc import Callable
from typing import Final, Protocol

import trio

from toutates.engine.timers import NEVER_NS, Timers
from toutates.system.gate import Gate
from toutates.system.logs.limit import LineLimit
from toutates.system.own_thread import name_for_the_system
from toutates.system.placement import running_on
from toutates.system.timer import Timer

__all__ = ["ExecutorPool", "PoolShare", "Pooled", "Sleeper"]

logger = logging.getLogger(__name__)

QUANTUM_NS: Final = 20_000_000
CREDIT_NS: Final = 100_000_000
#: How long an executor waits, at least, before the pool gets one more thread.
PATIENCE_NS: Final = 10_000_000
#: How many times its threads the pool may have.
MOST_TIMES: Final = 4
#: How often it is looked whether executors wait for too long, seconds.
_LOOK_S: Final = PATIENCE_NS / 1e9
#: Sleepers that come to what waits at a time, some 2 us each, with the lock held.
_MOST_DUE: Final = 256
#: Seconds that ``tidy`` waits for a thread, which may have got a batch meanwhile.
_TIDY_S: Final = 1.0


class PoolShare:
    """What a model version has used of the pool's time.

    Attributes:
        used_ns: how long its runs have taken. After it was idle, most of what others have used meanwhile is added.
    """

    __slots__ = ("used_ns",)

    def __init__(self) -> None:
        self.used_ns = 0


class Pooled(Protocol):
    """What the pool runs.

    Attributes:
        share: of its model version.
    """

    share: PoolShare

    def work(self, pool: ExecutorPool) -> Callable[[], object] | None:
        """Do what there is to do, in a thread of the pool.

        Returns:
            What is to be called when the thread has nothing of it any more.

        Raises:
            BaseException: the thread is to end, after ``die``.
        """
        ...

    def die(self, death: BaseException) -> None:
        """``work`` has raised an error, and its thread ends."""
        ...


class Sleeper(Pooled, Protocol):
    """What is to have a thread at a time (``ExecutorPool.call_at``).

    Attributes:
        at_ns: that time, monotonic nanoseconds; 0 for none.
        is_called: whether it waits for a thread. ``work`` makes that False before it looks what there is to do.
    """

    at_ns: int
    is_called: bool


class _Thread:
    """A thread of the pool.

    Attributes:
        next: what it is to do; None to look what waits.
        gate: opened for an idle thread that is to go on. The timekeeper sleeps by the timer instead.

    Raises:
        OSError: there are too many open files.
    """

    __slots__ = ("gate", "next")

    def __init__(self) -> None:
        self.next: Pooled | None = None
        self.gate = Gate()


class ExecutorPool:
    """Threads that executors share.

    Args:
        count: how many threads.
        take_cpus: chooses the CPUs of one more thread; none leaves it where it is.
        anywhere: the CPUs that a thread is left on at its end.
        clock_ns: tells the time, monotonic nanoseconds.

    Attributes:
        count: as given.
    """

    def __init__(
        self,
        count: int,
        take_cpus: Callable[[], tuple[int, ...]] = tuple,
        anywhere: tuple[int, ...] = (),
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.count = count
        self._take_cpus = take_cpus
        self._anywhere = anywhere
        self._clock_ns = clock_ns
        self._lock = threading.Lock()
        #: the idle threads, but for the one that keeps time
        self._idle: list[_Thread] = []
        self._timekeeper: _Thread | None = None
        self._timers: Timers[Sleeper] = Timers()
        #: by which the timekeeper sleeps, and who does. A thread that was told to do something else may do so for a
        #: moment longer than it keeps time, in which nobody else has the timer.
        self._timer = Timer()
        self._timer_of: _Thread | None = None
        #: whether there are sleepers, or were
        self._keeps_time = False
        #: those that wait: step of the time used, place, when it came, executor
        self._waiting: list[tuple[int, int, int, Pooled]] = []
        self._put = 0
        self._threads = 0
        self._numbers = 0
        #: the most that any version has used
        self._used_ns = 0
        #: when a thread last took something
        self._taken_ns = 0
        #: looks for turns that are to be given again, while somebody waits for one
        self._looks: dict[object, Callable[[], None]] = {}
        #: how often, seconds
        self._look_for_turns_s = 1.0
        self._ended = False
        self._limit: LineLimit[str] = LineLimit()
        self._watch: Callable[[], None] | None = None
        self._living: list[threading.Thread] = []

    # --- what there is to do -----------------------------------------------------------------------------------------

    @property
    def is_busy(self) -> bool:
        """Whether no thread is idle; a guess, which takes no lock."""
        return not self._idle and self._timekeeper is None and self._threads >= self.count

    def is_busy_with(self, more: int) -> bool:
        """Whether no thread is idle once it has been given so many executors more; a guess, which takes no lock."""
        idle = len(self._idle) + (self._timekeeper is not None)
        return idle + max(self.count - self._threads, 0) <= more

    @property
    def waiting(self) -> int:
        """How many executors wait; a guess, which takes no lock."""
        return len(self._waiting)

    @property
    def is_wanted(self) -> bool:
        """Whether somebody waits for a thread, or should by now; a guess, which takes no lock."""
        return bool(self._waiting) or (self._timers.next_ns != NEVER_NS and self._clock_ns() >= self._timers.next_ns)

    @property
    def threads(self) -> int:
        """How many threads there are."""
        return self._threads

    def put(self, executor: Pooled) -> None:
        """An executor has something to do. Any thread may call it, with the lock of a SuperTensor or an arbiter."""
        with self._lock:
            wake = self._hand_over(executor)
        if wake is not None:
            wake()

    def _hand_over(self, executor: Pooled) -> Callable[[], None] | None:
        """Give an executor to an idle thread, or have it wait, with the lock held.

        Returns:
            What is to be called without the lock, which whoever it wakes up may want at once.
        """
        share = executor.share
        if share.used_ns < self._used_ns - CREDIT_NS:
            share.used_ns = self._used_ns - CREDIT_NS
        if self._idle:
            thread = self._idle.pop()
            thread.next = executor
            return thread.gate.open
        if self._timekeeper is not None:
            self._timekeeper.next = executor
            self._timekeeper = None
            self._timer.set(0)
            return self._take_watch()
        self._enter(executor)
        if self._threads < self.count:
            self._start()
        return self._take_watch()

    def _enter(self, executor: Pooled) -> None:
        """Have an executor wait, with the lock held."""
        self._put += 1
        heapq.heappush(self._waiting, (executor.share.used_ns // QUANTUM_NS, self._put, self._clock_ns(), executor))

    @property
    def _is_unattended(self) -> bool:
        """Whether no thread would notice if a sleeper's time came, because all are at work."""
        return self._timers.next_ns != NEVER_NS and self._timekeeper is None

    def _take_watch(self) -> Callable[[], None] | None:
        """What is to be called, without the lock, if something waits and no thread is idle."""
        if not self._waiting and not self._is_unattended:
            return None
        watch, self._watch = self._watch, None
        return watch

    # --- what there is to do at a time -------------------------------------------------------------------------------

    def expect_times(self) -> None:
        """There will be sleepers."""
        self._keeps_time = True

    def call_at(self, sleeper: Sleeper, at_ns: int, *, is_done: bool = False) -> None:
        """Give it a thread at a time, monotonic nanoseconds, unless it has an earlier time.

        Any thread may call it, with the lock of a SuperTensor, after ``expect_times``.

        Args:
            sleeper: that is to have one.
            at_ns: the time.
            is_done: whether the calling thread is one of the pool, and done: it looks itself what there is to do next.
        """
        watch: Callable[[], None] | None = None
        with self._lock:
            if 0 < sleeper.at_ns <= at_ns:
                return
            is_first = at_ns < self._timers.next_ns
            self._timers.set(sleeper, at_ns)
            if not is_first:
                return  # who keeps time wakes before
            if self._timekeeper is not None:
                self._timer.set(at_ns)
            elif is_done:
                pass
            elif self._idle:
                self._promote()
            else:
                if self._threads < self.count:
                    self._start()
                watch = self._take_watch()
        if watch is not None:
            watch()

    def call(self, sleeper: Sleeper) -> None:
        """Give it a thread as soon as it is its turn. As ``put``."""
        with self._lock:
            if sleeper.is_called:
                return
            self._timers.cancel(sleeper)
            sleeper.is_called = True
            wake = self._hand_over(sleeper)
        if wake is not None:
            wake()

    def forget(self, sleeper: Sleeper) -> None:
        """It needs no thread at any time."""
        with self._lock:
            self._timers.cancel(sleeper)

    def _enter_due(self) -> None:
        """Have sleepers wait whose time has come, with the lock held."""
        for sleeper in self._timers.take_due(self._clock_ns(), _MOST_DUE):
            if not sleeper.is_called:
                sleeper.is_called = True
                sleeper.share.used_ns = max(sleeper.share.used_ns, self._used_ns - CREDIT_NS)
                self._enter(sleeper)

    def charge(self, share: PoolShare, taken_ns: int) -> None:
        """A run of a version has taken so long."""
        share.used_ns = used_ns = share.used_ns + taken_ns  # one that is lost to another thread is one less
        if used_ns > self._used_ns:
            self._used_ns = used_ns

    def wait_for_turn(self, waiter: object, look: Callable[[], None], every_s: float = 1.0) -> None:
        """Have ``look`` called now and then until ``has_turn``.

        Args:
            waiter: who waits.
            look: the same for all who wait for the same turns.
            every_s: how often, in seconds; that of whoever came last counts for all.
        """
        with self._lock:
            self._looks[waiter] = look
            self._look_for_turns_s = every_s
            watch, self._watch = self._watch, None
        if watch is not None:
            watch()

    def has_turn(self, waiter: object) -> None:
        """It waits no longer."""
        with self._lock:
            self._looks.pop(waiter, None)

    # --- threads -----------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Start the threads, but for those that there are."""
        with self._lock:
            for _ in range(self._threads, self.count):
                self._start()

    def _start(self) -> None:
        """Start a thread, with the lock held. Without room for one, those that there are go on."""
        try:
            thread = threading.Thread(
                target=self._serve, args=(_Thread(),), name=f"executor-{self._numbers}", daemon=True
            )
            thread.start()
        except (RuntimeError, OSError, MemoryError) as error:
            if not self._limit.count("", self._clock_ns()):  # it is tried again for each batch that waits
                logger.error("no thread could be started for the executors (%s); %d go on", error, self._threads)
            return
        self._numbers += 1
        self._threads += 1
        self._living = [one for one in self._living if one.is_alive()]
        self._living.append(thread)

    def _serve(self, me: _Thread) -> None:
        """A thread: do what there is to do until the pool ends."""
        name_for_the_system(threading.current_thread().name)
        with running_on(self._take_cpus(), self._anywhere):
            while (executor := self._next(me)) is not None:
                try:
                    then = executor.work(self)
                except BaseException as death:
                    executor.die(death)
                    del executor
                    self._replace()
                    return
                del executor  # while it waits, a thread keeps nothing of what it did
                if then is not None:
                    then()
                del then

    def _next(self, me: _Thread) -> Pooled | None:
        """Wait for something to do; None to end."""
        while True:
            executor: Pooled | None = None
            watch: Callable[[], None] | None = None
            with self._lock:
                if self._keeps_time:
                    executor, watch = self._next_in_time(me)
                elif self._waiting:
                    executor = heapq.heappop(self._waiting)[-1]
                if executor is not None:
                    self._taken_ns = self._clock_ns()
                elif self._ended or self._threads > self.count:
                    self._threads -= 1
                    if self._idle and self._is_unattended:
                        self._promote()
                    return None
                elif self._keeps_time and self._timekeeper is None and self._timer_of is None:
                    self._timekeeper = self._timer_of = me
                    self._timer.set(self._timers.next_ns)
                    keeps_time = True
                else:
                    self._idle.append(me)
                    keeps_time = False
            if watch is not None:
                watch()
            if executor is not None:
                return executor
            if keeps_time:
                self._timer.wait()
            else:
                me.gate.wait()
                executor = me.next  # None may become something at this moment, if the thread is to keep time now
                if executor is not None:
                    me.next = None
                    self._taken_ns = self._clock_ns()
                    return executor

    def _next_in_time(self, me: _Thread) -> tuple[Pooled | None, Callable[[], None] | None]:
        """What a thread was given, or waits, or is due, with the lock held; and what is to be called.

        Other idle threads do what else there is, and one of them keeps time.
        """
        executor, me.next = me.next, None
        if self._timer_of is me:
            self._timer_of = None
        if self._timekeeper is me:
            self._timekeeper = None
        if self._timers.next_ns == NEVER_NS:
            if executor is None and self._waiting:
                executor = heapq.heappop(self._waiting)[-1]
            return executor, None
        if executor is None:
            self._enter_due()
            if not self._waiting:
                return None, None
            executor = heapq.heappop(self._waiting)[-1]
        while self._waiting and self._idle:
            thread = self._idle.pop()
            thread.next = heapq.heappop(self._waiting)[-1]
            thread.gate.open()
        if self._idle and self._is_unattended:
            self._promote()
        return executor, self._take_watch()

    def _promote(self) -> None:
        """Have an idle thread keep time, with the lock held, unless one that has the timer still is to look anyway."""
        if self._timer_of is None:
            self._timekeeper = thread = self._idle.pop()
            thread.gate.open()

    def _replace(self) -> None:
        """The calling thread ends, because nobody knows what state it is in."""
        with self._lock:
            self._threads -= 1
            if not self._ended and self._threads < self.count:
                self._start()

    def _help(self) -> bool:
        """Start one more thread if executors wait for too long; whether some wait, or will unnoticed by a thread."""
        with self._lock:
            if self._is_unattended:
                self._enter_due()
            if not self._waiting:
                return self._is_unattended
            now_ns = self._clock_ns()
            since_ns = min(entry[2] for entry in self._waiting[: self.count])
            late = now_ns - max(since_ns, self._taken_ns) >= PATIENCE_NS
            if self._threads < self.count or (late and self._threads < self.count * MOST_TIMES):
                self._start()
            return True

    # --- life --------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Look after the threads until this is cancelled. It sleeps while no executor waits."""
        token = trio.lowlevel.current_trio_token()
        while True:
            woken = trio.Event()

            def watch(woken: trio.Event = woken) -> None:
                try:
                    token.run_sync_soon(woken.set, idempotent=True)
                except trio.RunFinishedError:
                    pass

            with self._lock:
                at_once = bool(self._waiting or self._looks) or self._is_unattended
                self._watch = None if at_once else watch
            if not at_once:
                await woken.wait()
            looked = trio.current_time()
            while True:
                await trio.sleep(_LOOK_S if self._waiting or self._is_unattended else self._look_for_turns_s)
                waits = self._help()
                if self._looks and trio.current_time() - looked >= self._look_for_turns_s:
                    looked = trio.current_time()
                    with self._lock:
                        looks = set(self._looks.values())
                    for look in looks:
                        look()
                if not waits and not self._looks:
                    break

    def tidy(self) -> None:
        """Have idle threads free what they have made and nothing refers to any more. Blocks until they have.

        See ``system.shared_threads``.
        """
        with self._lock:
            idle = self._all_idle()
            tasks = [_Tidying() for _ in idle]
            for thread, task in zip(idle, tasks, strict=True):
                thread.next = task
            self._wake_all()
        for task in tasks:
            task.done.wait(_TIDY_S)

    def end(self) -> None:
        """End the threads. One whose run goes on is left behind, and ends with the process."""
        with self._lock:
            self._ended = True
            living, self._living = self._living, []
            everyone = len(self._all_idle()) == self._threads
            self._wake_all()
        if everyone:
            for one in living:
                one.join()

    def _all_idle(self) -> list[_Thread]:
        """All threads that are idle, with the lock held."""
        return self._idle if self._timekeeper is None else [*self._idle, self._timekeeper]

    def _wake_all(self) -> None:
        """Wake all threads that are idle, with the lock held."""
        for thread in self._idle:
            thread.gate.open()
        self._idle = []
        if self._timekeeper is not None:
            self._timekeeper = None
            self._timer.set(0)


class _Tidying:
    """What a thread does that is to free what it can: nothing."""

    def __init__(self) -> None:
        self.share = PoolShare()
        self.done = threading.Event()

    def work(self, pool: ExecutorPool) -> Callable[[], object]:
        """Nothing."""
        return self.done.set

    def die(self, death: BaseException) -> None:
        """Never called."""
