from __future__ import annotations

import logging

import pytest

from toutates.net.quiet_log import LINES_PER_PERIOD, QuietLog
from toutates.system.logs.limit import PERIOD_NS

logger = logging.getLogger("toutates.test")


def test_lines_of_a_kind_are_few_and_the_rest_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    log = QuietLog(logger, "worker-0")
    for number in range(1_000):
        log.log(logging.INFO, "broken things", number, "thing %d broke", number)
    log.log(logging.WARNING, "other things", 5, "something else")
    assert [record.getMessage() for record in caplog.records] == [
        *(f"worker-0: thing {number} broke" for number in range(LINES_PER_PERIOD)),
        "worker-0: something else",
    ]
    assert log.next_ns == PERIOD_NS
    assert log.dropped == 995
    caplog.clear()
    log.flush(PERIOD_NS - 1)
    assert not caplog.records
    log.flush(PERIOD_NS + 5)
    assert [record.getMessage() for record in caplog.records] == ["worker-0: and 995 more broken things in 10 s"]
    assert log.next_ns is None


def test_next_period_begins_with_what_the_last_one_left_out(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    log = QuietLog(logger, "w")
    for number in range(LINES_PER_PERIOD + 1):
        log.log(logging.ERROR, "failures", number, "failed", error=ValueError("why"))
    assert caplog.records[0].exc_info is not None
    caplog.clear()
    log.log(logging.ERROR, "failures", PERIOD_NS, "failed")
    assert [record.getMessage() for record in caplog.records] == ["w: and 1 more failures in 10 s", "w: failed"]


def test_nothing_is_counted_that_would_not_be_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    log = QuietLog(logger, "w")
    for number in range(100):
        log.log(logging.INFO, "things", number, "thing")
    log.flush(2 * PERIOD_NS)
    assert log.next_ns is None
    assert log.dropped == 0
    assert not caplog.records
