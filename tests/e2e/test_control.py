"""Models that come and go, seen by tritonclient: the modes of model control, versions, warm-up, readiness."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from tests.e2e.control import EXPLICIT, POLL, answer, client_of, fails, index
from tests.e2e.models import versioned_model
from tests.e2e.process import ServerProcess, run, running
from tests.e2e.support import SERVICE, call, channel_to, pb, refused
from tests.e2e.wire import client_of as wire_client_of
from tests.waiting import PATIENCE_S, wait_until

NOT_ALLOWED: Final = "explicit model load / unload is not allowed if polling is enabled"
POLL_FAILED: Final = "failed to load '{}', failed to poll from model repository"
NOT_READY: Final = "Request for unknown model: '{}' version {} is not at ready state"
NO_VERSIONS: Final = "Request for unknown model: '{}' has no available versions"


def put(root: Path, name: str, number: int = 1, *, adds: int | None = None, config: str = "") -> Path:
    """A version that adds a number, its own if no other is given; put in its place at once, as a deployment should."""
    folder = root / name / str(number)
    folder.mkdir(parents=True, exist_ok=True)
    if config:
        (folder / "config.yaml").write_text(config)
    half = folder / ".model.onnx"
    half.write_bytes(versioned_model(number if adds is None else adds))
    half.replace(folder / "model.onnx")
    return folder


@pytest.fixture(scope="module")
def explicit_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("explicit")
    for name in ("first", "second"):
        put(root, name)
    return root


@pytest.fixture(scope="module")
def explicit(explicit_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    flags = (*EXPLICIT, "--load-model", "first")
    with running(explicit_root, tmp_path_factory.mktemp("log"), flags) as process:
        yield process
        assert process.stop() == 0
        assert "Traceback" not in process.log


@pytest.fixture
def client(explicit: ServerProcess) -> Iterator[Any]:
    with client_of(explicit) as one:
        yield one


# --- explicit


def test_explicit_loads_what_was_asked_for_and_lists_the_rest(client: Any) -> None:
    assert client.is_server_ready()
    assert index(client) == [("first", "1", "READY", ""), ("second", "", "", "")]
    assert not client.is_model_ready("second")
    assert fails(lambda: answer(client, "second"))[0] == "NOT_FOUND"
    client.load_model("second")
    assert client.is_model_ready("second", "1")
    assert answer(client, "second") == 1
    client.unload_model("second")
    wait_until(lambda: ("second", "1", "UNAVAILABLE", "unloaded") in index(client))
    assert fails(lambda: answer(client, "second", "1"))[0] == "UNAVAILABLE"
    assert client.is_server_ready()


def test_a_changed_model_is_loaded_anew_and_an_unchanged_one_left_alone(client: Any, explicit_root: Path) -> None:
    put(explicit_root, "changing", adds=10)
    client.load_model("changing")
    assert answer(client, "changing") == 10
    client.load_model("changing")
    [stats] = client.get_inference_statistics("changing").model_stats
    assert stats.inference_count == 1  # which a reload would have begun anew
    put(explicit_root, "changing", adds=20)
    put(explicit_root, "changing", 2, adds=30)
    client.load_model("changing")
    assert (answer(client, "changing", "1"), answer(client, "changing", "2"), answer(client, "changing")) == (
        20,
        30,
        30,
    )
    assert list(client.get_model_metadata("changing").versions) == ["1", "2"]
    assert list(client.get_model_metadata("changing", "1").versions) == ["1"]
    shutil.rmtree(explicit_root / "changing" / "1")
    client.load_model("changing")
    assert fails(lambda: answer(client, "changing", "1")) == ("UNAVAILABLE", NOT_READY.format("changing", 1))
    left = [("1", "UNAVAILABLE", "unloaded"), ("2", "READY", "")]
    wait_until(lambda: [one[1:] for one in index(client) if one[0] == "changing"] == left)
    assert client.is_server_ready()
    [stats] = client.get_inference_statistics("changing").model_stats
    assert stats.inference_count == 2  # version 2 was not loaded again
    client.unload_model("changing")
    shutil.rmtree(explicit_root / "changing")


def test_a_model_that_is_unloaded_while_a_large_request_comes_refuses_it(
    client: Any, explicit: ServerProcess, explicit_root: Path
) -> None:
    """The request's memory is free for the next one, which a model of that name answers once there is one again."""
    rows = 50_000
    config = f"backend: supertensor\nbatch_size: {rows}\ncapacity: 2\nnum_executors: 1\nallocator: cpu\n"
    put(explicit_root, "large", adds=7, config=config)
    tensor = {"name": "INPUT", "shape": [rows, 4], "datatype": "INT32", "parameters": {"binary_data_size": 16 * rows}}
    head = json.dumps({"inputs": [tensor], "outputs": [{"name": "OUTPUT", "parameters": {"binary_data": True}}]})
    body = head.encode() + bytes(16 * rows)
    connection = HTTPConnection("127.0.0.1", explicit.port, timeout=PATIENCE_S)
    with closing(connection):
        statuses = []
        for unloads in (False, True, False):
            client.load_model("large")
            connection.putrequest("POST", "/v2/models/large/infer")
            connection.putheader("Content-Length", str(len(body)))
            connection.putheader("Inference-Header-Content-Length", str(len(head)))
            connection.endheaders()
            connection.send(body[:300_000])
            if unloads:
                client.unload_model("large")
                wait_until(lambda: not client.is_model_ready("large"))
            connection.send(body[300_000:])
            response = connection.getresponse()
            answered = response.read()
            statuses.append(response.status)
            if unloads:
                assert b"unknown model: 'large'" in answered
            else:
                assert answered.endswith(np.full((rows, 4), 7, np.int32).tobytes())
    assert statuses == [200, 404, 200]
    client.unload_model("large")
    shutil.rmtree(explicit_root / "large")


