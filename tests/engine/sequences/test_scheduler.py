"""Which requests of which sequences run next, with no thread and no clock."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import Final

import pytest

from toutates.engine.sequences.rules import SequenceRules
from toutates.engine.sequences.scheduler import Given, Identifier, Scheduler
from toutates.system.errors import InvalidRequest

DIRECT: Final = SequenceRules(instances=1, slots=4, batch_rows=4, by_slot=True, idle_ns=1_000)
OLDEST: Final = replace(DIRECT, by_slot=False)


class Driven:
    """A scheduler whose batches are run one after the other. A request's ``own`` is its number in its sequence."""

    def __init__(self, rules: SequenceRules) -> None:
        self.scheduler: Scheduler[int] = Scheduler("m", rules)
        self.sizes: Counter[int] = Counter()
        self.ran: list[tuple[Identifier, int]] = []

    def add(self, identifier: Identifier, count: int = 1, *, of: int | None = None, shapes: object = "") -> None:
        """Add the first ``count`` requests of a sequence of ``of``."""
        of = of or count
        for number in range(count):
            self.one(identifier, number, start=number == 0, end=number == of - 1, shapes=shapes)

    def one(
        self,
        identifier: Identifier,
        number: int = 0,
        *,
        start: bool = False,
        end: bool = False,
        shapes: object = "",
        at: int = 0,
    ) -> None:
        self.scheduler.add(number, identifier, at, shapes=shapes, start=start, end=end)

    def choose(self, instance: int = 0) -> list[Given[int] | None]:
        rows = self.scheduler.choose(instance)
        self.sizes[len(rows)] += 1
        self.ran += [(row.sequence.identifier, row.own) for row in rows if row is not None]
        return rows

    def run(self) -> None:
        """Run until nothing waits."""
        while True:
            idle = True
            for instance in range(self.scheduler.rules.instances):
                if self.scheduler.due_ns(instance) is not None:
                    idle = False
                    for row in self.choose(instance):
                        if row is not None:
                            self.scheduler.done(row)
            if idle:
                return


def test_four_sequences_of_three_requests_fill_three_batches() -> None:
    driven = Driven(DIRECT)
    for identifier in range(1, 5):
        driven.add(identifier, 3)
    driven.run()
    assert driven.sizes == {4: 3}


@pytest.mark.parametrize(("instances", "slots", "sizes"), [(1, 4, {2: 2, 4: 2}), (2, 2, {2: 4, 1: 4}), (4, 1, {1: 12})])
def test_new_sequences_take_the_lowest_slot_of_all_instances(instances: int, slots: int, sizes: dict[int, int]) -> None:
    driven = Driven(replace(DIRECT, instances=instances, slots=slots, batch_rows=slots))
    driven.add(1, 4)
    driven.add(2, 4)
    driven.add(3, 2)
    driven.add(4, 2)
    driven.run()
    assert driven.sizes == sizes


def test_the_fifth_sequence_waits_in_the_backlog_until_a_slot_is_free() -> None:
    driven = Driven(DIRECT)
    for identifier in range(1, 6):
        driven.add(identifier, 3)
    assert driven.scheduler.backlog == 1
    driven.run()
    assert driven.sizes == {4: 3, 1: 3}
    assert len(driven.scheduler) == 0


def test_unlike_shapes_never_share_a_batch_and_null_rows_fill_it() -> None:
    driven = Driven(DIRECT)
    for identifier, shapes in enumerate([2, 2, 1, 3], 1):
        driven.add(identifier, 3, shapes=shapes)
    first = driven.scheduler.choose(0)
    assert [row is not None for row in first] == [True, True, False, False]
    for row in first:
        if row is not None:
            driven.scheduler.done(row)
    driven.sizes[4] += 1
    driven.run()
    assert sum(driven.sizes.values()) == 9


def test_a_row_is_its_slot_and_a_batch_ends_with_the_highest_one_that_has_a_request() -> None:
    driven = Driven(DIRECT)
    for identifier in range(1, 5):
        driven.one(identifier, start=True)
    driven.run()
    driven.one(3, 1)
    rows = driven.choose()
    assert [row.sequence.identifier if row else None for row in rows] == [None, None, 3]


def test_oldest_batches_hold_requests_alone() -> None:
    driven = Driven(OLDEST)
    for identifier in range(1, 5):
        driven.one(identifier, start=True)
    driven.run()
    driven.one(4, 1)
    driven.one(2, 1)
    rows = driven.choose()
    assert [row.sequence.identifier for row in rows if row] == [4, 2]


@pytest.mark.parametrize(("in_order", "batches"), [(False, [[1, 3], [2]]), (True, [[1], [2], [3]])])
def test_oldest_may_be_told_to_keep_the_order_of_requests_of_unlike_shapes(
    in_order: bool, batches: list[list[int]]
) -> None:
    driven = Driven(replace(OLDEST, in_order=in_order))
    for identifier, shapes in ((1, "a"), (2, "b"), (3, "a")):
        driven.one(identifier, start=True, shapes=shapes)
    for expected in batches:
        assert [row.sequence.identifier for row in driven.choose() if row] == expected


