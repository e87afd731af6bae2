"""Which rows of different length run together: every one does, in its turn, and little is computed for the padding."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toutates.engine.lengths import MAX_RATIO, RUN_COST, Buckets, Chosen, RunCost, WaitingRows

LENGTHS = st.integers(1, 5_000)
#: (rows, length) of entries
ENTRIES = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 600)), min_size=1, max_size=60)


# --- buckets ---------------------------------------------------------------------------------------------------------


@given(LENGTHS)
def test_a_length_grows_by_no_more_than_a_quarter(length: int) -> None:
    bucket = Buckets().of(length)
    assert length <= bucket <= MAX_RATIO * length
    assert Buckets().of(bucket) == bucket


def test_there_are_few_buckets() -> None:
    up_to_512 = Buckets().up_to(512)
    assert up_to_512[:14] == [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24]
    assert up_to_512[-1] == 512
    assert len(up_to_512) == 32
    assert len(Buckets().up_to(2**31)) < 130
    assert Buckets().longest == 0


def test_an_operators_buckets_hold() -> None:
    buckets = Buckets([16, 64, 512])
    assert [buckets.of(length) for length in (1, 16, 17, 64, 65, 512)] == [16, 16, 64, 64, 512, 512]
    assert buckets.up_to(2_000) == [16, 64, 512]
    assert buckets.up_to(17) == [16, 64]
    assert buckets.longest == 512


# --- the choice ------------------------------------------------------------------------------------------------------


def waiting_rows(most_rows: int = 16, most_elements: int = 2_048, buckets: Sequence[int] = ()) -> WaitingRows[int]:
    return WaitingRows(Buckets(buckets), most_rows, most_elements)


def check(chosen: Chosen[int], entries: Sequence[tuple[int, int]], most_rows: int, most_elements: int) -> None:
    """What holds for every run. An entry's own value is its place in ``entries``."""
    mine = [entries[own] for own in chosen.entries]
    assert chosen.rows == sum(rows for rows, _ in mine)
    assert chosen.real == sum(rows * length for rows, length in mine)
    assert all(length <= chosen.length for _, length in mine)
    assert chosen.rows <= most_rows
    assert chosen.rows == 1 or chosen.rows * chosen.length <= most_elements
    assert chosen.rows * chosen.length <= MAX_RATIO * chosen.real
    assert chosen.entries == sorted(chosen.entries)


@settings(max_examples=150, deadline=None)
@given(ENTRIES, st.integers(5, 16), st.integers(100, 3_000))
def test_every_entry_runs_once_and_the_oldest_is_always_next(
    entries: list[tuple[int, int]], most_rows: int, most_elements: int
) -> None:
    waiting = waiting_rows(most_rows, most_elements)
    entries = [(min(rows, waiting.rows_at_once(length)), length) for rows, length in entries]
    for own, (rows, length) in enumerate(entries):
        waiting.add(own, rows, length)
    left = set(range(len(entries)))
    assert set(waiting) == left
    while len(waiting):
        oldest = min(left)
        assert waiting.oldest == oldest
        chosen = waiting.take()
        check(chosen, entries, most_rows, most_elements)
        assert chosen.entries[0] == oldest
        left -= set(chosen.entries)
        assert len(waiting) == len(left)
        assert waiting.rows == sum(entries[own][0] for own in left)
    assert not left


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_an_entry_waits_for_no_more_runs_than_entries_were_there_before_it(data: st.DataObject) -> None:
    waiting = waiting_rows(4, 1_000)
    came: dict[int, int] = {}  # how many may still run before it
    for own in range(60):
        came[own] = len(waiting)
        waiting.add(own, 1, data.draw(st.integers(1, 600)))
        if data.draw(st.booleans()):
            taken = waiting.take().entries
            for other in taken:
                del came[other]
            for other in came:
                came[other] -= 1
                assert came[other] >= 0


def test_rows_of_one_length_fill_a_run() -> None:
    waiting = waiting_rows(4)
    for own in range(6):
        waiting.add(own, 1, 100)
    assert waiting.take() == Chosen(112, [0, 1, 2, 3], 4, 400)
    assert waiting.take() == Chosen(112, [4, 5], 2, 200)


def test_the_padded_elements_of_a_run_are_bounded() -> None:
    waiting = waiting_rows(64, 1_000)
    for own in range(10):
        waiting.add(own, 1, 300)
    assert waiting.rows_at_once(300) == 3
    assert waiting.take().entries == [0, 1, 2]


