"""The port as those see it who do not speak gRPC well, and what of gRPC no client shows."""

from __future__ import annotations

import gzip
import socket
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.process import ServerProcess, running
from tests.e2e.support import pb
from tests.e2e.wire import Answer, Client, client_of, framed
from tests.waiting import wait_until

SERVICE = "/inference.GRPCInferenceService/"
INFER = SERVICE + "ModelInfer"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def infer_message(rows: int = 1) -> bytes:
    message = pb.ModelInferRequest(model_name="dynamic", id="i")
    message.inputs.add(name="INPUT", datatype="FP32", shape=[rows, 500])
    message.raw_input_contents.append(bytes(4 * 500 * rows))
    return bytes(message.SerializeToString())


def assert_inferred(data: bytes, rows: int = 1) -> None:
    response = pb.ModelInferResponse.FromString(data)
    assert response.id == "i"
    assert list(response.outputs[0].shape) == [rows, 500]
    assert response.raw_output_contents[0] == struct.pack("<f", -0.0) * 500 * rows


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Client]:
    """A connection. At the end of the test, another one still gets right answers."""
    with client_of(server.port) as client:
        yield client
    with client_of(server.port) as other:
        assert_inferred(other.call(INFER, infer_message()).data[5:])


def test_a_call_is_answered(client: Client) -> None:
    for rows in (1, 1, 3):
        answer = client.call(INFER, infer_message(rows))
        assert answer.headers[":status"] == "200"
        assert answer.headers["content-type"] == "application/grpc"
        assert answer.status == ("0", "")
        assert "grpc-encoding" not in answer.headers
        assert_inferred(answer.data[5:], rows)


# --- compression


@pytest.fixture(scope="module", params=["gzip", "deflate"])
def compressing(
    request: pytest.FixtureRequest, repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, ServerProcess]]:
    encoding: str = request.param
    with running(
        repository,
        tmp_path_factory.mktemp("server"),
        ["--grpc-compression", encoding, "--load-models", "dynamic,identity_BYTES"],
    ) as process:
        yield encoding, process
        assert process.stop() == 0


def test_inference_is_compressed_for_clients_that_accept_it(compressing: tuple[str, ServerProcess]) -> None:
    encoding, process = compressing
    with client_of(process.port) as client:
        for rows in (1, 1, 40):
            answer = client.call(INFER, infer_message(rows), [("grpc-accept-encoding", "identity, deflate, gzip")])
            assert answer.headers["grpc-encoding"] == encoding
            assert answer.data[0] == 1
            assert len(answer.data) < 4 * 500 * rows / 2
            unpack = gzip.decompress if encoding == "gzip" else zlib.decompress
            assert_inferred(unpack(answer.data[5:]), rows)
            assert answer.status == ("0", "")


@pytest.mark.parametrize("accepted", ["", "identity", "snappy, identity"])
def test_inference_is_not_compressed_for_clients_that_do_not_accept_it(
    compressing: tuple[str, ServerProcess], accepted: str
) -> None:
    with client_of(compressing[1].port) as client:
        answer = client.call(INFER, infer_message(), [("grpc-accept-encoding", accepted)])
        assert answer.data[0] == 0
        assert_inferred(answer.data[5:])


def test_other_rpcs_are_not_compressed(compressing: tuple[str, ServerProcess]) -> None:
    with client_of(compressing[1].port) as client:
        answer = client.call(SERVICE + "ServerMetadata", b"", [("grpc-accept-encoding", "gzip, deflate")])
        assert answer.data[0] == 0
        assert pb.ServerMetadataResponse.FromString(answer.data[5:]).name == "triton"


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_compressed_requests_are_read_and_answered_plainly(client: Client, encoding: str) -> None:
    pack = gzip.compress if encoding == "gzip" else zlib.compress
    headers = [("grpc-encoding", encoding)]
    assert_inferred(client.call(INFER, pack(infer_message()), headers, flag=1).data[5:])
    assert_inferred(client.call(INFER, infer_message(), headers, flag=0).data[5:])


@pytest.mark.parametrize(
    ("headers", "flag", "status"),
    [
        ([("grpc-encoding", "gzip")], 1, "13"),
        ([("grpc-encoding", "deflate")], 1, "13"),
        ([], 1, "13"),
        ([], 7, "13"),
        ([("grpc-timeout", "never")], 0, "13"),
    ],
    ids=["not_gzip", "not_deflate", "compressed_by_nothing", "unknown_flag", "bad_timeout"],
)
def test_a_call_that_cannot_be_read_fails_alone(
    client: Client, headers: list[tuple[str, str]], flag: int, status: str
) -> None:
    answer = client.call(INFER, infer_message(), headers, flag)
    assert answer.status[0] == status
    assert answer.status[1]
    assert_inferred(client.call(INFER, infer_message()).data[5:])


def test_an_unknown_encoding_is_refused(client: Client) -> None:
    answer = client.call(INFER, infer_message(), [("grpc-encoding", "snappy")], 1)
    assert answer.status[0] in ("12", "13")
    assert_inferred(client.call(INFER, infer_message()).data[5:])


# --- sizes


