"""The histogram's quantiles are those of the values, within a bucket's width; histograms add up and travel."""

from __future__ import annotations

import numpy as np
import pytest

from toutates.bench.latencies import Latencies


def latencies(values: list[int]) -> Latencies:
    made = Latencies()
    made.record(np.array(values, np.int64))
    return made


def test_quantiles_are_at_most_a_bucket_too_high() -> None:
    values = np.random.default_rng(5).lognormal(14, 2, 20_000).astype(np.int64)
    made = Latencies()
    made.record(values)
    assert made.count == 20_000
    ordered = np.sort(values)
    for share in (0.0001, 0.01, 0.5, 0.9, 0.99, 0.999, 0.9999, 1):
        exact = int(ordered[max(0, int(np.ceil(share * 20_000 - 1e-9)) - 1)])
        assert exact <= made.quantile(share) <= exact * (1 + 1 / 128)


@pytest.mark.parametrize("value", [0, 1, 127, 128, 255, 256, 257, 511, 512, 2**31, 2**40 - 1, 2**53 + 1, 2**62])
def test_a_value_is_in_a_bucket_that_holds_it(value: int) -> None:
    found = latencies([value]).quantile(1)
    assert value <= found <= value + max(0, value >> 7)


def test_small_values_are_exact() -> None:
    made = latencies([3, 3, 200, 255])
    assert [made.quantile(share) for share in (0, 0.5, 0.75, 1)] == [3, 3, 200, 255]


def test_histograms_add_up() -> None:
    first, second = latencies([5, 5_000]), latencies([5, 10**9])
    first.add(second)
    assert first.counts.tolist() == latencies([5, 5, 5_000, 10**9]).counts.tolist()
    assert first.points()[0] == (5, 2)


def test_the_mean_is_within_the_width_of_buckets() -> None:
    assert latencies([100, 200, 10_000, 20_000]).mean() == pytest.approx(7_575, rel=0.01)
    assert latencies([]).mean() == 0


def test_there_is_no_quantile_of_nothing_and_no_negative_latency() -> None:
    with pytest.raises(ValueError, match="no latency was recorded"):
        latencies([]).quantile(0.5)
    with pytest.raises(ValueError, match="a latency of -1 ns"):
        latencies([5, -1])
