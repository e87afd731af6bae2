"""A large body that was read beside the worker counts as held while it waits for its model once more."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.infer.calls import KnownCall, KnownTransport
from tests.infer.ports import KnownServable, signature_of
from tests.infer.served import KnownWorker, Served
from toutates.infer.parking import Parking
from toutates.infer.rest.call import Asked, Asks
from toutates.infer.rest.service import RestInferService
from toutates.models.table import ModelTable
from toutates.protocol.rest.request import LARGE_JSON_BYTES, Target
from toutates.system.errors import ModelNotReady, RequestError

BODY = json.dumps(
    {
        "inputs": [{"name": "A", "datatype": "INT32", "shape": [1, 4], "data": [1, 2, 3, 4]}],
        "parameters": {"x": "x" * LARGE_JSON_BYTES},
    }
).encode()


class Call(KnownCall):
    """A request over HTTP that counts what is held for it."""

    def __init__(self) -> None:
        super().__init__()
        self.body: Any = BODY
        self.held_bytes = 0
        self.connection = self.link = None
        asked = Asked(
            handle=lambda call: None,
            target=Target("m", "", len(BODY)),
            key=b"m",
            json_field=None,
            json_size=0,
            asks=Asks.INFER,
            is_coded=False,
        )
        self.head = SimpleNamespace(purpose=asked)

    def hold(self, size: int) -> None:
        self.held_bytes += size


class Transport(KnownTransport):
    def hold(self, call: Any, size: int) -> None:
        call.hold(size)


class Place:
    """A service whose model comes and goes."""

    def __init__(self) -> None:
        self.worker = KnownWorker()
        self.transport = Transport()
        self.wanted: list[Callable[[RequestError | None], None]] = []
        self.read: list[Callable[[], Callable[[], None]]] = []
        loader = SimpleNamespace(
            failure_of=lambda model: None,
            is_loading=lambda model: False,
            want=lambda model, done: self.wanted.append(done),
        )
        self.parking = Parking(cast(Any, self.worker), cast(Any, loader))
        self.servable = KnownServable(signature_of("A"), packed=True)
        self.served = self.table = Served.table_of(Served.version_of(self.servable))
        self.gone = ModelTable({}, loadable={"m"})
        side = SimpleNamespace(put=lambda connection, job: self.read.append(job))
        self.service = RestInferService(
            cast(Any, self.worker), self.transport, lambda: self.table, cast(Any, side), parking=self.parking
        )

    def ask_and_lose_the_model(self) -> Call:
        """A request whose model leaves while its body is read."""
        call = Call()
        cast(Any, self.service.handler)(call)
        assert call.held_bytes == len(BODY)
        self.table = self.gone
        self.read.pop()()()
        return call

    def told(self, error: RequestError | None = None) -> None:
        """Somebody says that the model is there, or why not."""
        self.wanted.pop()(error)
        while self.worker.soon:
            self.worker.soon.pop(0)()


@pytest.mark.parametrize("leaves", [0, 2])
def test_what_waits_is_counted_until_it_goes_on(leaves: int) -> None:
    place = Place()
    call = place.ask_and_lose_the_model()
    for _ in range(leaves):
        place.told()  # and it has left again
    assert place.parking.requests == 1
    assert place.parking._bytes >= call.held_bytes == len(BODY)
    place.table = place.served
    place.told()
    assert place.parking.requests == place.parking._bytes == call.held_bytes == 0
    assert len(place.servable.ports[-1].added) == 1


@pytest.mark.parametrize("is_there", [True, False])
def test_what_waits_in_vain_is_counted_no_longer(is_there: bool) -> None:
    place = Place()
    call = place.ask_and_lose_the_model()
    call.open = is_there
    place.told(ModelNotReady("it is broken"))
    assert call.held_bytes == place.parking._bytes == 0
    assert len(place.transport.failed) == is_there
