"""REST over HTTP/2 is REST over HTTP/1.1: the same answers, on every port that speaks it, beside gRPC's calls."""

from __future__ import annotations

import gzip
import json
import select
import shutil
import signal
import socket
import ssl
import struct
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from h2.exceptions import ProtocolError

from tests.certificates import Files, issue
from tests.e2e.process import ServerProcess, running
from tests.e2e.support import pb
from tests.e2e.wire import PLAIN, Client, framed
from tests.e2e.wire import Answer as StreamAnswer
from tests.h2grpc.frames import DATA, END_STREAM, GOAWAY, HEADERS, data, parse

LENGTH: Final = "inference-header-content-length"
INFER: Final = "/v2/models/dynamic/infer"
SECONDS: Final = 120.0
#: Fields that differ from answer to answer, or that HTTP/2 has not.
VARYING: Final = {"connection", "date", "keep-alive", "transfer-encoding", "x-request-id"}

Fields = Sequence[tuple[str, str]]
Said = tuple[int, dict[str, str], bytes]
JSON: Final = [("content-type", "application/json")]


def inputs(values: Sequence[float], **more: Any) -> dict[str, Any]:
    shape = [1, len(values)]
    return {"inputs": [{"name": "INPUT", "datatype": "FP32", "shape": shape, **more}]}


def asked(values: Sequence[float]) -> bytes:
    return json.dumps(inputs(values, data=list(values))).encode()