def test_a_load_that_fails_leaves_the_old_version_serving_and_says_why(client: Any, explicit_root: Path) -> None:
    put(explicit_root, "failing", adds=7)
    client.load_model("failing")
    put(explicit_root, "failing", 2)
    (explicit_root / "failing" / "1" / "model.onnx").write_bytes(b"nonsense")
    status, text = fails(lambda: client.load_model("failing"))
    assert status == "INVALID_ARGUMENT"
    assert text.startswith("load failed for model 'failing': version 1 is at UNAVAILABLE state: Internal: onnxruntime")
    assert answer(client, "failing") == 7
    assert client.is_server_ready()
    [entry] = [one for one in index(client) if one[0] == "failing"]
    assert entry[:3] == ("failing", "1", "READY")
    assert "cannot load" in entry[3]
    (explicit_root / "failing" / "1" / "model.onnx").write_bytes(versioned_model(8))
    client.load_model("failing")
    assert answer(client, "failing", "1") == 8
    client.unload_model("failing")
    shutil.rmtree(explicit_root / "failing")


def test_a_failed_model_is_not_ready_until_it_loads(client: Any, explicit_root: Path) -> None:
    put(explicit_root, "empty").rename(explicit_root / "empty" / "one")
    status, text = fails(lambda: client.load_model("empty"))
    assert (status, "no version directory" in text) == ("INVALID_ARGUMENT", True)
    assert not client.is_server_ready()
    (explicit_root / "empty" / "one").rename(explicit_root / "empty" / "1")
    client.load_model("empty")
    assert client.is_server_ready()
    client.unload_model("empty")
    shutil.rmtree(explicit_root / "empty")


def test_a_configuration_comes_with_the_request(client: Any) -> None:
    client.load_model("second", config=json.dumps({"max_batch_size": "3", "backend": "onnxruntime"}))
    assert client.get_model_config("second").config.max_batch_size == 3
    client.load_model("second")  # while the files do not change, it stays
    assert client.get_model_config("second").config.max_batch_size == 3
    client.unload_model("second")
    client.load_model("second")
    assert client.get_model_config("second").config.max_batch_size == 64
    client.unload_model("second")


def test_a_configuration_from_the_request_takes_the_place_of_one_that_cannot_be_used(
    client: Any, explicit_root: Path
) -> None:
    put(explicit_root, "odd")
    put(explicit_root, "odd", 2)
    (explicit_root / "odd" / "config.pbtxt").write_text("this is no configuration")
    status, text = fails(lambda: client.load_model("odd"))
    assert status == "INTERNAL"
    assert text.startswith(f"{POLL_FAILED.format('odd')}: failed to read text proto from ")
    client.load_model("odd", config=json.dumps({"version_policy": {"specific": {"versions": [1]}}}))
    assert (answer(client, "odd"), client.is_model_ready("odd", "2")) == (1, False)
    client.unload_model("odd")
    shutil.rmtree(explicit_root / "odd")