def test_a_row_above_the_bound_runs_alone() -> None:
    waiting = waiting_rows(64, 1_000)
    assert waiting.rows_at_once(5_000) == 1
    waiting.add(0, 1, 5_000)
    waiting.add(1, 1, 5_000)
    assert waiting.take() == Chosen(5_120, [0], 1, 5_000)


def test_few_rows_of_near_lengths_run_together() -> None:
    waiting = waiting_rows()
    for own, length in enumerate((100, 95, 110)):
        waiting.add(own, 1, length)
    assert waiting.take() == Chosen(112, [0, 1, 2], 3, 305)


def test_a_long_row_does_not_take_short_ones_along() -> None:
    waiting = waiting_rows()
    for own, length in enumerate((500, 10, 12, 10, 480)):
        waiting.add(own, 1, length)
    assert waiting.take().entries == [0, 4]
    assert waiting.take().entries == [1, 2, 3]


def test_a_short_row_goes_with_longer_ones_of_near_length() -> None:
    waiting = waiting_rows()
    waiting.add(0, 1, 62)
    for own in range(1, 5):
        waiting.add(own, 1, 70)
    assert waiting.take().entries == [0, 1, 2, 3, 4]


def test_rows_of_one_request_are_not_parted() -> None:
    waiting = waiting_rows(4)
    for own in range(3):
        waiting.add(own, 3, 8)
    assert [waiting.take().rows for _ in range(3)] == [3, 3, 3]


# --- whole loads -----------------------------------------------------------------------------------------------------


def short(rng: random.Random) -> int:
    """Tokens of a query."""
    return max(3, round(rng.gauss(9, 3)))


def paragraph(rng: random.Random) -> int:
    return min(512, max(20, round(rng.lognormvariate(4.7, 0.5))))


def mixed(rng: random.Random) -> int:
    return short(rng) if rng.random() < 0.6 else paragraph(rng)


@pytest.mark.parametrize("depth", [4, 64, 512])
@pytest.mark.parametrize("length", [short, paragraph, mixed])
def test_padded_elements_stay_near_the_real_ones(length: Callable[[random.Random], int], depth: int) -> None:
    rng = random.Random(5)
    waiting = waiting_rows(64, 8_192)
    entries = [(1, length(rng)) for _ in range(3_000)]
    padded = runs = added = 0
    real = sum(length for _, length in entries)
    while len(waiting) or added < len(entries):
        while len(waiting) < depth and added < len(entries):
            waiting.add(added, *entries[added])
            added += 1
        chosen = waiting.take()
        check(chosen, entries, 64, 8_192)
        padded += chosen.rows * chosen.length
        runs += 1
    assert padded <= 1.2 * real
    in_order = [entries[at : at + 8] for at in range(0, len(entries), 8)]
    fifo = sum(len(own) * max(length for _, length in own) for own in in_order)
    gain = (fifo + RUN_COST * len(in_order)) / (padded + RUN_COST * runs)
    if length is mixed:
        assert gain > 1.8


# --- what a run costs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cost", [0, 9, 1_000])
def test_what_a_run_costs_is_learned_from_how_long_runs_take(cost: int) -> None:
    learned, rng = RunCost(), random.Random(cost)
    for number in range(500):
        elements = rng.choice((8, 24, 100, 900))
        busy = 10 if number % 10 == 9 else rng.uniform(1, 1.05)  # the core was somebody else's
        learned.note(elements, round(300 * (cost + elements) * busy))
    assert learned.elements == pytest.approx(cost, rel=0.2, abs=2)


def test_of_runs_that_are_alike_nothing_is_learned() -> None:
    learned = RunCost()
    for took in (1_000, 2_000, 0, 1_500):
        learned.note(64, took)
    assert learned.elements == RUN_COST


def test_rows_of_near_buckets_share_a_run_where_a_run_costs_much() -> None:
    def rows_of_first_run(cost: float) -> int:
        own = RunCost()
        own.elements = cost
        waiting: WaitingRows[int] = WaitingRows(Buckets(), 64, 4_096, own)
        for number, length in enumerate([60] * 20 + [48] * 20):
            waiting.add(number, 1, length)
        return waiting.take().rows

    assert rows_of_first_run(1_000) > rows_of_first_run(0) == 20
