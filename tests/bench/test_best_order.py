"""The best order of runs on one core, against all orders of a few requests."""

from __future__ import annotations

from itertools import permutations
from random import Random

import numpy as np
import pytest

from bench.best_order import best_in_time, refused_at_once_in_time
from toutates.bench.arrivals import Arrivals, Schedule, make_schedule


def schedule_of(*requests: tuple[int, int]) -> Schedule:
    """Of (time, kind)."""
    times, kinds = zip(*requests, strict=True)
    return Schedule(np.array(times, np.int64), np.array(kinds, np.int64))


def test_who_waits_for_nothing_is_in_time_and_who_takes_too_long_is_not() -> None:
    schedule = schedule_of((0, 0), (1_000, 0), (2_000, 1))
    assert best_in_time(schedule, [10, 30], 0, 20) == pytest.approx(2 / 3)
    assert best_in_time(schedule, [10, 10], 5, 20) == 1
    assert best_in_time(schedule, [10, 10], 15, 20) == 0


def test_the_longest_is_given_up_where_the_time_does_not_suffice() -> None:
    # A run of 10 is under way until 10. Then the one of 15 would make the other two late.
    assert best_in_time(schedule_of((0, 0), (1, 1), (2, 0), (3, 0)), [10, 15], 0, 30) == 0.75


def test_refused_at_once_the_shortest_is_first_and_what_would_be_late_behind_shorter_ones_is_refused() -> None:
    # A run of 10 is under way until 10. The long one waits for both others, and has no time then.
    waiting = schedule_of((0, 0), (1, 0), (2, 0), (3, 1))
    assert refused_at_once_in_time(waiting, [10, 15], 0, 41) == 0.75
    assert refused_at_once_in_time(waiting, [10, 15], 0, 42) == 1
    # It is let in, and shorter ones that come later make it late.
    later = schedule_of((0, 0), (1, 1), (2, 0), (3, 0))
    assert refused_at_once_in_time(later, [10, 15], 0, 40) == 0.75
    assert refused_at_once_in_time(later, [10, 15], 0, 50) == 1


@pytest.mark.parametrize(("load", "variation"), [(0.7, 4.0), (0.9, 1.0), (3.0, 1.0)])
def test_refusing_at_once_is_close_to_the_best_order_and_not_much_better_ever(load: float, variation: float) -> None:
    schedule = make_schedule(Arrivals(variation), load * 4_000, 2, [10, 3, 1], 7)
    runs_ns = [50e3, 300e3, 2_000e3]
    best = best_in_time(schedule, runs_ns, 40e3, 20e6)
    assert best - 0.1 < refused_at_once_in_time(schedule, runs_ns, 40e3, 20e6) < best + 0.01


def test_what_comes_during_a_run_makes_it_longer() -> None:
    schedule = schedule_of((0, 0), (5, 0))
    assert best_in_time(schedule, [10], 0, 15) == 1
    assert best_in_time(schedule, [10], 6, 15) == 0


@pytest.mark.parametrize("seed", range(20))
def test_of_what_waits_at_once_as_many_are_in_time_as_in_any_order(seed: int) -> None:
    rng = Random(seed)
    runs = [rng.randint(1, 20) for _ in range(6)]
    bound = rng.randint(10, 60)

    def in_time(order: tuple[int, ...]) -> int:
        ends = met = 0
        for kind in order:
            ends += runs[kind]
            met += ends <= bound
        return met

    most = max(map(in_time, permutations(range(6))))
    assert best_in_time(schedule_of(*((0, kind) for kind in range(6))), runs, 0, bound) == pytest.approx(most / 6)


def test_bursts_leave_less_than_even_arrivals_and_little_load_leaves_all() -> None:
    def share(load: float, variation: float) -> float:
        schedule = make_schedule(Arrivals(variation), load * 1_000, 5, [1], 7)
        return best_in_time(schedule, [900_000], 100_000, 20e6)

    assert share(0.1, 1) == 1
    assert share(0.8, 4) < share(0.8, 1)
    # Three times as much as there is time for: a third, but for what is read in vain.
    assert 0.2 < share(3, 1) < 0.34
