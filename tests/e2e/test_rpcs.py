"""Every RPC but ModelInfer, through tritonclient's three interfaces and bare grpcio."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.e2e.control import EXPLICIT
from tests.e2e.health import request_of, status_of
from tests.e2e.models import DATATYPES, VERSIONS
from tests.e2e.process import ServerProcess, running
from tests.e2e.support import INFER, SERVICE, Tensor, call, channel_to, grpc, pb, refused, request, triton
from tests.waiting import PATIENCE_S

HEALTH = "/grpc.health.v1.Health/"


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[Any]:
    with triton.InferenceServerClient(server.address) as client:
        yield client


@pytest.fixture(scope="module")
def channel(server: ServerProcess) -> Iterator[Any]:
    with channel_to(server.address) as channel:
        yield channel


def with_aio(server: ServerProcess, use: Callable[[Any], Awaitable[None]]) -> None:
    """Run ``use`` with tritonclient's asyncio client."""
    import tritonclient.grpc.aio as triton_aio

    async def main() -> None:
        async with triton_aio.InferenceServerClient(server.address) as client:
            await use(client)

    asyncio.run(main())


def mlp_input(rows: int) -> Any:
    tensor = triton.InferInput("INPUT", [rows, 64], "FP32")
    tensor.set_data_from_numpy(np.arange(rows * 64, dtype=np.float32).reshape(rows, 64))
    return tensor


# --- health and metadata


