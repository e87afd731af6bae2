"""Binary tensors of megabytes over REST: right answers however the body lies in memory, and wrong ones refused."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterator
from ctypes import addressof, c_char
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper

from tests.e2e.free_threading import assert_ran_without_gil
from tests.e2e.http import Answer, Peer, peer_of, post
from tests.e2e.models import CONFIG, add_model, greatest_model
from tests.e2e.process import ServerProcess, running
from tests.server.inside import Inside, serve
from tests.waiting import wait_until
from toutates.engine.submitter import ALIGNMENT, Submitter
from toutates.h2grpc.message_memory import MessageMemory
from toutates.system.address import Address

Rows = npt.NDArray[np.int32]

#: Bytes of a body that are sent first: less than one read brings, so that the rest is received into its memory.
FIRST: Final = 5_000
ROW: Final = 40_000
LARGE_JSON: Final = 70_000


def differences_model() -> bytes:
    """OUTPUT = the greatest number of A - B, for rows of any length."""
    nodes = [
        helper.make_node("Sub", ["A", "B"], ["difference"]),
        helper.make_node("ReduceMax", ["difference"], ["OUTPUT"], axes=[1]),
    ]
    rows = [helper.make_tensor_value_info(name, TensorProto.INT32, ["n", None]) for name in "AB"]
    output = helper.make_tensor_value_info("OUTPUT", TensorProto.INT32, ["n", 1])
    graph = helper.make_graph(nodes, "model", rows, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    octets: bytes = model.SerializeToString()
    return octets


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    for name in ("greatest", "late"):
        add_model(root, name, greatest_model(), config=CONFIG.format(8, 8))
    add_model(root, "differences", differences_model(), config=CONFIG.format(8, 8))
    return root


@pytest.fixture(scope="module")
def process(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    flags = ["--model-control-mode", "on-demand", "--http-addr", "127.0.0.1:0", "--processing-cores", "1"]
    with running(repository, tmp_path_factory.mktemp("server"), flags) as process:
        yield process
        assert process.stop() == 0
        assert "Traceback" not in process.log
        assert_ran_without_gil(process)


def values_of(seed: int, size: int = ROW) -> Rows:
    return np.random.default_rng(seed).integers(0, 2**29, size, np.int32)


def asked(model: str, *tensors: dict[str, Any], data: bytes, length: int | None = None, **members: Any) -> bytes:
    """A request whose tensors are what ``data`` holds, behind the JSON."""
    text = json.dumps({**members, "inputs": tensors}).encode()
    return post(
        f"/v2/models/{model}/infer",
        text + data,
        f"Inference-Header-Content-Length: {len(text) if length is None else length}",
    )


def tensor(name: str, values: Rows, **more: Any) -> dict[str, Any]:
    parameters = {"binary_data_size": values.nbytes}
    return {"name": name, "shape": [1, len(values)], "datatype": "INT32", "parameters": parameters, **more}


def in_json(name: str, values: Rows) -> dict[str, Any]:
    return {"name": name, "shape": [1, len(values)], "datatype": "INT32", "data": values.tolist()}


def greatest(values: Rows, model: str = "greatest", **members: Any) -> bytes:
    return asked(model, tensor("INPUT", values), data=values.tobytes(), **members)


def ask(peer: Peer, octets: bytes) -> Answer:
    """The answer to a request that comes in two pieces."""
    at = octets.index(b"\r\n\r\n") + FIRST
    peer.sock.sendall(octets[:at])
    peer.sock.sendall(octets[at:])
    return peer.read()


def output(answer: Answer) -> int:
    assert answer.status == 200, answer.body
    [value] = answer.document["outputs"][0]["data"]
    assert isinstance(value, int)
    return value


def test_answers_are_right_wherever_in_its_memory_a_body_begins(process: ServerProcess) -> None:
    with peer_of(process.rest_port) as peer:
        for number in range(70):  # more than there are places relative to a line of the cache
            values = values_of(number)
            octets = greatest(values, parameters={"x": "x" * number})
            for _ in range(2 if number % 8 else 4):  # as another one, as one of its form, as foreseen
                assert output(ask(peer, octets)) == values.max()


def test_ids_and_sequences_are_read_where_they_lie(process: ServerProcess) -> None:
    with peer_of(process.rest_port) as peer:
        for number in range(20):
            values = values_of(number)
            answer = ask(peer, greatest(values, id=f"request {number}"))
            assert output(answer) == values.max()
            assert answer.document["id"] == f"request {number}"
            spoken = {"sequence_id": number + 1, "sequence_start": True}
            assert output(ask(peer, greatest(values, id=f"of {number}", parameters=spoken))) == values.max()


def test_several_tensors_in_any_order_and_beside_arrays(process: ServerProcess) -> None:
    with peer_of(process.rest_port) as peer:
        for number in range(6):
            a, b = values_of(number, ROW + number), values_of(number + 100, ROW + number)
            right = (a - b).max()
            both = a.tobytes() + b.tobytes()
            for _ in range(3):
                assert output(ask(peer, asked("differences", tensor("A", a), tensor("B", b), data=both))) == right
            swapped = asked("differences", tensor("B", b), tensor("A", a), data=b.tobytes() + a.tobytes())
            for _ in range(3):
                assert output(ask(peer, swapped)) == right
        few = np.arange(5, dtype=np.int32)
        for number in range(3):
            many = values_of(number)
            beside = asked("differences", in_json("A", few), tensor("B", few), data=few.tobytes() + many.tobytes())
            refused = ask(peer, beside)
            assert (refused.status, "unexpected additional input data" in refused.document["error"]) == (400, True)
        a, b = values_of(7, 9_000), values_of(8, 9_000)
        for _ in range(3):  # of its JSON alone there is more than a worker reads itself
            assert output(ask(peer, asked("differences", in_json("A", a), tensor("B", b), data=b.tobytes()))) == (
                (a - b).max()
            )
        a, b = values_of(7, 17_000), values_of(8, 17_000)
        padded = {"x": "x" * LARGE_JSON}
        both = a.tobytes() + b.tobytes()
        for _ in range(3):
            long = asked("differences", tensor("A", a), tensor("B", b), data=both, parameters=padded)
            assert output(ask(peer, long)) == (a - b).max()


def test_an_array_in_a_body_that_is_just_large_enough_for_memory_of_its_own(process: ServerProcess) -> None:
    values = values_of(1, 6_000)
    text = json.dumps({"inputs": [in_json("INPUT", values)]})
    padded = text[:-1] + " " * (65_536 - len(text)) + "}"
    octets = post("/v2/models/greatest/infer", padded, "Inference-Header-Content-Length: 65536")
    with peer_of(process.rest_port) as peer:
        for _ in range(4):
            assert output(ask(peer, octets)) == values.max()


def test_a_body_without_json_is_the_tensor(process: ServerProcess) -> None:
    with peer_of(process.rest_port) as peer:
        for number in range(4):
            values = values_of(number)
            octets = post("/v2/models/greatest/infer", values.tobytes(), "Inference-Header-Content-Length: 0")
            answer = ask(peer, octets)
            assert answer.status == 200
            assert answer.body[int(answer.fields["inference-header-content-length"]) :] == values.max().tobytes()


def test_a_body_that_waits_for_its_model_is_kept_as_it_came(process: ServerProcess) -> None:
    values = values_of(1, 2 * ROW)
    with peer_of(process.rest_port) as peer:
        assert output(ask(peer, greatest(values))) == values.max()  # which leaves larger memory than the next one needs
        values = values_of(2)
        assert output(ask(peer, greatest(values, "late"))) == values.max()


@pytest.mark.parametrize("length", ["-1", "160500", "4294967296", "x", "1e3", "99999999999999999999"])
def test_wrong_lengths_of_the_json_are_refused_and_the_connection_goes_on(process: ServerProcess, length: str) -> None:
    values = values_of(3)
    right = greatest(values)
    head, _, body = right.partition(b"\r\n\r\n")
    at = head.index(b"Inference-Header-Content-Length")
    wrong = head[:at] + b"Inference-Header-Content-Length: " + length.encode() + b"\r\n\r\n" + body
    with peer_of(process.rest_port) as peer:
        for _ in range(3):
            answer = ask(peer, wrong)
            assert answer.status == 400
            assert "nference" in answer.document["error"]
            assert output(ask(peer, right)) == values.max()


@pytest.mark.parametrize("by", [-1, 1, 64, 1_000])
def test_a_length_that_cuts_the_json_elsewhere_is_refused(process: ServerProcess, by: int) -> None:
    values = values_of(4)
    text_bytes = len(greatest(values).partition(b"\r\n\r\n")[2]) - values.nbytes
    with peer_of(process.rest_port) as peer:
        for _ in range(3):
            wrong = asked("greatest", tensor("INPUT", values), data=values.tobytes(), length=text_bytes + by)
            assert "failed to parse the request JSON" in ask(peer, wrong).document["error"]
            assert output(ask(peer, greatest(values))) == values.max()


@pytest.mark.parametrize("missing", [-4, 4])
def test_tensors_that_are_longer_or_shorter_than_they_say_are_refused(process: ServerProcess, missing: int) -> None:
    values = values_of(5)
    data = values.tobytes()
    with peer_of(process.rest_port) as peer:
        for _ in range(3):
            other = asked("greatest", tensor("INPUT", values), data=data[:-4] if missing > 0 else data + b"more")
            answer = ask(peer, other)
            assert answer.status == 400
            assert "additional" in answer.document["error"]
            assert output(ask(peer, greatest(values))) == values.max()


def test_resets_in_the_middle_of_requests_that_were_foreseen_leave_nothing(repository: Path) -> None:
    values = values_of(6, 250_000)
    octets = greatest(values)

    def visit(inside: Inside) -> None:
        assert inside.server.rest_address is not None
        port = inside.server.rest_address[1]
        for at in (50, 400, 5_000, 600_000, len(octets) - 1):
            with peer_of(port) as peer, peer_of(port) as neighbour:
                for _ in range(4):
                    assert output(peer.ask(octets)) == values.max()
                peer.sock.sendall(octets[:at])
                peer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                peer.sock.close()
                assert output(neighbour.ask(octets)) == values.max()
        wait_until(lambda: not any(worker.message_memory.lent for worker in inside.workers))

    assert serve(repository, visit, http_addr=Address("127.0.0.1", 0), processing_cores=1) == 0


def test_the_first_tensor_is_aligned_and_may_be_run_where_it_was_received(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places: list[int] = []
    real = Submitter._add_lent

    def add_lent(submitter: Submitter, writer: Any, rows: int, context: Any, buffer: Any, start: int) -> bool:
        if isinstance(buffer, MessageMemory):  # that of a request of a known kind
            places.append(addressof(c_char.from_buffer(buffer, start)) % ALIGNMENT)
        return real(submitter, writer, rows, context, buffer, start)

    monkeypatch.setattr(Submitter, "_add_lent", add_lent)

    def visit(inside: Inside) -> None:
        assert inside.server.rest_address is not None
        with peer_of(inside.server.rest_address[1]) as peer:
            for number in range(20):
                values = values_of(number, 70_000)
                for _ in range(4):
                    assert output(ask(peer, greatest(values, parameters={"x": "x" * number}))) == values.max()

    assert serve(repository, visit, http_addr=Address("127.0.0.1", 0), processing_cores=1) == 0
    assert len(places) > 40
    assert not any(places)
