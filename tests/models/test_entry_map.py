"""The map of a table's models, against a dict."""

from __future__ import annotations

from random import Random

import pytest

from toutates.models.entry_map import PARTS, EntryMap


def test_each_change_makes_another_map_and_leaves_those_before_as_they_were() -> None:
    rng = Random(3)
    known: dict[str, int] = {}
    now: EntryMap[int] = EntryMap()
    before: list[tuple[EntryMap[int], dict[str, int]]] = []
    for step in range(2_000):
        name = f"model_{rng.randrange(300)}"
        if name in known and rng.random() < 0.5:
            del known[name]
            now = now.without(name)
        else:
            known[name] = step
            now = now.having(name, step)
        if step % 100 == 0:
            before.append((now, dict(known)))
    for one, expected in [*before, (now, known), (EntryMap.of(known), known)]:
        assert dict(one.items()) == expected
        assert len(one) == len(expected)
        assert [one.get(f"model_{n}") for n in range(300)] == [expected.get(f"model_{n}") for n in range(300)]
        assert [name for name in map("model_{}".format, range(300)) if name in one] == [
            name for name in map("model_{}".format, range(300)) if name in expected
        ]


def test_a_change_keeps_all_parts_but_one() -> None:
    first = EntryMap.of({f"model_{number}": number for number in range(1_000)})
    second = first.having("another", 7)
    assert sum(one is other for one, other in zip(first._parts, second._parts, strict=True)) == PARTS - 1


def test_a_name_that_is_not_there_cannot_leave() -> None:
    with pytest.raises(KeyError):
        EntryMap.of({"a": 1}).without("b")
