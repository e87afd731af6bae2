"""Faults of the server's own: what clients see of them, what the operator does, and that nothing is left of them."""

from __future__ import annotations

import json
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.http import get, peer_of
from tests.e2e.wire import PLAIN, client_of, framed
from tests.kinds import MadeKind
from tests.server.adding import SIGNATURE, Adding
from tests.server.asking import INFER, SERVICE, added, versions
from tests.server.inside import Inside, serve
from tests.waiting import wait_until
from toutates.access.gate import Gate
from toutates.engine.batched import BatchedServable
from toutates.engine.servable import Consumer, Port
from toutates.engine.supertensor import SuperTensor
from toutates.h2grpc.responder import Responder
from toutates.protocol.grpc_service_pb2 import ModelReadyRequest
from toutates.system.address import Address

# --- requests that cannot be judged


def test_a_request_that_cannot_be_judged_fails_alone_on_its_connection(
    few: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rules = {
        "keys": [
            {
                "name": "one",
                "sha256": sha256(b"good").hexdigest(),
                "groups": ["inference", "metadata", "model-config", "metrics"],
            }
        ]
    }
    (tmp_path / "access.yaml").write_text(json.dumps(rules))  # JSON is YAML
    find = Gate.caller_of

    def fail_or_find(self: Gate, field: bytes | None) -> Any:
        if field == b"Bearer bug":
            raise OverflowError("a bug")
        return find(self, field)

    monkeypatch.setattr(Gate, "caller_of", fail_or_find)
    bug, good = ("authorization", "Bearer bug"), ("authorization", "Bearer good")
    metadata = ModelReadyRequest(name="versions").SerializeToString()

    def visit(inside: Inside) -> None:
        with client_of(inside.port) as client:
            for path, message in ((INFER, versions(7)), (SERVICE + "ModelMetadata", metadata)):
                for _ in range(2):
                    assert client.call(path, message, [bug]).status == ("13", "internal error")
                    assert client.call(path, message, [good]).status[0] == "0"
            for path in ("/v2/models/versions", "/v2/models/versions/config"):
                for caller, status in ((bug, "500"), (good, "200"), (bug, "500"), (good, "200")):
                    get_it = [*PLAIN, (":method", "GET"), caller]
                    assert client.answer(client.start(path, get_it, end=True)).headers[":status"] == status
            assert client.terminated is None
        assert inside.server.http_address is not None
        for port in (inside.port, inside.server.http_address[1]):
            with peer_of(port) as peer:
                for caller, code in ((bug, 500), (good, 200), (bug, 500), (good, 200)):
                    path = "/metrics" if port != inside.port else "/v2/models/versions"
                    assert peer.ask(get(path, ": ".join(caller))).status == code

    metrics_addr = Address("127.0.0.1", 0)
    assert serve(few, visit, access_file=tmp_path / "access.yaml", metrics_addr=metrics_addr) == 0
    assert "OverflowError: a bug" in caplog.text


# --- errors of our own on the way of a request


class Wrong(Adding):
    """A backend that tells a shape of its rows that none can have, where a row is -1."""

    def run(self, batch: Any, first: int, rows: int) -> Any:
        outputs = super().run(batch, first, rows)
        [x] = batch.lane.inputs(batch, first, rows).values()
        nonsense: Any = (None,)
        return replace(outputs, row_shapes=nonsense) if (x == -1).any() else outputs


def wrong(model: str, number: int, folder: Path) -> BatchedServable:
    return BatchedServable(number, SuperTensor(model, SIGNATURE, batch_size=8, capacity=16), [Wrong(number)])


def test_an_error_while_a_batch_is_answered_fails_its_requests_and_no_others(
    few: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def visit(inside: Inside) -> None:
        with client_of(inside.port) as client, client_of(inside.port) as other:
            streams = [client.start(INFER) for _ in range(4)]
            for stream in streams:
                client.send(stream, framed(versions(-1)))
            assert [client.answer(stream).status for stream in streams] == [("13", "internal error")] * 4
            assert added(client.call(INFER, versions(2))) == 12
            assert added(other.call(INFER, versions(3))) == 13
            inside.wait_quiet()
            counters = inside.version("versions").servable.counters.requests()
            assert (counters.success, counters.fail, counters.cancel) == (2, 4, 0)

    assert serve(few, visit, kinds=[MadeKind("model.onnx", wrong, "wrong")]) == 0
    assert "answering a call failed" in caplog.text


@pytest.mark.parametrize("broken", [("reply",), ("reply", "fail")])
def test_a_connection_that_cannot_be_answered_costs_those_who_share_its_batch_nothing(
    few: Path, broken: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def visit(inside: Inside) -> None:
        with client_of(inside.port) as victim, client_of(inside.port) as other:
            assert added(victim.call(INFER, versions(1))) == 11
            seen: list[Responder] = []
            with monkeypatch.context() as patch:
                for name in broken:
                    original = getattr(Responder, name)

                    def answer(self: Responder, call: Any, *arguments: Any, original: Any = original) -> None:
                        seen.append(self)
                        if self is seen[0]:
                            raise RuntimeError("a bug")
                        original(self, call, *arguments)

                    patch.setattr(Responder, name, answer)
                stream = victim.start(INFER)
                victim.send(stream, framed(versions(1)))
                shared = [other.start(INFER) for _ in range(3)]
                wait_until(lambda: bool(seen))
                for one in shared:
                    other.send(one, framed(versions(2)))
                answer_of_victim = victim.answer(stream)
                if broken == ("reply",):
                    assert answer_of_victim.status == ("13", "internal error")
                else:
                    assert not answer_of_victim.ended
                assert [added(other.answer(one)) for one in shared] == [12, 12, 12]

    assert serve(few, visit) == 0


class Full(BatchedServable):
    """A version that has no memory for a request of -1."""

    def port(self, consumer: Consumer) -> Port:
        port: Any = FullPort(super().port(consumer))
        return port  # type: ignore[no-any-return]  # it is one but for this


class FullPort:
    def __init__(self, port: Port) -> None:
        self._port = port

    def __getattr__(self, name: str) -> Any:
        return getattr(self._port, name)

    def add_packed(self, way: Any, rows: int, context: Any, content: Any, *more: Any) -> Any:
        if bytes(content).endswith(b"\xff" * 16):
            raise MemoryError
        return self._port.add_packed(way, rows, context, content, *more)


def full(model: str, number: int, folder: Path) -> Full:
    return Full(number, SuperTensor(model, SIGNATURE, batch_size=8, capacity=16), [Adding(number)])


def test_a_request_for_which_there_is_no_memory_is_turned_away_without_a_word_in_the_log(
    few: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def visit(inside: Inside) -> None:
        with client_of(inside.port) as client:
            assert client.call(INFER, versions(-1)).status == ("8", "the server is out of memory")
            assert added(client.call(INFER, versions(2))) == 12
            inside.wait_quiet()

    assert serve(few, visit, kinds=[MadeKind("model.onnx", full, "full")]) == 0
    assert "Traceback" not in caplog.text