@pytest.mark.parametrize(
    ("key", "path"),
    [
        ("EXECUTION_ENV_PATH", "/tmp"),
        ("EXECUTION_ENV_PATH", "env.tar"),
        ("EXECUTION_ENV_PATH", "$$TRITON_MODEL_DIRECTORY/../env.tar"),
        ("EXECUTION_ENV_PATH", "$$TRITON_MODEL_DIRECTORY//tmp"),
        ("EXECUTION_ENV_PATH", "/tmp/$$TRITON_MODEL_DIRECTORY/env"),
        ("toutates.profiling.file_prefix", "/tmp/profile"),
        ("toutates.profiling.file_prefix", "../profile"),
        ("toutates.profiling.file_prefix", "models/second/1/profile"),
    ],
)
def test_paths_of_a_configuration_from_the_request_stay_in_the_model(
    client: Any, explicit_root: Path, key: str, path: str
) -> None:
    config = json.dumps({"parameters": {key: {"string_value": path}}})
    brought = {"file:1/model.onnx": versioned_model(1)}
    for load in (
        lambda: client.load_model("second", config=config),
        lambda: client.load_model("second", config=config, files=brought),
    ):
        status, text = fails(load)
        problem = "leaves the model's directory" if key == "EXECUTION_ENV_PATH" else "is no name without folders"
        assert (status, f"parameters.{key} {problem}" in text) == ("INVALID_ARGUMENT", True)
    if key == "EXECUTION_ENV_PATH":  # what the repository says itself may be repeated
        own = explicit_root / "second" / "config.pbtxt"
        own.write_text(f'parameters {{ key: "{key}" value {{ string_value: "{path}" }} }}')
        client.load_model("second", config=config)
        own.unlink()
        client.unload_model("second")


def test_a_model_comes_with_the_request(client: Any, explicit_root: Path) -> None:
    files = {"file:1/model.onnx": versioned_model(100), "file:5/model.onnx": versioned_model(500)}
    config = json.dumps({"version_policy": {"all": {}}})
    client.load_model("brought", config=config, files=files)
    assert (answer(client, "brought", "1"), answer(client, "brought")) == (100, 500)
    client.load_model("brought")  # which leaves it as it is
    assert answer(client, "brought") == 500
    client.load_model("first", config="{}", files={"file:9/model.onnx": versioned_model(9)})
    assert answer(client, "first") == 9
    assert not (explicit_root / "brought").exists()
    for name in ("brought", "first"):
        client.unload_model(name)
    assert fails(lambda: client.load_model("brought"))[0] == "INTERNAL"
    client.load_model("first")
    assert answer(client, "first") == 1


BAD_LOADS: Final = {
    "not JSON": ("second", "{", {}, "INVALID_ARGUMENT", POLL_FAILED.format("second") + ": load parameter 'config'"),
    "JSON of nothing": ("second", "[1]", {}, "INVALID_ARGUMENT", POLL_FAILED.format("second")),
    "deep JSON": ("second", '{"parameters":' * 5000, {}, "INVALID_ARGUMENT", POLL_FAILED.format("second")),
    "unknown field": ("second", '{"zzz": 1}', {}, "INVALID_ARGUMENT", POLL_FAILED.format("second")),
    "bad value": ("second", '{"max_batch_size": -1}', {}, "INVALID_ARGUMENT", POLL_FAILED.format("second")),
    "files alone": ("n", None, {"file:1/model.onnx": b""}, "INVALID_ARGUMENT", POLL_FAILED.format("n")),
    "out of it": (
        "n",
        "{}",
        {"file:../n/model.onnx": b""},
        "INVALID_ARGUMENT",
        POLL_FAILED.format("n") + ": load parameter 'file:../n/model.onnx'",
    ),
    "absolute": ("n", "{}", {"file:/tmp/model.onnx": b""}, "INVALID_ARGUMENT", "load parameter 'file:/tmp/model.onnx'"),
    "no name": ("n", "{}", {"file:": b""}, "INVALID_ARGUMENT", "load parameter 'file:' must name"),
    "file twice": (
        "n",
        "{}",
        {"file:1": b"", "file:1/a": b""},
        "INTERNAL",
        POLL_FAILED.format("n") + ": the files of the request cannot be written",
    ),
    "no version": (
        "n",
        "{}",
        {"file:model.onnx": b""},
        "INVALID_ARGUMENT",
        "load failed for model 'n': at least one version must be available under the version policy of model 'n': no",
    ),
    "unknown": ("n", None, {}, "INTERNAL", POLL_FAILED.format("n") + ": no model repository has it"),
    "an end of a line": (
        "two\nlines",
        "{}",
        {},
        "INVALID_ARGUMENT",
        r"invalid model name 'two\nlines', a model's name has no control characters",
    ),
    "a terminal's escape in a file's name": (
        "m",
        "{}",
        {"file:1/\x1b[2J": b""},
        "INVALID_ARGUMENT",
        r"load parameter 'file:1/\x1b[2J' must name a file in the model's directory, such as 'file:1/model.onnx'",
    ),
    "no model": (" ", None, {}, "INVALID_ARGUMENT", "Model name cannot be empty. Please enter a valid name to deploy."),
    "path": ("../second", None, {}, "INVALID_ARGUMENT", "invalid model name '../second', model name must not contain"),
}


