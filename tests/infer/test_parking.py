"""Requests that wait for models: who is told, when, and how much may wait."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from toutates.infer.parking import MOST_BYTES, MOST_REQUESTS, Parking
from toutates.system.errors import ModelNotReady, Overloaded, RequestError

Done = Callable[[RequestError | None], None]


class KnownLoader:
    """Notes what is wanted."""

    def __init__(self) -> None:
        self.wanted: list[tuple[str, Done]] = []
        self.failures: dict[str, RequestError] = {}

    def is_loading(self, model: str) -> bool:
        return False

    def failure_of(self, model: str) -> RequestError | None:
        return self.failures.get(model)

    def want(self, model: str, done: Done) -> None:
        self.wanted.append((model, done))


class KnownWorker:
    """Runs callbacks when it is told to."""

    def __init__(self) -> None:
        self.callbacks: list[Callable[[], object]] = []

    def call_soon(self, callback: Callable[[], object]) -> None:
        self.callbacks.append(callback)

    def run(self) -> None:
        while self.callbacks:
            self.callbacks.pop(0)()


class Waiting:
    """A request that notes what becomes of it."""

    def __init__(self, said: list[str], name: str, again: Callable[[], object] = lambda: None) -> None:
        self.said = said
        self.name = name
        self.again = again
        self.is_open = True

    def go_on(self) -> None:
        self.said.append(f"{self.name} goes on")
        self.again()

    def fail(self, error: RequestError) -> None:
        self.said.append(f"{self.name} fails: {error}")

    def leave(self) -> None:
        self.said.append(f"{self.name} leaves")


class Place:
    def __init__(self) -> None:
        self.loader = KnownLoader()
        self.worker = KnownWorker()
        self.said: list[str] = []
        self.parking = Parking(cast(Any, self.worker), self.loader)

    def park(self, model: str, name: str, again: Callable[[], object] = lambda: None, size: int = 10) -> Waiting:
        self.parking.check(model, size)
        waiting = Waiting(self.said, name, again)
        self.parking.park(model, waiting, size)
        return waiting


def test_a_model_is_wanted_once_and_all_who_wait_go_on_in_their_order() -> None:
    place = Place()
    for name in ("first", "second", "third"):
        place.park("m", name)
    [(model, done)] = place.loader.wanted
    assert model == "m"
    assert place.parking.has("m")
    assert place.said == []
    done(None)
    place.worker.run()
    assert place.said == ["first goes on", "second goes on", "third goes on"]
    assert place.parking.requests == 0
    assert not place.parking.has("m")
    assert place.parking.waited == 3


def test_those_whose_callers_have_left_are_passed_over() -> None:
    place = Place()
    place.park("m", "first").is_open = False
    place.park("m", "second")
    place.loader.wanted[0][1](None)
    place.worker.run()
    assert place.said == ["first leaves", "second goes on"]


def test_an_error_is_told_to_all() -> None:
    place = Place()
    place.park("m", "first")
    place.park("m", "second")
    place.loader.wanted[0][1](ModelNotReady("no"))
    place.worker.run()
    assert place.said == ["first fails: no", "second fails: no"]


def test_what_goes_wrong_with_one_costs_the_others_nothing(caplog: pytest.LogCaptureFixture) -> None:
    place = Place()

    def fail() -> None:
        raise ZeroDivisionError

    place.park("m", "first", fail)
    place.park("m", "second")
    place.loader.wanted[0][1](None)
    place.worker.run()
    assert place.said == ["first goes on", "second goes on"]
    assert "a request that waited for its model failed" in caplog.text


def test_a_model_that_has_left_again_is_wanted_again() -> None:
    place = Place()
    place.park("m", "first", lambda: place.park("m", "first again"))
    place.loader.wanted[0][1](None)
    place.worker.run()
    assert [model for model, _ in place.loader.wanted] == ["m", "m"]
    place.loader.wanted[1][1](None)
    place.worker.run()
    assert place.said == ["first goes on", "first again goes on"]
    assert place.parking.requests == 0


def test_a_known_failure_is_told_at_once_and_nothing_waits() -> None:
    place = Place()
    place.loader.failures["m"] = ModelNotReady("broken")
    with pytest.raises(ModelNotReady, match="broken"):
        place.park("m", "first")
    assert place.loader.wanted == []
    assert place.parking.requests == 0


def test_requests_and_bytes_that_wait_are_bounded() -> None:
    place = Place()
    place.park("large", "one", size=MOST_BYTES * 2)  # which its connection's own bound is for
    with pytest.raises(Overloaded, match="wait for models to be loaded"):
        place.park("other", "two", size=1)
    place = Place()
    for number in range(MOST_REQUESTS):
        place.park(f"m{number}", "", size=0)
    with pytest.raises(Overloaded, match=f"{MOST_REQUESTS} requests"):
        place.park("one more", "", size=0)
    for _, done in place.loader.wanted:
        done(None)
    place.worker.run()
    place.park("one more", "", size=0)
    assert place.parking.requests == 1
