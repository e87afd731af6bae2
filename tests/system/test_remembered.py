"""Values that are remembered by key, as many as there is room for."""

from __future__ import annotations

from toutates.system.remembered import Remembered


def test_the_oldest_goes_when_there_is_no_room() -> None:
    known = Remembered[str, int](2)
    known.put("a", 1)
    known.put("b", 2)
    known.put("c", 3)
    assert (known.get("a"), known.get("b"), known.get("c"), len(known)) == (None, 2, 3, 2)


def test_a_value_that_is_replaced_takes_no_others_room() -> None:
    known = Remembered[str, int](2)
    known.put("a", 1)
    known.put("b", 2)
    known.put("a", 3)
    assert (known.get("a"), known.get("b")) == (3, 2)