@pytest.mark.parametrize(("name", "config", "files", "status", "text"), BAD_LOADS.values(), ids=BAD_LOADS.keys())
def test_loads_that_cannot_be_are_refused(
    explicit: ServerProcess,
    client: Any,
    name: str,
    config: str | None,
    files: dict[str, bytes],
    status: str,
    text: str,
) -> None:
    message = pb.RepositoryModelLoadRequest(model_name=name)
    if config is not None:
        message.parameters["config"].string_param = config
    for key, content in files.items():
        message.parameters[key].bytes_param = content
    with channel_to(explicit.address) as channel:
        found = refused(channel, message, SERVICE + "RepositoryModelLoad")
    assert found[0] == status
    assert text in found[1]
    assert [one for one in index(client) if one[2] == "READY"] == [("first", "1", "READY", "")]


@pytest.mark.parametrize(
    ("method", "key", "kind", "text"),
    [
        ("Load", "config", "int64_param", "invalid value type for load parameter 'config', expected string_param."),
        ("Load", "file:1/a", "string_param", "invalid value type for load parameter 'file:1/a', expected bytes_param."),
        ("Load", "x", "bool_param", "unrecognized load parameter 'x'."),
        (
            *("Unload", "unload_dependents", "int64_param"),
            "invalid value type for 'unload_dependents' parameter, expected bool_param.",
        ),
    ],
)
def test_parameters_of_the_wrong_kind_are_refused(
    explicit: ServerProcess, method: str, key: str, kind: str, text: str
) -> None:
    message = getattr(pb, f"RepositoryModel{method}Request")(model_name="first")
    setattr(message.parameters[key], kind, {"int64_param": 1, "string_param": "1", "bool_param": True}[kind])
    with channel_to(explicit.address) as channel:
        assert refused(channel, message, f"{SERVICE}RepositoryModel{method}") == ("INVALID_ARGUMENT", text)


@pytest.mark.parametrize("rpc", ["RepositoryModelUnload", "RepositoryIndex"])
def test_requests_that_hold_names_alone_are_as_small_as_they_are(explicit: ServerProcess, rpc: str) -> None:
    message = b"\x78\x01" * 32_769  # fields that mean nothing; the main thread would parse them for minutes
    with wire_client_of(explicit.port) as one:
        text = f"a {rpc}Request of 65538 bytes is too large, at most 65536 are taken"
        assert one.call(SERVICE + rpc, message).status == ("3", text)


def test_who_leaves_does_not_stop_a_load(explicit: ServerProcess, explicit_root: Path, client: Any) -> None:
    put(explicit_root, "left")
    with channel_to(explicit.address) as channel:
        message = pb.RepositoryModelLoadRequest(model_name="left").SerializeToString()
        future = channel.unary_unary(SERVICE + "RepositoryModelLoad").future(message)
        call(channel, SERVICE + "ServerLive", b"")  # the request has been read
        future.cancel()
    client.load_model("second")
    wait_until(lambda: client.is_model_ready("left") or not future.cancelled())
    for name in ("left", "second"):
        client.unload_model(name)
    shutil.rmtree(explicit_root / "left")


def test_unloading_what_is_not_there_is_no_error(client: Any) -> None:
    client.unload_model("nothing", unload_dependents=True)
    assert "nothing" not in {one[0] for one in index(client)}