def test_a_message_above_the_limit_is_refused_before_it_is_read(repository: Path, tmp_path: Path) -> None:
    flags = ["--max-message-size", "10000", "--load-models", "dynamic"]
    with running(repository, tmp_path, flags) as process:
        with client_of(process.port) as client:
            assert_inferred(client.call(INFER, infer_message(4)).data[5:], 4)
            answer = client.call(INFER, infer_message(5))
            assert answer.status == ("8", f"Received message larger than max ({len(infer_message(5))} vs. 10000)")
            stream_id = client.start(INFER)
            client.send(stream_id, b"\0\xff\xff\xff\xff", end=False)
            assert client.answer(stream_id).status == ("8", "Received message larger than max (4294967295 vs. 10000)")
            bomb = gzip.compress(bytes(10_000_000))
            assert len(bomb) < 10_000
            assert client.call(INFER, bomb, [("grpc-encoding", "gzip")], 1).status[0] == "8"
            assert_inferred(client.call(INFER, infer_message()).data[5:])
        assert process.stop() == 0


def test_a_message_may_come_in_any_pieces(client: Client) -> None:
    data = framed(infer_message())
    stream_id = client.start(INFER)
    for at in range(0, len(data), 97):
        client.send(stream_id, data[at : at + 97], end=False)
    client.send(stream_id, b"")
    assert_inferred(client.answer(stream_id).data[5:])


@pytest.mark.parametrize("data", [b"", b"\0\0", framed(b"ab")[:-1], framed(b"") * 2])
def test_a_call_needs_one_whole_message(client: Client, data: bytes) -> None:
    stream_id = client.start(INFER)
    client.send(stream_id, data)
    assert client.answer(stream_id).status[0] == "13"


# --- what is not gRPC


@pytest.mark.parametrize("content_type", ["text/plain", "application/json", "application/grpcx"])
def test_another_content_type_is_a_request_of_rest(client: Client, content_type: str) -> None:
    answer = client.call(INFER, infer_message(), [("content-type", content_type)])
    assert (answer.headers[":status"], answer.data) == ("404", b'{"error":"Not Found"}')
    assert_inferred(client.call(INFER, infer_message()).data[5:])


@pytest.mark.parametrize("content_type", ["application/grpc+proto", "application/grpc;charset=utf-8"])
def test_other_spellings_of_grpc_are_answered(client: Client, content_type: str) -> None:
    assert_inferred(client.call(INFER, infer_message(), [("content-type", content_type)]).data[5:])


def everything(sock: socket.socket) -> bytes:
    """All that comes until the connection ends."""
    sock.settimeout(120)
    data = b""
    try:
        while more := sock.recv(65_536):
            data += more
    except ConnectionResetError:
        pass
    return data


def connected(server: ServerProcess) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=120)


@pytest.mark.usefixtures("client")
@pytest.mark.parametrize(
    "opening",
    [
        b"GET /v2/health/ready HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
        b"GET /v2/health/ready HTTP/1.0\r\n\r\n",
    ],
)
def test_http_1_is_spoken_as_well(server: ServerProcess, opening: bytes) -> None:
    with connected(server) as sock:
        sock.sendall(opening)
        answer = everything(sock)
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert answer.endswith(b'{"ready":true}')


@pytest.mark.usefixtures("client")
@pytest.mark.parametrize(
    "opening",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),  # TLS
        b"\0" * 100,
        b"SSH-2.0-x\r\n",
        PREFACE[:-1] + b"x" * 50,
        PREFACE + b"\xff" * 200,
        PREFACE + b"\0\0\0\4\0\0\0\0\0" + b"\0\0\5\0\0\0\0\0\1hello",
    ],
    ids=["tls", "zeroes", "ssh", "almost_the_preface", "no_frames", "data_without_headers"],
)
def test_garbage_ends_its_own_connection_only(server: ServerProcess, opening: bytes) -> None:
    with connected(server) as sock:
        sock.sendall(opening)
        everything(sock)


# --- callers that leave


@pytest.mark.usefixtures("client")
def test_clients_that_leave_in_the_middle_leave_nothing_behind(server: ServerProcess) -> None:
    data = framed(infer_message(8))
    with client_of(server.port) as watching:
        assert_inferred(watching.call(INFER, infer_message()).data[5:])
        before = server.open_files()
        for cut in range(0, len(data), 397):
            with client_of(server.port) as client:
                stream_id = client.start(INFER)
                client.send(stream_id, data[:cut], end=False)
                if cut % 2:
                    client.connection.reset_stream(stream_id, 8)
                    client.flush()
        for size in range(1, len(PREFACE) + 20, 3):
            with connected(server) as sock:
                sock.sendall((PREFACE + bytes(20))[:size])
        wait_until(lambda: server.open_files() <= before)
        assert_inferred(watching.call(INFER, infer_message()).data[5:])


@pytest.mark.usefixtures("client")
def test_clients_that_reset_every_call_leave_nothing_behind(server: ServerProcess) -> None:
    with client_of(server.port) as client:
        for _ in range(300):
            stream_id = client.start(INFER)
            client.send(stream_id, framed(infer_message()))
            client.connection.reset_stream(stream_id, 8)
            client.flush()
        assert_inferred(client.call(INFER, infer_message(16)).data[5:], 16)


def test_a_client_that_does_not_read_does_not_stop_the_others(server: ServerProcess) -> None:
    with client_of(server.port) as deaf, client_of(server.port) as client:
        for _ in range(100):
            deaf.send(deaf.start(INFER), framed(infer_message(30)))
        # They are three times what the ring holds: while some of them are still to be read or run, it may be full for
        # others as well.
        answers: list[Answer] = []

        def is_let_in() -> bool:
            answers.append(client.call(INFER, infer_message()))
            return answers[-1].status[0] != "8"  # RESOURCE_EXHAUSTED

        for _ in range(20):
            wait_until(is_let_in)
            assert_inferred(answers[-1].data[5:])
