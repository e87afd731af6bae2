"""Every endpoint of REST but inference: from a path and a body to what the data plane is asked, and back to JSON."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.api.support import plane_of, serving
from tests.models.support import put
from toutates.api.dataplane.plane import DataPlane
from toutates.api.dataplane.readiness import Readiness
from toutates.api.rest.answers import Answer, refusal
from toutates.api.rest.endpoints import Endpoint, Route, find_route
from toutates.protocol import grpc_service_pb2 as pb
from toutates.system import errors


def ask(plane: DataPlane, path: str, body: bytes | None = None) -> Answer | Awaitable[Answer]:
    """What a server does with a request."""
    route = find_route(path)
    assert route is not None
    endpoint = route.endpoint
    assert ("GET" if body is None else "POST") in endpoint.methods
    try:
        request = endpoint.read(route, body)
        if endpoint.awaited is not None and endpoint.waits(plane):
            return _await(endpoint, endpoint.awaited(plane, request))
        assert endpoint.function is not None
        return endpoint.write(endpoint.function(plane, request))
    except errors.RequestError as error:
        return refusal(error)


async def _await(endpoint: Endpoint, response: Awaitable[Any]) -> Answer:
    try:
        return endpoint.write(await response)
    except errors.RequestError as error:
        return refusal(error)


def at_once(plane: DataPlane, path: str, body: bytes | None = None) -> tuple[int, Any]:
    answer = ask(plane, path, body)
    assert isinstance(answer, Answer)
    return answer.status, json.loads(answer.body) if answer.body else None


def with_models(root: Path, check: Callable[[DataPlane], Awaitable[None]], mode: Any = "none") -> None:
    async def run() -> None:
        async with serving(root, mode) as plane:
            await check(plane)

    trio.run(run)


# --- health and metadata ---------------------------------------------------------------------------------------------


def test_health_tells_in_the_status_and_in_the_body() -> None:
    readiness = Readiness(serving=True)
    plane = plane_of(readiness=readiness)
    assert at_once(plane, "/v2/health/live") == (200, {"live": True})
    assert at_once(plane, "/v2/health/ready") == (200, {"ready": True})
    readiness.update(serving=False)
    assert at_once(plane, "/v2/health/ready") == (400, {"ready": False})
    assert at_once(plane, "/v2/health/live") == (200, {"live": True})
    readiness.begin_exit()
    assert at_once(plane, "/v2/health/live") == (400, {"live": False})
    assert at_once(plane, "/v2/health/ready") == (400, {"ready": False})


def test_the_server_tells_its_name_and_extensions() -> None:
    status, document = at_once(plane_of(), "/v2")
    assert status == 200
    assert list(document) == ["name", "version", "extensions"]
    assert (document["name"], document["version"]) == ("triton", "1.2.3")
    assert "statistics" in document["extensions"]


def test_a_model_is_described(tmp_path: Path) -> None:
    put(tmp_path, "double")

    async def check(plane: DataPlane) -> None:
        assert at_once(plane, "/v2/models/double/ready") == (200, {"name": "double", "ready": True})
        assert at_once(plane, "/v2/models/double/versions/1") == (
            200,
            {
                "name": "double",
                "versions": ["1"],
                "platform": "onnxruntime_onnx",
                "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}],
                "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 4]}],
            },
        )
        status, config = at_once(plane, "/v2/models/double/config")
        assert status == 200
        assert config["name"] == "double"
        assert config["max_batch_size"] > 1
        assert config["input"][0]["data_type"] == "TYPE_FP32"
        assert config["input"][0]["dims"] == [4]
        assert config["metric_tags"] == {}
        assert "ensemble_scheduling" not in config

        unknown = {"error": "Request for unknown model: 'double' version 9 is not found"}
        for path in ("", "/ready", "/config"):
            assert at_once(plane, f"/v2/models/double/versions/9{path}") == (404, unknown)
        status, error = at_once(plane, f"/v2/models/double/versions/{10**20}/ready")
        assert status == 400
        assert "(details: stol), version should be an integral value > 0" in error["error"]

    with_models(tmp_path, check)


def test_statistics_have_all_their_zeros(tmp_path: Path) -> None:
    put(tmp_path, "double")

    async def check(plane: DataPlane) -> None:
        for path in ("/v2/models/stats", "/v2/models/double/stats", "/v2/models/double/versions/1/stats"):
            status, document = at_once(plane, path)
            assert status == 200
            (model,) = document["model_stats"]
            assert (model["name"], model["version"]) == ("double", "1")
            assert model["inference_count"] == 0
            assert model["inference_stats"]["cache_miss"] == {"count": 0, "ns": 0}
            assert model["response_stats"] == {}
            assert model["batch_stats"] == []
        text = "requested model version is not available for model 'double'"
        assert at_once(plane, "/v2/models/double/versions/2/stats") == (400, {"error": text})
        assert at_once(plane, "/v2/models/none/stats") == (400, {"error": "requested model 'none' is not available"})

    with_models(tmp_path, check)


# --- the repository --------------------------------------------------------------------------------------------------


def test_an_index_leaves_out_what_has_no_value(tmp_path: Path) -> None:
    put(tmp_path, "double")

    async def check(plane: DataPlane) -> None:
        ready = [{"name": "double", "version": "1", "state": "READY"}]
        for body in (b"", b"{}", b'{"ready":true}', b'{"ready":false}'):
            assert at_once(plane, "/v2/repository/index", body) == (200, ready)
            assert at_once(plane, "/v2/repository/any/index", body) == (200, ready)
        for body in (b'{"ready":1}', b'{"ready":null}'):
            text = "Invalid value for 'ready': expected a boolean"
            assert at_once(plane, "/v2/repository/index", body) == (400, {"error": text})
        assert at_once(plane, "/v2/repository/index", b'{"ready":' + b"[" * 250_000)[0] == 400
        assert at_once(plane, "/v2/repository/index", b"{")[0] == 500

    with_models(tmp_path, check)


def test_loads_are_refused_where_they_are_not_allowed(tmp_path: Path) -> None:
    async def check(plane: DataPlane) -> None:
        text = "explicit model load / unload is not allowed if polling is enabled"
        for verb in ("load", "unload"):
            assert at_once(plane, f"/v2/repository/models/m/{verb}", b"{}") == (503, {"error": text})

    with_models(tmp_path, check)


def test_models_are_loaded_and_unloaded(tmp_path: Path) -> None:
    put(tmp_path, "double")

    async def check(plane: DataPlane) -> None:
        async def awaited(path: str, body: bytes) -> tuple[int, Any]:
            answer = ask(plane, path, body)
            assert not isinstance(answer, Answer)
            status, _, body = await answer
            return status, json.loads(body) if body else None

        assert await awaited("/v2/repository/index", b"") == (200, [{"name": "double"}])
        config = json.dumps({"parameters": {"config": '{"max_batch_size":"16"}'}}).encode()
        assert await awaited("/v2/repository/models/double/load", config) == (200, None)
        assert at_once(plane, "/v2/models/double/config")[1]["max_batch_size"] == 16
        body = b'{"parameters":{"unload_dependents":false}}'
        assert await awaited("/v2/repository/models/double/unload", body) == (200, None)
        status, error = await awaited("/v2/repository/models/none/load", b"{}")
        assert status == 500
        assert error["error"].startswith("failed to load 'none', failed to poll from model repository")
        status, error = await awaited("/v2/repository/r/models/double/load", b"")
        assert (status, error) == (501, {"error": "'repository_name' specification is not supported"})

    with_models(tmp_path, check, "explicit")


def request_of(path: str, body: bytes) -> Any:
    route = find_route(path)
    assert route is not None
    return route.endpoint.read(route, body)


def test_a_load_brings_files_in_base64() -> None:
    content = bytes(range(256)) * 30_000
    text = b64encode(content).decode()
    body = json.dumps({"parameters": {"file:1/model.onnx": text[:10] + "\n" + text[10:].rstrip("=")}}).encode()
    request = request_of("/v2/repository/models/m/load", body)
    assert request.parameters["file:1/model.onnx"].bytes_param == content


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"config": {}}, "Unable to parse 'config': attempt to access JSON non-string as string"),
        ({"other": "x"}, "unexpected error on creating Triton parameter"),
        ({"file:x": "a"}, "unexpected error on creating Triton parameter"),
        ([], "Unable to parse 'parameters': attempt to access JSON non-object as object"),
    ],
)
def test_a_load_that_cannot_be_read_is_refused(parameters: Any, text: str) -> None:
    with pytest.raises(errors.MalformedMessage) as caught:
        request_of("/v2/repository/models/m/load", json.dumps({"parameters": parameters}).encode())
    assert str(caught.value) == text


def test_an_unload_passes_over_what_it_does_not_know() -> None:
    for body in (b"", b"[]", b'{"parameters":1}', b'{"parameters":{"unload_dependents":"x","z":1}}'):
        assert request_of("/v2/repository/models/m/unload", body) == pb.RepositoryModelUnloadRequest(model_name="m")
    request = request_of("/v2/repository/models/m/unload", b'{"parameters":{"unload_dependents":true}}')
    assert request.parameters["unload_dependents"].bool_param


# --- settings --------------------------------------------------------------------------------------------------------


def test_trace_settings_are_told_and_changed() -> None:
    plane = plane_of()
    status, before = at_once(plane, "/v2/trace/setting")
    assert status == 200
    assert before["trace_level"] == ["OFF"]
    assert before["trace_mode"] == "opentelemetry"
    status, after = at_once(plane, "/v2/trace/setting", b'{"trace_rate":"12","trace_level":["TIMESTAMPS"]}')
    assert status == 200
    assert after == {**before, "trace_rate": "12", "trace_level": ["TIMESTAMPS"]}
    assert at_once(plane, "/v2/trace/setting") == (200, after)
    cleared = at_once(plane, "/v2/trace/setting", b'{"trace_rate":null,"trace_level":null}')
    assert cleared == (200, before)


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        (b'{"trace_rate":12}', 500, "Unable to parse 'trace_rate': attempt to access JSON non-string as string"),
        (b'{"trace_level":"OFF"}', 500, "Unable to parse 'trace_level': attempt to access JSON non-array as array"),
        (b'{"trace_level":[1]}', 500, "Unable to parse 'trace_level': attempt to access JSON non-string as string"),
        (b'{"trace_file":"x"}', 501, "trace file location can not be updated through network protocol"),
        (b'{"trace_level":["OFF","TIMESTAMPS"]}', 400, "Expect only one trace level 'OFF' is specified"),
        (b'{"trace_rate":"x"}', 400, "Unable to parse 'trace_rate', got: x"),
        (b"", 500, "failed to parse the request JSON buffer: The document is empty. at 0"),
        (b"[]", 500, "attempt to access JSON non-object as object"),
    ],
)
def test_trace_settings_that_cannot_be_are_refused(body: bytes, status: int, text: str) -> None:
    assert at_once(plane_of(), "/v2/trace/setting", body) == (status, {"error": text})


def test_trace_settings_of_an_unknown_model_are_refused() -> None:
    assert at_once(plane_of(), "/v2/models/m/trace/setting") == (400, {"error": "Request for unknown model : m"})


def test_log_settings_are_told_and_changed() -> None:
    plane = plane_of()
    before = at_once(plane, "/v2/logging")
    assert before == (
        200,
        {
            "log_file": "",
            "log_info": True,
            "log_warning": True,
            "log_error": True,
            "log_verbose_level": 0,
            "log_format": "default",
        },
    )
    body = b'{"log_verbose_level":1,"log_info":null,"log_format":"ISO8601","log_file":null,"log_level.h2grpc":"debug"}'
    status, after = at_once(plane, "/v2/logging", body)
    assert status == 200
    expected = {**before[1], "log_verbose_level": 1, "log_format": "ISO8601", "log_level.h2grpc": "debug"}
    assert after == expected
    assert at_once(plane, "/v2/logging", b'{"log_level.h2grpc":false}')[1] == {
        key: value for key, value in expected.items() if key != "log_level.h2grpc"
    }


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        (b'{"log_info":1}', 500, "Unable to parse 'log_info': attempt to access JSON non-boolean as boolean"),
        (b'{"log_verbose_level":-1}', 500, "Unable to parse 'log_verbose_level': attempt to access JSON non-unsigned-"),
        (b'{"log_verbose_level":true}', 500, "Unable to parse 'log_verbose_level': attempt to access JSON non-unsign"),
        (b'{"log_file":"x"}', 501, "log file location can not be updated through network protocol"),
        (b'{"log_format":"x"}', 503, "invalid argument for --log_format, got: x"),
        (b"", 500, "failed to parse the request JSON buffer: The document is empty. at 0"),
    ],
)
def test_log_settings_that_cannot_be_are_refused(body: bytes, status: int, text: str) -> None:
    found, document = at_once(plane_of(), "/v2/logging", body)
    assert found == status
    assert document["error"].startswith(text)


# --- shared memory ---------------------------------------------------------------------------------------------------


def test_regions_are_registered_by_name() -> None:
    request = request_of("/v2/systemsharedmemory/region/r/register", b'{"key":"/k","byte_size":64}')
    assert request == pb.SystemSharedMemoryRegisterRequest(name="r", key="/k", byte_size=64)
    handle = b64encode(bytes(range(64))).decode()
    body = json.dumps({"raw_handle": {"b64": handle}, "device_id": 1, "byte_size": 64}).encode()
    request = request_of("/v2/cudasharedmemory/region/r/register", body)
    assert request == pb.CudaSharedMemoryRegisterRequest(
        name="r", raw_handle=bytes(range(64)), device_id=1, byte_size=64
    )
    for path in ("/v2/systemsharedmemory/unregister", "/v2/cudasharedmemory/unregister"):
        assert request_of(path, b"").name == ""


@pytest.mark.parametrize(
    ("path", "body", "text"),
    [
        (
            "/v2/systemsharedmemory/register",
            b"{}",
            "'region name' is necessary to register system shared memory region",
        ),
        ("/v2/cudasharedmemory/register", b"{}", "'region name' is necessary to register cuda shared memory region"),
        (
            "/v2/systemsharedmemory/region/r/register",
            b'{"byte_size":1}',
            "Shared memory register request has no 'key' field",
        ),
        (
            "/v2/systemsharedmemory/region/r/register",
            b'{"key":"k"}',
            "Shared memory register request has no 'byte_size' field",
        ),
        (
            "/v2/systemsharedmemory/region/r/register",
            b'{"key":"k","byte_size":1,"offset":-1}',
            "Unable to parse 'offset': attempt to access JSON non-unsigned-integer as unsigned-integer",
        ),
        (
            "/v2/cudasharedmemory/region/r/register",
            b"[]",
            "Shared memory register request has no 'raw_handle' field",
        ),
        (
            "/v2/cudasharedmemory/region/r/register",
            b'{"raw_handle":{"b64":"AAAA"},"byte_size":1,"device_id":0}',
            "'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t",
        ),
    ],
)
def test_a_registration_that_cannot_be_read_is_refused(path: str, body: bytes, text: str) -> None:
    with pytest.raises(errors.RequestError) as caught:
        request_of(path, body)
    assert str(caught.value) == text


def test_regions_are_listed_by_name() -> None:
    route = find_route("/v2/systemsharedmemory/status")
    assert isinstance(route, Route)
    response = pb.SystemSharedMemoryStatusResponse()
    for name in ("b", "a"):
        response.regions[name].CopyFrom(response.RegionStatus(name=name, key="/k", byte_size=2**63))
    assert json.loads(route.endpoint.write(response).body) == [
        {"name": name, "key": "/k", "offset": 0, "byte_size": 2**63} for name in "ab"
    ]
