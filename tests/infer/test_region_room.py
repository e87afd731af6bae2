from __future__ import annotations

import random
from bisect import bisect_left
from collections import Counter

import pytest

from toutates.infer.region_room import RegionRoom
from toutates.system.errors import Overloaded

MOST = 512
MOST_BYTES = 1_000_000


class Room:
    """A room, and the number of regions and of bytes of each owner."""

    def __init__(self, *holders: str) -> None:
        self.holders = frozenset(holders)
        self.regions: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()
        self._room = RegionRoom(MOST, MOST_BYTES, lambda: self.holders)

    def has_room(self, owner: str, size: int = 0) -> bool:
        try:
            self._room.refuse_unless(owner, "r", size)
        except Overloaded:
            return False
        return True

    def take(self, owner: str, size: int = 0) -> bool:
        if not self.has_room(owner, size):
            return False
        self._room.change(owner, 1, size)
        self.regions[owner] += 1
        self.bytes[owner] += size
        assert self.regions.total() <= MOST
        assert self.bytes.total() <= MOST_BYTES
        return True

    def leave(self, owner: str) -> None:
        self._room.change(owner, -self.regions.pop(owner, 0), -self.bytes.pop(owner, 0))

    def fill(self, owner: str) -> int:
        """Take as many regions as there are for an owner."""
        while self.take(owner):
            pass
        return self.regions[owner]

    def fill_bytes(self, owner: str) -> int:
        """Take as many bytes as there are for an owner, as one region."""
        largest = bisect_left(range(1, MOST_BYTES + 1), True, key=lambda size: not self.has_room(owner, size))
        assert self.take(owner, largest)
        return self.bytes[owner]


def keys(number: int) -> list[str]:
    return [f"key {at}" for at in range(number)]


@pytest.mark.parametrize("number", [1, 2, 3, 10, 100, 256, 512])
def test_all_other_keys_together_leave_a_key_its_share(number: int) -> None:
    names = keys(number)
    for last in (names[0], names[-1]):
        for fill, share in ((Room.fill, max(MOST // 2 // number, 1)), (Room.fill_bytes, MOST_BYTES // 2 // number)):
            room = Room(*names)
            for name in names:
                if name != last:
                    assert fill(room, name) >= share
            assert fill(room, last) >= share


def test_a_key_that_is_alone_may_have_everything_and_two_have_three_quarters() -> None:
    room = Room("key 0")
    assert room.fill("key 0") == MOST
    room.leave("key 0")
    assert room.fill_bytes("key 0") == MOST_BYTES
    room = Room(*keys(2))
    assert [room.fill("key 0"), room.fill("key 1")] == [MOST * 3 // 4, MOST // 4]
    room.leave("key 0")
    assert room.fill("key 1") == MOST * 3 // 4


def test_whatever_comes_and_goes_each_key_can_have_its_share() -> None:
    rng = random.Random(9)
    names = keys(5)
    room = Room(*names)
    for _ in range(5_000):
        name = rng.choice(names)
        if rng.random() < 0.02:
            room.leave(name)
        elif room.regions[name] < MOST // 10 and room.bytes[name] + 100 <= MOST_BYTES // 10:
            assert room.take(name, rng.choice((0, 100)))
        else:
            room.take(name, rng.choice((0, 100, 30_000)))


def test_a_subject_leaves_others_of_its_issuer_as_much_as_it_has_and_keys_their_share() -> None:
    room = Room("issuer", "key 0")
    assert [room.fill(f"issuer\x01{at}") for at in range(10)] == [192, 96, 48, 24, 12, 6, 3, 2, 1, 0]
    assert room.fill("key 0") == MOST // 4
    room = Room("issuer", "key 0")
    assert [room.fill_bytes(f"issuer\x01{at}") for at in range(3)] == [375_000, 187_500, 93_750]
    room.leave("issuer\x010")
    assert room.fill_bytes("issuer\x013") == 234_375
    assert room.fill_bytes("key 0") == MOST_BYTES - 515_625


def test_a_key_that_is_new_in_the_file_waits_for_room_alone() -> None:
    room = Room("key 0")
    room.fill("key 0")
    room.holders = frozenset(keys(3))
    assert room.fill("key 1") == 0
    room.leave("key 0")
    for name in ("key 0", "key 1"):
        room.fill(name)
    assert room.fill("key 2") == MOST // 6
    room.holders = frozenset({"key 2"})  # the regions of the others stay
    assert room.fill("key 2") == MOST // 6
    room.leave("key 0")
    room.fill("key 2")
    assert room.regions.total() == MOST
