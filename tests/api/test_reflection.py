"""Server reflection: the answers without a server, and its calls on a worker over real sockets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool

from tests.h2grpc.frames import (
    DATA,
    END_STREAM,
    HEADERS,
    block,
    data,
    headers,
    message,
    request,
    rst_stream,
    window_update,
)
from tests.net.running import WIDE, RawClient, Running, running
from toutates.api.dataplane.readiness import Readiness
from toutates.api.grpc import reflection
from toutates.api.grpc.reflection import MAX_REQUEST_BYTES, reflection_answers, reflection_methods
from toutates.api.grpc.statuses import STATUSES
from toutates.api.restrictions import PROTOCOLS
from toutates.net import GrpcService
from toutates.protocol.reflection_pb2 import ExtensionRequest, ServerReflectionRequest, ServerReflectionResponse
from toutates.system.errors import MalformedMessage

SERVICES = [
    "inference.GRPCInferenceService",
    "grpc.health.v1.Health",
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
]
V1, V1ALPHA = PROTOCOLS["reflection"]

# --- answers


def asked(**fields: Any) -> ServerReflectionResponse:
    """The response to a request with these fields, which is echoed in it."""
    sent = ServerReflectionRequest(host="example", **fields)
    response = ServerReflectionResponse.FromString(reflection_answers().answer(sent.SerializeToString()))
    assert response.valid_host == "example"
    assert response.original_request == sent
    return response


def files_in(response: ServerReflectionResponse) -> list[str]:
    found = response.file_descriptor_response.file_descriptor_proto
    return [FileDescriptorProto.FromString(file).name for file in found]


def test_all_services_are_listed_by_the_names_of_their_protocols() -> None:
    for value in ("", "*", "anything"):
        assert [service.name for service in asked(list_services=value).list_services_response.service] == SERVICES


@pytest.mark.parametrize(
    ("symbol", "files"),
    [
        ("inference.GRPCInferenceService", ["grpc_service.proto", "model_config.proto"]),
        ("inference.GRPCInferenceService.ModelInfer", ["grpc_service.proto", "model_config.proto"]),
        ("inference.ModelInferRequest.InferInputTensor", ["grpc_service.proto", "model_config.proto"]),
        ("inference.ModelInferRequest.InferInputTensor.shape", ["grpc_service.proto", "model_config.proto"]),
        ("inference.InferParameter.parameter_choice", ["grpc_service.proto", "model_config.proto"]),
        ("inference.ModelConfig", ["model_config.proto"]),
        ("inference.DataType", ["model_config.proto"]),
        ("inference.TYPE_FP32", ["model_config.proto"]),
        ("grpc.health.v1.Health.Watch", ["grpc/health/v1/health.proto"]),
        ("grpc.reflection.v1.ServerReflection", ["grpc/reflection/v1/reflection.proto"]),
        ("grpc.reflection.v1alpha.ServerReflection", ["grpc/reflection/v1alpha/reflection.proto"]),
    ],
)
def test_a_symbol_is_answered_with_its_file_and_all_that_it_imports(symbol: str, files: list[str]) -> None:
    response = asked(file_containing_symbol=symbol)
    assert files_in(response) == files
    pool = DescriptorPool()
    for file in reversed(response.file_descriptor_response.file_descriptor_proto):
        pool.AddSerializedFile(file)  # which refuses a file that is not complete


def test_a_file_is_answered_with_all_that_it_imports() -> None:
    assert files_in(asked(file_by_filename="grpc_service.proto")) == ["grpc_service.proto", "model_config.proto"]
    assert files_in(asked(file_by_filename="model_config.proto")) == ["model_config.proto"]


def test_no_message_has_extensions() -> None:
    numbers = asked(all_extension_numbers_of_type="inference.ModelConfig").all_extension_numbers_response
    assert (numbers.base_type_name, list(numbers.extension_number)) == ("inference.ModelConfig", [])


def extension(of: str) -> ExtensionRequest:
    return ExtensionRequest(containing_type=of, extension_number=1)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"file_by_filename": "toutates/protocol/grpc_service.proto"}, "File not found."),
        ({"file_by_filename": ""}, "File not found."),
        ({"file_containing_symbol": "inference"}, "Symbol not found."),
        ({"file_containing_symbol": ".inference.ModelConfig"}, "Symbol not found."),
        ({"file_containing_symbol": "toutates.inference.ModelConfig"}, "Symbol not found."),
        ({"file_containing_symbol": "inference.Nothing"}, "Symbol not found."),
        ({"all_extension_numbers_of_type": "inference.GRPCInferenceService"}, "Type not found."),
        ({"all_extension_numbers_of_type": "inference.Nothing"}, "Type not found."),
        ({"file_containing_extension": extension("inference.ModelConfig")}, "Extension not found."),
        ({"file_containing_extension": extension("inference.Nothing")}, "Type not found."),
    ],
)
def test_what_is_not_there_is_not_found_in_the_words_of_grpc(fields: dict[str, Any], text: str) -> None:
    error = asked(**fields).error_response
    assert (error.error_code, error.error_message) == (5, text)


def test_a_request_of_a_kind_that_is_not_known_is_not_implemented() -> None:
    assert asked().error_response.error_code == 12
    answer = reflection_answers().answer(b"\x42\x01x")  # field 8, which no version has
    assert ServerReflectionResponse.FromString(answer).error_response.error_code == 12


@pytest.mark.parametrize("content", [b"\x0a\xff", b"\x0a\x01\xff", b"\x0b" * 500])
def test_what_is_no_request_is_refused_in_the_words_of_clients(content: bytes) -> None:
    with pytest.raises(MalformedMessage, match="not a ServerReflectionRequest") as caught:
        reflection_answers().answer(content)
    assert "toutates" not in str(caught.value)


def test_answers_are_made_once() -> None:
    assert reflection_answers() is reflection_answers()


# --- calls

LIST = message(ServerReflectionRequest(list_services="*").SerializeToString())
FILES = message(ServerReflectionRequest(file_by_filename="grpc_service.proto").SerializeToString())


@contextmanager
def serving(readiness: Readiness) -> Iterator[tuple[Running, list[Callable[[], None]]]]:
    """A worker with reflection, and the callbacks that it has asked for."""
    planned: list[Callable[[], None]] = []

    def call_soon(callback: Callable[[], None]) -> None:
        planned.append(callback)
        server.worker.call_soon(callback)

    with running(
        None,
        *reflection_methods(readiness, call_soon),
        serve=lambda worker, grpc: GrpcService(worker, grpc.methods, "", STATUSES),
    ) as server:
        yield server, planned


def open_calls(server: Running) -> int:
    return sum(transport.connection.open_calls for transport in server.worker.transports.open.values())


def opened(path: str, *stream_ids: int) -> bytes:
    return b"".join(headers(stream_id, block(request(path))) + data(stream_id, LIST) for stream_id in stream_ids)


@pytest.mark.parametrize("path", [V1, V1ALPHA])
def test_requests_of_one_call_are_answered_in_order(path: str) -> None:
    with serving(Readiness(serving=True)) as (server, _), RawClient(server, WIDE) as client:
        client.send(opened(path, 1))
        for body in (LIST, FILES, LIST, FILES):
            client.send(data(1, body))
        kinds = []
        for _ in range(5):
            received = client.until(DATA).payload
            while len(received) < 5 + int.from_bytes(received[1:5], "big"):
                received += client.until(DATA).payload
            kinds.append(ServerReflectionResponse.FromString(received[5:]).WhichOneof("message_response"))
        services, files = "list_services_response", "file_descriptor_response"
        assert kinds == [services, services, files, services, files]
        client.send(data(1, b"", END_STREAM))
        assert b"grpc-status" in client.until(HEADERS).payload


@pytest.mark.parametrize(("content", "text"), [(b"\x0a\xff", b"not a Serv"), (bytes(513), b"513 vs. 512")])
def test_a_request_that_cannot_be_used_ends_its_call_alone(content: bytes, text: bytes) -> None:
    with serving(Readiness(serving=True)) as (server, _), RawClient(server) as client:
        client.send(opened(V1, 1, 3))
        for _ in range(2):
            client.until(DATA)
        client.send(data(1, message(content)))
        trailers = client.until(HEADERS)
        assert trailers.stream_id == 1
        assert b"grpc-status" in trailers.payload
        assert text in trailers.payload
        client.send(data(3, LIST))
        assert client.until(DATA).stream_id == 3


def test_a_request_may_be_as_large_as_the_limit() -> None:
    size = MAX_REQUEST_BYTES - 3
    longest = b"\x0a" + bytes([size & 0x7F | 0x80, size >> 7]) + b"x" * size
    with serving(Readiness(serving=True)) as (server, _), RawClient(server) as client:
        client.send(headers(1, block(request(V1))) + data(1, message(longest)))
        assert ServerReflectionResponse.FromString(client.until(DATA).payload[5:]).valid_host == "x" * size
        client.send(rst_stream(1))


def test_a_flood_of_requests_ends_its_call_when_the_answers_are_not_read() -> None:
    with serving(Readiness(serving=True)) as (server, _), RawClient(server) as client, RawClient(server) as other:
        client.send(headers(1, block(request(V1))) + b"".join(data(1, FILES * 100) for _ in range(10)))
        server.until(lambda: server.worker.limit_hits["unread_responses"] == 1)
        server.until(lambda: open_calls(server) == 0)
        other.send(opened(V1, 1))
        assert other.until(DATA).payload


def test_open_calls_end_in_slices_when_the_server_exits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reflection, "ENDED_AT_ONCE", 2)
    readiness = Readiness(serving=True)
    with serving(readiness) as (server, planned), RawClient(server, WIDE) as client:
        client.send(opened(V1, 1, 3, 5) + opened(V1ALPHA, 7, 9))
        for _ in range(5):
            client.until(DATA)
        client.send(rst_stream(1))
        server.until(lambda: open_calls(server) == 4)
        server.call(lambda: readiness.update(serving=False))
        assert server.call(lambda: open_calls(server)) == 4
        server.call(readiness.begin_exit)
        for _ in range(4):
            assert b"shutting down" in client.until(HEADERS).payload
        assert len(planned) == 1
        client.send(opened(V1, 11))  # that was on its way
        assert client.until(DATA).stream_id == 11
        assert b"shutting down" in client.until(HEADERS).payload
        server.until(lambda: open_calls(server) == 0)


def test_the_exit_of_a_server_leaves_answers_that_wait_for_window_alone() -> None:
    readiness = Readiness(serving=True)
    with serving(readiness) as (server, planned), RawClient(server) as client:
        client.send(headers(1, block(request(V1))) + data(1, FILES * 5, END_STREAM))
        received = b""
        while len(received) < 65_535:
            received += client.until(DATA).payload
        server.call(readiness.begin_exit)
        assert server.call(lambda: open_calls(server)) == 1
        assert not planned
        client.send(window_update(0, 2**20) + window_update(1, 2**20))
        assert b"shutting down" not in client.until(HEADERS).payload
        server.until(lambda: open_calls(server) == 0)


@pytest.mark.parametrize("ending", [rst_stream(1), data(1, b"", END_STREAM), data(1, message(b"\x0a\xff"))])
def test_nothing_is_kept_of_a_call_that_has_ended(ending: bytes) -> None:
    readiness = Readiness(serving=True)
    with serving(readiness) as (server, _), RawClient(server) as client:
        client.send(opened(V1, 1, 3))
        for _ in range(2):
            client.until(DATA)
        client.send(ending)
        server.until(lambda: open_calls(server) == 1)
        handler = server.service.methods[V1.encode()].message
        assert handler is not None
        assert len(handler.__self__._open) == 1  # type: ignore[attr-defined]
