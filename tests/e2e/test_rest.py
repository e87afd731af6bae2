"""REST as its users' clients speak it: tritonclient.http, its aio form, and bytes."""

from __future__ import annotations

import asyncio
import gzip
import json
import time
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from typing import Any

import numpy as np
import pytest

from tests.e2e.http import get, peer_of, post
from tests.e2e.process import ServerProcess

http = pytest.importorskip("tritonclient.http")
aio = pytest.importorskip("tritonclient.http.aio")

LENGTH = "Inference-Header-Content-Length"
MLP = "/v2/models/mlp/infer"


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Any]:
    with http.InferenceServerClient(f"127.0.0.1:{server.rest_port}") as client:
        yield client


def tensor(name: str, values: Any, *, binary: bool = True, datatype: str = "") -> Any:
    given = http.InferInput(name, list(values.shape), datatype or http.np_to_triton_dtype(values.dtype))
    given.set_data_from_numpy(values, binary_data=binary)
    return given


ROWS = np.arange(8, dtype=np.float32).reshape(2, 4)


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False])
def test_an_inference_in_json_and_in_binary_data(client: Any, binary_in: bool, binary_out: bool) -> None:
    for at in range(3):  # by reading, and by what was remembered
        values = ROWS + at
        outputs = [http.InferRequestedOutput("OUTPUT", binary_data=binary_out)]
        result = client.infer(
            "dynamic", [tensor("INPUT", values, binary=binary_in)], outputs=outputs, request_id=f"r{at}"
        )
        assert result.get_response()["id"] == f"r{at}"
        np.testing.assert_array_equal(result.as_numpy("OUTPUT"), -values)


@pytest.mark.parametrize("datatype", ["BOOL", "INT8", "UINT64", "FP16", "FP64", "BYTES"])
def test_each_datatype_as_binary_data(client: Any, datatype: str) -> None:
    kinds: dict[str, Any] = {"BOOL": np.bool_, "INT8": np.int8, "UINT64": np.uint64, "FP16": np.float16, "FP64": float}
    if datatype == "BYTES":
        values: Any = np.array([[b"a", b"", b"\xff\x00", "ü".encode()]] * 2, np.object_)
    else:
        values = np.arange(8).reshape(2, 4).astype(kinds[datatype])
    for _ in range(2):
        result = client.infer(f"identity_{datatype}", [tensor("INPUT", values, datatype=datatype)])
        np.testing.assert_array_equal(result.as_numpy("OUTPUT"), values)


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_both_ways_compressed(client: Any, algorithm: str) -> None:
    values = np.zeros((2, 2_000), np.float32)
    result = client.infer(
        "dynamic",
        [tensor("INPUT", values)],
        request_compression_algorithm=algorithm,
        response_compression_algorithm=algorithm,
    )
    np.testing.assert_array_equal(result.as_numpy("OUTPUT"), -values)


@pytest.mark.parametrize("http2", [False, True])
def test_members_of_gzip_are_one_body(server: ServerProcess, http2: bool) -> None:
    httpx = pytest.importorskip("httpx")
    given = {"name": "INPUT", "datatype": "FP32", "shape": [1, 50_000], "data": [1] * 50_000}
    body = json.dumps({"inputs": [given]}).encode()
    members = [gzip.compress(body[at : at + 30_000]) for at in range(0, len(body), 30_000)]
    url = f"http://127.0.0.1:{server.rest_port}/v2/models/dynamic/infer"
    with httpx.Client(http1=not http2, http2=http2, timeout=120) as own:
        for coding in ("gzip", "x-gzip"):
            fields = {"Content-Encoding": coding, "Accept-Encoding": coding}
            answer = own.post(url, content=b"".join(members), headers=fields)
            assert (answer.status_code, answer.headers["content-encoding"]) == (200, "gzip")
            assert answer.json()["outputs"][0]["data"] == [-1] * 50_000


def test_a_method_that_is_not_there_is_told_the_others_however_long_its_body_is(server: ServerProcess) -> None:
    for path, methods in (
        ("/v2/health/live", "GET, HEAD"),
        ("/v1/models", "GET, HEAD"),
        ("/v2/logging", "GET, HEAD, POST"),
    ):
        for size in (0, 70_000):
            with peer_of(server.rest_port) as peer:
                answer = peer.ask(post(path, b" " * size).replace(b"POST", b"PUT"))
                assert (answer.status, answer.fields["allow"]) == (405, methods)


