"""Which requests run together, and when, by the rules of Triton's dynamic batching."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import pytest

from toutates.engine.policies.rules import BatchingRules, QueuePolicy
from toutates.engine.policies.scheduler import PolicyScheduler

S = 1_000_000_000
#: Preferred sizes 2 and 6, at most 8 rows, 10 s.
DELAYED = BatchingRules(8, (2, 6), 10 * S)
MOST_LEVELS = 2**64 - 1


@dataclass
class Model:
    """A scheduler with instances that the test frees by hand, and a clock that goes from event to event."""

    rules: BatchingRules
    free: int = 1_000_000
    most_size: int = 0
    now_ns: int = 0
    gone: set[str] = field(default_factory=set)
    #: (seconds, names) of each batch, and (seconds, name, whether its time was over) of what was dropped
    batches: list[tuple[float, list[str]]] = field(default_factory=list)
    dropped: list[tuple[float, str, bool]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.scheduler: PolicyScheduler[str] = PolicyScheduler(
            self.rules, lambda name, now_ns: name not in self.gone, self.most_size
        )

    def add(self, name: str, rows: int = 1, key: Any = "", **said: int) -> None:
        assert not self.scheduler.bound_met(said.get("priority", 0))
        self.scheduler.add(name, rows, key, self.now_ns, **said)

    def look(self) -> None:
        """What an arrival, a freed instance or a timer brings about."""
        while self.free:
            chosen = self.scheduler.choose(self.now_ns)
            if not chosen and not self.scheduler.looks_again:
                break
            if chosen:
                self.free -= 1
                self.batches.append((self.now_ns / S, [one.own for one in chosen]))
        self.dropped += [(self.now_ns / S, name, late) for name, late in self.scheduler.dropped]
        self.scheduler.dropped.clear()

    def until(self, seconds: float) -> None:
        """Let the time go on, with everything that is due meanwhile."""
        end_ns = round(seconds * S)
        while True:
            times = [self.scheduler.next_expiry_ns, self.scheduler.due_ns if self.free else 0]
            due = [time for time in times if 0 < time <= end_ns]
            if not due:
                break
            self.now_ns = max(self.now_ns, min(due))
            self.scheduler.expire(self.now_ns)
            self.look()
        self.now_ns = end_ns

    def come(self, *requests: tuple[float, int] | tuple[float, int, dict[str, int]]) -> None:
        """Requests that come at their times, named by their place and their rows."""
        for at, (seconds, rows, *said) in enumerate(requests):
            self.until(seconds)
            self.add(f"{at}:{rows}", rows, **(said[0] if said else {}))
            self.look()


def sizes(model: Model) -> list[tuple[float, list[int]]]:
    return [(at, [int(name.split(":")[1]) for name in names]) for at, names in model.batches]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([(0, 2)], [(0, [2])]),
        ([(0, 6)], [(0, [6])]),
        ([(0, 7)], [(0, [7])]),
        ([(0, 1)], [(10, [1])]),
        ([(0, 3)], [(10, [3])]),
        ([(0, 1), (1, 3)], [(10, [1, 3])]),
        ([(0, 3), (1, 7)], [(1, [3]), (1, [7])]),
        ([(0, 3), (1, 4)], [(1, [3]), (11, [4])]),
        ([(0, 1), (0, 1), (0, 1)], [(0, [1, 1]), (10, [1])]),
        ([(0, 1), (0.5, 7)], [(0.5, [1]), (0.5, [7])]),
    ],
)
def test_preferred_sizes_go_at_once_and_others_wait_for_the_delay(
    given: Sequence[tuple[float, int]], expected: list[tuple[float, list[int]]]
) -> None:
    model = Model(DELAYED)
    model.come(*given)
    model.until(30)
    assert sizes(model) == expected
    assert not model.scheduler.requests
    assert not model.scheduler.rows


@pytest.mark.parametrize(
    ("rules", "queued", "expected"),
    [
        (BatchingRules(8, (4, 6)), [1] * 4, [[1] * 4]),
        (BatchingRules(8, (4, 6)), [1] * 5, [[1] * 4, [1]]),
        (BatchingRules(8, (4, 6)), [1] * 7, [[1] * 6, [1]]),
        (BatchingRules(8, (4, 6)), [1] * 3, [[1] * 3]),
        (DELAYED, [1] * 6, [[1] * 6]),
        (BatchingRules(8), [1] * 11, [[1] * 8, [1] * 3]),
        (BatchingRules(8), [5, 5, 2, 1], [[5], [5, 2, 1]]),
        (BatchingRules(1), [1, 1], [[1], [1]]),
        (BatchingRules(100), [1] * 11, [[1] * 11]),
    ],
)
def test_requests_that_were_queued_while_the_instances_were_busy(
    rules: BatchingRules, queued: list[int], expected: list[list[int]]
) -> None:
    model = Model(rules, free=0)
    model.come(*[(0, rows) for rows in queued])
    assert model.batches == []
    model.free = 100
    model.look()
    assert [rows for _, rows in sizes(model)] == expected


def test_a_delay_that_is_over_beats_preferred_sizes() -> None:
    model = Model(DELAYED, free=0)
    model.come((0, 3), (0, 4), (11, 1))
    model.free = 1
    model.look()
    assert sizes(model) == [(11, [3, 4, 1])]


def test_nothing_is_formed_before_an_instance_is_free() -> None:
    model = Model(BatchingRules(4), free=1)
    model.come((0, 1), (1, 1), (2, 1))
    assert sizes(model) == [(0, [1])]
    model.free = 1
    model.look()
    assert sizes(model)[1:] == [(2, [1, 1])]


def test_requests_of_unlike_shapes_do_not_share_a_batch_and_keep_their_order() -> None:
    model = Model(DELAYED)
    model.add("narrow", 1, "16")
    model.look()
    model.now_ns = S
    model.add("wide", 1, "32")
    model.look()
    assert model.batches == [(1, ["narrow"])]
    model.until(30)
    assert model.batches == [(1, ["narrow"]), (11, ["wide"])]
    model = Model(BatchingRules(8), free=0)
    for at, key in enumerate("aabba"):
        model.add(str(at), 1, key)
    model.free = 9
    model.look()
    assert [names for _, names in model.batches] == [["0", "1"], ["2", "3"], ["4"]]


def test_a_batch_grows_no_larger_than_may_be_and_what_is_larger_runs_alone() -> None:
    model = Model(BatchingRules(8), free=0, most_size=10)
    for at, size in enumerate((4, 6, 1, 30, 10)):
        model.add(str(at), 1, size=size)
    model.free = 9
    model.look()
    assert [names for _, names in model.batches] == [["0", "1"], ["2"], ["3"], ["4"]]


# --- timeouts --------------------------------------------------------------------------------------------------------


def with_timeout(seconds: float, *, delays: bool = False, override: bool = False) -> BatchingRules:
    policy = QueuePolicy(timeout_us=round(seconds * 1e6), delays=delays, allow_override=override)
    return BatchingRules(8, (4, 8), 10 * S, default_policy=policy)


def test_a_delayed_request_runs_after_the_live_ones_and_waits_from_its_arrival() -> None:
    model = Model(with_timeout(0.1, delays=True))
    model.come((0, 1), (0.2, 2), (0.2, 2))
    model.until(30)
    assert sizes(model) == [(0.2, [2, 2]), (10, [1])]
    assert model.dropped == []


def test_a_live_request_runs_before_a_delayed_one_that_waits_for_others() -> None:
    model = Model(with_timeout(0.1, delays=True))
    model.come((0, 1), (0.05, 2))
    model.until(0.2)
    model.add("live", 1)
    model.look()
    assert model.batches == [(0.2, ["live", "0:1", "1:2"])]


def test_a_rejected_request_is_dropped_when_its_time_is_over() -> None:
    model = Model(with_timeout(0.1))
    model.come((0, 1), (0.2, 2), (0.2, 2))
    assert sizes(model) == [(0.2, [2, 2])]
    assert model.dropped == [(0.1, "0:1", True)]


@pytest.mark.parametrize(
    ("said_us", "override", "expected_s"),
    [
        (100_000, True, 0.1),
        (10_000_000, True, 1.0),
        (100_000, False, 1.0),
        (0, True, 1.0),
        (-1, True, 1.0),
        (MOST_LEVELS, True, 1.0),
        (1, True, 0.000001),
    ],
)
def test_a_request_may_say_a_shorter_time_where_it_may(said_us: int, override: bool, expected_s: float) -> None:
    model = Model(with_timeout(1, override=override))
    model.come((0, 1, {"timeout_us": said_us}))
    model.until(5)
    assert model.dropped == [(expected_s, "0:1", True)]


def test_without_a_default_timeout_no_request_can_say_one() -> None:
    model = Model(with_timeout(0, override=True))
    model.come((0, 1, {"timeout_us": 1}))
    model.until(30)
    assert sizes(model) == [(10, [1])]


def test_a_request_is_dropped_while_all_instances_are_busy() -> None:
    model = Model(BatchingRules(1, default_policy=QueuePolicy(timeout_us=1_000_000)), free=1)
    model.come((0, 1), (0, 1))
    model.until(8)
    assert sizes(model) == [(0, [1])]
    assert model.dropped == [(1, "1:1", True)]


def test_a_request_that_has_waited_for_others_is_not_run_once_its_time_is_over() -> None:
    model = Model(with_timeout(1))
    model.come((0, 1))
    model.now_ns = 2 * S  # no timer has told
    model.add("1:3", 3)
    model.look()
    assert model.batches == []
    assert model.dropped == [(2, "0:1", True)]


# --- priorities ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("levels", "default"), [(2, 2), (MOST_LEVELS, 4_294_967_296)])
def test_a_request_of_a_higher_priority_begins_the_walk_anew(levels: int, default: int) -> None:
    model = Model(BatchingRules(8, (4, 8), 10 * S, levels=levels, default_level=default))
    model.come((0, 2), (0.1, 1), (0.2, 2, {"priority": 1}))
    assert model.batches == [(0.2, ["2:2", "0:2"])]
    model.until(30)
    assert model.batches[1:] == [(10.1, ["1:1"])]


def test_priorities_out_of_range_are_the_default() -> None:
    model = Model(BatchingRules(1, levels=3, default_level=2), free=0)
    for name, priority in (("third", 3), ("none", 0), ("above", 4), ("first", 1), ("negative", -1), ("second", 2)):
        model.add(name, priority=priority)
    model.free = 9
    model.look()
    assert [names for _, [*names] in model.batches] == [
        ["first"], ["none"], ["above"], ["negative"], ["second"], ["third"]
    ]  # fmt: skip


def test_each_level_has_its_own_policy() -> None:
    policies = {
        1: QueuePolicy(timeout_us=11_000_000, delays=True, allow_override=True),
        2: QueuePolicy(timeout_us=11_000_000, allow_override=True),
    }
    model = Model(BatchingRules(32, (4, 8, 32), 10 * S, 2, 1, policies=MappingProxyType(policies)))
    model.come(
        (0, 2, {"priority": 1}),
        (0.2, 1, {"priority": 1, "timeout_us": 1_000_000}),
        (0.4, 2, {"priority": 1}),
        (0.6, 2, {"priority": 2, "timeout_us": 2_000_000}),
        (0.8, 3, {"priority": 2}),
        (1.0, 6, {"priority": 2}),
    )
    model.until(30)
    assert sizes(model) == [(1.2, [2, 2]), (2.6, [1, 3]), (11, [6])]
    assert model.dropped == [(2.6, "3:2", True)]


def test_a_delayed_request_runs_before_those_of_lower_levels() -> None:
    policies = {1: QueuePolicy(timeout_us=1_000_000, delays=True)}
    model = Model(BatchingRules(1, levels=2, default_level=2, policies=MappingProxyType(policies)), free=0)
    model.come((0, 1, {"priority": 1}), (0.5, 1, {"priority": 1}), (0.6, 1))
    model.until(1.2)
    model.free = 9
    model.look()
    assert [names for _, names in model.batches] == [["1:1"], ["0:1"], ["2:1"]]


def test_a_full_level_takes_no_more_and_others_do() -> None:
    policies = {1: QueuePolicy(max_size=1)}
    rules = BatchingRules(8, levels=3, default_level=3, default_policy=QueuePolicy(max_size=2))
    rules = BatchingRules(8, (), 0, 3, 3, rules.default_policy, MappingProxyType(policies))
    model = Model(rules, free=0)
    model.add("one", priority=1)
    assert model.scheduler.bound_met(1) == 1
    model.add("two")
    model.add("three", priority=3)
    assert model.scheduler.bound_met(0)
    assert model.scheduler.bound_met(9)
    assert not model.scheduler.bound_met(2)
    model.free = 1
    model.look()
    assert not any(model.scheduler.bound_met(priority) for priority in range(4))


def test_delayed_requests_count_for_the_size_of_their_queue() -> None:
    policy = QueuePolicy(max_size=2, timeout_us=1_000_000, delays=True)
    model = Model(BatchingRules(1, default_policy=policy), free=0)
    model.come((0, 1), (0, 1))
    model.until(2)
    assert model.scheduler.bound_met(0)


# --- callers that leave ----------------------------------------------------------------------------------------------


def test_requests_that_nobody_waits_for_are_dropped_on_the_way() -> None:
    model = Model(BatchingRules(2), free=0)
    model.come(*[(0, 1)] * 5)
    model.gone |= {"0:1", "2:1"}
    model.free = 1
    model.look()
    assert model.batches == [(0, ["1:1", "3:1"])]
    assert model.dropped == [(0, "0:1", False), (0, "2:1", False)]
    assert model.scheduler.requests == 1


def test_a_request_whose_caller_leaves_while_it_waits_for_others_is_not_run() -> None:
    model = Model(DELAYED)
    model.come((0, 1))
    model.gone.add("0:1")
    model.now_ns = S
    model.add("other")
    model.look()
    assert model.batches == []
    assert model.dropped == [(1, "0:1", False)]
    model.until(30)
    assert model.batches == [(11, ["other"])]


# --- bounds ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("late", [True, False])
def test_thousands_of_dead_requests_are_dropped_some_at_a_time(late: bool) -> None:
    model = Model(BatchingRules(4, default_policy=QueuePolicy(timeout_us=1_000_000)), free=0)
    for at in range(1_000):
        model.add(str(at))
    if late:
        model.now_ns = 2 * S
    else:
        model.gone |= {str(at) for at in range(1_000)}
    scheduler = model.scheduler
    looks = 0
    while not scheduler.choose(model.now_ns) and scheduler.looks_again:
        looks += 1
        assert len(scheduler.dropped) <= 256
        assert scheduler.dropped == [(str(at), late) for at in range(256 * (looks - 1), 256 * looks)]
        scheduler.dropped.clear()
    assert looks == 3
    assert len(scheduler.dropped) == 232
    assert not scheduler.requests


def test_nothing_is_remembered_of_requests_that_have_left() -> None:
    model = Model(BatchingRules(1, default_policy=QueuePolicy(timeout_us=10**12)))
    for at in range(1_000):
        model.add(str(at))
        model.look()
    assert not model.scheduler._dues
    model = Model(BatchingRules(1, levels=MOST_LEVELS, default_level=1))
    for at in range(1_000):
        model.add(str(at), priority=2**63 + at)
        model.look()
    assert not model.scheduler._levels
    assert not model.scheduler._order


@pytest.mark.parametrize("seed", range(20))
def test_whatever_comes_each_request_leaves_once_and_batches_keep_the_rules(seed: int) -> None:
    rng = random.Random(seed)
    policies = {1: QueuePolicy(8, 2_000_000, True, True), 2: QueuePolicy(0, 1_000_000, False, True)}
    preferred = tuple(rng.sample(range(1, 9), 2))
    rules = BatchingRules(8, preferred, rng.choice((0, 3 * S)), 3, 2, policies=MappingProxyType(policies))
    model = Model(rules, free=2)
    given: dict[str, int] = {}
    for at in range(300):
        model.until(model.now_ns / S + rng.choice((0, 0, 0.3)))
        priority = rng.randrange(5)
        if not model.scheduler.bound_met(priority):
            name = str(at)
            given[name] = rng.randrange(1, 9)
            model.add(name, given[name], rng.choice("aab"), priority=priority, timeout_us=rng.choice((0, 500_000)))
            if rng.random() < 0.1:
                model.gone.add(name)
        model.look()
        model.free = min(2, model.free + rng.randrange(2))
    model.free = 1_000
    model.look()
    model.until(1_000)
    batches = [names for _, names in model.batches]
    left = [name for names in batches for name in names] + [name for _, name, _ in model.dropped]
    assert sorted(left, key=int) == list(given)
    assert all(sum(given[name] for name in names) <= 8 for names in batches)
    assert model.scheduler.requests == model.scheduler.rows == 0
    assert not model.scheduler._levels
