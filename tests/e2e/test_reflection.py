"""Server reflection, through grpcio's own client of it: calls are made of what the server says, and of nothing else.

The client takes v1alpha; for v1 an interceptor changes the path of its calls, for the messages are the same.
"""

from __future__ import annotations

import queue
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from tests.e2e.process import ServerProcess, running
from tests.e2e.support import channel_to, grpc, triton

database = pytest.importorskip("grpc_reflection.v1alpha.proto_reflection_descriptor_database")

SERVICES: Final = [
    "inference.GRPCInferenceService",
    "grpc.health.v1.Health",
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
]


class _Version(grpc.StreamStreamClientInterceptor):  # type: ignore[misc]
    """Calls another version of the service."""

    def __init__(self, version: str) -> None:
        self._version = version

    def intercept_stream_stream(self, goes_on: Any, details: Any, requests: Any) -> Any:
        return goes_on(details._replace(method=details.method.replace("v1alpha", self._version)), requests)


class Reflected:
    """A client that knows a channel, and no message."""

    def __init__(self, channel: Any, version: str) -> None:
        self.channel = channel
        self.server = database.ProtoReflectionDescriptorDatabase(grpc.intercept_channel(channel, _Version(version)))
        self.pool = DescriptorPool(self.server)

    def message(self, name: str) -> Any:
        """The class of a message."""
        return GetMessageClass(self.pool.FindMessageTypeByName(name))

    def call(self, service: str, name: str, request: Any, **options: Any) -> Any:
        """A unary call of a method."""
        method = self.pool.FindServiceByName(service).methods_by_name[name]
        assert isinstance(request, GetMessageClass(method.input_type))
        answer = GetMessageClass(method.output_type)
        called = self.channel.unary_unary(
            f"/{service}/{name}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=answer.FromString,
        )
        return called(request, timeout=120, **options)


@pytest.fixture(params=["v1", "v1alpha"])
def reflected(server: ServerProcess, request: pytest.FixtureRequest) -> Iterator[Reflected]:
    with channel_to(server.address) as channel:
        yield Reflected(channel, request.param)


def test_services_are_listed_as_the_protocols_call_them(reflected: Reflected) -> None:
    assert reflected.server.get_services() == SERVICES


def test_an_inference_is_made_of_reflected_descriptors_alone(reflected: Reflected) -> None:
    request = reflected.message("inference.ModelInferRequest")(model_name="addsub", id="by reflection")
    values = np.arange(16, dtype=np.int32)
    for name in ("INPUT0", "INPUT1"):
        request.inputs.add(name=name, datatype="INT32", shape=[1, 16])
        request.raw_input_contents.append(values.tobytes())
    response = reflected.call("inference.GRPCInferenceService", "ModelInfer", request)
    assert (response.model_name, response.id) == ("addsub", "by reflection")
    outputs = dict(zip([output.name for output in response.outputs], response.raw_output_contents, strict=True))
    assert np.frombuffer(outputs["OUTPUT0"], np.int32).tolist() == (values + values).tolist()
    assert np.frombuffer(outputs["OUTPUT1"], np.int32).tolist() == [0] * 16


def test_other_services_and_files_are_called_likewise(reflected: Reflected) -> None:
    check = reflected.message("grpc.health.v1.HealthCheckRequest")()
    answer = reflected.call("grpc.health.v1.Health", "Check", check)
    assert answer.status == answer.SERVING
    request = reflected.message("inference.ModelConfigRequest")(name="addsub")
    config = reflected.call("inference.GRPCInferenceService", "ModelConfig", request).config
    assert config.DESCRIPTOR.file.name == "model_config.proto"
    assert config.max_batch_size == 8


def test_every_method_of_tritonclient_is_reflected(reflected: Reflected) -> None:
    theirs = triton.service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"]
    ours = reflected.pool.FindServiceByName("inference.GRPCInferenceService")
    shown = {method.name: (method.input_type.full_name, method.output_type.full_name) for method in ours.methods}
    assert shown == {
        method.name: (method.input_type.full_name, method.output_type.full_name) for method in theirs.methods
    }


def test_what_is_not_there_is_not_found(reflected: Reflected) -> None:
    for name in ("toutates.inference.ModelInferRequest", "inference.Nothing"):
        with pytest.raises(KeyError):
            reflected.server.FindFileContainingSymbol(name)
    with pytest.raises(KeyError):
        reflected.server.FindFileByName("service.proto")
    assert reflected.server.FindAllExtensionNumbers("inference.ModelConfig") == []


INFO: Final = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
LIST: Final = b"\x3a\x01*"


def test_an_open_call_does_not_hold_up_the_stop_of_a_server(broken_repository: Path, tmp_path: Path) -> None:
    flags = ["--load-models", "good", "--shutdown-grace", "600"]
    requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    with running(broken_repository, tmp_path, flags) as process, channel_to(process.address) as channel:
        answers = channel.stream_stream(INFO)(iter(requests.get, None))
        requests.put(LIST)
        assert SERVICES[0].encode() in next(answers)
        process.process.terminate()
        with pytest.raises(grpc.RpcError) as caught:
            next(answers)
        assert caught.value.code().name == "UNAVAILABLE"
        assert process.process.wait(120) == 0
        requests.put(None)


def test_a_server_can_be_told_to_offer_none(broken_repository: Path, tmp_path: Path) -> None:
    flags = ["--load-models", "good", "--grpc-reflection", "false"]
    with running(broken_repository, tmp_path, flags) as process, channel_to(process.address) as channel:
        with pytest.raises(grpc.RpcError) as caught:
            list(channel.stream_stream(INFO)(iter([LIST])))
        assert caught.value.code().name == "UNIMPLEMENTED"
        assert process.stop() == 0