def test_one_request_of_a_sequence_is_under_way_at_a_time() -> None:
    driven = Driven(OLDEST)
    driven.add(1, 2, of=3)
    (row,) = driven.choose()
    assert driven.scheduler.due_ns(0) is None
    assert row is not None
    driven.scheduler.done(row)
    assert len(driven.choose()) == 1


def test_a_request_without_start_needs_its_sequence() -> None:
    driven = Driven(DIRECT)
    with pytest.raises(InvalidRequest) as raised:
        driven.one(37469245)
    assert str(raised.value) == (
        "inference request for sequence 37469245 to model 'm' must specify the START flag on the first request of the "
        "sequence"
    )
    driven.add(7, 3)
    with pytest.raises(InvalidRequest, match="sequence 7 to model"):
        driven.one(7, 3)
    driven.run()
    assert len(driven.ran) == 3


def test_a_number_and_a_text_are_two_sequences() -> None:
    driven = Driven(DIRECT)
    driven.one(7, start=True)
    with pytest.raises(InvalidRequest):
        driven.one("7")
    driven.one("7", start=True)
    assert len(driven.choose()) == 2


def test_an_id_is_free_as_soon_as_its_end_has_come() -> None:
    driven = Driven(replace(DIRECT, slots=1, batch_rows=1))
    driven.add(5, 2)
    driven.add(5, 3)
    assert driven.scheduler.backlog == 1
    driven.run()
    assert driven.ran == [(5, 0), (5, 1), (5, 0), (5, 1), (5, 2)]


def test_the_slot_goes_to_the_backlog_when_the_end_is_put_into_a_batch() -> None:
    driven = Driven(replace(DIRECT, slots=1, batch_rows=1))
    driven.add(1, 1)
    driven.add(2, 1)
    driven.choose()
    assert driven.scheduler.backlog == 0
    assert driven.choose()[0] is not None


def test_a_sequence_that_rests_for_too_long_loses_its_slot() -> None:
    driven = Driven(replace(DIRECT, slots=1, batch_rows=1))
    driven.one(1, start=True, at=0)
    driven.one(2, start=True, at=10)
    assert driven.scheduler.give_up_idle(5_000, 9) == []  # it has a request
    (row,) = driven.choose()
    assert row is not None
    assert driven.scheduler.give_up_idle(6_001, 9) == []  # which runs
    driven.scheduler.done(row)
    assert driven.scheduler.give_up_idle(7_001, 9) == []  # 1,000 since it was found to run
    (idle,) = driven.scheduler.give_up_idle(7_002, 9)
    assert (idle.identifier, idle.is_given_up) == (1, True)
    with pytest.raises(InvalidRequest):
        driven.one(1)
    (row,) = driven.choose()
    assert row is not None
    assert row.sequence.identifier == 2


def test_each_request_starts_the_idle_time_again() -> None:
    driven = Driven(DIRECT)
    for at in range(0, 5_000, 900):
        assert driven.scheduler.give_up_idle(at, 9) == []
        driven.one(1, start=at == 0, at=at)
        driven.run()


@pytest.mark.parametrize("rules", [DIRECT, OLDEST])
def test_of_many_idle_sequences_so_many_are_given_up_at_once_and_the_one_that_is_asked_for(
    rules: SequenceRules,
) -> None:
    driven = Driven(replace(rules, slots=100))
    for identifier in range(1, 51):
        driven.one(identifier, start=True, at=identifier)
    driven.run()
    scheduler = driven.scheduler
    assert [one.identifier for one in scheduler.give_up_idle(1_050, 5, 20)] == [1, 2, 3, 4, 5, 20]
    assert [one.identifier for one in scheduler.give_up_idle(1_050, 5, 50)] == [6, 7, 8, 9, 10]  # 50 is not idle yet
    assert [one.identifier for one in scheduler.give_up_idle(1_050, 100)] == [*range(11, 20), *range(21, 50)]
    assert len(scheduler) == 1


def test_a_sequence_in_the_backlog_is_given_up_when_one_of_its_requests_is_due() -> None:
    driven = Driven(replace(DIRECT, slots=1, batch_rows=1))
    driven.one(1, start=True)
    driven.scheduler.add(0, 2, 0, shapes="", start=True, end=False, due_ns=500)
    driven.scheduler.add(1, 2, 0, shapes="", start=False, end=False)
    assert driven.scheduler.expired(499, 9) == []
    (expired,) = driven.scheduler.expired(500, 9)
    assert [request.own for request in driven.scheduler.give_up(expired)] == [0, 1]
    assert not driven.scheduler.knows(2)
    assert driven.scheduler.requests == 1


