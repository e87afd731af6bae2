"""Alike servers are seldom called different, and different ones are found, under noise like that of real machines."""

from __future__ import annotations

import numpy as np
import pytest

from toutates.bench.comparison import block_order, compare_blocks
from toutates.bench.intervals import mean_interval, t_quantile


def noise(count: int, rng: np.random.Generator) -> list[float]:
    """Factors of a machine with other work: a drift, waves, a memory from one load to the next, and bad moments."""
    walk, found = 0.0, []
    drift, phase = rng.normal(0, 0.005), rng.uniform(0, 7)
    for place in range(count):
        walk = 0.7 * walk + rng.normal(0, 0.03)
        hiccup = rng.exponential(0.15) if rng.random() < 0.08 else 0.0
        found.append(float(np.exp(walk + drift * place + 0.05 * np.sin(place / 5 + phase) - hiccup)))
    return found


def differs(ratio: float, rng: np.random.Generator, blocks: int = 6) -> bool:
    factors = iter(noise(4 * blocks, rng))
    loads = [
        [
            (which, {"rate": 1_000 * factor * (ratio if which else 1), "p50": 5 / factor, "p99": 20 / factor**2})
            for which, factor in zip(block_order(rng), factors, strict=False)
        ]
        for _ in range(blocks)
    ]
    return any(one.real for one in compare_blocks(["rate", "p50", "p99"], loads))


def test_of_twenty_comparisons_of_alike_servers_at_most_one_says_different() -> None:
    rng = np.random.default_rng(11)
    rounds = [sum(differs(1.0, rng) for _ in range(20)) for _ in range(30)]
    # One wrong of a hundred makes two of twenty in 1.7 % of the rounds.
    assert sum(count > 1 for count in rounds) <= 3
    assert sum(rounds) <= 0.02 * 600


def test_a_server_that_is_a_third_faster_is_found() -> None:
    rng = np.random.default_rng(12)
    assert sum(differs(1.33, rng) for _ in range(50)) >= 45


def test_a_difference_that_is_certain_and_small_does_not_count() -> None:
    blocks = [[(0, {"rate": 100.0}), (1, {"rate": 101.0})]] * 5
    (found,) = compare_blocks(["rate", "p99"], blocks)
    assert found.ratio == pytest.approx(1.01)
    assert not found.real


def test_an_interval_that_says_nothing_is_told_so() -> None:
    blocks = [[(0, {"rate": 100.0}), (1, {"rate": 300.0})], [(0, {"rate": 100.0}), (1, {"rate": 30.0})]]
    (found,) = compare_blocks(["rate"], blocks)
    assert found.text().split() == [
        "rate",
        "-5.1%",
        "(or",
        "anything",
        "else)",
        "no",
        "difference",
        "that",
        "can",
        "be",
        "told",
    ]


def test_orders_of_a_block_are_balanced() -> None:
    rng = np.random.default_rng(1)
    assert {block_order(rng) for _ in range(50)} == {(0, 1, 1, 0), (1, 0, 0, 1)}


def test_one_block_is_too_few() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        compare_blocks(["rate"], [[(0, {"rate": 1.0}), (1, {"rate": 1.0})]])


@pytest.mark.parametrize(
    ("confidence", "freedom", "expected"),
    [(0.95, 1, 12.706), (0.95, 2, 4.303), (0.99, 3, 5.841), (0.95, 9, 2.262), (0.99, 10, 3.169), (0.95, 1000, 1.962)],
)
def test_students_quantiles_are_those_of_tables(confidence: float, freedom: int, expected: float) -> None:
    assert t_quantile(confidence, freedom) == pytest.approx(expected, abs=1e-3)


def test_an_interval_holds_the_mean_as_often_as_it_says() -> None:
    rng = np.random.default_rng(2)
    within = 0
    for _ in range(1_000):
        found = mean_interval(rng.normal(5, 2, 4).tolist(), 0.9)
        within += abs(found.mean - 5) <= found.half
    assert 870 <= within <= 930
