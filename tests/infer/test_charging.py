"""Requests are held against their callers' rules and quotas, whatever way they take."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from tests.infer.calls import PEER, KnownCall, KnownTransport
from tests.infer.ports import KnownServable, signature_of
from tests.infer.served import KnownWorker, Served
from toutates.access.callers import Caller, Patterns
from toutates.access.quotas import Bucket, Quota
from toutates.infer.charging import ChargingInferService
from toutates.infer.parking import Parking
from toutates.models.table import ModelTable
from toutates.models.traffic.rules import Target, TrafficRules
from toutates.protocol.grpc_service_pb2 import ModelInferRequest
from toutates.system.errors import Forbidden, QuotaExceeded, RequestError


class Loader:
    """Has told nobody yet."""

    def __init__(self) -> None:
        self.done: list[Any] = []

    def is_loading(self, model: str) -> bool:
        return False

    def failure_of(self, model: str) -> RequestError | None:
        return None

    def want(self, model: str, done: Any) -> None:
        self.done.append(done)


class Place:
    """A service whose model comes and goes."""

    def __init__(self, caller: Caller) -> None:
        self.worker, self.transport, self.loader = KnownWorker(), KnownTransport(), Loader()
        self.servable = KnownServable(signature_of("A"), packed=True)
        self.served = Served.table_of(Served.version_of(self.servable))
        self.table = self.empty = ModelTable({}, loadable={"m"})
        self.service = ChargingInferService(
            cast(Any, self.worker),
            self.transport,
            lambda: self.table,
            parking=Parking(cast(Any, self.worker), self.loader),
        )
        gate = SimpleNamespace(caller=None, caller_of_head=lambda head: caller)
        self.service.gate = cast(Any, gate)

    def ask(self) -> KnownCall:
        message = ModelInferRequest(model_name="m")
        message.inputs.add(name="A", datatype="INT32", shape=[1, 4])
        message.raw_input_contents.append(np.zeros(4, np.int32).tobytes())
        data = message.SerializeToString()
        call = KnownCall(data, 0, len(data))
        cast(Any, self.service.handler)(call)
        return call

    def loaded(self) -> None:
        """Somebody says that the model is there."""
        self.loader.done.pop()(None)
        while self.worker.soon:
            self.worker.soon.pop(0)()


@pytest.mark.parametrize("leaves", [0, 1, 3])
def test_request_that_waits_for_its_model_again_is_still_its_callers(leaves: int) -> None:
    bucket = Bucket(Quota(requests_per_second=1, burst_s=1))
    place = Place(Caller("key one", frozenset({"inference"}), bucket=bucket))
    first = place.ask()
    for _ in range(leaves):
        place.loaded()  # and it has left again
    second = place.ask()
    place.table = place.served
    place.loaded()
    assert len(place.servable.ports[-1].added) == 1
    assert first.open
    assert [(call, error) for call, error, _ in place.transport.failed] == [(second, QuotaExceeded)]
    assert place.transport.held_bytes == 0
    assert place.service.gate.caller is None


@pytest.mark.parametrize(("name", "expected"), [("key one", "key one"), ("", PEER)])
def test_a_request_is_its_callers_or_else_its_connections(name: str, expected: str) -> None:
    place = Place(Caller(name, frozenset({"inference"})))
    place.ask()
    place.table = place.served
    place.loaded()
    place.ask()
    assert place.servable.ports[-1].callers == [expected] * 2


def test_request_that_waits_again_is_held_against_the_models_of_its_caller() -> None:
    place = Place(Caller("key one", frozenset({"inference"}), (Patterns(["m"]),)))
    call = place.ask()
    place.loaded()
    # Meanwhile the name has come to stand for a model that is not the caller's.
    place.table = ModelTable({}, loadable={"other"}, traffic=TrafficRules({"m": Target("other")}))
    place.loaded()
    assert [(failed, error) for failed, error, _ in place.transport.failed] == [(call, Forbidden)]
