"""When a full model has room again, with a clock that the test sets."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from toutates.engine.budget import Bounds, Budget
from toutates.engine.drain import FARTHEST, LEAST_S, MOST_S, UNKNOWN_S, Drain
from toutates.system.errors import Overloaded, QueueFull, QuotaExceeded
from toutates.system.retry import SPREAD, retry_after_ms

S = 1_000_000_000


class Clock:
    def __init__(self) -> None:
        self.now_ns = 100 * S

    def __call__(self) -> int:
        return self.now_ns


def test_the_time_is_what_waits_divided_by_what_leaves() -> None:
    clock = Clock()
    drain = Drain(clock)
    assert drain.wait_s(1_000, 0) == UNKNOWN_S
    for second in range(1, 5):  # 200 rows leave in each
        clock.now_ns += S
        assert drain.wait_s(1_000, 200 * second) == pytest.approx(5.0)
    for second in range(1, 5):  # 1,000 rows, and it is known after the first second
        clock.now_ns += S
        assert drain.wait_s(1_000, 800 + 1_000 * second) == pytest.approx(1.0)
    clock.now_ns += 10 * S - 1
    assert drain.wait_s(500, 14_800) == pytest.approx(0.5)


def test_the_time_grows_while_nothing_leaves() -> None:
    clock = Clock()
    drain = Drain(clock)
    told = []
    for _ in range(6):
        told.append(drain.wait_s(8, 0, row_ns=0.25 * S))
        clock.now_ns += 4 * S
    assert told == [2.0, 4.0, 8.0, 12.0, 16.0, 20.0]


def test_what_runs_take_is_told_before_anything_is_measured_and_after_a_long_time() -> None:
    clock = Clock()
    drain = Drain(clock)
    assert drain.wait_s(100, 7, row_ns=0.02 * S) == pytest.approx(2.0)
    clock.now_ns += S
    assert drain.wait_s(100, 17, row_ns=0.02 * S) == pytest.approx(10.0)
    clock.now_ns += 60 * S
    assert drain.wait_s(100, 10_000, row_ns=0.02 * S) == pytest.approx(2.0)


@pytest.mark.parametrize(("row_ns", "told"), [(1.0, LEAST_S), (1e12, MOST_S)])
def test_the_time_has_bounds(row_ns: float, told: float) -> None:
    assert Drain(Clock()).wait_s(100, 0, row_ns) == told


def test_what_a_budget_refuses_says_when_to_come_again() -> None:
    clock = Clock()
    budget = Budget("m", Bounds(100, 1_000, waiting=1), {}, Drain(clock))
    budget.rows = 100
    with pytest.raises(Overloaded):
        budget.check_rows(1)
    clock.now_ns += S
    budget.left = 25
    checks: list[Callable[[], None]] = [lambda: budget.check_rows(1), lambda: budget.check_waiting(-1)]
    refusals = []
    for check in checks:
        with pytest.raises(Overloaded) as refused:
            check()
        refusals.append(refused.value)
    assert [type(refusal) for refusal in refusals] == [Overloaded, QueueFull]
    assert [refusal.retry_after_s for refusal in refusals] == [pytest.approx(4.0), pytest.approx(4.04)]


def test_who_is_refused_later_is_told_a_later_time_within_bounds() -> None:
    drain = Drain(Clock())
    told = [drain.wait_s(10, 0, 0.05 * S, more=2) for _ in range(40)]
    assert told[:3] == [pytest.approx(0.5), pytest.approx(0.6), pytest.approx(0.7)]
    assert max(told) == pytest.approx(FARTHEST * 0.5)
    assert told[16] == pytest.approx(0.5)  # the next one begins anew
    assert len(set(told)) == 16


def test_callers_are_told_different_times_and_those_of_a_quota_their_own() -> None:
    error = Overloaded("full")
    assert retry_after_ms(error) is None
    error.retry_after_s = 2.0
    told = {retry_after_ms(error) for _ in range(200)}
    assert 5 < len(told) < 12  # few enough to be encoded once each
    assert all(time is not None and 2_000 <= time <= 1.05 * 2_000 * (1 + SPREAD) for time in told)
    assert {retry_after_ms(QuotaExceeded("used up", 2.0)) for _ in range(20)} == {2_000}
