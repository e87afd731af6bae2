"""RPCs about a model that is not loaded yet: they are handled once more, and count as held until then."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from tests.infer.served import KnownWorker
from toutates.api.grpc.on_demand import waiting_for_model
from toutates.h2grpc import Status
from toutates.infer.parking import Parking
from toutates.system.errors import ModelNotReady, NotLoaded, RequestError

MESSAGE = b"\n\x01m"


class Call:
    """An RPC of one message, and what its connection counts for it."""

    def __init__(self) -> None:
        self.message = MESSAGE
        self.buffer = b""
        self.start = self.end = 0
        self.open = True
        self.held_bytes = 0
        self.failed: list[Status] = []
        self.link = SimpleNamespace(connection=SimpleNamespace(hold=self._hold))

    def _hold(self, call: Call, size: int) -> None:
        assert call is self
        self.held_bytes = size

    def fail(self, status: Status, text: str) -> None:
        assert not self.held_bytes
        self.failed.append(status)


class Place:
    def __init__(self) -> None:
        self.worker = KnownWorker()
        self.wanted: list[Callable[[RequestError | None], None]] = []
        loader = SimpleNamespace(
            failure_of=lambda model: None,
            is_loading=lambda model: False,
            want=lambda model, done: self.wanted.append(done),
        )
        self.parking = Parking(cast(Any, self.worker), cast(Any, loader))
        self.is_loaded = False
        self.handled: list[bytes] = []
        self.handle = waiting_for_model(self._answer, self.parking, cast(Any, self.worker))

    def _answer(self, call: Any) -> None:
        if not self.is_loaded:
            raise NotLoaded("m")
        assert not call.held_bytes, "an answer ends what is held"
        self.handled.append(call.buffer[call.start : call.end])

    def told(self, error: RequestError | None = None) -> None:
        self.wanted.pop()(error)
        while self.worker.soon:
            self.worker.soon.pop(0)()


def test_an_rpc_is_held_until_its_model_is_there() -> None:
    place, call = Place(), Call()
    place.handle(cast(Any, call))
    assert call.held_bytes == len(MESSAGE)
    place.told()  # and it has left again
    assert call.held_bytes == len(MESSAGE)
    place.is_loaded = True
    place.told()
    assert place.handled == [MESSAGE]
    assert call.held_bytes == place.parking.requests == 0


def test_an_rpc_whose_model_cannot_be_loaded_is_refused_and_held_no_longer() -> None:
    place, call = Place(), Call()
    place.handle(cast(Any, call))
    place.told(ModelNotReady("it is broken"))
    assert call.failed == [Status.UNAVAILABLE]
    assert call.held_bytes == place.parking.requests == 0


def test_an_rpc_of_a_connection_that_has_ended_is_passed_over() -> None:
    place, call = Place(), Call()
    place.handle(cast(Any, call))
    call.open, call.link = False, None  # type: ignore[assignment]
    place.is_loaded = True
    place.told()
    assert not place.handled
    assert not call.failed
