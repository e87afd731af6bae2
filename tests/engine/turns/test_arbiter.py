"""Executors in threads that wait for their turns."""

from __future__ import annotations

import gc
import threading
import weakref
from functools import partial
from typing import Any

import numpy as np
import pytest

from tests.engine.rig import Rig, Runs
from tests.graphs import DOUBLE
from tests.waiting import PATIENCE_S, wait_until
from toutates.engine.turns.arbiter import Arbiter, Member, TakesTurns
from toutates.engine.turns.resources import Limit, Need, Resources
from toutates.system.errors import ModelLoadError


def rows(count: int) -> Any:
    return np.arange(count * 4, dtype=np.float32).reshape(count, 4)


def member(rig: Rig, **settings: Any) -> Member:
    return Member(rig.executors, **settings)


def ask(rig: Rig, context: Any) -> None:
    rig.worker.add(context, rig.lane((4,)), rows(1))
    rig.worker.end_round()


def test_executors_hear_nothing_of_it_until_a_version_has_a_target() -> None:
    arbiter = Arbiter(2)
    plain, timed, elsewhere = ([TakesTurns(), TakesTurns()] for _ in range(3))
    members = [Member(plain), Member(elsewhere, on_cpu=False)]
    for own in members:
        arbiter.add(own)
    assert all(one.turn is None for one in (*plain, *elsewhere))
    target = Member(timed, due_ns=lambda batch: 0)
    arbiter.add(target)
    assert all(one.turn is not None for one in (*plain, *timed))
    assert all(one.turn is None for one in elsewhere)
    arbiter.remove(target)
    arbiter.remove(target)
    assert all(one.turn is None for one in plain)


def test_versions_that_come_and_leave_are_looked_at_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0
    settle = Arbiter._settle

    def counted(arbiter: Arbiter, member: Member) -> None:
        nonlocal looks
        looks += 1
        settle(arbiter, member)

    monkeypatch.setattr(Arbiter, "_settle", counted)
    arbiter = Arbiter(2)
    executors = [TakesTurns() for _ in range(100)]
    members = [Member([executor]) for executor in executors]
    for own in members:
        arbiter.add(own)
    assert looks == 100
    timed = [Member([TakesTurns()], due_ns=lambda batch: 0) for _ in range(10)]
    for own in timed:
        arbiter.add(own)
    assert looks == 100 + 101 + 10
    assert all(executor.turn is not None for executor in executors)
    for own in (*timed[:9], *members[:50]):
        arbiter.remove(own)
    assert looks == 211
    arbiter.remove(timed[9])
    assert looks == 211 + 50
    assert all(executor.turn is None for executor in executors)


def test_executors_are_not_kept_alive() -> None:
    arbiter = Arbiter(2)
    executor = TakesTurns()
    gone = weakref.ref(executor)
    arbiter.add(Member([executor], due_ns=lambda batch: 0))
    del executor
    gc.collect()
    assert gone() is None
    arbiter.add(Member([TakesTurns()]))


def test_runs_wait_for_their_turns_and_all_are_answered() -> None:
    arbiter = Arbiter(2)
    rigs = [Rig(DOUBLE, executors=2, capacity=64) for _ in range(3)]
    for rig in rigs:
        arbiter.add(member(rig, due_ns=lambda batch: 0))
    begun = [threading.Semaphore(0) for _ in rigs]
    gate = threading.Event()
    for rig, own in zip(rigs, begun, strict=True):
        hold(rig, own, gate)
        rig.start()
        rig.wait_idle()
    try:
        hot, *cold = rigs
        for context in range(4):
            ask(hot, context)
        assert begun[0].acquire(timeout=PATIENCE_S)
        # The hot one has one permit of two, and the other is left for others.
        wait_until(lambda: arbiter.under_way == (1, 1))
        ask(cold[0], "cold")
        assert begun[1].acquire(timeout=PATIENCE_S)
        ask(cold[1], "waits")
        wait_until(lambda: arbiter.under_way == (2, 2))
        gate.set()
        hot.worker.collect(*range(4))
        cold[0].worker.collect("cold")
        cold[1].worker.collect("waits")
        wait_until(lambda: arbiter.under_way == (0, 0))
        for rig in rigs:
            rig.assert_empty()
    finally:
        gate.set()
        for rig in rigs:
            rig.close()


