"""What requests are taken to wait for their worker, by what answers have waited."""

from __future__ import annotations

from toutates.engine.deadlines.around import Around

MS = 1_000_000


def learned(*waits_ms: float, every_ms: float = 1) -> tuple[Around, int]:
    """What is known after answers that waited for so long, and the time."""
    around = Around()
    now_ns = 10**12
    for wait_ms in waits_ms:
        now_ns += int(every_ms * MS)
        around.note(int(wait_ms * MS), now_ns)
    return around, now_ns


def test_nothing_is_expected_before_the_first_answer() -> None:
    assert Around().time_ns(10**12) == 0


def test_a_request_waits_before_as_its_answer_waits_after() -> None:
    around, now_ns = learned(*[4] * 40)
    assert 7.9 * MS < around.time_ns(now_ns) <= 8 * MS


def test_a_worker_that_becomes_busy_is_noticed_sooner_than_one_that_is_busy_no_more() -> None:
    around, now_ns = learned(*[8] * 6)
    assert around.time_ns(now_ns) > 12 * MS
    around, now_ns = learned(*[8] * 40, *[0] * 6)
    assert around.time_ns(now_ns) > 9 * MS
    around, now_ns = learned(*[8] * 40, *[0] * 60)
    assert around.time_ns(now_ns) < 1 * MS


def test_of_waits_that_differ_more_than_the_mean_is_kept() -> None:
    around, now_ns = learned(*[2, 6] * 50)
    assert around.time_ns(now_ns) > 2 * 4.5 * MS


def test_what_is_not_confirmed_is_forgotten() -> None:
    around, now_ns = learned(*[40] * 40)
    assert around.time_ns(now_ns + 40 * MS) == around.time_ns(now_ns)
    assert around.time_ns(now_ns + 110 * MS) < 21 * MS
    assert around.time_ns(now_ns + 10**13) == 0
