"""The data plane: a request message in, a response message or a RequestError out, and no transport anywhere."""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import onnx
import pytest
import trio
from google.protobuf.message import Message

from tests.api.support import plane_of, serving
from tests.graphs import DOUBLE, model, tensor
from tests.models.support import put
from toutates.api.dataplane.plane import EXTENSIONS, DataPlane
from toutates.api.dataplane.readiness import Readiness
from toutates.api.dataplane.traffic import traffic_document
from toutates.models.table import ModelTable
from toutates.protocol import grpc_service_pb2 as pb
from toutates.repositories.control.modes import ControlMode
from toutates.system.errors import (
    InvalidRequest,
    ModelNotReady,
    NotInRepository,
    RequestError,
    Unavailable,
    UnknownModel,
    Unsupported,
)


@contextmanager
def refused(error: type[RequestError], text: str) -> Iterator[None]:
    """The block raises just this."""
    with pytest.raises(error) as raised:
        yield
    assert (type(raised.value), str(raised.value)) == (error, text)


# --- the server ------------------------------------------------------------------------------------------------------


def test_a_server_is_live_and_ready_as_its_readiness_says() -> None:
    readiness = Readiness(serving=False)
    plane = plane_of(readiness=readiness)
    assert plane.server_live(pb.ServerLiveRequest()).live
    assert not plane.server_ready(pb.ServerReadyRequest()).ready
    readiness.update(serving=True)
    assert plane.server_ready(pb.ServerReadyRequest()).ready


def test_an_exiting_server_says_so() -> None:
    plane = plane_of()
    plane.readiness.begin_exit()
    with refused(Unavailable, "Server exiting"):
        plane.server_live(pb.ServerLiveRequest())
    with refused(Unavailable, "Server exiting"):
        plane.server_ready(pb.ServerReadyRequest())


def test_server_metadata_is_name_version_and_extensions() -> None:
    metadata = plane_of().server_metadata(pb.ServerMetadataRequest())
    assert (metadata.name, metadata.version, tuple(metadata.extensions)) == ("triton", "1.2.3", EXTENSIONS)


def test_log_settings_change_what_the_log_shows() -> None:
    plane = plane_of()
    request = pb.LogSettingsRequest()
    request.settings["log_format"].string_param = "ISO8601"
    assert plane.log_settings(request).settings["log_format"].string_param == "ISO8601"
    assert plane.log_settings(pb.LogSettingsRequest()).settings["log_format"].string_param == "ISO8601"


def test_a_trace_setting_changes_and_is_asked_for() -> None:
    plane = plane_of()
    request = pb.TraceSettingRequest()
    request.settings["trace_rate"].value.append("7")
    assert list(plane.trace_setting(request).settings["trace_rate"].value) == ["7"]
    assert list(plane.trace_setting(pb.TraceSettingRequest()).settings["trace_rate"].value) == ["7"]
    with refused(InvalidRequest, "Request for unknown model : m"):
        plane.trace_setting(pb.TraceSettingRequest(model_name="m"))


# --- models ----------------------------------------------------------------------------------------------------------


def on_models(root: Path, check: Callable[[DataPlane], None]) -> None:
    """Run a check against version 1 and 3 of the model "m"."""
    put(root, "m")
    put(root, "m", version=3)
    (root / "m" / "config.yaml").write_text("version_policy: all\n")

    async def main() -> None:
        async with serving(root) as plane:
            check(plane)

    trio.run(main)


def test_models_are_ready_once_loaded_and_unknown_ones_are_not(tmp_path: Path) -> None:
    def check(plane: DataPlane) -> None:
        def ready(name: str, version: str = "") -> bool:
            return plane.model_ready(pb.ModelReadyRequest(name=name, version=version)).ready

        assert [ready("m"), ready("m", "1"), ready("m", "3")] == [True] * 3
        assert [ready("m", "2"), ready("n")] == [False] * 2
        with pytest.raises(InvalidRequest, match="version should be an integral value"):
            ready("m", "x")

    on_models(tmp_path, check)


