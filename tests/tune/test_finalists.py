"""The best of a search by loads made afterwards: who goes on, and in which order they are."""

from __future__ import annotations

import numpy as np

from toutates.tune.finalists import order, still_in

A, B, C = (0,), (1,), (2,)


def test_the_order_is_that_of_the_mean_and_who_misses_constraints_mostly_comes_last() -> None:
    assert order({A: [100, 102, 101], B: [90, 130, 105], C: [50, 51, 52]}) == [B, A, C]
    assert order({A: [100, 0, 100], B: [90, 90, 90], C: [200, 0, 0]}) == [A, B, C]


def test_nobody_is_out_after_two_rounds() -> None:
    assert still_in({A: [100, 100], B: [10, 10]}) == [A, B]


def test_who_is_worse_beyond_doubt_is_out_whatever_a_round_was_like() -> None:
    # Rounds differ by a factor of two, finalists within them hardly.
    assert still_in({A: [100, 200, 150], B: [98, 205, 148], C: [80, 161, 119]}) == [A, B]


def test_it_ends_where_the_first_is_known_or_the_others_are_as_good() -> None:
    assert still_in({A: [100, 200, 150], C: [80, 161, 119]}) == []
    assert still_in({A: [100, 200, 150], B: [99.9, 199.8, 149.85]}) == []


def test_the_best_by_right_is_found_more_often_than_by_single_loads() -> None:
    rng = np.random.default_rng(5)
    by_rounds = by_luck = 0
    for _ in range(200):
        true = dict(zip((A, B, C), (1.06, 1.0, 1.0), strict=True))
        loads = {one: (value * np.exp(rng.normal(0, 0.05, 6))).tolist() for one, value in true.items()}
        by_luck += max(loads, key=lambda one: loads[one][0]) == A
        by_rounds += order({one: values[1:] for one, values in loads.items()})[0] == A
    assert by_rounds > by_luck + 20