def test_of_many_that_are_due_so_many_are_found_at_once_and_those_that_have_a_slot_never() -> None:
    driven = Driven(replace(DIRECT, slots=1, batch_rows=1))
    scheduler = driven.scheduler
    for identifier in range(1, 6):
        scheduler.add(0, identifier, 0, shapes="", start=True, end=False, due_ns=600 - identifier)
    assert scheduler.next_expired_ns() == 595
    assert [one.identifier for one in scheduler.expired(1_000, 2)] == [5, 4]
    assert [one.identifier for one in scheduler.expired(1_000, 9)] == [3, 2]  # 1 has the slot
    assert scheduler.next_expired_ns() is None


def test_times_of_requests_that_have_left_the_backlog_are_forgotten() -> None:
    driven = Driven(replace(DIRECT, slots=1, batch_rows=1))
    for identifier in range(2_000):
        driven.scheduler.add(0, identifier + 1, 0, shapes="", start=True, end=True, due_ns=10**12 - identifier)
        if identifier % 2:
            driven.run()
    assert len(driven.scheduler._dues) < 100


def test_a_batch_waits_for_enough_rows_or_until_it_is_due() -> None:
    driven = Driven(replace(DIRECT, delay_ns=300, enough_rows=2))
    driven.one(1, start=True, at=50)
    assert driven.scheduler.due_ns(0) == 350
    driven.one(2, start=True, at=60)
    assert driven.scheduler.due_ns(0) == 50


def test_a_shape_of_which_a_batch_holds_fewer_rows_than_there_are_slots_runs_in_parts() -> None:
    driven = Driven(DIRECT)
    for identifier in range(1, 5):
        driven.one(identifier, start=True)
    assert len(driven.scheduler.choose(0, 3)) == 3
    assert len(driven.scheduler.choose(0, 3)) == 1


def test_a_request_without_an_id_is_a_sequence_that_nobody_else_gets_into() -> None:
    driven = Driven(OLDEST)
    driven.one(1, start=True)
    driven.one(0)
    (first, own) = driven.choose(0)
    assert first is not None
    assert own is not None
    assert (own.sequence.identifier, own.start) == (2, True)
    for start, end in ((True, True), (False, True), (True, False)):
        with pytest.raises(InvalidRequest, match="choose another id"):
            driven.one(2, start=start, end=end)
    driven.scheduler.again(own, 1)
    driven.scheduler.give_up(own.sequence)
    driven.one(2, start=True)


def test_a_request_that_comes_again_is_the_next_one_of_its_sequence_and_begins_nothing() -> None:
    driven = Driven(OLDEST)
    driven.one(1, 0, start=True)
    driven.one(1, 1)
    (row,) = driven.choose(0)
    assert row is not None
    driven.scheduler.again(row, 500)
    (again,) = driven.choose(0)
    assert again is row
    assert not again.start
    with pytest.raises(InvalidRequest, match="must specify the START flag"):
        driven.scheduler.again(row, 1_501)  # it has rested for too long
    driven.scheduler.done(row)
    (following,) = driven.choose(0)
    assert following is not None
    driven.scheduler.give_up(following.sequence)
    with pytest.raises(InvalidRequest, match="must specify the START flag"):
        driven.scheduler.again(following, 600)


@pytest.mark.parametrize("rules", [DIRECT, OLDEST, replace(DIRECT, instances=2, slots=2), replace(OLDEST, slots=9)])
@pytest.mark.parametrize("seed", range(5))
def test_whatever_comes_every_request_runs_once_and_in_its_sequence_order(rules: SequenceRules, seed: int) -> None:
    rng = random.Random(seed)
    driven = Driven(rules)
    #: requests of each sequence, by the number of its first one
    counts: Counter[int] = Counter()
    begun = 0
    of: dict[int, int] = {}
    under_way: list[Given[int]] = []
    for _ in range(600):
        identifier = rng.randrange(1, 12)
        start = not driven.scheduler.knows(identifier)
        if start:
            begun += 1
            of[identifier] = begun * 1_000
        number = of[identifier] + counts[of[identifier]]
        counts[of[identifier]] += 1
        driven.one(identifier, number, start=start, end=rng.random() < 0.2, shapes=rng.randrange(2))
        if rng.random() < 0.5:
            instance = rng.randrange(rules.instances)
            if driven.scheduler.due_ns(instance) is not None:
                under_way += [row for row in driven.choose(instance) if row is not None]
        while under_way and rng.random() < 0.5:
            driven.scheduler.done(under_way.pop(rng.randrange(len(under_way))))
    for row in under_way:
        driven.scheduler.done(row)
    for identifier in [identifier for identifier in of if driven.scheduler.knows(identifier)]:
        driven.one(identifier, of[identifier] + counts[of[identifier]], end=True)  # those without end keep their slots
        counts[of[identifier]] += 1
    driven.run()
    ran: dict[int, list[int]] = {}
    for _, number in driven.ran:
        ran.setdefault(number // 1_000 * 1_000, []).append(number)
    assert ran == {first: list(range(first, first + count)) for first, count in counts.items()}
    assert driven.scheduler.requests == 0
