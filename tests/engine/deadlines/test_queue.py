"""Which requests a version with a latency target lets in: a model of a server, with a clock that the test turns."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest

from tests.engine.parts import Clock
from toutates.engine.deadlines.supertensor import DeadlineSuperTensor
from toutates.engine.lane import Batch, Lane
from toutates.protocol.datatypes import BY_NAME
from toutates.protocol.signature import Signature, TensorSpec
from toutates.system.errors import BeyondTarget, WouldBeLate

MS = 1_000_000
FP32 = BY_NAME["FP32"]
SIGNATURE = Signature((TensorSpec("x", FP32, (-1,)),), (TensorSpec("y", FP32, (-1,)),), True)


def always(by_ns: int) -> bool:
    return True


class Model:
    """A version whose runs take ``fixed_ms`` + ``row_ms`` x rows, without threads.

    Args:
        executors: how many run at a time.
        target_ms: of the version.
        learned: whether runs have been seen before.
        batch_rows: most rows of a run.
        varying: by which the times of runs differ, as the standard deviation of their logarithm; where they do, batches
            that are late are left out.
    """

    def __init__(
        self,
        fixed_ms: float,
        row_ms: float,
        *,
        target_ms: float = 20,
        executors: int = 1,
        learned: bool = True,
        batch_rows: int = 64,
        delay_ms: float = 0,
        varying: float = 0,
    ) -> None:
        self.clock = Clock()
        self.varying, self.rng = varying, Random(5)
        self.fixed_ns, self.row_ns = int(fixed_ms * MS), int(row_ms * MS)
        self.executors = executors
        self.supertensor = DeadlineSuperTensor(
            "m",
            SIGNATURE,
            target_ns=int(target_ms * MS),
            executors=executors,
            batch_size=batch_rows,
            capacity=10_000,
            delay_ns=int(delay_ms * MS),
            enough_rows=batch_rows,
            clock_ns=self.clock,
        )
        self.queue = self.supertensor.deadlines
        self.lane = self.supertensor.lane(((0, (1,)),))
        #: what requests wait for their worker, to be read and to be answered, and what is known of that
        self.wait_ns = self.around_ns = 0
        #: (its end, order, batch) of each batch that runs
        self.running: list[tuple[int, int, Batch]] = []
        #: arrivals of the requests of a batch
        self.requests: dict[Batch, list[int]] = {}
        #: how long each request took that was answered
        self.took_ns: list[int] = []
        self.rows = Counter[int]()
        if learned:
            for rows in (1, 5, 20, 60) * 20:
                for profile in (self.queue.profile, self.queue._profiles.setdefault(self.lane, self.queue.profile)):
                    profile.note(rows, self.fixed_ns + rows * self.row_ns)
            self.queue._ran_ns = self.clock.now_ns

    def be_busy(self) -> None:
        """Have its executors have computed all the time lately."""
        self.queue._lately.note(self.executors * 10**9, self.clock.now_ns)

    def ask(self, rows: int = 1, is_wanted: Callable[[int], bool] = always, lane: Lane | None = None) -> None:
        """A request, in a round of its own."""
        lane = lane or self.lane
        with self.supertensor.lock:
            self.queue.admit(lane, rows, is_wanted, self.around_ns)
            batch = self.queue.open.get(lane) or self.supertensor.open_batch(lane, rows)
            batch.rows += rows
            self.queue.note_rows(batch)
            if batch.rows >= batch.room and batch in self.queue.open.values():
                self.supertensor.seal(batch)
            self.requests.setdefault(batch, []).append(self.clock.now_ns)
        self.start()

    def asked(self, *arguments: Any, **named: Any) -> bool:
        """Whether a request is let in."""
        try:
            self.ask(*arguments, **named)
        except WouldBeLate:
            return False
        return True

    def start(self) -> None:
        """Idle executors take what is ready."""
        while len(self.running) < self.executors:
            with self.supertensor.lock:
                batch = self.queue.next(seal_busy=True)
            if batch is None:
                return
            if self.varying and self.queue.is_too_late(batch):
                del self.requests[batch]
                self.supertensor.release(batch)
                continue
            longer = self.rng.lognormvariate(-(self.varying**2) / 2, self.varying)
            ends_ns = self.clock.now_ns + int((self.fixed_ns + self.row_ns * batch.rows) * longer)
            heapq.heappush(self.running, (ends_ns, batch.order, batch))

    def wait_until(self, now_ns: int) -> None:
        """Let time pass."""
        while self.running and self.running[0][0] <= now_ns:
            self.clock.now_ns, _, batch = heapq.heappop(self.running)
            self.rows[batch.rows] += 1
            self.took_ns += [self.clock.now_ns - came_ns for came_ns in self.requests.pop(batch)]
            expected = self.queue.expected(batch)
            assert expected is not None
            expected.ran, expected.run_ns = True, self.clock.now_ns - expected.began_ns
            self.supertensor.release(batch)
            self.start()
        self.clock.now_ns = now_ns

    def wait(self, ms: float) -> None:
        self.wait_until(self.clock.now_ns + int(ms * MS))

    def offer(self, gaps_ns: Sequence[float]) -> tuple[float, float]:
        """Requests with these gaps between them; returns rows per ms that were answered in time, and in all."""
        began_ns = at = self.clock.now_ns
        for gap_ns in gaps_ns:
            at += int(gap_ns)
            self.wait_until(at)
            self.asked()
        took_ms = (at - began_ns) / MS
        self.wait(1_000)
        in_time = sum(took + 2 * self.wait_ns <= self.queue.target_ns for took in self.took_ns)
        return in_time / took_ms, len(self.took_ns) / took_ms


def test_a_request_that_finds_no_work_in_front_of_it_is_let_in() -> None:
    model = Model(1, 0.1)
    assert model.asked()
    model.wait(2)
    assert model.took_ns == [int(1.1 * MS)]


def test_nothing_is_refused_before_the_first_run_has_ended() -> None:
    model = Model(50, 0, learned=False)
    assert all(model.asked() for _ in range(10))
    model.wait(200)
    assert len(model.took_ns) == 10
    assert model.queue.profile.known


def test_a_batch_takes_no_more_rows_than_its_first_request_has_time_for() -> None:
    model = Model(1, 0.2)  # 64 rows take 13.8 ms; an eighth of the 20 ms of the target is left for other things
    for _ in range(64):
        model.ask()
    model.wait_until(model.clock.now_ns)
    assert [batch.rows for _, _, batch in model.running] == [1]
    (open_rows,) = [batch.rows for batch in model.queue.open.values()] or [0]
    sealed = [batch.rows for batch in model.queue.sealed]
    assert sealed == []
    assert open_rows == 63
    model.wait(3)  # the 63 rows run, for 13.6 ms
    letting = [model.asked() for _ in range(100)]
    # Those that come now would wait for 11.8 ms, and a run that pays takes at least half of the bound, 8.75 ms.
    assert not any(letting)
    model.wait(5)
    letting = [model.asked() for _ in range(100)]
    # Now 6.8 ms are to be waited, which leaves 10.7 ms for a run, of 48 rows. Then the next batch would be too late.
    assert letting.index(False) == letting.count(True)
    assert 44 <= letting.count(True) <= 49
    model.wait(50)
    assert max(model.took_ns) <= 20 * MS


def test_a_refusal_says_what_it_would_have_taken_and_when_to_come_again() -> None:
    model = Model(10, 0)
    model.be_busy()
    model.ask()
    model.wait(1)
    with pytest.raises(BeyondTarget) as refused:
        model.ask()
    assert str(refused.value) == (
        "model 'm' has a latency target of 20 ms, and this request would take 19 ms, 9 of them for what is in front "
        "of it; try again in 1.5 ms"
    )
    assert refused.value.retry_after_s == pytest.approx(0.0015, rel=0.01)
    # Until then the next ones are told the same, so that it is encoded once.
    for _ in range(2):
        model.wait(0.6)
        with pytest.raises(BeyondTarget) as again:
            model.ask()
        assert str(again.value) == str(refused.value)
        assert again.value.retry_after_s == refused.value.retry_after_s
    model.wait(0.4)
    assert model.asked()


def test_a_callers_own_deadline_refuses_its_request_and_moves_no_other() -> None:
    model = Model(4, 1)
    model.ask(4)
    begun = model.clock.now_ns
    with pytest.raises(WouldBeLate, match="would take 13 ms, 8 of them for what is in front of it") as refused:
        model.ask(1, lambda by_ns: by_ns <= begun + 12 * MS)
    assert not isinstance(refused.value, BeyondTarget)
    assert refused.value.retry_after_s == pytest.approx(0.008, rel=0.01)
    model.ask(1, lambda by_ns: by_ns <= begun + 14 * MS)
    # In the same batch, which is not bounded by the other's deadline.
    assert model.asked(2)
    assert [batch.rows for batch in model.queue.open.values()] == [3]
    # A deadline that has passed is refused even by a model that does nothing.
    model.wait(100)
    assert not model.asked(1, lambda by_ns: False)
    assert model.asked()


def test_a_model_that_is_too_slow_for_its_target_is_tried_now_and_then() -> None:
    model = Model(50, 0)
    with pytest.raises(BeyondTarget, match="0 of them for what is in front of it; try again in 80 ms"):
        model.ask()
    model.wait(80)
    assert model.asked()
    assert not any(model.asked() for _ in range(5))
    model.wait(60)
    assert not model.asked()
    # It has become quick meanwhile.
    model.fixed_ns = 1 * MS
    for _ in range(200):
        model.wait(80)
        model.asked()
    for _ in range(5):
        model.wait(5)
        assert model.asked()


def test_what_an_executor_leaves_out_because_it_was_slow_to_begin_is_learned_from() -> None:
    model = Model(1, 0)
    before_ns = model.queue.profile.mean_ns(1)
    for _ in range(40):
        model.wait(100)
        model.ask()
        ((_, _, batch),) = model.running
        model.running.clear()
        model.clock.now_ns += 30 * MS
        assert model.queue.is_too_late(batch)
        model.supertensor.release(batch)
    assert model.queue.profile.mean_ns(1) > 3 * before_ns
    # And forgotten again.
    for _ in range(200):
        model.wait(100)
        model.ask()
    assert model.queue.profile.mean_ns(1) < 2 * before_ns


def test_rows_of_other_shapes_are_in_front_as_well() -> None:
    model = Model(4, 0)
    shapes = [model.supertensor.lane(((0, (length,)),)) for length in range(2, 12)]
    letting = [model.asked(1, always, lane) for lane in shapes]
    # One runs, and each of the others takes 4 ms: 17.5 ms are enough for four of them.
    assert letting == [True] * 4 + [False] * 6


def test_several_executors_share_what_waits() -> None:
    one, four = (Model(4, 0, executors=executors) for executors in (1, 4))
    counts = []
    for model in (one, four):
        shapes = [model.supertensor.lane(((0, (length,)),)) for length in range(2, 62)]
        counts.append(sum(model.asked(1, always, lane) for lane in shapes))
    assert counts[0] == 4
    assert 14 <= counts[1] <= 16


def test_a_request_of_several_batches_takes_as_long_as_all_of_them() -> None:
    model = Model(1, 1, batch_rows=8, target_ms=40)
    assert model.asked(24)
    model = Model(1, 1, batch_rows=8, target_ms=20)
    with pytest.raises(BeyondTarget, match="would take 27 ms"):
        model.ask(24)


def test_the_delay_of_a_batch_is_part_of_what_a_request_takes() -> None:
    model = Model(4, 0, delay_ms=8)
    assert model.asked()
    with pytest.raises(BeyondTarget, match="would take 21 ms, 9 of them"):
        Model(12, 0, delay_ms=9).ask()


@pytest.mark.parametrize("burst", [1, 40], ids=["regular", "in bursts"])
@pytest.mark.parametrize(("fixed_ms", "row_ms"), [(1, 0.2), (0.05, 0.01), (4, 0.05)])
def test_overload_leaves_the_goodput_near_its_peak_and_little_load_is_answered(
    fixed_ms: float, row_ms: float, burst: int
) -> None:
    rng = Random(5)
    # What runs of 64 rows come to, and runs that leave half of the target for waiting.
    rows = min(64, (8.75 - fixed_ms) / row_ms)
    peak = rows / (fixed_ms + row_ms * rows)
    goodput = {}
    for load in (0.5, 3.0):
        model = Model(fixed_ms, row_ms)
        count = min(8_000, int(peak * load * 400))
        gaps = [rng.expovariate(peak * load / MS / burst) if at % burst == 0 else 0.0 for at in range(count)]
        in_time, answered = model.offer(gaps)
        assert in_time >= 0.99 * answered
        goodput[load] = in_time / (count / (sum(gaps) / MS)) if load < 1 else in_time / peak
    if burst == 1:
        assert goodput[0.5] >= 0.99
    assert goodput[3.0] >= 0.9


@pytest.mark.parametrize(("load", "least"), [(0.3, 0.9), (0.5, 0.82), (0.7, 0.75)])
def test_runs_that_vary_do_not_make_a_model_refuse_what_could_be_in_time(load: float, least: float) -> None:
    # A run takes nearly half of the target. Were runs given so much more time as they are off by, these would be 0.86,
    # 0.78 and 0.71.
    model = Model(2, 7, batch_rows=2, varying=0.25)
    model.wait_ns, model.around_ns = MS * 4 // 10, MS * 8 // 10
    rng, rate = Random(5), load / 9
    in_time, _ = model.offer([rng.expovariate(rate / MS) for _ in range(4_000)])
    assert in_time >= least * rate


def test_what_is_kept_back_grows_with_batches_that_are_late_and_is_given_up_where_none_are() -> None:
    model = Model(3.9, 0)
    queue = model.queue
    eighth = queue.target_ns // 8
    assert queue.reserve_ns == eighth
    for _ in range(100):
        model.ask()
        model.wait(10)
    assert queue.reserve_ns == 0
    # Requests that are expected to be done in time by a hair are let in.
    shapes = [model.supertensor.lane(((0, (length,)),)) for length in range(2, 12)]
    assert [model.asked(1, always, lane) for lane in shapes] == [True] * 5 + [False] * 5
    model.wait(100)
    model.fixed_ns = 30 * MS
    for _ in range(100):
        model.ask()
        model.wait(120)
    assert queue.reserve_ns == 3 * eighth
    # Of a request with nothing in front of it, nothing is.
    model.fixed_ns = 14 * MS
    for _ in range(100):
        model.wait(120)
        model.ask()
    model.wait(20)
    assert model.asked()


@pytest.mark.parametrize(("load", "is_let_in"), [(0.5, True), (0.95, False)])
def test_only_a_model_that_computes_most_of_the_time_keeps_anything_back(load: float, is_let_in: bool) -> None:
    model = Model(10, 0, batch_rows=1)
    for _ in range(200):
        model.ask()
        model.wait(10 / load)
    model.queue.reserve_ns = 2 * MS
    model.ask()
    model.wait(1)
    # It would take 19 ms of the 20.
    assert model.asked() == is_let_in


def test_what_a_request_waits_for_its_worker_is_taken_off_its_time_and_told() -> None:
    model = Model(10, 0)
    model.around_ns = 7 * MS
    assert model.asked()
    model.wait(20)
    model.around_ns = 11 * MS
    with pytest.raises(BeyondTarget) as refused:
        model.ask()
    assert "would take 21 ms, 0 of them for what is in front of it and 11 to be read and answered" in str(refused.value)
    # Of less than what is kept for that anyway nothing is said.
    model.around_ns = 2 * MS
    model.wait(6)
    model.ask()
    with pytest.raises(BeyondTarget, match="would take 20 ms, 10 of them for what is in front of it; try again in"):
        model.ask()


def test_what_is_late_because_its_worker_is_is_left_out() -> None:
    model = Model(10, 0)
    model.around_ns = 7 * MS
    model.ask()
    ((_, _, batch),) = model.running
    model.clock.now_ns += 12 * MS
    assert not model.queue.is_too_late(batch)
    model.clock.now_ns += 2 * MS
    assert model.queue.is_too_late(batch)


@pytest.mark.parametrize(("is_known", "least", "most"), [(True, 0.8, 1.1), (False, 0.0, 0.3)])
def test_overload_of_a_busy_worker_leaves_goodput_where_its_waits_are_known(
    is_known: bool, least: float, most: float
) -> None:
    model = Model(1, 0.2)
    model.wait_ns = 3 * MS
    model.around_ns = 2 * model.wait_ns * is_known
    rng = Random(5)
    peak = 64 / (1 + 0.2 * 64)
    in_time, answered = model.offer([rng.expovariate(peak * 3 / MS) for _ in range(6_000)])
    assert least * peak < in_time < most * peak
    assert in_time >= 0.99 * answered or not is_known
