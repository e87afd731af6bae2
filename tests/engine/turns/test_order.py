"""Whose run is next: the rules of permits, fairness, deadlines and rates, with a clock that the test turns."""

from __future__ import annotations

import heapq
from functools import partial
from random import Random
from typing import Any

import pytest

from tests.engine.parts import Clock
from toutates.engine.turns.order import CREDIT_NS, QUANTUM_NS, WRITTEN_OFF_NS, Claim, Instance, Order, Share
from toutates.engine.turns.resources import Limit, Need, Resources
from toutates.system.errors import ModelLoadError

MS = 1_000_000


def order_of(
    permits: int | None, resources: Resources | None = None, shares: int = 2, cores: int | None = None
) -> tuple[Order, Clock]:
    clock = Clock()
    order = Order(permits, resources, clock, cores)
    order.shares = shares
    return order, clock


def models(count: int) -> list[Instance]:
    return [Instance(Share()) for _ in range(count)]


def test_no_more_run_than_there_are_permits_and_the_earliest_deadline_is_next() -> None:
    order, _ = order_of(2, shares=5)
    claims = [order.claim(own, due_ns) for own, due_ns in zip(models(5), (50, 40, 30, 20, 10), strict=True)]
    assert order.grant() == [claims[4], claims[3]]
    assert order.grant() == []
    order.end(claims[3])
    assert order.grant() == [claims[2]]
    order.end(claims[4])
    order.end(claims[2])
    assert order.grant() == [claims[1], claims[0]]


def test_runs_that_are_not_on_the_cpu_need_no_permit() -> None:
    order, _ = order_of(1)
    elsewhere = Instance(Share(), takes_permit=False)
    claims = [order.claim(own, 0) for own in (*models(2), elsewhere)]
    assert set(order.grant()) == {claims[0], claims[2]}


def test_one_model_never_has_all_permits_unless_it_is_alone() -> None:
    for shares, most in ((1, 3), (2, 2)):
        order, _ = order_of(3, shares=shares)
        hot = Share()
        for _ in range(5):
            order.claim(Instance(hot), 0)
        assert len(order.grant()) == most


def test_a_batch_without_a_deadline_waits_for_others_and_not_for_ever() -> None:
    order, clock = order_of(1, shares=20)
    plain, *others = models(20)
    running = order.claim(others.pop(), 0)
    assert order.grant() == [running]
    without = order.claim(plain, None)
    soon = order.claim(others.pop(), clock.now_ns + 20 * MS)
    order.end(running)
    assert order.grant() == [soon]
    clock.now_ns += 90 * MS
    later = order.claim(others.pop(), clock.now_ns + 20 * MS)
    order.end(soon)
    later.instance.share.used_ns = soon.instance.share.used_ns = 0
    assert order.grant() == [without]
    order.end(without)
    assert order.grant() == [later]


def test_a_model_that_has_had_more_time_comes_after_others_whatever_its_deadline() -> None:
    order, clock = order_of(1)
    hot, cold = models(2)
    hot.share.used_ns = QUANTUM_NS + 1
    claims = [order.claim(hot, clock.now_ns), order.claim(cold, clock.now_ns + 10**12)]
    assert order.grant() == [claims[1]]


def test_a_model_that_was_idle_has_some_credit_and_no_more() -> None:
    order, clock = order_of(1)
    busy, idle = models(2)
    for _ in range(100):
        claim = order.claim(busy, 0)
        assert order.grant() == [claim]
        clock.now_ns += 50 * MS
        order.end(claim)
    order.claim(idle, 0)
    assert busy.share.used_ns - CREDIT_NS - 50 * MS <= idle.share.used_ns <= busy.share.used_ns - CREDIT_NS


def test_a_run_that_hangs_does_not_keep_its_permit() -> None:
    order, clock = order_of(1)
    hangs, waits = (order.claim(own, 0) for own in models(2))
    assert order.grant() == [hangs]
    clock.now_ns += WRITTEN_OFF_NS
    assert order.grant() == []
    clock.now_ns += 1
    assert order.grant() == [waits]
    order.end(hangs)
    order.end(waits)
    assert hangs.instance.share.running == waits.instance.share.running == 0


def test_with_fewer_cores_than_permits_who_has_time_waits_for_the_end_of_the_run() -> None:
    order, clock = order_of(2, cores=1)
    long, short = models(2)
    running = order.claim(long, clock.now_ns + 20 * MS, 5 * MS)
    assert order.grant() == [running]
    waits = order.claim(short, clock.now_ns + 20 * MS, 1 * MS)
    assert order.grant() == []
    clock.now_ns += 5 * MS
    order.end(running)
    assert order.grant() == [waits]