def test_large_json_and_large_answers(client: Any) -> None:
    values = np.random.default_rng(1).random((1, 150_528)).astype(np.float32)
    outputs = [http.InferRequestedOutput("OUTPUT", binary_data=False)]
    for _ in range(2):
        result = client.infer("dynamic", [tensor("INPUT", values, binary=False)], outputs=outputs)
        np.testing.assert_array_equal(result.as_numpy("OUTPUT"), -values)


def test_large_tensors_as_binary_data(client: Any) -> None:
    values = np.random.default_rng(2).random((2, 150_528)).astype(np.float32)
    for at in range(3):
        result = client.infer("dynamic", [tensor("INPUT", values)], request_id=f"large{at}")
        assert result.get_response()["id"] == f"large{at}"
        np.testing.assert_array_equal(result.as_numpy("OUTPUT"), -values)


def test_large_bodies_of_every_form(server: ServerProcess, client: Any) -> None:
    rng = np.random.default_rng(3)
    with peer_of(server.rest_port) as peer:
        for size in (300_000, 100_000, 400_000, 20_000):  # memory of one is used again for the next
            values = rng.random((1, size)).astype(np.float32)
            given: dict[str, Any] = {"name": "INPUT", "shape": [1, size], "datatype": "FP32"}
            given["parameters"] = {"binary_data_size": values.nbytes}
            text = json.dumps({"inputs": [given], "parameters": {"binary_data_output": True}}).encode()
            for head in (text, text, text + b" " * 70_000, b""):  # as read, as remembered, in another thread, alone
                answer = peer.ask(post("/v2/models/dynamic/infer", head + values.tobytes(), f"{LENGTH}: {len(head)}"))
                assert answer.status == 200
                sent = answer.body[int(answer.fields[LENGTH.lower()]) :]
                np.testing.assert_array_equal(np.frombuffer(sent, np.float32), -values[0])
    strings = np.array([[b"x" * 1_000_000, b"", b"y" * 100_000, b"z"]], np.object_)
    for _ in range(2):
        result = client.infer("identity_BYTES", [tensor("INPUT", strings)])
        np.testing.assert_array_equal(result.as_numpy("OUTPUT"), strings)