def test_server_is_live_and_ready(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()


@pytest.mark.parametrize(
    ("model", "version", "ready"),
    [
        ("mlp", "", True),
        ("mlp", "1", True),
        ("versions", "10", True),
        ("versions", "3", False),
        ("versions", "0", False),
        ("nothing", "", False),
        ("", "", False),
    ],
)
def test_model_is_ready_when_it_answers_and_unknown_ones_are_not(
    client: Any, model: str, version: str, ready: bool
) -> None:
    assert client.is_model_ready(model, version) is ready


def test_readiness_of_a_version_that_is_no_number_is_an_invalid_argument(channel: Any) -> None:
    message = pb.ModelReadyRequest(name="mlp", version="x")
    assert refused(channel, message, SERVICE + "ModelReady") == (
        "INVALID_ARGUMENT",
        "failed to get model version from specified version string 'x' (details: stol), "
        "version should be an integral value > 0",
    )


def test_server_metadata_names_the_server_and_what_it_offers(client: Any) -> None:
    metadata = client.get_server_metadata()
    assert metadata.name == "triton"
    assert metadata.version
    assert {"statistics", "binary_tensor_data", "classification"} <= set(metadata.extensions)
    assert "sequence" not in metadata.extensions


def test_server_id_is_the_name_in_server_metadata(broken_repository: Path, tmp_path: Path) -> None:
    with running(broken_repository, tmp_path, ["--server-id", "büro-7"]) as process:
        with triton.InferenceServerClient(process.address) as client:
            assert client.get_server_metadata().name == "büro-7"
        assert process.stop() == 0


def test_model_metadata_has_every_version_and_the_batch_dimension(client: Any) -> None:
    metadata = client.get_model_metadata("versions")
    assert metadata.name == "versions"
    assert metadata.platform == "onnxruntime_onnx"
    assert list(metadata.versions) == [str(version) for version in VERSIONS]
    [tensor] = metadata.inputs
    assert (tensor.name, tensor.datatype, list(tensor.shape)) == ("INPUT", "INT32", [-1, 4])


def test_model_metadata_of_one_version_names_that_version_only(client: Any) -> None:
    assert list(client.get_model_metadata("versions", "2").versions) == ["2"]


@pytest.mark.parametrize("datatype", DATATYPES)
def test_model_metadata_and_config_have_the_datatype(client: Any, datatype: str) -> None:
    model = f"identity_{datatype}"
    [tensor] = client.get_model_metadata(model).outputs
    assert tensor.datatype == datatype
    config = client.get_model_config(model, as_json=True)["config"]
    name = "TYPE_STRING" if datatype == "BYTES" else f"TYPE_{datatype}"
    assert config["input"][0]["data_type"] == config["output"][0]["data_type"] == name


@pytest.mark.parametrize(
    ("model", "shape"),
    [("rank1", [-1, 1]), ("scalar", [1]), ("fixed", [2, 3]), ("open", [2, -1]), ("dynamic", [-1, -1])],
)
def test_model_metadata_shows_shapes_as_clients_send_them(client: Any, model: str, shape: list[int]) -> None:
    metadata = client.get_model_metadata(model)
    assert [list(tensor.shape) for tensor in (*metadata.inputs, *metadata.outputs)] == [shape, shape]


def test_model_config_tells_batching_from_its_absence(client: Any) -> None:
    batched = client.get_model_config("addsub", as_json=True)["config"]
    assert batched["max_batch_size"] == 8
    assert batched["dynamic_batching"] == {"preferred_batch_size": [8]}
    assert [output["name"] for output in batched["output"]] == ["OUTPUT1", "OUTPUT0"]
    assert batched["input"][0]["dims"] == ["16"]
    unbatched = client.get_model_config("fixed", as_json=True)["config"]
    assert "max_batch_size" not in unbatched
    assert "dynamic_batching" not in unbatched


def test_model_config_marks_optional_inputs(client: Any) -> None:
    inputs = client.get_model_config("optional").config.input
    assert [(tensor.name, tensor.optional) for tensor in inputs] == [("INPUT", False), ("bias", True)]


@pytest.mark.parametrize("method", ["ModelMetadata", "ModelConfig"])
@pytest.mark.parametrize(
    ("model", "version", "status", "text"),
    [
        ("nothing", "", "NOT_FOUND", "Request for unknown model: 'nothing' is not found"),
        ("mlp", "7", "NOT_FOUND", "Request for unknown model: 'mlp' version 7 is not found"),
        (
            "mlp",
            "-1",
            "INVALID_ARGUMENT",
            "invalid model version specified '-1' , version should be an integral value > 0",
        ),
    ],
)
def test_metadata_and_config_refuse_what_is_not_there(
    channel: Any, method: str, model: str, version: str, status: str, text: str
) -> None:
    message = getattr(pb, f"{method}Request")(name=model, version=version)
    assert refused(channel, message, SERVICE + method) == (status, text)


# --- what is not offered


def test_all_rpcs_of_the_protocol_are_known(channel: Any) -> None:
    unknown = refused(channel, b"", SERVICE + "ModelDance")
    service = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"]
    methods = [method.name for method in service.methods if method.name != "ModelStreamInfer"]
    assert len(methods) == 19
    for method in methods:
        error = channel.unary_unary(SERVICE + method).future(b"", timeout=PATIENCE_S).exception()
        assert error is None or (error.code().name, error.details()) != unknown


@pytest.mark.parametrize("path", [SERVICE + "ModelDance", "/inference.Other/ModelInfer", "/"])
def test_server_does_not_implement_unknown_paths(channel: Any, path: str) -> None:
    assert refused(channel, b"", path)[0] == "UNIMPLEMENTED"


@pytest.mark.parametrize(
    "method",
    [
        "ServerLive",
        "ServerReady",
        "ServerMetadata",
        "ModelReady",
        "ModelMetadata",
        "ModelConfig",
        "ModelInfer",
        "ModelStatistics",
        "RepositoryIndex",
    ],
)
def test_server_calls_a_message_it_cannot_parse_an_internal_error(channel: Any, method: str) -> None:
    status, text = refused(channel, b"\x0a\xff", SERVICE + method)
    assert status == "INTERNAL"
    assert f"not a {method}Request" in text


# --- health


def check(channel: Any, service: str, **options: Any) -> str:
    """The status of a service; that of the call where it is an error."""
    request = request_of(service)
    try:
        answer = channel.unary_unary(HEALTH + "Check")(request, timeout=120, **options)
    except grpc.RpcError as error:
        return str(error.code().name)
    return status_of(answer)


def statuses(stream: Any) -> Iterator[str]:
    """What a Watch call is told."""
    return (status_of(one) for one in stream)


@pytest.mark.parametrize(
    "service",
    [
        "",
        "inference.GRPCInferenceService",
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
        "liveness",
        "live",
        "readiness",
        "ready",
        "mlp",
    ],
)
def test_health_check_answers_for_the_server_its_services_and_models(channel: Any, service: str) -> None:
    assert check(channel, service) == "SERVING"


@pytest.mark.parametrize("service", ["anything", "Liveness", "inference.Other", "mlp2", "x" * 2_000])
def test_health_check_of_what_there_is_not_is_not_found(channel: Any, service: str) -> None:
    assert check(channel, service) == "NOT_FOUND"
    stream = channel.unary_stream(HEALTH + "Watch")(request_of(service))
    assert next(statuses(stream)) == "SERVICE_UNKNOWN"
    stream.cancel()


def test_a_model_is_watched_as_it_comes_and_goes(repository: Path, tmp_path: Path) -> None:
    flags = [*EXPLICIT, "--load-model", "versions"]
    with running(repository, tmp_path, flags) as process, channel_to(process.address) as channel:

        def watch(service: str) -> Iterator[str]:
            request = request_of(service)
            return statuses(channel.unary_stream(HEALTH + "Watch")(request, timeout=120))

        def control(name: str) -> None:
            request = pb.RepositoryModelLoadRequest(model_name="mlp").SerializeToString()
            call(channel, SERVICE + name, request)

        model, server, other = watch("mlp"), watch("ready"), watch("versions")
        assert (next(model), next(server), next(other)) == ("SERVICE_UNKNOWN", "SERVING", "SERVING")
        control("RepositoryModelLoad")
        while (seen := next(model)) == "NOT_SERVING":  # while it is loaded
            pass
        assert seen == "SERVING"
        assert check(channel, "mlp") == "SERVING"
        control("RepositoryModelUnload")
        assert next(model) == "NOT_SERVING"
        assert check(channel, "mlp") == "NOT_SERVING"
        control("RepositoryModelLoad")
        assert next(model) == "SERVING"
        process.process.terminate()
        assert (next(model), next(server), next(other)) == ("NOT_SERVING",) * 3  # nothing of other models before
        assert process.process.wait(120) == 0


def test_health_watch_says_not_serving_when_the_server_stops(broken_repository: Path, tmp_path: Path) -> None:
    with (
        running(broken_repository, tmp_path, ["--load-models", "good"]) as process,
        channel_to(process.address) as channel,
    ):
        stream = channel.unary_stream(HEALTH + "Watch")(request_of(), timeout=120)
        assert status_of(next(stream)) == "SERVING"
        process.process.terminate()
        assert status_of(next(stream)) == "NOT_SERVING"
        with pytest.raises(grpc.RpcError) as caught:
            next(stream)
        assert caught.value.code().name == "UNAVAILABLE"
        assert process.process.wait(120) == 0


def test_a_health_watch_that_its_caller_ends_leaves_the_server_well(channel: Any) -> None:
    stream = channel.unary_stream(HEALTH + "Watch")(request_of(), timeout=120)
    next(stream)
    stream.cancel()
    answer = call(channel, HEALTH + "Check", b"")
    assert status_of(answer) == "SERVING"


# --- the other interfaces of tritonclient


def test_callbacks_of_async_infer_get_their_own_answers(client: Any) -> None:
    answers: queue.Queue[tuple[str, Any, Any]] = queue.Queue()
    for number in range(20):
        tensor = triton.InferInput("INPUT", [1, 4], "INT32")
        tensor.set_data_from_numpy(np.full((1, 4), number, np.int32))
        client.async_infer(
            "versions",
            [tensor],
            lambda result, error: answers.put((result.get_response().id, result, error)),
            model_version="10",
            request_id=str(number),
        )
    for _ in range(20):
        identifier, result, error = answers.get(timeout=PATIENCE_S)
        assert error is None
        assert result.as_numpy("OUTPUT").tolist() == [[int(identifier) + 10] * 4]


def test_callbacks_of_async_infer_get_errors(client: Any) -> None:
    answers: queue.Queue[Any] = queue.Queue()
    client.async_infer("nothing", [mlp_input(1)], lambda result, error: answers.put(error))
    error = answers.get(timeout=PATIENCE_S)
    assert error.status() == "StatusCode.NOT_FOUND"
    assert error.message() == "Request for unknown model: 'nothing' is not found"


def test_asyncio_client_gets_every_answer(server: ServerProcess) -> None:
    async def use(client: Any) -> None:
        assert await client.is_server_live()
        assert await client.is_server_ready()
        assert await client.is_model_ready("mlp")
        assert (await client.get_server_metadata()).name == "triton"
        assert (await client.get_model_metadata("mlp")).name == "mlp"
        assert (await client.get_model_config("mlp")).config.max_batch_size == 64
        assert (await client.get_inference_statistics("mlp")).model_stats[0].name == "mlp"
        assert len((await client.get_model_repository_index()).models) > 20
        results = await asyncio.gather(*[client.infer("mlp", [mlp_input(rows)]) for rows in range(1, 9)])
        assert [result.as_numpy("OUTPUT").shape for result in results] == [(rows, 8) for rows in range(1, 9)]

    with_aio(server, use)


def test_headers_of_the_caller_do_no_harm(client: Any) -> None:
    headers = {"authorization": "Bearer x", "x-long": "v" * 2000}
    result = client.infer("mlp", [mlp_input(1)], headers=headers)
    assert result.as_numpy("OUTPUT").shape == (1, 8)


def test_one_connection_carries_a_hundred_calls_of_all_kinds_at_once(channel: Any) -> None:
    message = request("mlp", Tensor.of("INPUT", "FP32", np.ones((1, 64)))).SerializeToString()
    futures = []
    for _ in range(100):
        futures.append(channel.unary_unary(INFER).future(message, timeout=120))
        futures.append(channel.unary_unary(SERVICE + "ServerReady").future(b"", timeout=120))
    assert {bytes(future.result()) for future in futures[1::2]} == {b"\x08\x01"}
    assert {pb.ModelInferResponse.FromString(future.result()).model_name for future in futures[::2]} == {"mlp"}
