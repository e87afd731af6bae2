"""Models that are loaded when a request needs them, seen by tritonclient over gRPC and HTTP."""

from __future__ import annotations

import json
import re
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from tests.e2e.control import answer, client_of, fails, index
from tests.e2e.models import CONFIG, versioned_model
from tests.e2e.process import ServerProcess, run, running
from tests.e2e.support import Tensor, call, channel_to, infer, pb, request, triton
from tests.e2e.test_control import put
from tests.ensembles import MODELS as GRAPHS
from tests.ensembles import add_ensemble, add_graph, pbtxt, step
from tests.waiting import wait_until

ON_DEMAND: Final = ("--model-control-mode", "on-demand")
WITH_HTTP: Final = ("--http-addr", "127.0.0.1:0")
MODELS: Final = 40
NOT_LOADED: Final = "not loaded yet"
#: What one of the models takes, as the log of a refusal says: files of a few hundred bytes, and a version.
ONE: Final = 200_000


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("repository")
    for number in range(MODELS):
        put(root, f"m{number}", adds=number)
    put(root, "two", 1)
    put(root, "two", 2)
    (put(root, "broken") / "model.onnx").write_bytes(b"no graph")
    (root / "empty" / "notes").mkdir(parents=True)
    add_graph(root, "double", GRAPHS["double"])
    add_graph(root, "negate", GRAPHS["negate"])
    chain = [step("double", "x=IN", "y=t"), step("negate", "x=t", "y=OUT")]
    add_ensemble(root, "chain", pbtxt(["IN FP32 [4]"], ["OUT FP32 [4]"], chain))
    lost = [step("double", "x=IN", "y=t"), step("nowhere", "x=t", "y=OUT")]
    add_ensemble(root, "lost", pbtxt(["IN FP32 [4]"], ["OUT FP32 [4]"], lost))
    return root


