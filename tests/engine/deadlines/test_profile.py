"""What runs take by their rows, learned from runs that are off by chance."""

from __future__ import annotations

import random

import pytest

from toutates.engine.deadlines.profile import Profile
from toutates.engine.run_line import RunLine

MS = 1_000_000


def learned(fixed: float, each: float, rows: list[int], noise: float = 0.0) -> Profile:
    profile, rng = Profile(), random.Random(7)
    for count in rows:
        profile.note(count, int((fixed + each * count) * rng.uniform(1 - noise, 1 + noise)))
    return profile


def test_a_profile_that_has_seen_no_run_expects_nothing() -> None:
    profile = Profile()
    assert not profile.known
    assert (profile.time_ns(8), profile.mean_ns(8), profile.least_rows(64, 10 * MS)) == (0, 0, 1)


def test_what_every_run_takes_and_what_each_row_adds_are_told_apart() -> None:
    profile = learned(2 * MS, 0.1 * MS, [1, 4, 9, 30, 2, 64] * 10)
    assert profile.fixed_ns == pytest.approx(2 * MS, rel=0.01)
    assert profile.each_ns == pytest.approx(0.1 * MS, rel=0.01)
    assert profile.mean_ns(100) == pytest.approx(12 * MS, rel=0.01)
    assert profile.error < 0.1


def test_runs_that_are_off_are_given_as_much_more_time() -> None:
    calm, rough = (learned(2 * MS, 0.1 * MS, [1, 8, 64, 30] * 100, noise) for noise in (0.0, 0.4))
    assert rough.error > 0.15
    assert rough.time_ns(10) > 1.1 * calm.time_ns(10)
    assert rough.time_ns(10) == pytest.approx(rough.mean_ns(10) * (1 + rough.error), rel=1e-3)


def test_runs_of_one_size_are_told_right_and_half_of_them_is_fixed() -> None:
    profile = learned(2 * MS, 1 * MS, [4] * 20)
    assert profile.mean_ns(4) == pytest.approx(6 * MS, rel=0.01)
    assert profile.fixed_ns == pytest.approx(3 * MS, rel=0.01)


def test_a_machine_that_becomes_slower_is_noticed_within_some_runs_and_one_slow_run_is_not_much() -> None:
    profile = learned(1 * MS, 0.1 * MS, [1, 10, 40] * 20)
    profile.note(10, 100 * MS)
    assert profile.mean_ns(10) < 3 * MS
    for _ in range(20):
        profile.note(10, 6 * MS)
    assert profile.mean_ns(10) > 5 * MS
    for _ in range(40):
        profile.note(10, 2 * MS)
    assert profile.mean_ns(10) == pytest.approx(2 * MS, rel=0.1)


def test_runs_that_become_slower_are_expected_to_be_slower() -> None:
    profile = learned(1 * MS, 0.1 * MS, [1, 10, 40] * 20)
    for _ in range(100):
        for rows in (1, 10, 40):
            profile.note(rows, 3 * (1 * MS + rows * MS // 10))
    assert profile.mean_ns(10) == pytest.approx(6 * MS, rel=0.05)


@pytest.mark.parametrize(
    ("fixed", "each", "most_ms", "expected"),
    [
        (1.0, 0.1, 100, 64),  # 90 rows would pay best; a run takes 64
        (1.0, 1.0, 100, 9),
        (1.0, 1.0, 6, 5),  # a run may take 6 ms
        (8.0, 1.0, 6, 1),  # none of several rows may
        (0.0, 1.0, 100, 1),
        (4.0, 0.001, 100, 64),  # they cost nothing
    ],
)
def test_rows_that_a_run_needs_to_pay(fixed: float, each: float, most_ms: int, expected: int) -> None:
    profile = learned(fixed * MS, each * MS, [1, 2, 30, 64] * 40)
    assert profile.least_rows(64, most_ms * MS) == pytest.approx(expected, abs=1)


def test_a_line_takes_whatever_comes() -> None:
    rng, line = random.Random(3), RunLine()
    for _ in range(3_000):
        line.note(rng.choice([0, 1, 1, 3, 1_000_000]), rng.choice([-5, 0, 1, 7, 10**6, 10**12]))
        assert line.fixed_ns >= 0
        assert line.each_ns >= 0
        assert not line.told or line.each_ns > 0