# --- none


def test_mode_none_refuses_both(server: ServerProcess) -> None:
    with client_of(server) as client:
        assert fails(lambda: client.load_model("mlp")) == ("UNAVAILABLE", NOT_ALLOWED)
        assert fails(lambda: client.unload_model("mlp")) == ("UNAVAILABLE", NOT_ALLOWED)


# --- poll


def test_a_polling_server_is_ready_while_it_has_a_model(tmp_path: Path) -> None:
    root = tmp_path / "models"
    root.mkdir()
    (tmp_path / "log").mkdir()
    reason = "no model is served: the model repository has none"
    with running(root, tmp_path / "log", POLL) as process, client_of(process) as client:
        assert f"NOT ready: {reason}" in process.log
        assert not client.is_server_ready()
        put(root, "comes", adds=5)
        wait_until(client.is_server_ready)
        assert answer(client, "comes") == 5
        shutil.rmtree(root / "comes")
        wait_until(lambda: not client.is_server_ready())
        wait_until(lambda: f"the server is not ready any more: {reason}" in process.log)
        assert process.log.count("the server is ready\n") == 1


def test_an_explicit_server_stays_ready_when_its_last_model_is_unloaded(tmp_path: Path) -> None:
    put(tmp_path / "models", "only")
    (tmp_path / "log").mkdir()
    with running(tmp_path / "models", tmp_path / "log", EXPLICIT) as process, client_of(process) as client:
        assert client.is_server_ready()
        client.load_model("only")
        client.unload_model("only")
        assert fails(lambda: answer(client, "only"))[0] in ("NOT_FOUND", "UNAVAILABLE")
        assert client.is_server_ready()


def test_polling_loads_reloads_and_unloads(tmp_path: Path) -> None:
    root, other = tmp_path / "models", tmp_path / "other"
    for folder in (root, other, tmp_path / "log"):
        folder.mkdir()
    put(root, "stays")
    (root / "stays" / "loop").symlink_to(root / "stays")
    put(root, "goes")
    with (
        running(root, tmp_path / "log", (*POLL, "--model-repository", str(other))) as process,
        client_of(process) as client,
    ):
        assert fails(lambda: client.load_model("stays")) == ("UNAVAILABLE", NOT_ALLOWED)
        put(other, "comes", adds=5)
        put(root, "stays", 2, adds=22)
        shutil.rmtree(root / "goes")
        wait_until(
            lambda: (
                [one[:3] for one in index(client)]
                == [("comes", "1", "READY"), ("stays", "1", "READY"), ("stays", "2", "READY")]
            )
        )
        assert (answer(client, "comes"), answer(client, "stays"), answer(client, "stays", "1")) == (5, 22, 1)
        assert fails(lambda: answer(client, "goes")) == ("NOT_FOUND", NO_VERSIONS.format("goes"))
        assert fails(lambda: answer(client, "goes", "1")) == ("UNAVAILABLE", NOT_READY.format("goes", 1))
        assert fails(lambda: answer(client, "goes", "2"))[0] == "NOT_FOUND"
        assert fails(lambda: client.get_model_metadata("goes"))[1] == NO_VERSIONS.format("goes")
        assert not client.is_model_ready("goes")
        # A configuration that is written halfway, and a version that cannot be loaded.
        (root / "stays" / "2" / "config.yaml").write_text("backend: supertensor\nbatch_si")
        wait_until(lambda: "config.yaml" in dict((one[1], one[3]) for one in index(client) if one[0] == "stays")["2"])
        assert (answer(client, "stays"), client.is_server_ready()) == (22, True)
        config = "backend: supertensor\nbatch_size: 5\ncapacity: 4\nnum_executors: 1\nallocator: cpu\n"
        (root / "stays" / "2" / "config.yaml").write_text(config)
        wait_until(lambda: client.get_model_config("stays", "2").config.max_batch_size == 5)
        # The same name in two repositories.
        put(other, "stays", adds=99)
        wait_until(lambda: f"'{root / 'stays'}' and '{other / 'stays'}'" in process.log)
        assert answer(client, "stays") == 22
        shutil.rmtree(other / "stays")
        # A repository that is gone changes nothing, until it is back.
        root.rename(tmp_path / "elsewhere")
        wait_until(lambda: "what is served from there is served on" in process.log)
        assert (answer(client, "stays"), answer(client, "comes")) == (22, 5)
        (tmp_path / "elsewhere").rename(root)
        wait_until(lambda: "can be read again" in process.log)
        shutil.rmtree(other / "comes")
        wait_until(lambda: {one[0] for one in index(client)} == {"stays"})
        # A model and a version that come back.
        put(root, "goes", 2)
        wait_until(lambda: client.is_model_ready("goes"))
        assert (answer(client, "goes"), fails(lambda: answer(client, "goes", "3"))[0]) == (2, "NOT_FOUND")
        shutil.rmtree(root / "stays" / "1")
        wait_until(lambda: not client.is_model_ready("stays", "1"))
        assert fails(lambda: answer(client, "stays", "1")) == ("UNAVAILABLE", NOT_READY.format("stays", 1))
        put(root, "stays")
        wait_until(lambda: client.is_model_ready("stays", "1"))
        assert client.is_server_ready()
        assert process.log.count("what is served from there is served on") == 1
        assert process.stop() == 0
        assert "Traceback" not in process.log


