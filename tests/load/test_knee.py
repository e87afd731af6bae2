"""The search for a knee, with servers that are formulas."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from toutates.bench.knee import find_knee, shortfall
from toutates.bench.latencies import Latencies
from toutates.bench.measured import Measured, read_target
from toutates.bench.outcome import Outcome, OutcomeOfRequest

MS = 1_000_000


def measured(rate: float, latency_ms: float, cpu: float = 0.5, failed: int = 0) -> Measured:
    took = Latencies()
    took.record(np.full(1_000, round(latency_ms * MS)))
    one = OutcomeOfRequest(1_000 + failed, 1_000, 1_000, Counter(OK=1_000, UNAVAILABLE=failed), took, took)
    lag = Latencies()
    lag.record(np.array([1_000]))
    return Measured([Outcome(1_000 / rate, [one], lag, cpu, answered_meanwhile=1_000)], open_loop=True)


def queue(knee: float) -> Callable[[float], Measured]:
    """A server whose latency passes 10 ms at a rate."""
    return lambda rate: measured(rate, 1 + 9 * (rate / knee) ** 8)


@pytest.mark.parametrize("knee", [30.0, 440.0, 900.0, 1_300.0])
def test_the_knee_is_found_within_a_few_percent_from_below(knee: float) -> None:
    found = find_knee(queue(knee), [read_target("p99=10ms")], 1_000)
    assert 0.95 * knee <= found.rate <= 1.01 * knee
    assert found.doubt == ""
    assert found.measured is not None
    assert len(found.trials) < 30


def test_one_bad_moment_is_no_knee() -> None:
    tried: Counter[float] = Counter()

    def measure(rate: float) -> Measured:
        tried[rate] += 1
        return measured(rate, 99) if tried[rate] == 1 else queue(800)(rate)

    assert find_knee(measure, [read_target("p99=10ms")], 1_000).rate == pytest.approx(800, rel=0.05)


def test_a_target_that_no_rate_holds_says_by_how_much() -> None:
    found = find_knee(lambda rate: measured(rate, 12.5), [read_target("p99=10ms")], 1_000)
    assert found.rate == 0
    least = found.trials[-1]
    assert least.rate == 10
    assert "p99 is 12.5 ms, 2.5" in least.fault


def test_a_client_that_is_the_bottleneck_is_no_knee_of_the_server() -> None:
    def measure(rate: float) -> Measured:
        return measured(rate, 50, cpu=0.99) if rate > 600 else measured(rate, 1)

    found = find_knee(measure, [read_target("p99=10ms")], 1_000)
    assert 570 < found.rate <= 600
    assert "was the bottleneck" in found.doubt


def test_targets_that_hold_in_spite_of_a_busy_client_hold() -> None:
    found = find_knee(
        lambda rate: measured(rate, 1 + 9 * (rate / 800) ** 8, cpu=0.99), [read_target("p99=10ms")], 1_000
    )
    assert found.rate == pytest.approx(800, rel=0.05)
    assert "was the bottleneck" in found.doubt


def test_errors_fail_a_rate_unless_a_target_allows_them() -> None:
    some = measured(100, 1, failed=5)
    assert "0.50% of requests" in shortfall(some, [read_target("p99=10ms")])
    assert shortfall(some, [read_target("p99=10ms"), read_target("errors=1%")]) == ""


@pytest.mark.parametrize("text", ["p99", "p99=10", "rate=10", "p98=1ms", "errors=5"])
def test_what_is_no_target_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected a target"):
        read_target(text)


@pytest.mark.parametrize(
    ("within", "least", "most"),
    [
        ((100.0, 200.0), 200, 200),
        ((100.0, 5_000.0), 0.95 * 440, 1.01 * 440),
        ((1_000.0, 2_000.0), 0, 0),
        ((9, 9), 9, 9),
    ],
)
def test_a_range_bounds_the_search(within: tuple[float, float], least: float, most: float) -> None:
    found = find_knee(queue(440.0), [read_target("p99=10ms")], 1_000, within=within)
    assert least <= found.rate <= most
    assert all(within[0] <= one.rate <= within[1] for one in found.trials)
