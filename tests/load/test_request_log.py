"""What becomes of requests is the same, whether they are counted while a load goes on or at its end."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt
import pytest

from toutates.bench import request_log
from toutates.bench.answer import LOST
from toutates.bench.outcome import Outcome
from toutates.bench.request_log import RequestLog
from toutates.bench.tally import Tally

US = 1_000
KINDS = 3
COUNT = 20_000


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds that a short test meets often."""
    for name, value in (("KEPT", 512), ("_PIECE", 64), ("_REMOVED", 256), ("_MOST_ASIDE", 40)):
        monkeypatch.setattr(request_log, name, value)


def contents(first: int, count: int) -> npt.NDArray[np.int64]:
    return np.arange(first, first + count, dtype=np.int64) % KINDS


def drive(log: RequestLog, *, closed: bool, under_way: int) -> None:
    """Requests and answers by chance, the same each time. Some take very long, some fail, some get no answer."""
    rng = np.random.default_rng(3)
    pending: dict[int, int] = {}
    waiting: list[int] = []
    now = number = 0
    while number < COUNT or len(pending) > 5:
        now += int(rng.integers(1, 20)) * US
        fresh = min(int(rng.integers(0, under_way)), under_way - len(pending), COUNT - number)
        if fresh > 0:
            if closed:
                log.begin(fresh, now)
                sent = range(number, number + fresh)
            else:
                log.notice([now - 5 * US] * fresh, now)
                waiting += range(number, number + fresh)
                sent = range(0)
            number += fresh
            for one in sent:
                pending[one] = now
        for one in waiting[:under_way]:
            log.send(one, now)
            pending[one] = now
        del waiting[:under_way]
        # One of a thousand is answered only at the end, so that it is counted long after those around it.
        ready = [one for one in pending if one % 1_000 or number == COUNT]
        ended = [one for one in ready[: int(rng.integers(0, under_way))] if one != COUNT - 1]
        log.answer([(one, {7: 8, 11: LOST, 13: 503}.get(one % 100, 0), b"") for one in ended], now)
        for one in ended:
            del pending[one]
        log.count_old()
        if number == COUNT and len(pending) <= 1 and not waiting:
            break


def told(outcome: Outcome) -> dict[str, object]:
    def plain(value: object) -> object:
        if dataclasses.is_dataclass(value):
            return {one.name: plain(getattr(value, one.name)) for one in dataclasses.fields(value)}
        if isinstance(value, list):
            return [plain(one) for one in value]
        return value.points() if hasattr(value, "points") else value

    found = plain(outcome)
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "open"])
@pytest.mark.parametrize("under_way", [30, 200])
def test_old_requests_are_counted_and_forgotten(closed: bool, under_way: int) -> None:
    seconds = 0.2
    outcomes, kept = [], []
    for counting in (False, True):
        tally = Tally(KINDS, 100 * US, seconds)
        log = RequestLog(contents, closed=closed, tally=tally if counting else None)
        drive(log, closed=closed, under_way=under_way)
        record = log.record(0.1, 0.0, seconds)
        kept.append(len(record.choices))
        tally.add(record)
        outcomes.append(told(tally.outcome(seconds, 0.1, 0.0)))
    assert outcomes[0] == outcomes[1]
    assert kept[0] == COUNT
    assert kept[1] < 2_000
    total = outcomes[1]["requests"]
    assert isinstance(total, list)
    assert {name for one in total for name in one["statuses"]} == {
        "OK", "RESOURCE_EXHAUSTED", "LOST", "HTTP 503", "UNANSWERED",
    }  # fmt: skip


def test_a_backlog_of_an_open_loop_is_kept_until_it_is_sent() -> None:
    tally = Tally(KINDS, 100 * US, 1.0)
    log = RequestLog(contents, closed=False, tally=tally)
    log.notice([0] * 5_000, 10)
    for _ in range(100):
        log.count_old()
    assert len(log.record(0, 0, 1).choices) == 5_000  # more than are kept aside have no answer
    for number in range(5_000):
        log.send(number, 20)
    log.answer([(number, 0, b"") for number in range(5_000)], 30)
    for _ in range(100):
        log.count_old()
    rest = log.record(0, 0, 1)
    assert len(rest.choices) < 1_000
    tally.add(rest)
    assert sum(one.answered for one in tally.outcome(1, 0, 0).requests) == 5_000


def test_a_load_that_was_stopped_has_a_timeline_of_what_it_lasted() -> None:
    tally = Tally(1, 100 * US, 10.0)
    log = RequestLog(lambda first, count: np.zeros(count, np.int64), closed=True, tally=tally)
    for second in (0, 1, 2):
        log.begin(1, second * 10**9)
        log.answer([(second, 0, b"")], second * 10**9 + 50 * US)
    tally.add(log.record(0, 0, 2.5))
    timeline = tally.outcome(2.5, 0, 0).timeline
    assert len(timeline) == 13
    assert [place for place, one in enumerate(timeline) if one.answered] == [0, 5, 10]
