"""BYTES elements as large as images, over both protocols: right answers where they are run in place."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.e2e.http import Peer, peer_of, post
from tests.e2e.models import CONFIG, add_model
from tests.e2e.wire import Client, client_of
from tests.server.inside import Inside, serve
from tests.waiting import wait_until
from toutates.engine.submitter import Submitter
from toutates.protocol.grpc_service_pb2 import ModelInferRequest, ModelInferResponse
from toutates.protocol.strings import EncodedStrings
from toutates.system.address import Address

INFER: Final = "/inference.GRPCInferenceService/ModelInfer"
SIZE: Final = 300_000
RULES: Final = """
traffic:
  divided:
    split: [{model: numbers, version: 1, weight: 1}, {model: other, version: 1, weight: 1}]
    shadow: {model: other, version: 1, share: 0.5}
"""

#: Asks for the numbers that elements say: (their bytes, the request's id) -> answer, or the text of the error.
Ask = Callable[[bytes, str], list[float] | str]


def numbers_model() -> bytes:
    """OUTPUT = the numbers that the elements of INPUT say, which ONNX Runtime reads as C does: as far as a 0."""
    node = helper.make_node("Cast", ["INPUT"], ["OUTPUT"], to=TensorProto.DOUBLE)
    tensors = [
        helper.make_tensor_value_info("INPUT", TensorProto.STRING, ["n", 2]),
        helper.make_tensor_value_info("OUTPUT", TensorProto.DOUBLE, ["n", 2]),
    ]
    graph = helper.make_graph([node], "model", tensors[:1], tensors[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    octets: bytes = model.SerializeToString()
    return octets


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    for name in ("numbers", "other"):
        add_model(root, name, numbers_model(), config=CONFIG.format(8, 8))
    (root / "traffic.yaml").write_text(RULES)
    return root


@pytest.fixture
def lent(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each large request, whether it was run where it was received."""
    outcomes: list[bool] = []
    real = Submitter._add_lent_strings

    def noted(*arguments: Any) -> bool:
        outcomes.append(real(*arguments))
        return outcomes[-1]

    monkeypatch.setattr(Submitter, "_add_lent_strings", noted)
    return outcomes


def elements(*values: float, size: int = SIZE) -> bytes:
    """An encoded tensor whose elements say these numbers, the last one of ``size`` bytes."""
    texts = [str(value).encode() for value in values]
    texts[-1] = texts[-1].rjust(size)
    return EncodedStrings.of(texts, (len(texts),)).content


def have_all_runs_quick(inside: Inside, model: str = "numbers") -> None:
    """However slow the machine is."""
    servable: Any = inside.version(model).servable
    servable.supertensor._own_batch_ns = 2**61


def check(ask: Ask, sizes: list[int]) -> None:
    """Ask again and again, for elements of these sizes in turns, with wrong requests in between."""
    for number in range(36):
        values = [number + 0.5, -number]
        size = sizes[number % len(sizes)]
        assert ask(elements(*values, size=size), f"r{number}" if number % 5 == 4 else "") == values
        if number % 12 == 11:
            [error] = [ask(elements(*values, size=size)[:-1], "cut")]
            assert isinstance(error, str)
            assert error.startswith("[request id: cut] incomplete string data for inference input 'INPUT'")
            assert "unexpected number of string elements 3" in str(ask(elements(1, 2, 3, size=size), ""))
            assert "Non-zero status code" in str(ask(elements(1, 2, size=size)[:-3] + b"one", ""))


@pytest.mark.parametrize("sizes", [[SIZE], [SIZE, SIZE + 1, 70_000, SIZE, SIZE]], ids=["alike", "of several sizes"])
def test_answers_over_grpc_are_right_and_elements_stay_where_they_are(
    repository: Path, lent: list[bool], sizes: list[int]
) -> None:
    def visit(inside: Inside) -> None:
        have_all_runs_quick(inside)
        with client_of(inside.port) as client:
            check(lambda content, identifier: ask_grpc(client, "numbers", content, identifier), sizes)
        wait_until(lambda: not any(worker.message_memory.lent for worker in inside.workers))

    assert serve(repository, visit, processing_cores=1) == 0
    # The first one is copied, because nobody knows how long it takes, and any for which no executor is idle yet.
    assert sum(lent) > 10