def test_metadata_and_configuration_are_the_models(tmp_path: Path) -> None:
    def check(plane: DataPlane) -> None:
        metadata = plane.model_metadata(pb.ModelMetadataRequest(name="m"))
        assert (metadata.name, list(metadata.versions)) == ("m", ["1", "3"])
        assert [(tensor.name, tensor.datatype, list(tensor.shape)) for tensor in metadata.inputs] == [
            ("x", "FP32", [-1, 4])
        ]
        assert list(plane.model_metadata(pb.ModelMetadataRequest(name="m", version="1")).versions) == ["1"]
        config = plane.model_config(pb.ModelConfigRequest(name="m")).config
        assert (config.name, [tensor.name for tensor in config.output]) == ("m", ["y"])
        with refused(UnknownModel, "Request for unknown model: 'n' is not found"):
            plane.model_metadata(pb.ModelMetadataRequest(name="n"))
        with refused(UnknownModel, "Request for unknown model: 'm' version 2 is not found"):
            plane.model_config(pb.ModelConfigRequest(name="m", version="2"))

    on_models(tmp_path, check)


def test_statistics_are_of_the_versions_asked_for(tmp_path: Path) -> None:
    def check(plane: DataPlane) -> None:
        def versions(**asked: str) -> list[tuple[str, str]]:
            answer = plane.model_statistics(pb.ModelStatisticsRequest(**asked))
            return [(model.name, model.version) for model in answer.model_stats]

        assert versions() == versions(name="m") == [("m", "1"), ("m", "3")]
        assert versions(name="m", version="3") == [("m", "3")]
        with refused(InvalidRequest, "requested model 'n' is not available"):
            versions(name="n")
        with refused(InvalidRequest, "requested model version is not available for model 'm'"):
            versions(name="m", version="2")

    on_models(tmp_path, check)


# --- the repository --------------------------------------------------------------------------------------------------


def index_of(response: pb.RepositoryIndexResponse) -> list[tuple[str, str, str, str]]:
    return [(model.name, model.version, model.state, model.reason) for model in response.models]


def test_the_index_has_every_version_and_its_state(tmp_path: Path) -> None:
    def check(plane: DataPlane) -> None:
        assert not plane.loads_on_request
        loaded = [("m", "1", "READY", ""), ("m", "3", "READY", "")]
        assert index_of(plane.repository_index(pb.RepositoryIndexRequest(ready=True))) == loaded
        assert [entry[:3] for entry in index_of(plane.repository_index(pb.RepositoryIndexRequest()))] == [
            ("broken", "1", "UNAVAILABLE"),
            *[entry[:3] for entry in loaded],
        ]
        with refused(Unsupported, "'repository_name' specification is not supported"):
            plane.repository_index(pb.RepositoryIndexRequest(repository_name="r"))

    put(tmp_path, "broken", content=b"no graph")
    on_models(tmp_path, check)


def test_models_are_loaded_and_unloaded_by_request(tmp_path: Path) -> None:
    async def main() -> None:
        put(tmp_path, "a")
        put(tmp_path, "b")
        async with serving(tmp_path, "explicit") as plane:

            async def index(*, ready: bool = False) -> list[tuple[str, str, str, str]]:
                return index_of(await plane.repository_index_on_request(pb.RepositoryIndexRequest(ready=ready)))

            assert plane.loads_on_request
            assert await index() == [("a", "", "", ""), ("b", "", "", "")]
            answer = await plane.load(pb.RepositoryModelLoadRequest(model_name=" b "))
            assert answer == pb.RepositoryModelLoadResponse()
            assert await index() == [("a", "", "", ""), ("b", "1", "READY", "")]
            assert await index(ready=True) == [("b", "1", "READY", "")]
            request = pb.RepositoryModelUnloadRequest(model_name="b")
            request.parameters["unload_dependents"].bool_param = True
            assert await plane.unload(request) == pb.RepositoryModelUnloadResponse()
            a, b = await index()
            assert a == ("a", "", "", "")
            assert b in [("b", "1", "UNLOADING", ""), ("b", "1", "UNAVAILABLE", "unloaded")]
            with refused(ModelNotReady, "Request for unknown model: 'b' version 1 is not at ready state"):
                plane.model_config(pb.ModelConfigRequest(name="b", version="1"))
            with refused(Unsupported, "'repository_name' specification is not supported"):
                await plane.repository_index_on_request(pb.RepositoryIndexRequest(repository_name="r"))

    trio.run(main)