def hold(rig: Rig, begun: threading.Semaphore, gate: threading.Event) -> None:
    """Have the runs of a rig wait for the test."""

    def held(runs: Runs, *arguments: Any) -> Any:
        begun.release()
        assert gate.wait(PATIENCE_S)
        return runs.backend.run(*arguments)

    for runs in rig.runs:
        runs.instead = partial(held, runs)


@pytest.mark.parametrize("is_rated", [False, True], ids=["with a target", "rated"])
def test_quick_runs_are_done_by_workers_unless_every_run_is_rated(is_rated: bool) -> None:
    arbiter = Arbiter(2, Resources() if is_rated else None)
    rig = Rig(DOUBLE, quick_ns=2**62)
    arbiter.add(member(rig, due_ns=lambda batch: 0, quick_ns=2**62))
    with rig.running():
        rig.wait_idle()
        for context in range(30):
            ask(rig, context)
            rig.worker.collect(context)
        rig.assert_empty()
    own = threading.current_thread()
    # The first run of each size is an executor's in any case.
    assert any(thread is own for thread in rig.ran_in) is not is_rated
    assert arbiter.under_way == (0, 0)


def test_a_run_that_fails_gives_its_turn_back() -> None:
    arbiter = Arbiter(2, Resources())
    rig = Rig(DOUBLE)
    arbiter.add(member(rig, needs=[[Need("R", 1)]], devices=[0]))
    rig.faults["on_batch"] = ValueError("broken")
    with rig.running():
        for context in range(3):
            ask(rig, context)
            (error,) = rig.worker.collect(context)
            assert isinstance(error, Exception)
        del rig.faults["on_batch"]
        ask(rig, "good")
        np.testing.assert_array_equal(rig.worker.collect("good")[0], 2 * rows(1))
        rig.assert_empty()
    assert arbiter.under_way == (0, 0)


def test_needs_of_a_version_that_is_refused_are_forgotten() -> None:
    arbiter = Arbiter(2, Resources([Limit("R", 2)]))
    refused = Member([TakesTurns(), TakesTurns()], needs=[[Need("R", 1)], [Need("R", 3)]], devices=[0, 0])
    with pytest.raises(ModelLoadError, match="minimum required count is 3"):
        arbiter.add(refused)
    arbiter.remove(refused)
    arbiter.add(Member([TakesTurns()], needs=[[Need("R", 2, is_global=True)]], devices=[0]))


def test_what_a_version_still_has_to_run_when_it_is_unloaded_waits_for_no_resource() -> None:
    arbiter = Arbiter(2, Resources())
    rigs = [Rig(DOUBLE) for _ in range(2)]
    members = [member(rig, needs=[[Need("R", 1)]], devices=[0]) for rig in rigs]
    begun, gate = threading.Semaphore(0), threading.Event()
    for rig, own in zip(rigs, members, strict=True):
        arbiter.add(own)
        hold(rig, begun, gate)
        rig.start()
        rig.wait_idle()
    try:
        ask(rigs[0], "runs")
        assert begun.acquire(timeout=PATIENCE_S)
        ask(rigs[1], "waits")
        wait_until(lambda: arbiter.under_way == (1, 1))
        for own in members:
            arbiter.remove(own)
        assert begun.acquire(timeout=PATIENCE_S)
        ask(rigs[1], "comes then")
        gate.set()
        rigs[0].worker.collect("runs")
        rigs[1].worker.collect("waits", "comes then")
        wait_until(lambda: arbiter.under_way == (0, 0))
    finally:
        gate.set()
        for rig in rigs:
            rig.close()
    # Nothing is left taken.
    again = Rig(DOUBLE)
    arbiter.add(member(again, needs=[[Need("R", 1)]], devices=[0]))
    with again.running():
        ask(again, "answered")
        again.worker.collect("answered")


