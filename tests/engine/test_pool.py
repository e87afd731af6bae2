"""The pool of threads: who is next, how many threads there are, and that nobody is stopped by somebody else's run."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest
import trio
import trio.testing

from tests.threads import no_threads
from tests.waiting import DEADLINES_S, PATIENCE_S, wait_until
from toutates.engine.pool import CREDIT_NS, QUANTUM_NS, ExecutorPool, PoolShare
from toutates.system.gate import Gate as Gate_

MS = 1_000_000
HOUR_NS = 3_600 * 10**9


class Job:
    """An executor that does one thing each time it has a thread."""

    def __init__(self, do: Callable[[], object] = lambda: None, share: PoolShare | None = None) -> None:
        self.do = do
        self.share = share or PoolShare()
        self.deaths: list[BaseException] = []

    def work(self, pool: ExecutorPool) -> None:
        """Do it."""
        self.do()

    def die(self, death: BaseException) -> None:
        """It has raised an error."""
        self.deaths.append(death)


class Alarm(Job):
    """A job that is to be done at a time."""

    def __init__(self, do: Callable[[], object] = lambda: None, share: PoolShare | None = None) -> None:
        super().__init__(do, share)
        self.at_ns = 0
        self.is_called = False

    def work(self, pool: ExecutorPool) -> None:
        """Do it."""
        self.is_called = False
        super().work(pool)


class Gate(Job):
    """Keeps a thread until it is opened."""

    def __init__(self, share: PoolShare | None = None) -> None:
        super().__init__(self._wait, share)
        self.entered, self.opened = threading.Event(), threading.Event()

    def _wait(self) -> None:
        self.entered.set()
        assert self.opened.wait(120)


@contextmanager
def one_thread_at_work() -> Iterator[tuple[ExecutorPool, Gate]]:
    """A pool of one thread, and what keeps it."""
    pool, gate = ExecutorPool(1), Gate()
    pool.put(gate)
    assert gate.entered.wait(120)
    try:
        yield pool, gate
    finally:
        gate.opened.set()
        wait_until(lambda: not pool.is_busy)
        pool.end()


def test_who_has_used_less_time_is_next_and_of_equals_who_came_first() -> None:
    order: list[str] = []
    used = {"hot": 5 * QUANTUM_NS, "cold": 0, "late": 1}  # the last two differ by less than a step
    with one_thread_at_work() as (pool, gate):
        for name, used_ns in used.items():
            job = Job(lambda name=name: order.append(name))  # type: ignore[misc]
            job.share.used_ns = used_ns
            pool.put(job)
        gate.opened.set()
        wait_until(lambda: len(order) == 3)
    assert order == ["cold", "late", "hot"]


def test_a_hot_model_that_asks_again_and_again_does_not_come_before_a_cold_one() -> None:
    order: list[str] = []
    with one_thread_at_work() as (pool, gate):
        hot, runs = Job(), iter(range(100))

        def run() -> None:
            order.append("hot")
            pool.charge(hot.share, 30 * MS)
            if next(runs) < 9:
                pool.put(hot)

        hot.do = run
        pool.put(hot)
        colds = [Job(lambda: order.append("cold")) for _ in range(3)]
        for cold in colds:
            pool.put(cold)
        gate.opened.set()
        wait_until(lambda: len(order) == 13)
    assert order == ["hot", "cold", "cold", "cold", *["hot"] * 9]


def test_a_model_that_was_idle_has_some_credit_and_no_more() -> None:
    pool, busy, idle = ExecutorPool(1), Job(), Job()
    pool.charge(busy.share, 100 * CREDIT_NS)
    pool.put(idle)
    assert idle.share.used_ns == 99 * CREDIT_NS
    wait_until(lambda: not pool.is_busy)
    pool.end()


def test_a_model_has_as_many_threads_as_the_pool_and_the_pool_no_more_than_it_was_given() -> None:
    pool, gates = ExecutorPool(2), [Gate() for _ in range(3)]
    for gate in gates:
        pool.put(gate)
    assert gates[0].entered.wait(120)
    assert gates[1].entered.wait(120)
    assert (pool.threads, pool.waiting) == (2, 1)
    for gate in gates:
        gate.opened.set()
    assert gates[2].entered.wait(120)
    wait_until(lambda: not pool.is_busy)
    pool.end()


def test_a_run_that_does_not_end_does_not_stop_others_and_its_helper_ends_after_it() -> None:
    async def main() -> None:
        with one_thread_at_work() as (pool, gate):
            done = threading.Event()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(pool.run)
                pool.put(Job(done.set))
                assert await trio.to_thread.run_sync(done.wait, 120)
                gate.opened.set()
                await trio.to_thread.run_sync(wait_until, lambda: pool.threads == 1)
                nursery.cancel_scope.cancel()

    trio.run(main)


def test_a_thread_that_dies_is_replaced_and_its_executor_hears_of_it() -> None:
    class Ended(BaseException):
        """What is no Exception."""

    def fail() -> None:
        raise Ended

    pool, job, done = ExecutorPool(1), Job(fail), threading.Event()
    pool.put(job)
    wait_until(lambda: bool(job.deaths))
    pool.put(Job(done.set))
    assert done.wait(120)
    assert pool.threads == 1
    wait_until(lambda: not pool.is_busy)
    pool.end()


def test_who_waits_for_a_turn_is_looked_after_until_it_has_it() -> None:
    async def main() -> None:
        pool, looked = ExecutorPool(1), trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pool.run)
            await trio.testing.wait_all_tasks_blocked()
            pool.wait_for_turn("somebody", looked.set)
            with trio.fail_after(120):
                await looked.wait()
            pool.has_turn("somebody")
            nursery.cancel_scope.cancel()
        pool.end()

    trio.run(main)


def test_threads_that_cannot_be_started_leave_one_line_in_the_log_for_all_batches_that_wait(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pool = ExecutorPool(1, clock_ns=lambda: 1)
    done: list[int] = []
    with no_threads():
        for number in range(5):
            pool.put(Job(partial(done.append, number)))
        assert (pool.waiting, pool.threads) == (5, 0)
    assert caplog.text.count("no thread could be started") == 1
    pool.put(Job(partial(done.append, 5)))  # which has the system asked again
    wait_until(lambda: len(done) == 6)
    pool.end()


# --- what is to be done at a time ------------------------------------------------------------------------------------


def waiting_pool(threads: int) -> ExecutorPool:
    """A pool that there are alarms for."""
    pool = ExecutorPool(threads)
    pool.expect_times()
    return pool


@pytest.mark.parametrize("sooner_ms", [20, -5])
def test_an_alarm_goes_off_at_the_earlier_of_two_times(sooner_ms: int) -> None:
    pool, done = waiting_pool(1), threading.Event()
    alarm = Alarm(done.set)
    began_ns = time.monotonic_ns()
    pool.call_at(alarm, began_ns + HOUR_NS)
    pool.call_at(alarm, began_ns + sooner_ms * MS)
    assert done.wait(120)
    assert time.monotonic_ns() - began_ns >= sooner_ms * MS
    assert alarm.at_ns == 0
    pool.end()


def test_an_alarm_has_no_later_time_than_it_was_given_before() -> None:
    pool = waiting_pool(1)
    for after_s in (0.02, *DEADLINES_S):
        done = threading.Event()
        alarm = Alarm(done.set)
        at_ns = time.monotonic_ns() + int(after_s * 1e9)
        pool.call_at(alarm, at_ns)
        pool.call_at(alarm, at_ns + HOUR_NS)
        if time.monotonic_ns() < at_ns:
            break
        pool.forget(alarm)  # it may have gone off before it was given the second time
    assert done.wait(PATIENCE_S)
    assert time.monotonic_ns() >= at_ns
    assert alarm.at_ns == 0
    pool.end()


def test_alarms_wait_without_a_thread_each() -> None:
    pool, done = waiting_pool(1), threading.Semaphore(0)
    alarms = [Alarm(done.release) for _ in range(1_000)]
    now_ns = time.monotonic_ns()
    for number, alarm in enumerate(alarms):
        pool.call_at(alarm, now_ns + (20 + number * 7 % 11) * MS)
    forgotten = alarms[::10]
    for alarm in forgotten:
        pool.forget(alarm)
    for _ in range(len(alarms) - len(forgotten)):
        assert done.acquire(timeout=120)
    assert pool.threads == 1
    wait_until(lambda: not pool.is_busy)
    pool.end()


def test_what_is_due_waits_for_its_turn_like_all_others_while_no_thread_is_idle() -> None:
    order: list[str] = []
    with one_thread_at_work() as (pool, gate):
        pool.expect_times()
        hot, late = Alarm(lambda: order.append("hot")), Alarm(lambda: order.append("late"))
        hot.share.used_ns = 5 * QUANTUM_NS
        late.share.used_ns = QUANTUM_NS
        pool.put(Job(lambda: order.append("cold")))
        pool.call_at(hot, time.monotonic_ns() - MS)
        pool.call_at(late, time.monotonic_ns())
        assert pool.is_wanted
        gate.opened.set()
        wait_until(lambda: len(order) == 3)
    assert order == ["cold", "late", "hot"]


def test_what_is_due_gets_a_helper_while_a_run_does_not_end() -> None:
    async def main() -> None:
        with one_thread_at_work() as (pool, gate):
            pool.expect_times()
            done = threading.Event()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(pool.run)
                await trio.testing.wait_all_tasks_blocked()
                pool.call_at(Alarm(done.set), time.monotonic_ns() + 50 * MS)
                assert await trio.to_thread.run_sync(done.wait, 120)
                gate.opened.set()
                await trio.to_thread.run_sync(wait_until, lambda: pool.threads == 1)
                nursery.cancel_scope.cancel()

    trio.run(main)


def test_the_thread_that_keeps_time_does_whatever_else_comes_and_another_one_keeps_time() -> None:
    pool, gate, done = waiting_pool(2), Gate(), threading.Event()
    pool.open()
    wait_until(lambda: not pool.is_busy)
    pool.call_at(Alarm(done.set), time.monotonic_ns() + 200 * MS)
    pool.put(gate)
    assert gate.entered.wait(120)
    assert done.wait(120)
    gate.opened.set()
    wait_until(lambda: not pool.is_busy)
    pool.tidy()
    pool.end()
    wait_until(lambda: pool.threads == 0)


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_nothing_is_forgotten_whoever_puts_what_when(threads: int) -> None:
    pool = waiting_pool(threads)
    counts = [0] * 4

    def send(sender: int) -> None:
        chance = random.Random(sender)
        done = threading.Event()
        for _ in range(400):
            done.clear()
            if chance.random() < 0.5:
                pool.put(Job(done.set))
            else:
                pool.call_at(Alarm(done.set), time.monotonic_ns() + chance.randrange(300_000))
            if chance.random() < 0.9:
                assert done.wait(120)
            counts[sender] += 1

    senders = [threading.Thread(target=send, args=(sender,)) for sender in range(len(counts))]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()
    assert counts == [400] * len(counts)
    wait_until(lambda: not pool.waiting)
    pool.end()


def test_a_thread_that_is_woken_finds_the_lock_free(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = ExecutorPool(1)
    pool.open()
    wait_until(lambda: not pool.is_busy)
    free: list[bool] = []
    wake = Gate_.open

    def opened(gate: Gate_) -> None:
        free.append(not pool._lock.locked())
        wake(gate)

    monkeypatch.setattr(Gate_, "open", opened)
    done = threading.Event()
    pool.put(Job(done.set))
    assert done.wait(120)
    assert free == [True]
    wait_until(lambda: not pool.is_busy)
    pool.end()


def test_a_thread_for_which_there_is_no_open_file_left_is_none(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with one_thread_at_work() as (pool, gate):
        pool.count = 2
        done = threading.Event()
        with monkeypatch.context() as patched:

            def refuse(*arguments: int) -> int:
                raise OSError(24, "Too many open files")

            patched.setattr("os.eventfd", refuse)
            pool.put(Job(done.set))
        assert pool.threads == 1
        assert "no thread could be started for the executors ([Errno 24] Too many open files); 1 go on" in caplog.text
        pool.count = 1
        gate.opened.set()
        assert done.wait(120)


def test_it_is_busy_once_its_idle_threads_were_given_something() -> None:
    with one_thread_at_work() as (pool, _):
        assert pool.is_busy
        assert pool.is_busy_with(0)
        pool.count = 3
        assert not pool.is_busy_with(1)
        assert pool.is_busy_with(2)
        pool.count = 1