# --- the start


def test_readiness_that_is_not_strict_does_not_ask_for_models(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    put(tmp_path / "models", "good")
    (put(tmp_path / "models", "bad") / "model.onnx").write_bytes(b"")
    for flag, ready in (("true", False), ("false", True)):
        with running(tmp_path / "models", tmp_path / "log", ("--strict-readiness", flag)) as process:
            with client_of(process) as client:
                assert (client.is_server_ready(), client.is_model_ready("bad")) == (ready, False)
            assert process.stop() == 0


def test_exit_on_error_ends_a_server_whose_model_cannot_be_loaded(tmp_path: Path) -> None:
    put(tmp_path / "models", "good")
    (put(tmp_path / "models", "bad") / "model.onnx").write_bytes(b"")
    flags = ["--model-repository", str(tmp_path / "models"), "--grpc-addr", "127.0.0.1:0", "--exit-on-error", "true"]
    ended = run(*flags)
    assert ended.returncode == 1
    assert "'bad' version 1 cannot be served" in ended.stderr


# --- versions and warm-up


def test_version_policy_chooses_what_is_loaded(explicit_root: Path, client: Any) -> None:
    for number in (1, 2, 3):
        put(explicit_root, "policy", number)
    (explicit_root / "policy" / "v4").mkdir()
    (explicit_root / "policy" / "05").mkdir()
    file = explicit_root / "policy" / "config.pbtxt"
    for policy, versions in (
        ("", ["3"]),
        ("version_policy { latest { num_versions: 2 } }", ["2", "3"]),
        ("version_policy { specific { versions: [1, 3] } }", ["1", "3"]),
        ("version_policy { all { } }", ["1", "2", "3"]),
    ):
        file.write_text(policy)
        client.load_model("policy")
        assert list(client.get_model_metadata("policy").versions) == versions
        assert [str(number) for number in (1, 2, 3) if client.is_model_ready("policy", str(number))] == versions
    file.unlink()
    client.load_model("policy")
    assert list(client.get_model_metadata("policy").versions) == ["1", "2", "3"]
    client.unload_model("policy")
    shutil.rmtree(explicit_root / "policy")


def test_a_warmup_sample_that_fails_fails_the_load(explicit_root: Path, client: Any) -> None:
    from tests.e2e.models import gather_model

    folder = put(explicit_root, "warm")
    (folder / "model.onnx").write_bytes(gather_model())
    sample = """model_warmup [{ name: "far" batch_size: 2 inputs { key: "INPUT" value {
        data_type: TYPE_INT64 dims: [1] input_data_file: "far" } } }]"""
    (explicit_root / "warm" / "config.pbtxt").write_text(sample)
    (explicit_root / "warm" / "warmup").mkdir()
    (explicit_root / "warm" / "warmup" / "far").write_bytes(np.int64(1_000).tobytes())
    status, text = fails(lambda: client.load_model("warm"))
    assert (status, "Internal: failed to run warmup sample 'far': onnx runtime error" in text) == (
        "INVALID_ARGUMENT",
        True,
    )
    (explicit_root / "warm" / "warmup" / "far").write_bytes(np.int64(1).tobytes())
    client.load_model("warm")
    assert client.is_model_ready("warm")
    client.unload_model("warm")
    shutil.rmtree(explicit_root / "warm")