def test_many_executors_of_many_models_lose_no_turn() -> None:
    arbiter = Arbiter(2, Resources([Limit("R", 2)]))
    rigs = [Rig(DOUBLE, executors=2, capacity=64, workers=1) for _ in range(4)]
    for at, rig in enumerate(rigs):
        due_ns = (lambda batch: 0) if at % 2 else None
        arbiter.add(member(rig, due_ns=due_ns, needs=[[Need("R", 1 + at % 2)]] * 2, devices=[0, 0], priorities=[1, 2]))
        rig.start()
    try:
        for round_ in range(40):
            for rig in rigs:
                ask(rig, round_)
            for rig in rigs[:: 1 + round_ % 2]:
                rig.worker.collect(round_)
        for rig in rigs:
            rig.worker.collect(*range(40))
            rig.assert_empty()
        assert arbiter.under_way == (0, 0)
    finally:
        for rig in rigs:
            rig.close()


class Due:
    """A batch that is due at a time.

    Attributes:
        lane: itself.
        wall_ns: what its runs take.
    """

    rows = 1

    def __init__(self, due_ns: int, *, quick: bool = False) -> None:
        self.due_ns = due_ns
        self.quick = quick
        self.lane = self
        self.wall_ns = [0, 5_000_000]

    def is_quick(self, rows: int, limit_ns: int) -> bool:
        return self.quick


@pytest.mark.parametrize(("next_due_ns", "goes_on"), [(20, True), (40, False)])
def test_who_has_run_and_has_another_batch_waits_for_a_turn_before_others_get_one(
    next_due_ns: int, goes_on: bool
) -> None:
    arbiter = Arbiter(1, clock_ns=lambda: 1)
    granted: list[str] = []
    turns: dict[str, Any] = {}
    kept = []
    for name in ("one", "other"):
        executor = TakesTurns()
        arbiter.add(Member([executor], due_ns=lambda batch: batch.due_ns))
        turns[name] = executor.turn
        kept.append(executor)

    def asks(name: str, due_ns: int, *, quick: bool = False) -> bool:
        batch: Any = Due(due_ns, quick=quick)

        def grant() -> None:
            assert not arbiter._lock.locked(), "whom this wakes up may want the lock at once"
            granted.append(name)

        return bool(turns[name].ask(batch, lambda look, every_s: None, grant))

    assert asks("one", 10)
    assert not asks("other", 30)
    assert asks("one", next_due_ns) is goes_on
    assert granted == ([] if goes_on else ["other"])
    assert arbiter.under_way == (1, 1)
    turns["one" if goes_on else "other"].end()
    assert granted == (["other"] if goes_on else ["other", "one"])
    turns["other" if goes_on else "one"].end()
    assert arbiter.under_way == (0, 0)
    granted.clear()
    assert asks("one", 10)
    assert not asks("other", 30)
    assert asks("one", 10, quick=True), "a quick run needs no turn, so that its last one is over"
    assert granted == ["other"]


def test_what_hears_of_a_turn_is_free_without_the_garbage_collector_once_it_has_come() -> None:
    arbiter = Arbiter(1, clock_ns=lambda: 1)
    executors = [TakesTurns(), TakesTurns()]
    for executor in executors:
        arbiter.add(Member([executor], due_ns=lambda batch: 0))
    granted: list[Any] = []
    heard: list[weakref.ref[Any]] = []

    def asks(turn: Any) -> bool:
        def grant() -> None:
            granted.append(turn)  # as an executor's, it refers to the turn

        heard.append(weakref.ref(grant))
        batch: Any = Due(0)
        return bool(turn.ask(batch, lambda look, every_s: None, grant))

    turns: list[Any] = [executor.turn for executor in executors]
    gc.disable()
    try:
        assert asks(turns[0])
        assert heard[0]() is None
        assert not asks(turns[1])
        assert heard[1]() is not None
        turns[0].end()
        assert granted == turns[1:]
        assert heard[1]() is None
    finally:
        gc.enable()
    turns[1].end()


def test_executors_look_sooner_where_they_may_wait_for_a_run_beside_which_there_is_room() -> None:
    assert Arbiter(2, cores=1).look_s < Arbiter(2, cores=2).look_s == Arbiter(2).look_s