def test_a_model_is_loaded_from_the_files_of_its_request(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path, "explicit") as plane:
            request = pb.RepositoryModelLoadRequest(model_name="sent")
            request.parameters["config"].string_param = '{"platform": "onnxruntime_onnx"}'
            request.parameters["file:1/model.onnx"].bytes_param = DOUBLE
            await plane.load(request)
            assert plane.model_ready(pb.ModelReadyRequest(name="sent", version="1")).ready

    trio.run(main)


Request = TypeVar("Request", pb.RepositoryModelLoadRequest, pb.RepositoryModelUnloadRequest)
KINDS = {bytes: "bytes_param", str: "string_param", bool: "bool_param"}


def load(name: str = "m", repository: str = "", **parameters: bytes | str | bool) -> pb.RepositoryModelLoadRequest:
    return given(pb.RepositoryModelLoadRequest(model_name=name, repository_name=repository), parameters)


def unload(name: str = "m", repository: str = "", **parameters: bytes | str | bool) -> pb.RepositoryModelUnloadRequest:
    return given(pb.RepositoryModelUnloadRequest(model_name=name, repository_name=repository), parameters)


def given(request: Request, parameters: dict[str, bytes | str | bool]) -> Request:
    for key, value in parameters.items():
        setattr(request.parameters[key], KINDS[type(value)], value)
    return request


@pytest.mark.parametrize(
    ("request_message", "error", "text"),
    [
        (load(repository="r"), Unsupported, "'repository_name' specification is not supported"),
        (unload(repository="r"), Unsupported, "'repository_name' specification is not supported"),
        (load(" "), InvalidRequest, "Model name cannot be empty. Please enter a valid name to deploy."),
        (unload(""), InvalidRequest, "Model name cannot be empty. Please enter a valid name to deploy."),
        (
            load("../m"),
            InvalidRequest,
            "invalid model name '../m', model name must not contain path traversal characters",
        ),
        (
            load("a\nb"),
            InvalidRequest,
            r"invalid model name 'a\nb', a model's name has no control characters",
        ),
        (load(config=b"x"), InvalidRequest, "invalid value type for load parameter 'config', expected string_param."),
        (
            given(load(), {"file:1/model.onnx": "x"}),
            InvalidRequest,
            "invalid value type for load parameter 'file:1/model.onnx', expected bytes_param.",
        ),
        (load(colour="red"), InvalidRequest, "unrecognized load parameter 'colour'."),
        (
            unload(unload_dependents="yes"),
            InvalidRequest,
            "invalid value type for 'unload_dependents' parameter, expected bool_param.",
        ),
        (unload(colour="red"), InvalidRequest, "unrecognized unload parameter 'colour'."),
    ],
)
def test_loads_and_unloads_that_cannot_be_used_are_refused_in_tritons_words(
    tmp_path: Path, request_message: Message, error: type[RequestError], text: str
) -> None:
    async def main() -> None:
        async with serving(tmp_path, "explicit") as plane:
            with refused(error, text):
                await changing(plane, request_message)

    trio.run(main)


def changing(plane: DataPlane, request: Any) -> Awaitable[Message]:
    return plane.load(request) if isinstance(request, pb.RepositoryModelLoadRequest) else plane.unload(request)


def test_a_model_that_cannot_be_loaded_is_told_with_the_reason(tmp_path: Path) -> None:
    async def main() -> None:
        put(tmp_path, "broken", content=b"no graph")
        async with serving(tmp_path, "explicit") as plane:
            with pytest.raises(InvalidRequest, match=r"(?s)^load failed for model 'broken': version 1 .*\n\Z"):
                await plane.load(load("broken"))
            with pytest.raises(NotInRepository, match="failed to load 'missing'"):
                await plane.load(load("missing"))

    trio.run(main)


def without_version(folder: Path) -> None:
    (folder / "1").rename(folder / "one")


