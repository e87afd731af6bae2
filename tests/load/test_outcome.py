"""Latency is counted from the intended time, and a client that was late itself has no verdict."""

from __future__ import annotations

import json

import numpy as np
import pytest

from toutates.bench.client_connection import LOST
from toutates.bench.outcome import NEVER, UNANSWERED, Outcome, OutcomeOfRequest, Record, summarise

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


def test_a_client_that_was_late_has_no_verdict() -> None:
    rows = [(0, 0, 0, 0, 1, 0)] * 98 + [(0, 0, 5, 5, 6, 0)] * 2
    outcome = summarise(record(rows), 1, BOUND)
    assert outcome.lagged(2 * MS)
    assert not outcome.lagged(6 * MS)
    assert outcome.client_cpu == 0.25


def test_an_outcome_comes_back_from_json_and_outcomes_add_up() -> None:
    outcome = summarise(record([(0, 0, 0, 0, 1, 0), (1, 0, 1, 1, 30, 0)]), 2, BOUND)
    again = Outcome.from_json(json.loads(json.dumps(outcome.to_json())))
    assert again.to_json() == outcome.to_json()
    twice = OutcomeOfRequest()
    twice.add(again.total)
    twice.add(outcome.total)
    assert (twice.offered, twice.in_time, twice.statuses) == (4, 2, {"OK": 4})
