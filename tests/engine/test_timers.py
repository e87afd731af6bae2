"""The times of many: the first one first, and no more entries than there are times."""

from __future__ import annotations

import random

from toutates.engine.timers import NEVER_NS, Timers


class Owner:
    """Has a time."""

    def __init__(self) -> None:
        self.at_ns = 0


def test_those_that_are_due_come_in_order_and_once() -> None:
    timers: Timers[Owner] = Timers()
    owners = [Owner() for _ in range(5)]
    for owner, at_ns in zip(owners, (30, 10, 20, 40, 15), strict=True):
        timers.set(owner, at_ns)
    timers.set(owners[0], 5)
    timers.cancel(owners[2])
    assert timers.next_ns == 5
    assert timers.take_due(4, 9) == []
    assert timers.take_due(15, 2) == [owners[0], owners[1]]
    assert timers.take_due(39, 9) == [owners[4]]
    assert timers.next_ns == 40
    timers.cancel(owners[3])
    timers.cancel(owners[3])
    assert timers.next_ns == NEVER_NS
    assert [owner.at_ns for owner in owners] == [0] * 5


def test_times_that_change_again_and_again_take_no_memory() -> None:
    timers: Timers[Owner] = Timers()
    owners, chance = [Owner() for _ in range(10)], random.Random(1)
    for _ in range(10_000):
        timers.set(chance.choice(owners), chance.randrange(1, 10**9))
    assert len(timers._entries) <= 2 * len(owners) + 64
    due = timers.take_due(10**9, 100)
    assert sorted(map(id, due)) == sorted(map(id, owners))