def without_graph(folder: Path) -> None:
    (folder / "1" / "model.onnx").unlink()


def with_another_file(folder: Path) -> None:
    (folder / "1" / "model.onnx").write_bytes(b"no graph")


def with_wrong_pbtxt(folder: Path) -> None:
    (folder / "config.pbtxt").write_text("nonsense {")


def with_wrong_yaml(folder: Path) -> None:
    (folder / "1" / "config.yaml").write_text("padding: 7\n")


def without_weights(folder: Path) -> None:
    path = folder / "1" / "model.onnx"
    nodes = [onnx.helper.make_node("Mul", ["x", "w"], ["y"])]
    content = model(nodes, [tensor("x", ["n", 4])], [tensor("y", ["n", 4])], w=np.ones(4, np.float32))
    graph = onnx.load_model_from_string(content)
    onnx.save_model(graph, path, save_as_external_data=True, location="weights.data", size_threshold=0)
    (folder / "1" / "weights.data").unlink()


@pytest.mark.parametrize("is_linked", [False, True])
@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (without_version, "no version directory in 'm', such as '1'"),
        (without_graph, "unable to find '1/model.onnx': No such file"),
        (with_another_file, "Load model from 1/model.onnx failed"),
        (with_wrong_pbtxt, "failed to read text proto from config.pbtxt: line 1"),
        (with_wrong_yaml, ": 1/config.yaml: "),
        (without_weights, "weights.data"),
    ],
)
def test_clients_are_told_no_path_of_the_server_and_the_log_is(
    spoil: Callable[[Path], object], told: str, is_linked: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "models"
    put(root, "m")
    spoil(root / "m")
    if is_linked:
        (root / "m").rename(tmp_path / "elsewhere")
        (root / "m").symlink_to(tmp_path / "elsewhere")
    reasons: list[str] = []

    async def main() -> None:
        async with serving(root) as plane:
            [entry] = index_of(plane.repository_index(pb.RepositoryIndexRequest()))
            reasons.append(entry[3])
        async with serving(root, "explicit") as plane:
            with pytest.raises(RequestError) as caught:
                await plane.load(load("m"))
            reasons.append(str(caught.value))

    trio.run(main)
    for reason in reasons:
        assert told in reason
        assert str(tmp_path) not in reason
    assert str(tmp_path) in caplog.text


def test_a_file_of_traffic_that_cannot_be_read_is_named_without_its_path() -> None:
    document = traffic_document(ModelTable({}, traffic_problem="/tmp/models/traffic.yaml: aliases: is not a mapping"))
    assert document["problem"] == "traffic.yaml: aliases: is not a mapping"


def test_repositories_are_named_to_clients_by_the_last_part_of_their_path(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    failed = "failed to load 'm', failed to poll from model repository"

    async def main() -> None:
        async with serving(tmp_path / "one", "explicit", tmp_path / "two") as plane:
            with refused(NotInRepository, f"{failed}: it is in two repositories: 'one/m' and 'two/m'"):
                await plane.load(load("m"))
            shutil.rmtree(tmp_path)
            with refused(NotInRepository, f"{failed}: no model repository has it; not all could be read: one, two"):
                await plane.load(load("m"))

    put(tmp_path / "one", "m")
    put(tmp_path / "two", "m")
    trio.run(main)
    assert f"it is in two repositories: '{tmp_path}/one/m' and '{tmp_path}/two/m'" in caplog.text


@pytest.mark.parametrize("mode", ["none", "poll"])
@pytest.mark.parametrize("request_message", [load(), unload()])
def test_nothing_is_loaded_by_request_in_other_modes(
    tmp_path: Path, mode: ControlMode, request_message: Message
) -> None:
    async def main() -> None:
        put(tmp_path, "m")
        async with serving(tmp_path, mode) as plane:
            text = "explicit model load / unload is not allowed if polling is enabled"
            with refused(Unavailable, text):
                await changing(plane, request_message)
            with refused(Unavailable, text):
                plane.refuse_unless_loads_on_request()
            assert plane.model_ready(pb.ModelReadyRequest(name="m")).ready

    trio.run(main)