def test_requests_that_are_divided_and_copied_are_right(repository: Path, lent: list[bool]) -> None:
    def visit(inside: Inside) -> None:
        for model in ("numbers", "other"):
            have_all_runs_quick(inside, model)
        with client_of(inside.port) as client:
            check(lambda content, identifier: ask_grpc(client, "divided", content, identifier), [SIZE])
            inside.wait_quiet()
        wait_until(lambda: not any(worker.message_memory.lent for worker in inside.workers))

    assert serve(repository, visit, processing_cores=1) == 0
    assert not lent


@pytest.mark.parametrize("sizes", [[SIZE], [SIZE, SIZE + 1, 70_000, SIZE, SIZE]], ids=["alike", "of several sizes"])
def test_answers_over_rest_are_right_and_elements_stay_where_they_are(
    repository: Path, lent: list[bool], sizes: list[int]
) -> None:
    def visit(inside: Inside) -> None:
        assert inside.server.rest_address is not None
        have_all_runs_quick(inside)
        with peer_of(inside.server.rest_address[1]) as peer:
            check(lambda content, identifier: ask_rest(peer, content, identifier), sizes)
        wait_until(lambda: not any(worker.message_memory.lent for worker in inside.workers))

    assert serve(repository, visit, http_addr=Address("127.0.0.1", 0), processing_cores=1) == 0
    assert sum(lent) > 10


def ask_grpc(client: Client, model: str, content: bytes, identifier: str) -> list[float] | str:
    message = ModelInferRequest(model_name=model, id=identifier)
    message.inputs.add(name="INPUT", datatype="BYTES", shape=[1, 2])
    message.raw_input_contents.append(content)
    answer = client.call(INFER, message.SerializeToString())
    if answer.status[0] != "0":
        return answer.status[1]
    response = ModelInferResponse.FromString(answer.data[5:])
    assert response.id == identifier
    return list(np.frombuffer(response.raw_output_contents[0], np.float64).tolist())


def asked_rest(content: bytes, identifier: str = "") -> bytes:
    parameters = {"binary_data_size": len(content)}
    tensor = {"name": "INPUT", "shape": [1, 2], "datatype": "BYTES", "parameters": parameters}
    text = json.dumps({**({"id": identifier} if identifier else {}), "inputs": [tensor]}).encode()
    return post("/v2/models/numbers/infer", text + content, f"Inference-Header-Content-Length: {len(text)}")


def ask_rest(peer: Peer, content: bytes, identifier: str) -> list[float] | str:
    answer = peer.ask(asked_rest(content, identifier))
    if answer.status != 200:
        return str(answer.document["error"])
    return list(answer.document["outputs"][0]["data"])


def test_resets_in_the_middle_of_elements_that_were_foreseen_leave_nothing(repository: Path) -> None:
    octets = asked_rest(elements(1.5, 2.5))

    def visit(inside: Inside) -> None:
        assert inside.server.rest_address is not None
        have_all_runs_quick(inside)
        port = inside.server.rest_address[1]
        for at in (300, 5_000, 200_000, len(octets) - 1):
            with peer_of(port) as peer, peer_of(port) as neighbour:
                for _ in range(4):
                    assert ask_rest(peer, elements(1.5, 2.5), "") == [1.5, 2.5]
                peer.sock.sendall(octets[:at])
                peer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                peer.sock.close()
                assert ask_rest(neighbour, elements(3.5, 4.5), "") == [3.5, 4.5]
        wait_until(lambda: not any(worker.message_memory.lent for worker in inside.workers))

    assert serve(repository, visit, http_addr=Address("127.0.0.1", 0), processing_cores=1) == 0
