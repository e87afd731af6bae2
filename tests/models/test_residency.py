"""Which models leave memory, and in which order."""

from __future__ import annotations

from collections.abc import Iterable

from toutates.models.residency import MOST_LOOKS, Residency, Resident


class Models:
    """Models of one byte each, and a clock that stands still until it is told."""

    def __init__(self, budget: int, min_stay_s: float = 0.0) -> None:
        self.now_s = 100.0
        self.used_s: dict[str, float] = {}
        self.busy: set[str] = set()
        self.residency = Residency(budget, min_stay_s, lambda: self.now_s)

    def load(self, name: str, needs: Iterable[str] = (), *, size: int = 1, pinned: bool = False) -> None:
        self.now_s += 1
        self.residency.add(
            Resident(
                name,
                size,
                self.now_s,
                lambda: self.used_s.get(name, 0.0),
                lambda: name in self.busy,
                pinned,
                frozenset(needs),
            )
        )

    def use(self, name: str) -> None:
        self.now_s += 1
        self.used_s[name] = self.now_s

    def leave(self, size: int) -> list[str]:
        names = self.residency.choose(size)
        for name in names:
            self.residency.drop(name)
        return names


def test_the_least_recently_used_leave_first() -> None:
    models = Models(4)
    for name in "abcd":
        models.load(name)
    for name in "bad":
        models.use(name)
    assert models.residency.lacking(2) == 2
    assert models.leave(2) == ["c", "b"]
    models.use("a")
    assert models.leave(1) == ["d"]
    assert models.residency.used == 1


def test_as_many_leave_as_make_room() -> None:
    models = Models(10)
    models.load("large", size=5)
    models.load("small")
    models.load("last")
    assert models.leave(2) == ["large"]
    assert models.leave(7) == ["small", "last"]
    assert models.leave(1) == []


def test_those_that_are_busy_pinned_or_new_stay() -> None:
    models = Models(4, min_stay_s=10)
    models.load("pinned", pinned=True)
    models.load("busy")
    models.load("old")
    models.now_s += 10
    models.load("new")
    models.busy.add("busy")
    assert models.leave(4) == ["old"]
    models.busy.clear()
    models.now_s += 10
    assert models.leave(4) == ["busy", "new"]
    assert not models.residency.may_become_free()


def test_members_leave_after_what_is_made_of_them() -> None:
    models = Models(3)
    models.load("member")
    models.load("one", ["member"])
    models.load("two", ["member"])
    assert models.leave(3) == ["one", "two"]
    assert models.leave(3) == ["member"]


def test_a_model_that_comes_again_is_known_by_its_last_load() -> None:
    models = Models(3)
    models.load("a")
    models.load("b")
    models.residency.drop("a")
    models.load("a", size=2)
    assert models.residency.used == 3
    assert models.leave(1) == ["b"]


def test_busy_models_are_looked_at_in_vain_only_so_often() -> None:
    models = Models(10_000)
    looks = 0

    def look() -> bool:
        nonlocal looks
        looks += 1
        return True

    for number in range(1_000):
        name = f"m{number}"
        models.load(name)
        resident = models.residency.get(name)
        assert resident is not None
        resident.is_busy = look
    assert models.leave(1) == []
    assert looks == MOST_LOOKS


def test_nothing_is_remembered_of_models_that_have_left() -> None:
    models = Models(100)
    models.load("stays")
    for number in range(5_000):
        models.load(f"m{number}")
        models.residency.drop(f"m{number}")
    assert len(models.residency._heap) <= MOST_LOOKS + 4
    assert models.leave(1) == ["stays"]


def test_without_a_bound_nothing_is_remembered_of_uses() -> None:
    residency = Residency(None, 0.0, lambda: 0.0)
    residency.add(Resident("a", 1, 0.0, lambda: 0.0, lambda: False))
    assert residency.lacking(10**15) == 0
    assert residency.choose(1) == []


def test_how_long_a_new_model_stays_does_not_depend_on_the_time_of_day() -> None:
    now_s = 0.0
    residency = Residency(1, 10.0, lambda: now_s)
    set_back_later = 2_000_000_000.0
    residency.add(Resident("a", 1, set_back_later, lambda: 0.0, lambda: False))
    assert residency.choose(1) == []
    now_s = 9.0
    residency.add(Resident("a", 1, set_back_later, lambda: 0.0, lambda: False))  # it changed, and has not left
    assert residency.choose(1) == []
    now_s = 10.0
    assert residency.choose(1) == ["a"]
