"""Who runs the next batch: the dispatcher alone, with executors whose sleep turns the tests' clock."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue

import pytest

from tests.engine.parts import Clock, some_batch
from toutates.engine.batch_queue import BatchQueue
from toutates.engine.budget import Bounds, Budget
from toutates.engine.dispatcher import LOOK, Dispatcher, ExecutorHandle, InlineRun
from toutates.engine.lane import Batch, Lane

DELAY_NS = 10**9


class Asleep(Exception):
    """An executor sleeps without a limit, and nothing more will happen."""


class Inbox(SimpleQueue[Batch | None]):
    """An inbox whose reader does not sleep: the clock turns to the next event instead."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene

    def put(self, item: Batch | None, block: bool = True, timeout: float | None = None) -> None:
        """A batch comes without the lock, which the executor that has it may want at once."""
        if item is not None and item is not LOOK:
            assert not self._scene.lock.locked()
            self._scene.came.append(item)
        super().put(item)

    def get(self, block: bool = True, timeout: float | None = None) -> Batch | None:
        """What is in it by the time; events of the scene happen meanwhile."""
        scene = self._scene
        until_ns = None if timeout is None else scene.clock.now_ns + round(timeout * 1e9)
        while True:
            try:
                return super().get_nowait()
            except Empty:
                pass
            if scene.events and (until_ns is None or scene.events[0][0] <= until_ns):
                scene.clock.now_ns, event = scene.events.pop(0)
                event()
            elif until_ns is None:
                raise Asleep
            else:
                scene.clock.now_ns = until_ns
                raise Empty


class Scene:
    """A dispatcher, executors, and what happens when."""

    def __init__(self, executors: int = 1, *, delay: bool = False, quick_ns: int = 0) -> None:
        open_batches: dict[Lane, Batch] = {}
        self.clock = Clock()
        self.began_ns = self.clock.now_ns
        self.queue = BatchQueue(
            open_batches,
            Budget("m", Bounds(1_000), open_batches),
            delay_ns=DELAY_NS if delay else 0,
            enough_rows=8,
            clock_ns=self.clock,
        )
        self.lock = threading.Lock()
        self.dispatcher = Dispatcher(self.lock, self.queue, quick_ns=quick_ns, keeps_time=delay, clock_ns=self.clock)
        self.executors = [ExecutorHandle() for _ in range(executors)]
        for executor in self.executors:
            executor.inbox = Inbox(self)
        self.events: list[tuple[int, Callable[[], object]]] = []
        #: the batches that executors were given in their inboxes
        self.came: list[Batch] = []
        self.opened = 0

    def at(self, ns: int, event: Callable[[], object]) -> None:
        """Have something happen so long after the beginning, while an executor sleeps."""
        self.events.append((self.began_ns + ns, event))

    def dispatch(self, *, inline: bool) -> InlineRun | None:
        """What a commit does."""
        with self.lock:
            run = self.dispatcher.dispatch(inline=inline)
        self.dispatcher.hand_over()
        return run

    def end_inline(self, executor: ExecutorHandle, *, more: bool) -> Batch | None:
        """What the end of an inline run does."""
        with self.lock:
            following = self.dispatcher.end_inline(executor, more=more)
        self.dispatcher.hand_over()
        return following

    def open_one(self, *, busy: int = 0) -> Batch:
        """A batch with a row."""
        self.opened += 1
        batch = some_batch(self.opened, busy=busy)
        self.queue.add_open(batch)
        return batch

    def commit_one(self) -> Batch:
        """A batch whose only worker commits."""
        batch = self.open_one()
        self.dispatch(inline=False)
        return batch

    def take(self, number: int = 0) -> Batch | None:
        return self.dispatcher.take(self.executors[number])

    def sleep(self, number: int = 0) -> None:
        """An executor waits, and nothing comes."""
        with pytest.raises(Asleep):
            self.take(number)

    @property
    def passed_ns(self) -> int:
        return self.clock.now_ns - self.began_ns


def test_an_executor_takes_what_is_ready_and_sleeps_when_nothing_is() -> None:
    scene = Scene()
    batch = scene.open_one()
    assert scene.take() is batch
    scene.sleep()
    assert scene.dispatcher.idle == scene.executors


def test_an_idle_executor_gets_the_batch_that_is_committed() -> None:
    scene = Scene(executors=2)
    scene.sleep(0)
    scene.sleep(1)
    batch = scene.commit_one()
    assert scene.dispatcher.idle == scene.executors[:1]
    assert scene.take(1) is batch
    assert not scene.executors[1].waits_for_inbox


def test_the_batch_that_is_to_run_first_is_handed_over_first() -> None:
    scene = Scene(executors=3)
    for number in range(3):
        scene.sleep(number)
    batches = [scene.open_one() for _ in range(3)]
    scene.dispatch(inline=False)
    assert scene.came == batches


