"""ModelStatistics and RepositoryIndex, the RPCs that operators look at."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.e2e.held import Runs, running_held
from tests.e2e.models import VERSIONS
from tests.e2e.process import ROOT, ServerProcess, running
from tests.e2e.support import (
    SERVICE,
    Tensor,
    bytes_tensor,
    call,
    channel_to,
    grpc,
    infer,
    outputs_of,
    pb,
    refused,
    request,
    statistics_of,
    triton,
)

STATISTICS = SERVICE + "ModelStatistics"
INDEX = SERVICE + "RepositoryIndex"


@pytest.fixture(scope="module")
def own_server(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, Runs]]:
    """A server that no other module uses; of the tests here each has models of its own."""
    with running_held(repository, tmp_path_factory.mktemp("server")) as (process, runs):
        yield process, runs
        assert process.stop() == 0


@pytest.fixture(scope="module")
def channel(own_server: tuple[ServerProcess, Runs]) -> Iterator[Any]:
    with channel_to(own_server[0].address) as channel:
        yield channel


@pytest.fixture(scope="module")
def broken_server(broken_repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with running(broken_repository, tmp_path_factory.mktemp("server")) as process:
        yield process
        assert process.stop() == 0


@pytest.fixture(scope="module")
def broken(broken_server: ServerProcess) -> Iterator[Any]:
    """A connection to the server of which one model loads."""
    with channel_to(broken_server.address) as channel:
        yield channel


def versioned(rows: int, version: str = "") -> Any:
    return request("versions", Tensor.of("INPUT", "INT32", np.zeros((rows, 4))), model_version=version)


# --- statistics


def test_statistics_begin_at_zero_and_count_by_version(channel: Any) -> None:
    for version in VERSIONS:
        statistics = statistics_of(channel, "versions", str(version))
        assert (statistics.name, statistics.version) == ("versions", str(version))
        assert statistics.last_inference == statistics.inference_count == statistics.execution_count == 0
        assert statistics.inference_stats.success.count == statistics.inference_stats.fail.count == 0
        assert not statistics.batch_stats
        assert not statistics.memory_usage
    before_ns = time.time_ns()
    for rows in (1, 3, 3, 100):
        infer(channel, versioned(rows, "2"))
    after_ns = time.time_ns()
    assert statistics_of(channel, "versions", "1").inference_count == 0
    statistics = statistics_of(channel, "versions", "2")
    assert before_ns // 1_000_000 <= statistics.last_inference <= after_ns // 1_000_000
    assert statistics.inference_count == 107
    assert statistics.execution_count == 5  # 100 rows take two batches of 64
    durations = statistics.inference_stats
    assert durations.success.count == durations.queue.count == 4
    assert durations.compute_input.count == durations.compute_infer.count == durations.compute_output.count == 4
    assert durations.fail.count == durations.cache_hit.count == durations.cache_miss.count == 0
    parts = (durations.queue, durations.compute_input, durations.compute_infer, durations.compute_output)
    assert 0 < sum(part.ns for part in parts) <= durations.success.ns < after_ns - before_ns
    sizes = [(batch.batch_size, batch.compute_infer.count) for batch in statistics.batch_stats]
    assert sizes == [(1, 1), (3, 2), (36, 1), (64, 1)]
    for batch in statistics.batch_stats:
        assert batch.compute_input.count == batch.compute_output.count == batch.compute_infer.count
        assert batch.compute_infer.ns > 0
    # The buffers of two batches of 64 rows of four INT32 in and four out; 100 rows needed both.
    [memory] = statistics.memory_usage
    assert (memory.type, memory.id, memory.byte_size) == ("CPU", 0, 2 * 64 * (16 + 16))
    assert not statistics.response_stats


def test_statistics_count_one_inference_per_request_without_a_batch_dimension(channel: Any) -> None:
    for _ in range(3):
        infer(channel, request("fixed", Tensor.of("INPUT", "FP32", np.zeros((2, 3)))))
    statistics = statistics_of(channel, "fixed")
    assert (statistics.inference_count, statistics.execution_count) == (3, 3)
    assert [(batch.batch_size, batch.compute_infer.count) for batch in statistics.batch_stats] == [(1, 3)]


def test_a_request_without_rows_counts_as_one_inference(channel: Any) -> None:
    infer(channel, request("dynamic", Tensor.of("INPUT", "FP32", np.zeros((0, 0)))))
    infer(channel, request("dynamic", Tensor.of("INPUT", "FP32", np.zeros((2, 3)))))
    statistics = statistics_of(channel, "dynamic")
    assert (statistics.inference_count, statistics.execution_count) == (3, 2)
    assert [(batch.batch_size, batch.compute_infer.count) for batch in statistics.batch_stats] == [(1, 1), (2, 1)]


def test_memory_that_is_not_known_is_left_out(channel: Any) -> None:
    infer(channel, request("texts", Tensor("INPUT", "BYTES", [3], bytes_tensor(b"a", b"b", b"c"))))
    statistics = statistics_of(channel, "texts")
    assert statistics.inference_count == 1
    assert not statistics.memory_usage  # its batches are gathered from the requests' own arrays


def test_tritonclient_gives_the_same_statistics_as_json(server: ServerProcess) -> None:
    with triton.InferenceServerClient(server.address) as client:
        tensor = triton.InferInput("INPUT", [5, 4], "INT16")
        tensor.set_data_from_numpy(np.zeros((5, 4), np.int16))
        client.infer("identity_INT16", [tensor])
        [statistics] = client.get_inference_statistics("identity_INT16", as_json=True)["model_stats"]
    assert (statistics["name"], statistics["version"]) == ("identity_INT16", "1")
    own = statistics["inference_stats"]
    assert int(own["success"]["count"]) == int(own["compute_infer"]["count"]) > 0
    assert statistics["memory_usage"][0]["type"] == "CPU"
    assert int(statistics["memory_usage"][0]["byte_size"]) % (64 * 2 * 4 * 2) == 0


def test_statistics_count_what_fails_at_run_time_and_not_what_was_refused(channel: Any) -> None:
    infer(channel, request("gather", Tensor.of("INPUT", "INT64", [[1]])))
    refused(channel, request("gather", Tensor.of("INPUT", "INT64", [[99]])))
    refused(channel, request("gather", Tensor.of("INPUT", "INT32", [[1]])))
    statistics = statistics_of(channel, "gather")
    assert statistics.inference_count == 1
    assert statistics.inference_stats.success.count == 1
    assert statistics.inference_stats.fail.count == 1
    assert statistics.inference_stats.fail.ns > 0


def test_each_request_of_a_batch_is_charged_the_whole_batch(
    own_server: tuple[ServerProcess, Runs], channel: Any
) -> None:
    _, runs = own_server
    message = request("slow", Tensor.of("INPUT", "INT64", [[1]])).SerializeToString()
    method = channel.unary_unary(SERVICE + "ModelInfer")
    with runs.held():
        busy = method.future(message, timeout=120)
        runs.wait_begun(1)
        futures = [method.future(message, timeout=120) for _ in range(2)]
        call(channel, SERVICE + "ServerReady", b"")  # both have been read
    for future in (busy, *futures):
        future.result()
    statistics = statistics_of(channel, "slow")
    assert [(batch.batch_size, batch.compute_infer.count) for batch in statistics.batch_stats] == [(1, 1), (2, 1)]
    one, two = (batch.compute_infer.ns for batch in statistics.batch_stats)
    assert statistics.inference_stats.compute_infer.ns == one + 2 * two
    assert statistics.inference_stats.queue.ns > 0


def test_statistics_without_a_name_are_of_all_models_by_name_and_version(channel: Any) -> None:
    message = pb.ModelStatisticsRequest(version="7").SerializeToString()
    models = pb.ModelStatisticsResponse.FromString(call(channel, STATISTICS, message)).model_stats
    names = [(model.name, int(model.version)) for model in models]
    assert names == sorted(names)
    assert {("mlp", 1), ("versions", 1), ("versions", 2), ("versions", 10)} <= set(names)


def test_statistics_without_a_version_are_of_all_versions(channel: Any) -> None:
    message = pb.ModelStatisticsRequest(name="versions").SerializeToString()
    models = pb.ModelStatisticsResponse.FromString(call(channel, STATISTICS, message)).model_stats
    assert [model.version for model in models] == [str(version) for version in VERSIONS]


@pytest.mark.parametrize(
    ("model", "version", "text"),
    [
        ("nothing", "", "requested model 'nothing' is not available"),
        ("nothing", "1", "requested model 'nothing' is not available"),
        ("garbage", "", "requested model 'garbage' is not available"),
        ("empty", "", "requested model 'empty' is not available"),
        ("half", "2", "requested model version is not available for model 'half'"),
        ("half", "3", "requested model version is not available for model 'half'"),
        (
            "half",
            "x",
            "failed to get model version from specified version string 'x' (details: stol), "
            "version should be an integral value > 0",
        ),
    ],
)
def test_statistics_of_what_is_not_there_are_an_invalid_argument(
    broken: Any, model: str, version: str, text: str
) -> None:
    message = pb.ModelStatisticsRequest(name=model, version=version)
    assert refused(broken, message, STATISTICS) == ("INVALID_ARGUMENT", text)


def test_perf_analyzer_prints_its_server_side_breakdown_from_the_statistics(server: ServerProcess) -> None:
    environment = ROOT / ".bench-venvs" / "perf-analyzer"
    program = shutil.which("perf_analyzer", path=f"{environment / 'bin'}{os.pathsep}{os.environ['PATH']}")
    if program is None:
        pytest.skip("perf_analyzer is not installed: tests/peers.sh")
    libraries = {str(path.parent) for path in environment.glob("lib/python*/site-packages/nvidia/**/libcudart.so*")}
    command = [program, "-m", "mlp", "-i", "grpc", "-u", server.address, "--concurrency-range", "2"]
    command += ["--measurement-interval", "300", "--stability-percentage", "999", "--max-trials", "3"]
    ended = subprocess.run(
        command,
        env={**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(libraries)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    server_side = ended.stdout[ended.stdout.index("  Server: ") :]
    counts = {name: int(count) for name, count in re.findall(r"^    (\w+(?: \w+)*): (\d+)$", server_side, re.MULTILINE)}
    assert counts["Inference count"] == counts["Successful request count"] >= counts["Execution count"] > 0
    breakdown = re.search(
        r"latency: (\d+) usec \(overhead \d+ usec \+ queue (\d+) usec \+ compute input (\d+) usec \+ "
        r"compute infer (\d+) usec \+ compute output (\d+) usec\)",
        server_side,
    )
    assert breakdown is not None, server_side
    whole, *parts = map(int, breakdown.groups())
    assert sum(parts) <= whole + len(parts)  # each is rounded


# --- a repository in which not all is well


def index(channel: Any, **fields: Any) -> list[tuple[str, str, str, str]]:
    answer = call(channel, INDEX, pb.RepositoryIndexRequest(**fields).SerializeToString())
    models = pb.RepositoryIndexResponse.FromString(answer).models
    return [(model.name, model.version, model.state, model.reason) for model in models]


def test_repository_index_has_every_model_with_its_state_and_reason(broken: Any, broken_repository: Path) -> None:
    entries = index(broken)
    assert [entry[:3] for entry in entries] == [
        ("empty", "", "UNAVAILABLE"),
        ("garbage", "1", "UNAVAILABLE"),
        ("good", "1", "READY"),
        ("half", "1", "READY"),
        ("half", "2", "UNAVAILABLE"),
        ("missing", "1", "UNAVAILABLE"),
        ("misspelt", "1", "UNAVAILABLE"),
    ]
    reasons = {(name, version): reason for name, version, _, reason in entries}
    assert reasons["good", "1"] == reasons["half", "1"] == ""
    assert reasons["empty", ""].startswith("Internal: no version directory in ")
    assert reasons["garbage", "1"].startswith("Internal: onnxruntime cannot load 'model.onnx': ")
    assert reasons["half", "2"].startswith("Internal: onnxruntime cannot load 'model.onnx': ")
    assert reasons["missing", "1"].startswith("Internal: unable to find '1/model.onnx': ")
    assert "capacities: unknown key; did you mean `capacity`?" in reasons["misspelt", "1"]
    assert reasons["misspelt", "1"].startswith("Internal: 1/config.yaml: ")
    assert str(broken_repository) not in str(reasons)


def test_repository_index_of_what_is_ready_has_nothing_else(broken: Any) -> None:
    assert index(broken, ready=True) == [("good", "1", "READY", ""), ("half", "1", "READY", "")]


def test_repository_index_of_a_named_repository_is_not_implemented(broken: Any) -> None:
    assert refused(broken, pb.RepositoryIndexRequest(repository_name="x"), INDEX) == (
        "UNIMPLEMENTED",
        "'repository_name' specification is not supported",
    )


def test_repository_index_of_a_sound_repository_is_all_ready(channel: Any) -> None:
    entries = index(channel)
    assert {entry[2:] for entry in entries} == {("READY", "")}
    assert index(channel, ready=True) == entries
    assert [entry[:2] for entry in entries if entry[0] == "versions"] == [("versions", str(v)) for v in VERSIONS]


def test_a_server_with_a_broken_model_is_live_and_not_ready(broken: Any) -> None:
    assert pb.ServerLiveResponse.FromString(call(broken, SERVICE + "ServerLive", b"")).live
    assert not pb.ServerReadyResponse.FromString(call(broken, SERVICE + "ServerReady", b"")).ready
    assert call(broken, "/grpc.health.v1.Health/Check", b"") == b"\x08\x02"


@pytest.mark.parametrize(
    ("model", "version", "ready"),
    [("good", "", True), ("half", "", True), ("half", "1", True), ("half", "2", False), ("garbage", "", False)],
)
def test_readiness_beside_broken_models_is_each_models_own(broken: Any, model: str, version: str, ready: bool) -> None:
    answer = call(broken, SERVICE + "ModelReady", pb.ModelReadyRequest(name=model, version=version).SerializeToString())
    assert pb.ModelReadyResponse.FromString(answer).ready is ready


def test_sound_models_answer_beside_broken_ones(broken: Any) -> None:
    values = np.ones((2, 4), np.float32)
    outputs = outputs_of(infer(broken, request("good", Tensor.of("INPUT", "FP32", values))))
    np.testing.assert_array_equal(outputs["OUTPUT"], -values)
    response = infer(broken, request("half", Tensor.of("INPUT", "INT32", np.zeros((1, 4)))))
    assert response.model_version == "1"  # the newest that is ready


@pytest.mark.parametrize("method", ["ModelInfer", "ModelMetadata", "ModelConfig"])
@pytest.mark.parametrize(
    ("model", "version", "status", "text"),
    [
        ("garbage", "", "NOT_FOUND", "Request for unknown model: 'garbage' has no available versions"),
        ("empty", "", "NOT_FOUND", "Request for unknown model: 'empty' has no available versions"),
        ("empty", "1", "NOT_FOUND", "Request for unknown model: 'empty' version 1 is not found"),
        ("garbage", "1", "UNAVAILABLE", "Request for unknown model: 'garbage' version 1 is not at ready state"),
        ("half", "2", "UNAVAILABLE", "Request for unknown model: 'half' version 2 is not at ready state"),
        ("half", "3", "NOT_FOUND", "Request for unknown model: 'half' version 3 is not found"),
    ],
)
def test_models_that_did_not_load_are_refused_in_tritons_words(
    broken: Any, method: str, model: str, version: str, status: str, text: str
) -> None:
    if method == "ModelInfer":
        message = pb.ModelInferRequest(model_name=model, model_version=version)
    else:
        message = getattr(pb, f"{method}Request")(name=model, version=version)
    assert refused(broken, message, SERVICE + method) == (status, text)


def test_only_the_models_named_are_loaded(broken_repository: Path, tmp_path: Path) -> None:
    with running(broken_repository, tmp_path, ["--load-models", "good"]) as process:
        with channel_to(process.address) as channel:
            assert index(channel) == [("good", "1", "READY", "")]
            assert pb.ServerReadyResponse.FromString(call(channel, SERVICE + "ServerReady", b"")).ready
            with pytest.raises(grpc.RpcError) as caught:
                infer(channel, request("half"))
            assert caught.value.details() == "Request for unknown model: 'half' is not found"
        assert process.stop() == 0
