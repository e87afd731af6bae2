from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import pytest

from toutates.system.logs.levels import ANYWAY
from toutates.system.logs.limit import PERIOD_NS
from toutates.system.logs.repeats import FEW_PER_PERIOD, LINES_PER_PERIOD, MAX_KINDS, Repeats


class Kept:
    """A limiter, and what comes of it."""

    def __init__(self) -> None:
        self.reports: list[str] = []
        self.woken = 0
        self.repeats = Repeats(lambda record: self.reports.append(record.getMessage()), self._wake)

    def _wake(self) -> None:
        self.woken += 1

    def admit(
        self,
        text: str,
        *arguments: object,
        now_ns: int = 0,
        name: str = "a",
        error: bool = False,
        anyway: bool = False,
    ) -> bool:
        exc_info = (ValueError, ValueError("x"), None) if error else None
        made = logging.LogRecord(name, logging.INFO, "", 0, text, arguments, exc_info)
        if anyway:
            setattr(made, ANYWAY, True)
        return self.repeats.admit(made, now_ns)


def test_lines_of_a_kind_are_few_and_the_rest_is_counted() -> None:
    kept = Kept()
    assert sum(kept.admit("broken: %d", number) for number in range(1_000)) == LINES_PER_PERIOD
    assert kept.admit("other")
    assert kept.admit("broken: %d", 1, name="b")
    assert kept.woken == 1
    assert kept.repeats.flush(PERIOD_NS - 1_000) == 1_000
    assert not kept.reports
    assert kept.repeats.flush(PERIOD_NS) is None
    assert kept.reports == [f"and {1_000 - LINES_PER_PERIOD} more lines in 10 s like: broken: {LINES_PER_PERIOD}"]


def test_the_next_period_begins_with_what_the_last_one_left_out() -> None:
    kept = Kept()
    for number in range(LINES_PER_PERIOD + 1):
        kept.admit("broken: %d", number)
    assert kept.admit("broken: %d", 0, now_ns=PERIOD_NS)
    assert len(kept.reports) == 1
    assert kept.repeats.flush(3 * PERIOD_NS) is None
    assert len(kept.reports) == 1


def test_tracebacks_are_fewer() -> None:
    kept = Kept()
    assert sum(kept.admit("failed", error=True) for _ in range(100)) == FEW_PER_PERIOD


def test_lines_that_nobody_can_switch_off_are_fewer_and_no_others_leave_the_first_out() -> None:
    kept = Kept()
    assert sum(kept.admit("off by a", anyway=True) for _ in range(100)) == FEW_PER_PERIOD
    for number in range(2 * MAX_KINDS):
        kept.admit(f"written into the template: {number}")
    assert sum(kept.admit("off by b", anyway=True) for _ in range(100)) == FEW_PER_PERIOD
    kept.repeats.flush(PERIOD_NS)
    assert [report for report in kept.reports if "off" in report] == [
        f"and {100 - FEW_PER_PERIOD} more lines in 10 s like: off by {name}" for name in "ab"
    ]


def test_lines_that_are_all_of_kinds_of_their_own_are_bounded_too() -> None:
    kept = Kept()
    admitted = sum(kept.admit(f"written into the template: {number}") for number in range(2 * MAX_KINDS))
    assert admitted == MAX_KINDS + LINES_PER_PERIOD
    # Later there is room again.
    assert kept.admit("new", now_ns=PERIOD_NS)


@pytest.mark.parametrize("threads", [4])
def test_threads_count_together(threads: int) -> None:
    kept = Kept()
    admitted: list[int] = []

    def work() -> None:
        admitted.append(sum(kept.admit("x") for _ in range(2_000)))

    _together([work] * threads)
    assert sum(admitted) == LINES_PER_PERIOD
    kept.repeats.flush(PERIOD_NS)
    assert kept.reports == [f"and {threads * 2_000 - LINES_PER_PERIOD} more lines in 10 s like: x"]


def _together(jobs: list[Callable[[], None]]) -> None:
    running = [threading.Thread(target=job) for job in jobs]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
