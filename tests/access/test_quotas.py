"""Token buckets, with a clock that the test sets."""

from __future__ import annotations

import pytest

from toutates.access import quotas
from toutates.access.quotas import Bucket, Quota, Quotas

S = 1_000_000_000


def test_a_bucket_starts_full_and_fills_at_its_rate() -> None:
    bucket = Bucket(Quota(requests_per_second=10))
    assert [bucket.take(1, 0) for _ in range(10)] == [0.0] * 10
    assert bucket.take(1, 0) == pytest.approx(0.1)
    assert bucket.take(1, S // 10) == 0.0
    assert bucket.take(1, S // 10) > 0
    assert [bucket.take(1, 100 * S) for _ in range(11)].count(0.0) == 10  # it holds no more than the burst


def test_a_request_that_is_refused_takes_nothing() -> None:
    bucket = Bucket(Quota(requests_per_second=100, rows_per_second=10))
    assert bucket.take(10, 0) == 0.0
    assert bucket.take(10, 0) == pytest.approx(1.0)
    assert [bucket.take(0, 0) for _ in range(99)] == [0.0] * 99
    assert bucket.take(0, 0) > 0


def test_what_is_given_back_can_be_taken_again() -> None:
    bucket = Bucket(Quota(requests_per_second=10, rows_per_second=100))
    for now_ns in (0, 0, S, S):  # after a pause too
        assert bucket.take(100, now_ns) == 0.0
        bucket.give_back(100, now_ns)
    assert bucket.take(100, S) == 0.0
    assert bucket.take(100, S) == pytest.approx(1.0)


def test_a_request_larger_than_the_bucket_waits_until_it_is_full_and_is_paid_for_afterwards() -> None:
    bucket = Bucket(Quota(rows_per_second=10, burst_s=1))
    assert bucket.take(1, 0) == 0.0
    assert bucket.take(50, 0) == pytest.approx(0.1)
    assert bucket.take(50, S // 10) == 0.0
    assert bucket.take(1, S // 10) == pytest.approx(4.1)  # 50 rows take 5 s, of which 1 s was there


def test_a_slow_rate_lets_one_request_in_at_least() -> None:
    bucket = Bucket(Quota(requests_per_second=0.1, burst_s=0))
    assert bucket.take(1, 0) == 0.0
    assert bucket.take(1, 0) == pytest.approx(10)


def test_a_client_keeps_its_bucket_and_full_ones_are_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotas, "MAX_BUCKETS", 2)
    table = Quotas(lambda: 5 * S)
    quota = Quota(requests_per_second=1)
    owing = table.bucket("a", quota)
    owing.take(1, 5 * S)
    table.bucket("b", quota).take(1, 0)
    table.bucket("c", quota)
    assert table.bucket("a", quota) is owing
    assert table.bucket("a", Quota(requests_per_second=2)) is not owing