@pytest.mark.parametrize(
    ("due_ms", "work_ms", "into_ms"),
    [
        pytest.param(9, 1, 0, id="more than half of the time until its deadline"),
        pytest.param(12, 8, 0, id="not enough left for its own run"),
        pytest.param(20, 0.3, 0, id="a run that the other hardly feels"),
        pytest.param(20, 0, 0, id="a run of which nothing is known"),
        pytest.param(20, 1, 17, id="a run that takes longer than expected"),
    ],
)
def test_with_fewer_cores_than_permits_who_had_better_not_wait_shares_the_core(
    due_ms: float, work_ms: float, into_ms: float
) -> None:
    order, clock = order_of(2, cores=1)
    long, short = models(2)
    running = order.claim(long, clock.now_ns + 40 * MS, 5 * MS)
    assert order.grant() == [running]
    clock.now_ns += int(into_ms * MS)
    beside = order.claim(short, clock.now_ns + int(due_ms * MS), int(work_ms * MS))
    assert order.grant() == [beside]


def test_nobody_waits_for_a_run_of_unknown_length_or_while_there_is_a_core() -> None:
    for cores, work_ns in ((1, 0), (2, 5 * MS)):
        order, clock = order_of(2, cores=cores)
        claims = [order.claim(own, clock.now_ns + 20 * MS, work_ns) for own in models(2)]
        assert order.grant() == claims


def test_nobody_waits_for_a_version_that_has_had_most_of_the_time() -> None:
    order, clock = order_of(2, cores=1)
    hot, cold = models(2)
    waited = []
    for _ in range(200):
        running = order.claim(hot, clock.now_ns + 20 * MS, 5 * MS)
        assert order.grant() == [running]
        beside = order.claim(cold, clock.now_ns + 20 * MS, 1 * MS)
        waited.append(not order.grant())
        clock.now_ns += 5 * MS
        order.end(running)
        order.grant()
        order.end(beside)
    assert waited == sorted(waited, reverse=True)
    assert waited[0]
    assert not waited[-1]
    clock.now_ns += 1_000 * MS  # it was idle for a while
    order.claim(hot, clock.now_ns + 20 * MS, 5 * MS)
    order.grant()
    order.claim(cold, clock.now_ns + 20 * MS, 1 * MS)
    assert order.grant() == []


class Runs:
    """Models whose runs take their time on some cores, in order of an ``Order``.

    Args:
        permits: of the order.
        shares: how many models there are.
    """

    def __init__(self, permits: int, shares: int) -> None:
        self.order, self.clock = order_of(permits, shares=shares)
        #: (when, number, what happens)
        self.events: list[tuple[int, int, Any]] = []
        self.count = 0
        self.took_ns: dict[str, list[int]] = {}
        self.ready: dict[Instance, list[tuple[int, str, int, int]]] = {}
        self.busy: set[Instance] = set()
        self.jobs: dict[Claim, tuple[int, str, int]] = {}

    def at(self, when_ns: int, what: Any) -> None:
        heapq.heappush(self.events, (when_ns, self.count, what))
        self.count += 1

    def batch(self, instance: Instance, name: str, run_ns: int, target_ns: int) -> None:
        """A batch comes now."""
        self.ready.setdefault(instance, []).append((self.clock.now_ns, name, run_ns, target_ns))
        self.next_of(instance)

    def next_of(self, instance: Instance) -> None:
        if instance not in self.busy and self.ready[instance]:
            came_ns, name, run_ns, target_ns = self.ready[instance].pop(0)
            self.busy.add(instance)
            self.jobs[self.order.claim(instance, came_ns + target_ns)] = (came_ns, name, run_ns)
            self.grant()

    def grant(self) -> None:
        for claim in self.order.grant():
            self.at(self.clock.now_ns + self.jobs[claim][2], claim)

    def run(self) -> None:
        while self.events:
            self.clock.now_ns, _, what = heapq.heappop(self.events)
            if not isinstance(what, Claim):
                what()
                continue
            came_ns, name, _ = self.jobs.pop(what)
            self.took_ns.setdefault(name, []).append(self.clock.now_ns - came_ns)
            self.order.end(what)
            self.busy.discard(what.instance)
            self.next_of(what.instance)
            self.grant()