def test_what_else_the_client_asks_for(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("mlp")
    assert not client.is_model_ready("none")
    assert client.get_server_metadata()["name"] == "triton"
    assert client.get_model_metadata("mlp")["inputs"][0]["datatype"] == "FP32"
    assert client.get_model_config("mlp")["name"] == "mlp"
    assert {model["name"] for model in client.get_model_repository_index()} >= {"mlp", "dynamic"}
    assert client.get_inference_statistics("mlp")["model_stats"][0]["name"] == "mlp"
    assert client.get_trace_settings()["trace_level"] == ["OFF"]
    assert client.get_log_settings()["log_info"] is True
    with pytest.raises(http.InferenceServerException, match="explicit model load / unload is not allowed"):
        client.load_model("mlp")


def test_errors_have_tritons_words_and_statuses(client: Any) -> None:
    with pytest.raises(http.InferenceServerException, match="unknown model: 'none' is not found") as raised:
        client.infer("none", [tensor("INPUT", ROWS)])
    assert raised.value.status() == "404"
    with pytest.raises(http.InferenceServerException, match="unexpected inference output 'z'") as raised:
        client.infer("dynamic", [tensor("INPUT", ROWS)], outputs=[http.InferRequestedOutput("z")])
    assert raised.value.status() == "400"


def test_the_client_with_tasks(server: ServerProcess) -> None:
    async def main() -> None:
        async with aio.InferenceServerClient(f"127.0.0.1:{server.rest_port}") as client:
            values = [ROWS + at for at in range(32)]
            results = await asyncio.gather(*(client.infer("dynamic", [tensor("INPUT", one)]) for one in values))
            for one, result in zip(values, results, strict=True):
                np.testing.assert_array_equal(result.as_numpy("OUTPUT"), -one)
            assert await client.is_server_ready()

    asyncio.run(main())


def test_one_port_for_both_protocols(server: ServerProcess) -> None:
    with http.InferenceServerClient(server.address) as client:
        np.testing.assert_array_equal(client.infer("dynamic", [tensor("INPUT", ROWS)]).as_numpy("OUTPUT"), -ROWS)


def body_of(values: Any, **more: Any) -> str:
    inputs = [{"name": "INPUT", "shape": list(values.shape), "datatype": "FP32", "data": values.ravel().tolist()}]
    return json.dumps({"inputs": inputs, **more})


def test_pipelined_requests_are_answered_in_order(server: ServerProcess) -> None:
    path = "/v2/models/dynamic/infer"
    requests = [post(path, body_of(ROWS, id=str(at))) if at % 3 else get("/v2") for at in range(300)]
    with peer_of(server.rest_port) as peer:
        peer.sock.sendall(b"".join(requests))
        for at in range(300):
            answer = peer.read()
            assert answer.status == 200
            if at % 3:
                assert answer.document["id"] == str(at)
            else:
                assert answer.document["name"] == "triton"


def test_bytes_cut_anywhere_are_one_request(server: ServerProcess) -> None:
    request = post("/v2/models/dynamic/infer", body_of(ROWS, id="one"))
    with peer_of(server.port) as peer:
        for at in range(len(request) - 1):
            peer.sock.sendall(request[at : at + 1])
        assert peer.ask(request[-1:]).document["id"] == "one"


def test_a_body_in_chunks(server: ServerProcess) -> None:
    octets = body_of(ROWS).encode()
    head = b"POST /v2/models/dynamic/infer HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunks = b"".join(
        b"%x\r\n%b\r\n" % (len(octets[at : at + 7]), octets[at : at + 7]) for at in range(0, len(octets), 7)
    )
    with peer_of(server.rest_port) as peer:
        for _ in range(2):
            answer = peer.ask(head + chunks + b"0\r\n\r\n")
            assert answer.document["outputs"][0]["data"] == (-ROWS).ravel().tolist()


def test_a_body_that_is_the_input(server: ServerProcess) -> None:
    with peer_of(server.rest_port) as peer:
        answer = peer.ask(post("/v2/models/dynamic/infer", ROWS.tobytes(), f"{LENGTH}: 0"))
        assert answer.status == 200
        assert answer.body.endswith((-ROWS).tobytes())


def test_generate_and_its_stream(server: ServerProcess) -> None:
    with peer_of(server.rest_port) as peer:
        answer = peer.ask(post("/v2/models/dynamic/generate", '{"INPUT": [1, 2], "id": "g"}'))
        assert answer.document == {"id": "g", "model_name": "dynamic", "model_version": "1", "OUTPUT": [-1, -2]}
        assert answer.fields["content-type"] == "application/json"
        answer = peer.ask(post("/v2/models/dynamic/generate_stream", '{"INPUT": 3}'))
        assert answer.body == b'data: {"OUTPUT":-3.0,"model_name":"dynamic","model_version":"1"}\n\n'
        assert answer.fields["content-type"] == "text/event-stream; charset=utf-8"
        numbers = list(range(16_000))
        answer = peer.ask(post("/v2/models/dynamic/generate", json.dumps({"INPUT": numbers})))
        assert answer.document["OUTPUT"] == [-number for number in numbers]
        answer = peer.ask(post("/v2/models/dynamic/generate", '{"INPUT": [[1]]}'))
        assert (answer.status, list(answer.document)) == (500, ["error"])


@pytest.mark.parametrize(
    ("request_", "status", "text"),
    [
        (get("/nothing"), 404, "Not Found"),
        (get(MLP), 405, "Method Not Allowed"),
        (post(MLP, "{}", "Content-Encoding: br"), 501, "Unsupported compression type"),
        (post(MLP, "{"), 500, "failed to parse the request JSON buffer: Missing a name for object member. at 1"),
        (
            post(MLP, "{}", "Inference-Header-Content-Length: x"),
            400,
            "Unable to parse Inference-Header-Content-Length, got: x",
        ),
        (
            post(MLP, "{}", "Inference-Header-Content-Length: 3"),
            400,
            "inference header size should be in range (0, 2), got: 3",
        ),
        (b"GET /v2 HTTP/1.1\r\n\r\n", 400, "a request names its host once (RFC 9112 section 3.2)"),
        (b"GET /v2 HTTP/1.1\nHost: a\n\n", 400, "a line of the request's head does not end with CR LF"),
    ],
)
def test_bad_requests_are_told_why(server: ServerProcess, request_: bytes, status: int, text: str) -> None:
    with peer_of(server.rest_port) as peer:
        answer = peer.ask(request_)
        assert (answer.status, answer.document) == (status, {"error": text})


