"""Which kinds of requests a worker remembers, and that those who never ask again push out nobody."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from toutates.infer import plan_cache
from toutates.infer.plan_cache import MAX_KEY_BYTES, PlanCache

MAX = 4


@dataclass(eq=False)
class KnownPlan:
    """All that the cache knows of a plan."""

    layouts: dict[int, Any] = field(default_factory=dict)
    version: Any = field(default_factory=lambda: SimpleNamespace(model="m"))
    names: tuple[str, ...] = ()


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_cache, "MAX_PLANS", MAX)
    monkeypatch.setattr(plan_cache, "MAX_LAYOUTS", MAX)


def plan() -> Any:
    return cast(Any, KnownPlan())


def key(number: int) -> bytes:
    return b"%d" % number


def with_recent(count: int) -> PlanCache:
    """A cache in which so many kinds were each seen twice."""
    cache = PlanCache()
    for number in range(count):
        cache.remember(key(number), plan())
        assert cache.recall(key(number)) is not None
    return cache


def test_a_kind_is_recent_once_it_is_seen_again() -> None:
    cache = PlanCache()
    first = plan()
    cache.remember(b"a", first)
    assert not cache.recent
    assert cache.recall(b"b") is None
    assert cache.recall(b"a") is first
    assert cache.recent == {b"a": first}
    assert cache.recall(b"a") is None  # whoever asks looks among the recent ones before


def test_kinds_that_are_never_seen_again_push_out_only_each_other() -> None:
    cache = with_recent(MAX)
    before = dict(cache.recent)
    for number in range(100, 100 + MAX + 1):
        cache.remember(key(number), plan())
    assert cache.recent == before
    assert cache.recall(key(100)) is None
    for number in range(101, 100 + MAX + 1):
        assert cache.recall(key(number)) is not None


def test_a_kind_that_is_asked_for_once_per_generation_is_kept() -> None:
    cache = with_recent(MAX)
    kept = cache.recent[key(0)]
    kept.layouts[7] = cast(Any, object())
    cache.remember_layout(7, *cast(Any, (object(), kept, object())))
    recent = cache.recent
    for generation in range(1, 4):
        for number in range(MAX - 1):  # the first of these begins the generation
            cache.remember(key(100 * generation + number), plan())
            cache.recall(key(100 * generation + number))
            if not number:
                assert not cache.latest
                assert not kept.layouts
                assert cache.recall(key(0)) is kept
                assert len(cache.recent) == 2
        assert cache.recent is recent
        assert cache.recent[key(0)] is kept
    assert cache.recall(key(1)) is None  # nobody has asked for it since


def test_layouts_of_lengths_are_bounded() -> None:
    cache = PlanCache()
    found = cast(Any, (object(), plan(), object()))
    for length in range(MAX):
        cache.remember_layout(length, *found)
    assert cache.latest == dict.fromkeys(range(MAX), found)
    cache.remember_layout(MAX, *found)
    assert cache.latest == {MAX: found}


def test_long_keys_are_not_remembered() -> None:
    cache = PlanCache()
    cache.remember(bytes(MAX_KEY_BYTES), plan())
    cache.remember(bytes(MAX_KEY_BYTES + 1), plan())
    assert cache.recall(bytes(MAX_KEY_BYTES)) is not None
    assert cache.recall(bytes(MAX_KEY_BYTES + 1)) is None


def test_all_is_forgotten_and_the_dicts_stay() -> None:
    cache = with_recent(MAX + 1)
    cache.remember(b"x", plan())
    cache.remember_layout(1, *cast(Any, (object(), plan(), object())))
    recent, latest = cache.recent, cache.latest
    cache.clear()
    assert cache.recent is recent
    assert cache.latest is latest
    assert not recent
    assert not latest
    assert [cache.recall(one) for one in (key(0), key(MAX), b"x")] == [None] * 3


def of(model: str, *names: str) -> Any:
    return cast(Any, KnownPlan(version=SimpleNamespace(model=model), names=names))


def all_keys(cache: PlanCache) -> dict[str, set[bytes]]:
    """What is listed by model, next to what there is to list."""
    listed: dict[str, set[bytes]] = {}
    for part in (cache.recent, cache._earlier, cache._probation):
        for key_of, plan_of in part.items():
            for name in {plan_of.version.model, *plan_of.names}:
                listed.setdefault(name, set()).add(key_of)
    return listed


def test_a_model_is_forgotten_with_all_kinds_of_its_requests_and_no_others() -> None:
    cache = with_recent(MAX + 1)  # of "m", some of them of the generation before
    cache.remember(b"a", of("alpha"))
    cache.remember(b"b", of("beta"))
    cache.remember(b"c", of("beta", "alias", "alpha"))
    assert cache.recall(b"b") is not None
    cache.remember_layout(1, *cast(Any, (object(), of("alpha"), object())))
    cache.remember_layout(2, *cast(Any, (object(), of("beta", "alias", "alpha"), object())))
    cache.remember_layout(3, *cast(Any, (object(), of("beta"), object())))
    cache.forget(frozenset({"alpha", "nobody"}))
    assert list(cache.latest) == [3]
    assert [cache.recall(one) for one in (b"a", b"c")] == [None, None]
    assert b"b" in cache.recent
    assert cache._keys == all_keys(cache)
    cache.forget(frozenset({"m"}))
    assert cache._keys == all_keys(cache) == {"beta": {b"b"}}


def test_what_is_listed_by_model_is_what_there_is() -> None:
    cache, rng = PlanCache(), Random(5)
    for _ in range(3_000):
        number = rng.randrange(30)
        what = rng.random()
        if what < 0.6:
            models = [f"m{number % 5}", *(["alias", f"m{number % 7}"] if number % 3 == 0 else [])]
            cache.remember(key(number), of(*models))
        elif what < 0.95:
            if key(number) not in cache.recent:
                cache.recall(key(number))
        else:
            name = f"m{number % 7}"
            cache.forget(frozenset({name}))
            assert name not in all_keys(cache)
        assert cache._keys == all_keys(cache)