@pytest.mark.parametrize("executors", [1, 2, 8])
@pytest.mark.parametrize("cores", [2, 4])
def test_a_model_that_is_asked_for_too_much_does_not_slow_others_down(executors: int, cores: int) -> None:
    p99: dict[bool, dict[str, int]] = {}
    for beside_hot in (False, True):
        runs, rng = Runs(cores, shares=3), Random(3)
        began = runs.clock.now_ns
        small, middle = models(2)
        for name, instance, run_ns, target_ns, gap_ns in (
            ("small", small, 1 * MS, 50 * MS, 25 * MS),
            ("middle", middle, 5 * MS, 100 * MS, 50 * MS),
        ):
            when = began
            for _ in range(100):
                when += int(rng.expovariate(1 / gap_ns))
                runs.at(when, partial(runs.batch, instance, name, run_ns, target_ns))
        if beside_hot:
            hot = Share()
            for instance in [Instance(hot) for _ in range(executors)]:
                for _ in range(300):
                    # The target of the hot model is the earliest one.
                    runs.at(began, partial(runs.batch, instance, "hot", 14 * MS, 10 * MS))
        runs.run()
        p99[beside_hot] = {name: sorted(took)[len(took) * 99 // 100] for name, took in runs.took_ns.items()}
    for name, alone_ns in p99[False].items():
        # Who waits for the other of the two waits for 5 ms.
        assert p99[True][name] <= max(2 * alone_ns, alone_ns + 5 * MS), (name, p99)


def test_models_that_are_all_asked_for_too_much_share_the_time() -> None:
    runs = Runs(2, shares=3)
    began = runs.clock.now_ns
    for name, run_ns in (("short", 2 * MS), ("middle", 10 * MS), ("long", 40 * MS)):
        (instance,) = models(1)
        for _ in range(2_000 * MS // run_ns):
            runs.at(began, partial(runs.batch, instance, name, run_ns, 20 * MS))
    used_ms: dict[str, int] = {}

    def note() -> None:
        for name, run_ms in (("short", 2), ("middle", 10), ("long", 40)):
            used_ms[name] = len(runs.took_ns[name]) * run_ms

    runs.at(began + 1_000 * MS, note)
    runs.run()
    for used in used_ms.values():
        assert used == pytest.approx(667, abs=100)


# --- the rate limiter ------------------------------------------------------------------------------------------------


def rated(resources: Resources, *needs: Need, priority: int = 1, device: int = 0) -> Instance:
    return Instance(Share(), needs=resources.add(needs, device), priority=priority)


def test_without_a_limit_there_is_as_much_as_an_instance_needs_at_most() -> None:
    resources = Resources()
    order, _ = order_of(None, resources)
    small, large = (rated(resources, Need("R", count)) for count in (1, 4))
    claims = [order.claim(own, 0) for own in (small, large)]
    assert order.grant() == [claims[0]]
    order.end(claims[0])
    assert order.grant() == [claims[1]]


def test_devices_have_resources_of_their_own_and_share_global_ones() -> None:
    resources = Resources()
    order, _ = order_of(None, resources)
    own = [order.claim(rated(resources, Need("R", 1), device=device), 0) for device in (0, 1, 1)]
    shared = [order.claim(rated(resources, Need("G", 1, is_global=True), device=device), 0) for device in (0, 1)]
    assert order.grant() == [own[0], own[1], shared[0]]


def test_limits_are_of_each_device_or_of_one() -> None:
    resources = Resources([Limit("R", 2), Limit("R", 1, 1)])
    order, _ = order_of(None, resources)
    claims = [order.claim(rated(resources, Need("R", 1), device=device), 0) for device in (0, 0, 0, 1, 1)]
    assert order.grant() == [claims[0], claims[1], claims[3]]


@pytest.mark.parametrize("need", [Need("r", 3), Need("r", 3, is_global=True)])
def test_more_than_there_is_cannot_be_needed(need: Need) -> None:
    resources = Resources([Limit("r", 2)])
    with pytest.raises(ModelLoadError) as refused:
        resources.add([need], 0)
    assert str(refused.value) == (
        'Resource count for "r" is limited to 2 which will prevent scheduling of one or more model instances, the '
        "minimum required count is 3"
    )


def test_a_resource_is_global_or_of_devices() -> None:
    resources = Resources()
    needs = resources.add([Need("r", 1)], 3)
    with pytest.raises(ModelLoadError) as refused:
        resources.add([Need("other", 1), Need("r", 1, is_global=True)], 0)
    assert str(refused.value) == (
        'Resource "r" is present as both global and device-specific resource in the model configuration.'
    )
    resources.remove(needs)
    resources.add([Need("r", 1, is_global=True)], 0)


def test_priority_two_runs_half_as_often() -> None:
    resources = Resources()
    order, _ = order_of(None, resources)
    often, seldom = (rated(resources, Need("R", 1), priority=priority) for priority in (1, 2))
    claims = {own: order.claim(own, 0) for own in (often, seldom)}
    for _ in range(300):
        (claim,) = order.grant()
        order.end(claim)
        claims[claim.instance] = order.claim(claim.instance, 0)
    assert (often.executions, seldom.executions) == (200, 100)


def test_who_needs_much_is_not_passed_by_for_ever() -> None:
    resources = Resources([Limit("R", 2)])
    order, _ = order_of(None, resources)
    large, *small = (rated(resources, Need("R", count)) for count in (2, 1, 1, 1))
    elsewhere = rated(resources, Need("S", 1))
    running = [order.claim(own, 0) for own in small]
    granted = order.grant()
    assert granted == running[:2]
    waits = order.claim(large, 0)
    for claim in granted:
        order.end(claim)
        again = order.claim(claim.instance, 0)
        assert again not in order.grant() or claim is granted[1]
    assert waits.granted_ns or running[2].granted_ns
    free = order.claim(elsewhere, 0)
    assert free in order.grant()