INTEGERS = np.arange(8, dtype=np.int32).reshape(2, 4)


def sums(client: Any, inputs: list[Any]) -> tuple[Any, Any]:
    result = client.infer("addsub", inputs)
    return result.as_numpy("OUTPUT0"), result.as_numpy("OUTPUT1")


@pytest.mark.parametrize("binary", [(True, True), (True, False), (False, True), (False, False)])
@pytest.mark.parametrize("names", [("INPUT0", "INPUT1"), ("INPUT1", "INPUT0")])
def test_inputs_in_any_order_and_form(client: Any, binary: tuple[bool, bool], names: tuple[str, str]) -> None:
    metadata = {tensor["name"]: tensor["datatype"] for tensor in client.get_model_metadata("addsub")["inputs"]}
    for at in range(3):
        given = {"INPUT0": np.arange(32).reshape(2, 16) + at, "INPUT1": 3 * np.arange(32).reshape(2, 16)}
        values = {name: one.astype(http.triton_to_np_dtype(metadata[name])) for name, one in given.items()}
        inputs = [tensor(name, values[name], binary=form) for name, form in zip(names, binary, strict=True)]
        total, difference = sums(client, inputs)
        np.testing.assert_array_equal(total, values["INPUT0"] + values["INPUT1"])
        np.testing.assert_array_equal(difference, values["INPUT0"] - values["INPUT1"])