@pytest.fixture(scope="module")
def process(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    flags = (*ON_DEMAND, *WITH_HTTP, "--model-load-thread-count", "2")
    with running(root, tmp_path_factory.mktemp("log"), flags) as process:
        yield process
        assert process.stop() == 0
        assert "Traceback" not in process.log


@pytest.fixture
def client(process: ServerProcess) -> Iterator[Any]:
    with client_of(process) as one:
        yield one


def state_of(client: Any, name: str) -> set[tuple[str, str]]:
    """State and reason of the versions of a model."""
    return {(state, reason) for model, _, state, reason in index(client) if model == name}


def post(port: int, path: str, document: object) -> Any:
    data = json.dumps(document).encode()
    with urllib.request.urlopen(
        urllib.request.Request(f"http://127.0.0.1:{port}{path}", data), timeout=120
    ) as response:
        return json.load(response)


# --- first requests


def test_a_model_is_loaded_by_its_first_request(client: Any) -> None:
    assert client.is_server_ready()
    assert state_of(client, "m1") == {("UNAVAILABLE", NOT_LOADED)}
    assert answer(client, "m1") == 1
    assert state_of(client, "m1") == {("READY", "")}
    assert answer(client, "m1", "1") == 1


def test_a_client_that_asks_first_is_told_that_the_model_is_ready(client: Any) -> None:
    assert client.is_model_ready("m2")
    assert state_of(client, "m2") == {("UNAVAILABLE", NOT_LOADED)}, "nothing is loaded for that"
    assert not client.is_model_ready("nobody")


def test_whether_a_version_is_ready_is_known_once_the_model_is_loaded(client: Any) -> None:
    assert not client.is_model_ready("two", "3")
    assert client.is_model_ready("two", "2")
    assert (answer(client, "two"), answer(client, "two", "1")) == (2, 1)


def test_metadata_and_configuration_load_the_model(client: Any) -> None:
    assert client.get_model_metadata("m3").inputs[0].name == "INPUT"
    assert client.get_model_config("m4").config.name == "m4"
    assert state_of(client, "m3") == state_of(client, "m4") == {("READY", "")}


def test_requests_over_http_wait_too(process: ServerProcess, client: Any) -> None:
    port = process.rest_port
    body = {"inputs": [{"name": "INPUT", "datatype": "INT32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}
    assert post(port, "/v2/models/m5/infer", body)["outputs"][0]["data"] == [6, 7, 8, 9]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/models/m6", timeout=120) as response:
        assert json.load(response)["name"] == "m6"
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/models/m7/ready", timeout=120) as response:
        assert response.status == 200
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/models/m7/config", timeout=120) as response:
        assert json.load(response)["name"] == "m7"
    with pytest.raises(urllib.error.HTTPError) as caught:
        post(port, "/v2/models/broken/infer", body)
    assert "broken" in json.load(caught.value)["error"]


def test_large_requests_over_http_wait_too(process: ServerProcess) -> None:
    rows = 20_000
    values = [1] * (4 * rows)
    body = {"inputs": [{"name": "INPUT", "datatype": "INT32", "shape": [rows, 4], "data": values}]}
    with pytest.raises(urllib.error.HTTPError) as caught:
        post(process.rest_port, "/v2/models/m8/infer", body)
    assert "batch" in json.load(caught.value)["error"], "it was read, and is larger than a batch may be"


def test_answers_of_a_stream_keep_the_order_of_its_requests(client: Any, process: ServerProcess) -> None:
    zeros = np.zeros((1, 4), np.int32)
    with channel_to(process.address) as channel:
        names = ["m1", "m9", "m9", "m10", "m1", "nobody", "m11"]
        requests = [
            request(name, Tensor.of("INPUT", "INT32", zeros), id=str(number)) for number, name in enumerate(names)
        ]
        stream = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
        answers = [
            pb.ModelStreamInferResponse.FromString(one)
            for one in stream(iter([one.SerializeToString() for one in requests]), timeout=120)
        ]
    assert [one.infer_response.id for one in answers] == [str(number) for number in range(len(names))]
    assert [one.error_message != "" for one in answers] == [name == "nobody" for name in names]
    values = [
        np.frombuffer(one.infer_response.raw_output_contents[0], np.int32)[0]
        for one in answers
        if not one.error_message
    ]
    assert values == [1, 9, 9, 10, 1, 11]


def test_many_first_requests_load_a_model_once(process: ServerProcess) -> None:
    zeros = Tensor.of("INPUT", "INT32", np.zeros((1, 4), np.int32))
    before = process.log.count("'m12'")
    with channel_to(process.address) as channel:
        message = request("m12", zeros).SerializeToString()
        calls = [
            channel.unary_unary("/inference.GRPCInferenceService/ModelInfer").future(message, timeout=120)
            for _ in range(200)
        ]
        for one in calls:
            response = pb.ModelInferResponse.FromString(one.result())
            assert np.frombuffer(response.raw_output_contents[0], np.int32)[0] == 12
    assert process.log.count("'m12'") == before


def test_a_burst_of_first_requests_for_all_models_is_answered(process: ServerProcess) -> None:
    zeros = Tensor.of("INPUT", "INT32", np.zeros((1, 4), np.int32))
    names = [number for number in range(MODELS) if number != 2]
    with channel_to(process.address) as channel, ThreadPoolExecutor(16) as pool:
        answers = pool.map(lambda number: infer(channel, request(f"m{number}", zeros)), names)
        found = [np.frombuffer(one.raw_output_contents[0], np.int32)[0] for one in answers]
    assert found == names


# --- what goes wrong


def test_a_model_that_is_not_there_is_unknown(client: Any) -> None:
    assert fails(lambda: answer(client, "nobody")) == (
        "NOT_FOUND",
        "Request for unknown model: 'nobody' is not found",
    )
    assert fails(lambda: answer(client, "empty"))[0] == "NOT_FOUND", "a directory without versions"


def test_a_broken_model_fails_with_its_reason_and_is_not_tried_for_each_request(
    client: Any, process: ServerProcess
) -> None:
    status, text = fails(lambda: answer(client, "broken"))
    assert status == "UNAVAILABLE"
    assert text.startswith("model 'broken' cannot be loaded: ")
    tried = process.log.count("model 'broken' version 1 cannot be served")
    for _ in range(20):
        assert fails(lambda: answer(client, "broken")) == (status, text)
    assert process.log.count("model 'broken' version 1 cannot be served") - tried <= 2
    assert not client.is_model_ready("broken")
    assert client.is_server_ready(), "whoever asks for it cannot take the server from its load balancer"
    [(state, reason)] = state_of(client, "broken")
    assert state == "UNAVAILABLE"
    assert reason


def test_a_caller_whose_deadline_passes_is_told_so(root: Path, tmp_path: Path) -> None:
    """The load goes on, and the next caller finds the model."""
    with running(root, tmp_path, ON_DEMAND) as process, channel_to(process.address) as channel:
        message = request("m1", Tensor.of("INPUT", "INT32", np.zeros((1, 4), np.int32))).SerializeToString()
        path = "/inference.GRPCInferenceService/ModelInfer"
        with pytest.raises(Exception, match="DEADLINE_EXCEEDED"):
            call(channel, path, message, timeout=1e-4)
        assert infer(channel, pb.ModelInferRequest.FromString(message)).model_name == "m1"


# --- ensembles


def test_an_ensemble_is_loaded_with_its_members(client: Any) -> None:
    tensor = triton.InferInput("IN", [1, 4], "FP32")
    tensor.set_data_from_numpy(np.ones((1, 4), np.float32))
    assert client.infer("chain", [tensor]).as_numpy("OUT").tolist() == [[-2.0] * 4]
    for name in ("chain", "double", "negate"):
        assert state_of(client, name) == {("READY", "")}


def test_an_ensemble_without_a_member_says_which(client: Any) -> None:
    tensor = triton.InferInput("IN", [1, 4], "FP32")
    tensor.set_data_from_numpy(np.ones((1, 4), np.float32))
    status, text = fails(lambda: client.infer("lost", [tensor]))
    assert status == "UNAVAILABLE"
    assert "nowhere" in text


# --- on request


def test_a_model_that_was_unloaded_stays_so_until_it_is_loaded(client: Any) -> None:
    assert answer(client, "m20") == 20
    client.unload_model("m20")
    wait_until(lambda: ("UNAVAILABLE", "unloaded") in state_of(client, "m20"))
    assert fails(lambda: answer(client, "m20"))[0] in ("NOT_FOUND", "UNAVAILABLE")
    assert not client.is_model_ready("m20")
    client.load_model("m20")
    assert answer(client, "m20") == 20
    client.unload_model("m21")
    assert fails(lambda: answer(client, "m21"))[0] in ("NOT_FOUND", "UNAVAILABLE")
    client.load_model("m21")
    assert answer(client, "m21") == 21


# --- memory


def test_the_least_recently_used_model_leaves_for_others(root: Path, tmp_path: Path) -> None:
    (root / "m30" / "1" / "config.yaml").write_text(CONFIG.format(4, 4) + "pin: true\n")
    flags = (*ON_DEMAND, "--model-memory", str(5 * ONE), "--model-min-stay", "0", "--load-model", "m31")
    with running(root, tmp_path, flags) as process, client_of(process) as client:

        def loaded() -> set[str]:
            return {name for name, _, state, _ in index(client) if state == "READY"}

        assert answer(client, "m30") == 30
        for number in range(12):
            assert answer(client, f"m{number}") == number
            assert answer(client, "m0") == 0, "it is used all the time"
        wait_until(lambda: {"m0", "m11", "m30"} <= loaded() and len(loaded()) <= 6)
        assert "m1" not in loaded()
        assert answer(client, "m1") == 1, "it comes back"
        assert process.stop() == 0
        assert "Traceback" not in process.log


def test_members_of_a_loaded_ensemble_do_not_leave_before_it(root: Path, tmp_path: Path) -> None:
    flags = (*ON_DEMAND, "--model-memory", str(5 * ONE), "--model-min-stay", "0")
    with running(root, tmp_path, flags) as process, client_of(process) as client:
        tensor = triton.InferInput("IN", [1, 4], "FP32")
        tensor.set_data_from_numpy(np.ones((1, 4), np.float32))
        for number in range(12):
            assert client.infer("chain", [tensor]).as_numpy("OUT").tolist() == [[-2.0] * 4]
            assert answer(client, f"m{number}") == number
        assert {("READY", "")} == state_of(client, "chain") == state_of(client, "double") == state_of(client, "negate")
        assert process.stop() == 0
        assert "Traceback" not in process.log


def test_a_model_larger_than_the_memory_is_refused_with_both_sizes(root: Path, tmp_path: Path) -> None:
    flags = (*ON_DEMAND, "--model-memory", "1K")
    with running(root, tmp_path, flags) as process, client_of(process) as client:
        status, text = fails(lambda: answer(client, "m1"))
        assert status == "RESOURCE_EXHAUSTED"
        assert text.startswith("model 'm1' takes ")
        assert text.endswith(" bytes, and --model-memory is 1024; raise the flag")


# --- the repository changes


def test_a_new_model_is_found_and_one_that_has_gone_is_unknown(tmp_path: Path) -> None:
    root = tmp_path / "models"
    put(root, "first", 1)
    put(root, "gone", 1)
    (tmp_path / "log").mkdir()
    flags = (*ON_DEMAND, "--repository-poll-secs", "0.2")
    with running(root, tmp_path / "log", flags) as process, client_of(process) as client:
        shutil.rmtree(root / "gone")
        assert fails(lambda: answer(client, "gone"))[0] == "NOT_FOUND"
        put(root, "later", 4)
        wait_until(lambda: client.is_model_ready("later"))
        assert answer(client, "later") == 4
        assert answer(client, "first") == 1
        wait_until(lambda: not any(name == "gone" for name, *_ in index(client)))


def test_a_model_whose_files_change_is_loaded_as_they_are_or_fails_and_is_tried_again(tmp_path: Path) -> None:
    root = tmp_path / "models"
    folder = put(root, "changing", 1)
    (folder / "model.onnx").write_bytes(versioned_model(1)[:-10])  # half of an upload
    (tmp_path / "log").mkdir()
    with running(root, tmp_path / "log", ON_DEMAND) as process, client_of(process) as client:
        assert fails(lambda: answer(client, "changing"))[0] == "UNAVAILABLE"
        put(root, "changing", 1)
        client.load_model("changing")  # and so the failure is forgotten
        assert answer(client, "changing") == 1


def test_flags_of_the_mode_are_refused_in_others(root: Path) -> None:
    result = run("--model-repository", str(root), "--model-memory", "4G")
    assert result.returncode != 0
    assert "--model-memory" in result.stderr + result.stdout
    assert "on-demand" in result.stderr + result.stdout
    result = run("--model-repository", str(root), *ON_DEMAND, "--model-memory", "much")
    assert "is not a number of bytes from 1 up, such as 1073741824, 512M or 4G" in result.stderr + result.stdout


def test_threads_do_not_grow_with_models(root: Path, tmp_path: Path) -> None:
    with running(root, tmp_path, ON_DEMAND) as process, client_of(process) as client:

        def threads() -> int:
            lines = Path(f"/proc/{process.process.pid}/status").read_text().splitlines()
            return int(next(line.split()[1] for line in lines if line.startswith("Threads:")))

        assert answer(client, "m0") == 0
        before = threads()
        for number in range(MODELS):
            assert answer(client, f"m{number}") == number
        assert threads() - before < MODELS // 2
        assert process.stop() == 0


@pytest.mark.parametrize(
    ("more", "is_measured"),
    [
        pytest.param(20, False, marks=pytest.mark.long, id="threads"),
        pytest.param(200, True, marks=pytest.mark.alone, id="memory"),
    ],
)
def test_cycles_in_which_all_models_come_and_go_leave_nothing_behind(
    tmp_path: Path, more: int, is_measured: bool
) -> None:
    """Of 6 models 2 fit, so that each leaves in each cycle: up to 1,260 loads in all."""
    root = tmp_path / "models"
    for number in range(6):
        put(root, f"m{number}", adds=number)
    (tmp_path / "log").mkdir()
    flags = (*ON_DEMAND, "--model-memory", str(2 * ONE), "--model-min-stay", "0", "--metrics-addr", "127.0.0.1:0")
    with running(root, tmp_path / "log", flags) as process, client_of(process) as client:

        def cycles(count: int) -> None:
            for _ in range(count):
                for number in range(6):
                    assert answer(client, f"m{number}") == number

        def status(key: str) -> int:
            lines = Path(f"/proc/{process.process.pid}/status").read_text().splitlines()
            return int(next(line.split()[1] for line in lines if line.startswith(key)))

        cycles(10)
        before, threads = status("VmRSS:"), status("Threads:")
        cycles(more)
        with urllib.request.urlopen(f"http://127.0.0.1:{process.http_port}/metrics", timeout=120) as response:
            page = response.read().decode()
        loads = re.search(r"^toutates_on_demand_loads_total (\d+)", page, re.MULTILINE)
        assert loads is not None
        assert int(loads[1]) == (10 + more) * 6
        assert not is_measured or status("VmRSS:") < 1.05 * before
        wait_until(lambda: status("Threads:") <= threads + 8)  # not one for each load
        assert process.stop() == 0
        assert "Traceback" not in process.log


@pytest.mark.long
def test_of_many_models_some_leave_before_there_is_no_room(tmp_path: Path) -> None:
    """Of 360 models not all fit; a small part of the memory is kept free."""
    root = tmp_path / "models"
    for number in range(360):
        put(root, f"m{number}", adds=number)
    (tmp_path / "log").mkdir()
    budget = 290 * ONE
    flags = (*ON_DEMAND, "--model-memory", str(budget), "--model-min-stay", "0", "--metrics-addr", "127.0.0.1:0")
    with running(root, tmp_path / "log", flags) as process, client_of(process) as client:

        def gauges() -> dict[str, float]:
            with urllib.request.urlopen(f"http://127.0.0.1:{process.http_port}/metrics", timeout=120) as response:
                page = response.read().decode()
            found = re.findall(r"^toutates_on_demand_(\w+) (\S+)$", page, re.MULTILINE)
            return {name: float(value) for name, value in found}

        with ThreadPoolExecutor(4) as threads:
            assert list(threads.map(lambda number: answer(client, f"m{number}"), range(360))) == list(range(360))
        for number in range(20):
            assert fails(partial(answer, client, f"nobody{number}"))[0] == "NOT_FOUND"
        free = budget // 64

        def is_free() -> bool:
            return gauges()["memory_bytes"] <= budget - free

        wait_until(is_free)
        now = gauges()
        assert (now["hits_total"], now["misses_total"]) == (0, 360), "nobody has loaded what is not there"
        assert now["loaded_models"] > 200
        assert now["loaded_models"] == now["loads_total"] - now["evictions_total"]
        assert now["memory_bytes"] > budget - free - 5 * ONE, "no more leave than have to"
        assert process.stop() == 0
        assert "Traceback" not in process.log
