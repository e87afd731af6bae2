"""Schedules have the rate, the bursts and the mix that were asked for, and are the same for the same seed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from toutates.bench.arrivals import CONSTANT, POISSON, Arrivals, gamma, make_schedule


@pytest.mark.parametrize("arrivals", [CONSTANT, POISSON, gamma(4)], ids=["constant", "poisson", "gamma"])
def test_gaps_have_the_mean_and_the_variation_that_were_asked_for(arrivals: Arrivals) -> None:
    schedule = make_schedule(arrivals, 1_000, 200, [1], seed=3)
    gaps = np.diff(schedule.times_ns)
    assert gaps.min() >= 0
    assert schedule.times_ns[-1] < 200e9
    assert gaps.mean() == pytest.approx(1e6, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(arrivals.variation, rel=0.1, abs=1e-6)


def test_constant_arrivals_come_at_even_times() -> None:
    assert make_schedule(CONSTANT, 4, 1.1, [1], seed=0).times_ns.tolist() == [250e6, 500e6, 750e6, 1_000e6]


def test_requests_are_chosen_by_their_weights() -> None:
    choices = make_schedule(POISSON, 10_000, 10, [100, 10, 0, 1], seed=1).choices
    shares = np.bincount(choices, minlength=4) / choices.size
    assert shares.tolist() == pytest.approx([100 / 111, 10 / 111, 0, 1 / 111], rel=0.1, abs=1e-9)


def test_a_seed_gives_the_same_schedule_and_another_seed_another() -> None:
    first, again, other = (make_schedule(gamma(4), 500, 2, [1, 2], seed) for seed in (7, 7, 8))
    assert first.times_ns.tolist() == again.times_ns.tolist()
    assert first.choices.tolist() == again.choices.tolist()
    assert first.times_ns.tolist() != other.times_ns.tolist()


@pytest.mark.parametrize(
    ("rate", "seconds", "weights"),
    [(0, 1, [1]), (1, -1, [1]), (1, float("nan"), [1]), (1, 1, []), (1, 1, [0, 0]), (1, 1, [1, -1])],
)
def test_what_cannot_be_scheduled_is_refused(rate: float, seconds: float, weights: list[float]) -> None:
    with pytest.raises(ValueError, match=r"must be positive|expected numbers"):
        make_schedule(POISSON, rate, seconds, weights, seed=0)
    with pytest.raises(ValueError, match="must be from 0 to 100"):
        gamma(-1)


def test_a_ramp_rises_evenly_and_bursts_come_at_once() -> None:
    times = make_schedule(Arrivals(0, ramp_to=3_000), 1_000, 10, [1], seed=1).times_ns
    assert times.size == pytest.approx(20_000, rel=0.01)
    assert (times < 1e9).sum() == pytest.approx(1_100, rel=0.02)
    assert (times > 9e9).sum() == pytest.approx(2_900, rel=0.02)
    falling = make_schedule(Arrivals(1, ramp_to=100), 1_000, 10, [1], seed=1).times_ns
    assert (falling < 5e9).sum() > 2 * (falling > 5e9).sum()
    bursts = make_schedule(Arrivals(1, burst=8), 800, 10, [1], seed=1).times_ns
    assert np.unique(bursts, return_counts=True)[1].tolist() == [8] * (bursts.size // 8)
    assert bursts.size == pytest.approx(8_000, rel=0.1)


def test_a_trace_is_repeated_to_the_end() -> None:
    times = make_schedule(Arrivals(gaps_ns=(10**8, 3 * 10**8)), 1, 1, [1], seed=1).times_ns
    assert times.tolist() == [10**8, 4 * 10**8, 5 * 10**8, 8 * 10**8, 9 * 10**8]


def test_parts_of_a_schedule_are_the_whole() -> None:
    whole = make_schedule(POISSON, 100, 1, [1, 1], seed=1)
    parts = [whole.part(number, 3) for number in range(3)]
    assert sorted(time for part in parts for time in part.times_ns.tolist()) == whole.times_ns.tolist()


@pytest.mark.parametrize("wrong", [{"burst": 0}, {"ramp_to": 0.0}, {"gaps_ns": (0, 0)}, {"gaps_ns": (5, -1)}])
def test_arrivals_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"must be"):
        Arrivals(**wrong)