def test_a_quick_batch_is_run_inline_and_one_alone() -> None:
    scene = Scene(executors=3, quick_ns=100)
    for number in range(3):
        scene.sleep(number)
    slow, quick, late = (scene.open_one() for _ in range(3))
    for batch, run_ns in ((slow, 100), (quick, 99), (late, 99)):
        batch.lane.note_run(1, run_ns)
    run = scene.dispatch(inline=True)
    assert run == (scene.executors[1], quick)
    assert scene.take(2) is slow
    assert scene.take(0) is late
    assert scene.dispatcher.idle == []


def test_nothing_is_run_inline_by_a_caller_who_would_not() -> None:
    scene = Scene(quick_ns=100)
    scene.sleep()
    batch = scene.open_one()
    batch.lane.note_run(1, 1)
    assert scene.dispatch(inline=False) is None
    assert scene.take() is batch


@pytest.mark.parametrize(("more", "run_ns"), [(True, 99), (True, 100), (False, 99)])
def test_after_an_inline_run_the_next_batch_is_the_callers_if_it_is_quick(more: bool, run_ns: int) -> None:
    scene = Scene(quick_ns=100)
    scene.sleep()
    [executor] = scene.executors
    scene.dispatcher.idle.clear()  # it is claimed
    batch = scene.open_one()
    batch.lane.note_run(1, run_ns)
    inline = more and run_ns < 100
    assert scene.end_inline(executor, more=more) is (batch if inline else None)
    if not inline:
        assert scene.take() is batch
    else:
        assert scene.end_inline(executor, more=more) is None
        assert scene.dispatcher.idle == [executor]


def test_executors_end_when_the_queue_is_closed_and_empty() -> None:
    scene = Scene(executors=2)
    scene.sleep(0)
    scene.queue.closed = True
    scene.dispatcher.dismiss()
    assert scene.take(0) is None
    assert scene.take(1) is None


# --- batches that wait for more rows


def test_an_executor_sleeps_until_the_first_batch_is_due() -> None:
    scene = Scene(delay=True)
    batch = scene.open_one()
    scene.clock.now_ns += 100
    scene.open_one()
    assert scene.take() is batch
    assert scene.passed_ns == DELAY_NS


def test_an_executor_that_sleeps_without_a_limit_is_told_of_a_batch_that_waits() -> None:
    scene = Scene(delay=True)
    scene.at(500, scene.commit_one)
    batch = scene.take()
    assert batch is not None
    assert batch.order == 1
    assert scene.passed_ns == 500 + DELAY_NS
    assert scene.dispatcher.idle == []


def test_the_timekeeper_wakes_earlier_for_a_batch_whose_writer_commits_late() -> None:
    scene = Scene(delay=True)
    first = scene.open_one(busy=1)
    scene.clock.now_ns += 300
    second = scene.open_one()

    def commit() -> None:
        first.busy = 0
        scene.dispatch(inline=False)

    scene.at(700, commit)
    assert scene.take() is first
    assert scene.passed_ns == DELAY_NS
    assert scene.take() is second
    assert scene.passed_ns == DELAY_NS + 300


def test_only_one_idle_executor_keeps_time() -> None:
    scene = Scene(executors=2, delay=True)
    scene.sleep(0)
    scene.sleep(1)
    batch = scene.commit_one()
    scene.sleep(1)
    assert scene.passed_ns == 0
    assert scene.take(0) is batch
    assert scene.passed_ns == DELAY_NS


def test_another_executor_keeps_time_while_the_timekeeper_is_claimed() -> None:
    scene = Scene(executors=2, delay=True)
    scene.sleep(0)
    scene.sleep(1)
    first = scene.commit_one()
    scene.dispatcher.idle.remove(scene.executors[0])  # the timekeeper is claimed
    scene.commit_one()
    assert scene.take(1) is first
    assert scene.passed_ns == DELAY_NS
    scene.sleep(0)  # until its claim ends
    assert scene.passed_ns == DELAY_NS


def test_an_executor_back_from_an_inline_run_keeps_time() -> None:
    scene = Scene(delay=True)
    scene.sleep()
    [executor] = scene.executors
    scene.dispatcher.idle.clear()
    batch = scene.commit_one()
    assert scene.end_inline(executor, more=True) is None
    assert scene.take() is batch
    assert scene.passed_ns == DELAY_NS


def test_a_batch_that_is_put_into_the_timekeepers_inbox_is_not_lost() -> None:
    scene = Scene(delay=True)
    waits = scene.open_one()

    def commit() -> None:
        full = scene.open_one()
        full.rows = 8
        scene.dispatch(inline=False)

    scene.at(400, commit)
    taken = scene.take()
    assert taken is not None
    assert (taken.rows, scene.passed_ns) == (8, 400)
    assert scene.take() is waits
    assert scene.passed_ns == DELAY_NS


def test_a_timekeeper_ends_when_it_is_dismissed() -> None:
    scene = Scene(delay=True)
    scene.at(300, scene.dispatcher.dismiss)
    scene.open_one()
    assert scene.take() is None
    assert scene.passed_ns == 300