def in_binary(values: Sequence[float]) -> tuple[bytes, list[tuple[str, str]]]:
    size = 4 * len(values)
    document = inputs(values, parameters={"binary_data_size": size})
    document["outputs"] = [{"name": "OUTPUT", "parameters": {"binary_data": True}}]
    text = json.dumps(document).encode()
    fields = [("content-type", "application/octet-stream"), (LENGTH, str(len(text)))]
    return text + struct.pack(f"<{len(values)}f", *values), fields


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return issue(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def secure(repository: Path, files: Files, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with TLS on all its ports, TorchServe's among them."""
    flags = ["--http-addr", "127.0.0.1:0", "--torchserve-api", "--torchserve-management-addr", "127.0.0.1:0"]
    with running(repository, tmp_path_factory.mktemp("secure"), [*flags, *files.server_flags()]) as process:
        yield process
        assert process.stop() == 0
        assert "Traceback" not in process.log


@contextmanager
def connected(port: int, files: Files | None = None, protocol: str = "h2") -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", port), timeout=SECONDS) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if files is None:
            yield sock
            return
        context = ssl.create_default_context(cafile=str(files.ca))
        context.set_alpn_protocols([protocol])
        with context.wrap_socket(sock, server_hostname="localhost") as secured:
            assert secured.selected_alpn_protocol() == protocol
            yield secured


@contextmanager
def client_of(port: int, files: Files | None = None) -> Iterator[Client]:
    with connected(port, files) as sock:
        yield Client(sock)


def start(client: Client, method: str, path: str, fields: Fields = (), *, end: bool = False) -> int:
    """Send the head of a request that is no gRPC."""
    own = {**dict(PLAIN), ":method": method, ":authority": "here", **dict(fields)}
    return client.start(path, list(own.items()), end=end)


def ask(client: Client, method: str, path: str, body: bytes | None = None, fields: Fields = ()) -> StreamAnswer:
    """A whole request, and its answer."""
    if body is not None:
        fields = [*fields, ("content-length", str(len(body)))]
    stream_id = start(client, method, path, fields, end=body is None)
    if body is not None:
        client.send(stream_id, body)
    return client.answer(stream_id)


def over_http1(sock: socket.socket, method: str, path: str, body: bytes | None, fields: Fields) -> Said:
    peer = HTTPConnection("here")
    peer.sock = sock
    peer.putrequest(method, path, skip_accept_encoding=True)
    for name, value in fields:
        peer.putheader(name, value)
    if body is not None:
        peer.putheader("content-length", str(len(body)))
    peer.endheaders(body)
    answer = peer.getresponse()
    return said(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())


def said(status: int, fields: dict[str, str], body: bytes) -> Said:
    """What is the same whichever way an answer comes."""
    kept = {name: value for name, value in fields.items() if name not in VARYING and not name.startswith(":")}
    return status, kept, body


ROUTES: Final[list[tuple[str, str, bytes | None, Fields]]] = [
    ("GET", "/v2", None, ()),
    ("GET", "/v2/health/live", None, ()),
    ("HEAD", "/docs", None, ()),
    ("GET", "/v2/health/ready", None, ()),
    ("GET", "/v2/models/dynamic", None, ()),
    ("GET", "/v2/models/dynamic/config", None, ()),
    ("GET", "/v2/models/nowhere/ready", None, ()),
    ("POST", "/v2/repository/index", b"", ()),
    ("POST", "/v2/repository/index", b"{}", JSON),
    ("POST", "/v2/models/dynamic", b"x", ()),
    ("DELETE", "/v2", None, ()),
    ("POST", INFER, asked([1, 2]), JSON),
    ("POST", INFER, asked([1, 2]), [*JSON, ("accept-encoding", "gzip")]),
    ("POST", INFER, gzip.compress(asked([3] * 100)), [*JSON, ("content-encoding", "gzip")]),
    ("POST", INFER, gzip.compress(asked([0] * 200_000)), [*JSON, ("content-encoding", "gzip")]),
    ("POST", INFER, b"no gzip", [*JSON, ("content-encoding", "gzip")]),
    ("POST", INFER, asked([1]), [*JSON, ("content-encoding", "br")]),
    ("POST", INFER, asked([4] * 30_000), JSON),
    ("POST", INFER, b"{", JSON),
    ("POST", INFER, *in_binary([1, 2, 3])),
    ("POST", INFER, *in_binary([5] * 300_000)),
    ("POST", "/v2/models/nowhere/infer", asked([1]), JSON),
    ("GET", INFER, None, ()),
    ("GET", "/nowhere", None, ()),
    ("POST", "/nowhere", bytes(100_000), ()),
    ("POST", "/v1/embeddings", b'{"input": "a"}', JSON),
    ("GET", "/v1/models", None, ()),
    ("GET", "/info", None, ()),
    ("GET", "/ping", None, ()),
    ("POST", "/predictions/nowhere", b"x", ()),
    ("GET", "/openapi.json", None, ()),
    ("GET", "/docs", None, ()),
    ("OPTIONS", "*", None, ()),
    ("GET", "/v2?a=b#c", None, ()),
    ("POST", INFER, asked([1]), [*JSON, ("expect", "something else")]),
]


@pytest.mark.parametrize("port", ["rest", "grpc", "secure rest", "secure grpc"])
def test_each_route_answers_as_over_http1(
    server: ServerProcess, secure: ServerProcess, files: Files, port: str
) -> None:
    process, trust = (secure, files) if port.startswith("secure") else (server, None)
    number = process.rest_port if port.endswith("rest") else process.port
    with client_of(number, trust) as client:
        for method, path, body, fields in ROUTES:
            for _ in range(2):  # by reading, and by what was remembered
                with connected(number, trust, "http/1.1") as sock:
                    first = over_http1(sock, method, path, body, fields)
                answer = ask(client, method, path, body, fields)
                assert answer.ended
                assert answer.reset in (None, 0)
                second = said(int(answer.headers[":status"]), answer.headers, answer.data)
                assert second == first, (method, path)
                assert "date" in answer.headers
        live = client.call("/inference.GRPCInferenceService/ServerLive", b"")
        assert pb.ServerLiveResponse.FromString(live.data[5:]).live


def test_the_management_api_of_torchserve(secure: ServerProcess, files: Files) -> None:
    with client_of(secure.management_port, files) as client:
        for method, path, body in (("GET", "/models", None), ("GET", "/nowhere", None), ("DELETE", "/models/a", None)):
            with connected(secure.management_port, files, "http/1.1") as sock:
                first = over_http1(sock, method, path, body, ())
            answer = ask(client, method, path, body)
            second = said(int(answer.headers[":status"]), answer.headers, answer.data)
            assert second == first, path
        assert ask(client, "GET", "/v2/health/live").headers[":status"] == "404"


def test_grpc_and_rest_share_a_connection(server: ServerProcess) -> None:
    message = pb.ModelInferRequest(model_name="dynamic")
    message.inputs.add(name="INPUT", datatype="FP32", shape=[1, 2])
    message.raw_input_contents.append(struct.pack("<2f", 1, 2))
    body, fields = in_binary([1, 2])
    with client_of(server.rest_port) as client:
        streams: list[tuple[int, int]] = []
        for _ in range(20):
            call = client.start("/inference.GRPCInferenceService/ModelInfer")
            request = start(client, "POST", INFER, fields)
            client.send(request, body)
            client.send(call, framed(message.SerializeToString()))
            streams.append((call, request))
        for call, request in streams:
            response = pb.ModelInferResponse.FromString(client.answer(call).data[5:])
            assert response.raw_output_contents[0] == struct.pack("<2f", -1, -2)
            answer = client.answer(request)
            assert answer.headers[":status"] == "200"
            assert answer.data[int(answer.headers[LENGTH]) :] == struct.pack("<2f", -1, -2)


def test_httpx_with_tls_and_in_clear(server: ServerProcess, secure: ServerProcess, files: Files) -> None:
    body, fields = in_binary([1, 2])
    trust = ssl.create_default_context(cafile=str(files.ca))
    for base, more in (
        (f"http://127.0.0.1:{server.rest_port}", {"http1": False}),
        (f"https://localhost:{secure.rest_port}", {"verify": trust}),
    ):
        with httpx.Client(http2=True, timeout=SECONDS, **more) as client:
            for _ in range(3):
                answer = client.post(base + INFER, content=body, headers=dict(fields))
                assert (answer.http_version, answer.status_code) == ("HTTP/2", 200)
                assert answer.content[int(answer.headers[LENGTH]) :] == struct.pack("<2f", -1, -2)


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
def test_curl(server: ServerProcess, secure: ServerProcess, files: Files) -> None:
    def curl(*words: str) -> list[str]:
        out = "%{http_version} %{http_code} "
        command = ["curl", "-sS", "-o", "/dev/null", "-w", out, "--cacert", str(files.ca), *words]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=SECONDS).stdout.split()

    clear, tls = f"http://127.0.0.1:{server.rest_port}", f"https://localhost:{secure.rest_port}"
    assert curl("--http2-prior-knowledge", f"{clear}/v2") == ["2", "200"]
    assert curl("--http2-prior-knowledge", f"{clear}/nowhere", "-d", "x") == ["2", "404"]
    assert curl("--http2", f"{clear}/v2") == ["1.1", "200"]  # by Upgrade, which nobody has to take
    assert curl("--http2", f"{tls}/v2") == ["2", "200"]
    assert curl("--http1.1", f"{tls}/v2") == ["1.1", "200"]
    assert curl(f"{tls}{INFER}", "-d", asked([1, 2]).decode()) == ["2", "200"]


# --- bodies ----------------------------------------------------------------------------------------------------------


def test_a_client_that_waits_for_100_gets_it(server: ServerProcess) -> None:
    body = asked([1, 2])
    with client_of(server.rest_port) as client:
        stream_id = start(client, "POST", INFER, [("expect", "100-continue"), ("content-length", str(len(body)))])
        interim: list[Any] = []
        while not interim:
            interim += [
                event
                for event in client.connection.receive_data(client.sock.recv(65_536))
                if type(event).__name__ == "InformationalResponseReceived"
            ]
        assert (b":status", b"100") in interim[0].headers or (":status", "100") in interim[0].headers
        client.send(stream_id, body)
        assert client.answer(stream_id).headers[":status"] == "200"


def test_a_refused_body_is_not_waited_for(server: ServerProcess) -> None:
    with client_of(server.rest_port) as client:
        stream_id = start(client, "POST", "/nowhere", [("content-length", "100000")])
        answer = client.answer(stream_id)  # the body does not come
        assert answer.headers[":status"] == "404"
        stream_id = start(client, "POST", "/v2/logging", [("content-length", "100000")])
        answer = client.answer(stream_id)
        assert answer.headers[":status"] == "413"
        stream_id = start(client, "POST", "/v2/logging")
        client.send(stream_id, bytes(200_000), end=False)  # of no known length
        answer = client.answer(stream_id)
        assert answer.headers[":status"] == "413"
        assert ask(client, "GET", "/v2").headers[":status"] == "200"


def test_trailers_end_a_request(server: ServerProcess) -> None:
    with client_of(server.rest_port) as client:
        stream_id = start(client, "POST", INFER)
        client.send(stream_id, asked([1, 2]), end=False)
        client.connection.send_headers(stream_id, [("x-checksum", "1")], end_stream=True)
        client.flush()
        assert client.answer(stream_id).headers[":status"] == "200"


def test_host_stands_for_authority(server: ServerProcess) -> None:
    with client_of(server.rest_port) as client:
        for fields, status in (
            ([(":authority", ""), ("host", "here")], "200"),
            ([("host", "here")], "200"),
            ([(":authority", "")], "400"),
            ([(":authority", "user@here")], "400"),
        ):
            client.connection.config.validate_outbound_headers = False
            stream_id = start(client, "GET", "/v2", fields, end=True)
            assert client.answer(stream_id).headers[":status"] == status, fields
        stream_id = start(client, "GET", "/v2", [("host", "elsewhere")], end=True)
        assert client.answer(stream_id).reset == 1  # PROTOCOL_ERROR


def test_a_header_list_that_is_too_long(server: ServerProcess) -> None:
    with client_of(server.rest_port) as client:
        many = [(f"x-{number}", "1") for number in range(200)]
        assert ask(client, "GET", "/v2", None, many).headers[":status"] == "431"
        assert ask(client, "GET", "/v2", None, [("x-long", "a" * 20_000)]).headers[":status"] == "431"
        assert ask(client, "GET", "/v2").headers[":status"] == "200"


@pytest.mark.parametrize(
    ("fields", "sent"),
    [
        ([("content-length", "10")], b"123"),
        ([("content-length", "2")], b"123"),
        ([("content-length", "x")], b"123"),
        ([("transfer-encoding", "chunked")], b"123"),
        ([("connection", "close")], b"123"),
        ([(":method", "CONNECT")], b"123"),
        ([("x-Upper", "1")], b"123"),
    ],
)
def test_a_malformed_request_costs_its_stream_alone(server: ServerProcess, fields: Fields, sent: bytes) -> None:
    with client_of(server.rest_port) as client:
        config = client.connection.config
        config.validate_outbound_headers = config.normalize_outbound_headers = False
        stream_id = start(client, "POST", INFER, fields)
        client.connection.send_data(stream_id, sent, end_stream=True)
        client.flush()
        answer = client.answer(stream_id)
        assert answer.reset == 1  # PROTOCOL_ERROR
        assert ask(client, "GET", "/v2").headers[":status"] == "200"


def test_a_reader_who_reads_nothing_costs_nobody_else(server: ServerProcess) -> None:
    with client_of(server.rest_port) as slow, client_of(server.rest_port) as other:
        body, fields = in_binary([1] * 50_000)
        for _ in range(20):  # more than the window of its connection takes
            stream_id = start(slow, "POST", INFER, fields)
            slow.send(stream_id, body)
        for _ in range(3):
            assert ask(other, "POST", INFER, asked([1, 2]), JSON).headers[":status"] == "200"
        for stream_id, answer in slow.answers.items():
            assert slow.answer(stream_id) is answer
            assert len(answer.data) == int(answer.headers["content-length"])


def test_a_flood_of_resets_ends_its_connection_alone(server: ServerProcess) -> None:
    with client_of(server.rest_port) as other, client_of(server.rest_port) as client:
        try:
            while client.terminated is None:
                for _ in range(100):
                    stream_id = start(client, "POST", INFER, JSON)
                    client.connection.reset_stream(stream_id)
                client.flush()
                assert ask(other, "GET", "/v2").headers[":status"] == "200"
                while select.select([client.sock], [], [], 0)[0] and client.receive():
                    pass
        except (ConnectionError, ProtocolError):
            pass  # it is gone
        assert ask(other, "POST", INFER, asked([1, 2]), JSON).headers[":status"] == "200"


# --- ends ------------------------------------------------------------------------------------------------------------


def test_a_stop_answers_what_has_begun(repository: Path, tmp_path: Path) -> None:
    body = asked([1, 2])
    with running(repository, tmp_path, ["--http-addr", "127.0.0.1:0", "--load-models", "dynamic"]) as process:
        with client_of(process.rest_port) as client:
            assert ask(client, "GET", "/v2").headers[":status"] == "200"
            stream_id = start(client, "POST", INFER, JSON)
            client.send(stream_id, body[:10], end=False)
            process.process.send_signal(signal.SIGTERM)
            # In frames, because the package takes the first GOAWAY for the end.
            came = b""
            while GOAWAY not in [one.type for one in parse(came)]:
                came += client.sock.recv(65_536)
            client.sock.sendall(data(stream_id, body[10:], END_STREAM))
            while octets := client.sock.recv(65_536):
                came += octets
            frames = [one for one in parse(came) if one.stream_id == stream_id and one.type in (HEADERS, DATA)]
            assert json.loads(frames[-1].payload)["outputs"][0]["data"] == [-1.0, -2.0]
            assert frames[-1].flags == END_STREAM
        assert process.stop() == 0
