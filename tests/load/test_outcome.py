"""Latency is counted from the intended time, and a client that was late itself has no verdict."""

from __future__ import annotations

import numpy as np
import pytest

from toutates.bench.answer import LOST
from toutates.bench.outcome import NEVER, UNANSWERED, Record, merge
from toutates.bench.tally import Tally, summarise

MS = 1_000_000
BOUND = 20 * MS


def record(rows: list[tuple[int, int, int, int, int, int]]) -> Record:
    """Of (choice, intended, noticed, sent, answered in milliseconds, status)."""
    choices, *times, statuses = np.array(rows, np.int64).T
    intended, noticed, sent, answered = (np.where(column < 0, NEVER, column * MS) for column in times)
    return Record(choices, intended, noticed, sent, answered, statuses, cpu_seconds=0.5, seconds=2.0)


def test_answers_count_from_the_intended_time() -> None:
    # The second request was sent in time to be answered within 20 ms of that, but was to be sent long before.
    outcome = summarise(record([(0, 0, 0, 0, 20, 0), (0, 10, 10, 100, 110, 0)]), 1, BOUND)
    total = outcome.total
    assert (total.offered, total.answered, total.in_time) == (2, 2, 1)
    assert total.from_intended.quantile(1) == pytest.approx(100 * MS, rel=0.01)
    assert total.from_sent.quantile(1) == pytest.approx(20 * MS, rel=0.01)


def test_requests_without_a_right_answer_are_offered_and_nothing_else() -> None:
    rows = [(0, 0, 0, 0, 1, 8), (0, 0, 0, 0, 1, LOST), (0, 0, 0, NEVER, NEVER, UNANSWERED), (1, 0, 0, 0, 1, 0)]
    first, second = summarise(record(rows), 2, BOUND).requests
    assert (first.offered, first.answered, first.in_time, first.from_intended.count) == (3, 0, 0, 0)
    assert first.statuses == {"RESOURCE_EXHAUSTED": 1, "LOST": 1, "UNANSWERED": 1}
    assert (second.offered, second.in_time, second.statuses) == (1, 1, {"OK": 1})


def test_the_time_of_the_last_right_answer_and_how_many_came_in_the_loads_time_are_told() -> None:
    rows = [(0, 0, 0, 0, 2_100, 0), (0, 0, 0, 0, 5, 0), (0, 0, 0, 0, 2_200, 8), (0, 0, 0, 0, NEVER, UNANSWERED)]
    outcome = summarise(record(rows), 1, BOUND)
    assert (outcome.last_answer_s, outcome.answered_meanwhile) == (2.1, 1)
    assert merge([outcome, summarise(record(rows), 1, BOUND)]).answered_meanwhile == 2
    outcome = summarise(record(rows[2:]), 1, BOUND)
    assert (outcome.last_answer_s, outcome.answered_meanwhile) == (0, 0)


def test_a_client_that_was_late_has_no_verdict() -> None:
    rows = [(0, 0, 0, 0, 1, 0)] * 98 + [(0, 0, 5, 5, 6, 0)] * 2
    outcome = summarise(record(rows), 1, BOUND)
    assert outcome.lagged(2 * MS)
    assert not outcome.lagged(6 * MS)
    assert outcome.client_cpu == 0.25


def test_outcomes_of_several_clients_add_up() -> None:
    outcome, other = (summarise(record([(0, 0, 0, 0, 1, 0), (1, 0, 1, 1, 30, 0)]), 2, BOUND) for _ in range(2))
    merged = merge([outcome, other])
    assert (merged.total.offered, merged.total.in_time, merged.total.statuses) == (4, 2, {"OK": 4})
    assert merged.seconds == 2
    assert (merged.client_cpu, merged.client_seconds) == (0.25, 1.0)
    assert sum(one.answered for one in merged.timeline) == 4


def test_a_client_that_lost_its_connections_early_cuts_no_timeline_of_others() -> None:
    rows = [(0, at, at, at, at + 1, 0) for at in range(0, 2_000, 10)]
    for early_first in (True, False):
        whole, early = Tally(1, BOUND, 2.0), Tally(1, BOUND, 2.0)
        whole.add(record(rows))
        early.add(record(rows[:50]))
        outcomes = [whole.outcome(2.0, 0.1, 0.0), early.outcome(0.5, 0.1, 0.0)]
        merged = merge(outcomes[::-1] if early_first else outcomes)
        assert sum(one.answered for one in merged.timeline) == 250
        assert len(merged.timeline) == len(summarise(record(rows), 1, BOUND).timeline)


def test_the_timeline_shows_when_a_server_was_slow() -> None:
    rows = [(0, at, at, at, at + (300 if 1_000 <= at < 1_100 else 1), 0) for at in range(0, 2_000, 10)]
    slices = summarise(record(rows), 1, BOUND).timeline
    assert sum(one.answered for one in slices) == 200
    slow = [place / len(slices) for place, one in enumerate(slices) if one.p99_ns > 100 * MS]
    assert slow
    assert 0.5 <= min(slow) <= max(slow) < 0.55


def test_a_load_that_was_stopped_is_without_what_was_under_way() -> None:
    rows = [(0, 0, 0, 0, 1, 0), (0, 0, 0, 0, NEVER, UNANSWERED)]
    assert summarise(record(rows).without_unanswered(), 1, BOUND).total.statuses == {"OK": 1}
