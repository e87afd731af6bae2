"""Figures over repeats, conditions on them, and when they say nothing of the server."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from toutates.bench.latencies import Latencies
from toutates.bench.measured import Measured, read_condition
from toutates.bench.outcome import Outcome, OutcomeOfRequest

MS = 1_000_000


def latencies(*milliseconds: float) -> Latencies:
    made = Latencies()
    made.record((np.array(milliseconds) * MS).astype(np.int64))
    return made


def outcome(answered: int, lag_ms: float = 0.0, cpu: float = 0.5) -> Outcome:
    """Of a second, in which one request failed."""
    took = latencies(*[10.0] * answered)
    one = OutcomeOfRequest(answered + 1, answered, answered, Counter(OK=answered, UNAVAILABLE=1), took, took)
    return Outcome(1.0, [one], latencies(lag_ms), cpu, answered_meanwhile=answered)


def test_figures_are_of_all_repeats() -> None:
    found = Measured([outcome(97), outcome(101)], open_loop=True).to_json()
    assert found["requests_per_second"] == 99
    assert found["requests_per_second_interval"] == pytest.approx(12.71 * 2, rel=0.01)
    assert found["statuses"] == {"OK": 198, "UNAVAILABLE": 2}
    assert found["latency_us"]["p99"] == pytest.approx(10_000, rel=0.01)


def test_what_an_open_loop_is_answered_after_its_time_is_no_rate() -> None:
    late = outcome(97)
    late.answered_meanwhile, late.last_answer_s = 40, 5.0
    assert Measured([late], open_loop=True).rates() == [40]
    assert Measured([late], open_loop=False).rates() == [97 / 5]


@pytest.mark.parametrize(
    ("text", "fails"),
    [
        ("p99>9ms", True),
        ("p99>0.02s", False),
        ("p99.9>11000us", False),
        ("rate<100", True),
        ("rate<90", False),
        ("errors>0.5%", True),
        ("errors>5%", False),
    ],
)
def test_conditions_that_hold_are_told(text: str, fails: bool) -> None:
    measured = Measured([outcome(99)], open_loop=True)
    assert measured.failed([read_condition(text)]) == ([text] if fails else [])


def test_a_latency_of_nothing_is_too_long() -> None:
    assert Measured([outcome(0)], open_loop=True).failed([read_condition("p50>1s")]) == ["p50>1s"]


@pytest.mark.parametrize("text", ["", "p99", "p99>10", "p98>1ms", "rate<5ms", "errors>1", "p99=1ms", "rate<-1"])
def test_what_is_no_condition_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        read_condition(text)


def test_a_client_that_was_busy_or_late_gives_no_verdict() -> None:
    assert Measured([outcome(9), outcome(9, lag_ms=0.1)], open_loop=True).doubt() == ""
    assert "was the bottleneck" in Measured([outcome(9), outcome(9, cpu=0.99)], open_loop=False).doubt()
    assert "2.5 ms late" in Measured([outcome(9), outcome(9, lag_ms=2.5)], open_loop=True).doubt()
    assert Measured([outcome(9, lag_ms=2.5)], open_loop=False).doubt() == ""