@pytest.mark.parametrize("binary", [True, False])
def test_requests_of_more_rows_than_a_batch_have(client: Any, binary: bool) -> None:
    values = np.random.default_rng(3).random((200, 64)).astype(np.float32)
    outputs = [http.InferRequestedOutput("OUTPUT", binary_data=binary)]
    whole = client.infer("mlp", [tensor("INPUT", values)], outputs=outputs).as_numpy("OUTPUT")
    parts = [
        client.infer("mlp", [tensor("INPUT", values[at : at + 50])]).as_numpy("OUTPUT") for at in range(0, 200, 50)
    ]
    np.testing.assert_allclose(whole, np.concatenate(parts), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("binary", [True, False])
def test_classes(client: Any, binary: bool) -> None:
    values = np.array([[1, 4, 2, 3]], np.float32)
    outputs = [http.InferRequestedOutput("OUTPUT", binary_data=binary, class_count=2)]
    for _ in range(2):
        classes = client.infer("identity_FP32", [tensor("INPUT", values)], outputs=outputs).as_numpy("OUTPUT")
        found = [one.decode() if isinstance(one, bytes) else one for one in classes.ravel().tolist()]
        assert found == ["4.000000:1", "3.000000:3"]


def test_a_version_by_its_number(client: Any) -> None:
    numbers = INTEGERS
    answers = {one: client.infer("versions", [tensor("INPUT", numbers)], model_version=one) for one in ("1", "2")}
    assert [answers[one].get_response()["model_version"] for one in answers] == ["1", "2"]
    with pytest.raises(http.InferenceServerException, match="'versions' version 99 is not found"):
        client.infer("versions", [tensor("INPUT", numbers)], model_version="99")


def test_numbers_of_16_bits_in_json(server: ServerProcess) -> None:
    body = json.dumps({"inputs": [{"name": "INPUT", "shape": [1, 4], "datatype": "FP16", "data": [0.5, 1, -2, 0.1]}]})
    with peer_of(server.rest_port) as peer:
        for _ in range(2):
            (output,) = peer.ask(post("/v2/models/identity_FP16/infer", body)).document["outputs"]
            assert output["data"] == pytest.approx([0.5, 1, -2, 0.1], abs=1e-3)


def test_what_is_remembered_of_one_request_is_not_taken_for_another(server: ServerProcess) -> None:
    """The same text but for values, ids, sizes and what a client sends by mistake."""
    path = "/v2/models/dynamic/infer"
    good = body_of(ROWS, id="a")
    with peer_of(server.rest_port) as peer:
        for _ in range(2):
            assert peer.ask(post(path, good)).status == 200
        for bad, text in (
            (good.replace("7.0", "7.0, 8.0"), "Shape does not match true shape"),
            (good.replace("7.0", "x"), "failed to parse the request JSON buffer"),
            (good.replace("7.0", '"7"'), "attempt to access JSON non-number as double"),
            (good + " {}", "must not be followed by other values"),
        ):
            answer = peer.ask(post(path, bad))
            assert answer.status in (400, 500)
            assert text in answer.document["error"]
            assert peer.ask(post(path, good)).document["id"] == "a"


@pytest.mark.parametrize("door", ["port", "rest_port"])
def test_every_answer_has_its_date(server: ServerProcess, door: str) -> None:
    body = json.dumps({"inputs": [{"name": "INPUT", "datatype": "FP32", "shape": [1, 4], "data": [[1, 2, 3, 4]]}]})
    requests = [
        (200, post("/v2/models/dynamic/infer", body)),
        (200, post("/v2/models/dynamic/infer", body)),  # as the one before
        (200, post("/v2/models/dynamic/generate", '{"INPUT": [1, 2, 3, 4]}')),
        (500, post("/v2/models/dynamic/infer", "{}")),
        (404, get("/nothing")),
        (405, get("/v2/models/dynamic/infer")),
        (200, get("/v2/health/live")),
        (200, get("/v2", "Accept-Encoding: gzip")),
        (404, post("/v1/embeddings", '{"model": "x", "input": "a"}', "Content-Type: application/json")),
        (400, b"POST /v2 HTTP/1.1\r\nHost: x\r\nContent-Length: x\r\n\r\n"),  # refused before it is read
    ]
    with peer_of(getattr(server, door)) as peer:
        before = int(time.time())
        for status, octets in requests:
            answer = peer.ask(octets)
            assert answer.status == status, (octets, answer)
            assert before <= parsedate_to_datetime(answer.fields["date"]).timestamp() <= time.time()
            assert answer.fields["date"].endswith(" GMT")


@pytest.mark.parametrize(
    ("octets", "there"),
    [
        (post("/v1/models/mlp:predict", '{"instances": [[1.0]]}'), "POST /v2/models/mlp/infer"),
        (post("/v1/models/mlp:predict", b" " * 300_000), "POST /v2/models/mlp/infer"),
        (post("/v1/models/mlp:classify", "{}"), "POST /v2/models/mlp/infer"),
        (post("/v1/models/mlp:explain", "{}"), "POST /v2/models/mlp/infer"),
        (post("/v1/models/mlp/versions/1:predict", "{}"), "POST /v2/models/mlp/versions/1/infer"),
        (post("/v1/models/mlp/labels/stable:predict", "{}"), "POST /v2/models/mlp/infer"),
        (post("/v1/models/mlp", "{}"), "POST /v2/models/mlp/infer"),
        (post("/v1/models/a%20b:predict", "{}"), "POST /v2/models/a%20b/infer"),
        (get("/v1/models/mlp/metadata"), "GET /v2/models/mlp"),
        (get("/v1/models/mlp/versions/1"), "GET /v2/models/mlp/versions/1/ready"),
    ],
)
def test_requests_of_the_v1_protocol_are_told_where_to_go(server: ServerProcess, octets: bytes, there: str) -> None:
    with peer_of(server.rest_port) as peer:
        answer = peer.ask(octets)
    assert answer.status == 404
    assert answer.document["error"].endswith(there) or f"{there} " in answer.document["error"]


def test_other_paths_of_v1_have_openais_errors(server: ServerProcess) -> None:
    with peer_of(server.rest_port) as peer:
        assert peer.ask(get("/v1/models")).document == {"object": "list", "data": []}
        for path in ("/v1/models/mlp", "/v1/models/mlp:predict", "/v1/models/of/mlp"):
            assert peer.ask(get(path)).document["error"]["code"] == "model_not_found"
        assert peer.ask(post("/v1/other", "{}")).document["error"]["type"] == "invalid_request_error"
