"""Requests to graphs whose rows depend on each other do not share runs; others do. With many clients at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pytest

from tests.e2e.dependent_models import DEPENDENT, INDEPENDENT, add, detector, graph, node, quantized, running_sum
from tests.e2e.process import ServerProcess, run, running
from tests.e2e.support import channel_to, statistics_of, triton
from tests.ensembles import add_ensemble, pbtxt
from tests.waiting import wait_until

pytestmark = pytest.mark.long

http = pytest.importorskip("tritonclient.http")

CLIENTS: Final = 12
#: Requests of each client.
REQUESTS: Final = 25
CONFIG: Final = "backend: supertensor\nbatch_size: 64\ncapacity: 16\nnum_executors: {}\nallocator: cpu\n"
#: Requests wait for company, so that those that may share a run do.
DELAYED: Final = CONFIG.format(1) + "max_queue_delay_us: 5000\n"
DATATYPES: Final = {1: "FP32", 7: "INT64", 9: "BOOL"}

Infer = Callable[[str, npt.NDArray[Any]], npt.NDArray[Any]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    root = tmp_path_factory.mktemp("repository")
    for name, model in {**DEPENDENT, **INDEPENDENT}.items():
        add(root, name, model, DELAYED)
    add(root, "plain", detector())
    add(root, "many", running_sum(), CONFIG.format(3))
    add(root, "priorities", running_sum(), CONFIG.format(1) + "priority_levels: 2\ndefault_priority: 1\n")
    add(root, "in_time", running_sum(), CONFIG.format(1) + "latency_target_ms: 60000\n")
    add(root, "in_order", running_sum(), DELAYED + "preserve_ordering: true\n")
    add(root, "cached", running_sum(), DELAYED + "response_cache: true\n")
    add(root, "small", running_sum(), DELAYED.replace("64", "2"))
    add(root, "longer", _sum_of_open(), DELAYED + "padding:\n  inputs: {x: {axis: 1}}\n  outputs: {y: 1}\n")
    for member in ("sum", "detector"):
        output = "det" if member == "detector" else "y"
        steps = [(member, {"x": "IN"}, {output: "OUT"})]
        add_ensemble(root, f"of_{member}", pbtxt(["IN FP32 [-1]"], ["OUT FP32 [2]"], steps))
    flags = ["--http-addr", "127.0.0.1:0", "--cache-config", "local,size=1048576"]
    with running(root, tmp_path_factory.mktemp("server"), flags) as process:
        yield process


def _sum_of_open() -> onnx.ModelProto:
    """The running sum over rows of any length."""
    values: Any = ["t", "n"]
    return graph([node("CumSum", "x axis", "y")], [("x", 1, values)], [("y", 1, values)], axis=np.int64(0))


def _session(model: onnx.ModelProto) -> Callable[[npt.NDArray[Any]], npt.NDArray[Any]]:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    lock = threading.Lock()

    def compute(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
        with lock:
            return np.asarray(session.run(None, {session.get_inputs()[0].name: rows})[0])

    return compute


def _rows(model: onnx.ModelProto, random: np.random.Generator) -> npt.NDArray[Any]:
    """Rows of a request, three at most."""
    tensor = model.graph.input[0].type.tensor_type
    sizes = [dim.dim_value or int(random.integers(1, 9)) for dim in tensor.shape.dim[1:]]
    # A Reshape to one row takes one.
    rows = random.random((int(random.integers(1, 4)), *sizes)).astype(np.float32)
    return (100 * rows).astype(np.int64) if DATATYPES[tensor.elem_type] == "INT64" else rows


def _ask_grpc(client: Any, name: str, model: onnx.ModelProto, rows: npt.NDArray[Any], kind: Any) -> npt.NDArray[Any]:
    datatype = DATATYPES[model.graph.input[0].type.tensor_type.elem_type]
    given = kind.InferInput(model.graph.input[0].name, rows.shape, datatype)
    given.set_data_from_numpy(rows)
    return np.asarray(client.infer(name, [given]).as_numpy(model.graph.output[0].name))


def _check(server: ServerProcess, name: str, model: onnx.ModelProto, *, most_rows: int = 3, exact: bool = True) -> int:
    """Have many clients ask at once; every answer must be that of its own rows. Returns the answers."""
    compute = _session(model)
    wrong: list[str] = []
    answered: list[int] = []

    def ask(number: int) -> None:
        random = np.random.default_rng(number)
        is_grpc = number % 2 == 0
        kind = triton if is_grpc else http
        address = server.address if is_grpc else f"127.0.0.1:{server.rest_port}"
        try:
            with kind.InferenceServerClient(address) as client:
                for _ in range(REQUESTS):
                    rows = _rows(model, random)[:most_rows]
                    found, wanted = _ask_grpc(client, name, model, rows, kind), compute(rows)
                    is_right = found.shape == wanted.shape and (
                        np.array_equal(found, wanted) if exact else np.allclose(found, wanted, atol=0.15)
                    )
                    answered.append(1)
                    if not is_right:
                        wrong.append(f"{rows.tolist()}: {found.tolist()}, and not {wanted.tolist()}")
        except Exception as error:
            wrong.append(f"{type(error).__name__}: {error}")

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, f"{len(wrong)} of {CLIENTS * REQUESTS}: {wrong[0]}"
    return len(answered)


def _batches(server: ServerProcess, name: str) -> Mapping[int, int]:
    """How many runs there were, by their rows."""
    with channel_to(server.address) as channel:
        found = statistics_of(channel, name)
    return {batch.batch_size: batch.compute_infer.count for batch in found.batch_stats}


def _config(server: ServerProcess, name: str) -> Any:
    with triton.InferenceServerClient(server.address) as client:
        return client.get_model_config(name).config


@pytest.mark.parametrize("name", DEPENDENT)
def test_rows_that_depend_on_each_other_are_never_joined(server: ServerProcess, name: str) -> None:
    # A Reshape to [1, 4] takes one row.
    asked = _check(server, name, DEPENDENT[name], most_rows=1 if name == "reshape_one" else 3)

    batches = _batches(server, name)
    assert max(batches) <= 3
    assert sum(batches.values()) == asked  # one run for each request
    assert _config(server, name).max_batch_size == 64  # as clients knew it
    assert server.log.count(f"model '{name}' version 1: rows depend on each other") == 1


@pytest.mark.parametrize("name", INDEPENDENT)
def test_other_rows_are_joined(server: ServerProcess, name: str) -> None:
    asked = _check(server, name, INDEPENDENT[name], exact=False)

    batches = _batches(server, name)
    assert max(batches) > 3
    assert sum(batches.values()) < asked
    assert f"model '{name}' version 1: rows depend" not in server.log


def test_a_detector_without_a_configuration_answers_with_its_own_rows(server: ServerProcess) -> None:
    _check(server, "plain", detector())
    with triton.InferenceServerClient(server.address) as client:
        none = np.zeros((1, 3), np.float32)
        assert _ask_grpc(client, "plain", detector(), none, triton).shape == (0, 2)


@pytest.mark.parametrize("name", ["many", "priorities", "in_time", "in_order", "cached", "small"])
def test_every_way_in_keeps_requests_apart(server: ServerProcess, name: str) -> None:
    # With "small", a request of three rows has more than run together.
    _check(server, name, running_sum())


def test_rows_that_are_padded_are_kept_apart(server: ServerProcess) -> None:
    _check(server, "longer", _sum_of_open())


@pytest.mark.parametrize(("name", "model"), [("of_sum", running_sum()), ("of_detector", detector())])
def test_an_ensemble_keeps_the_requests_of_such_a_member_apart(
    server: ServerProcess, name: str, model: onnx.ModelProto
) -> None:
    model.graph.input[0].name, model.graph.output[0].name = "IN", "OUT"
    for one in model.graph.node:
        one.input[:] = ["IN" if given == "x" else given for given in one.input]
        one.output[:] = ["OUT" if given in ("y", "det") else given for given in one.output]
    _check(server, name, model)


# --- what the configuration says, and what only traffic tells ---------------------------------------------------------


def test_the_users_word_beats_values_and_never_the_number_of_rows(tmp_path: Any) -> None:
    root = tmp_path / "models"
    said = 'max_batch_size: 64\ndynamic_batching { max_queue_delay_microseconds: 5000 }\nbackend: "onnxruntime"\n'
    add(root, "sum_said", running_sum(), pbtxt=said)
    add(root, "sum_yaml", running_sum(), DELAYED + "batching: true\n")
    add(root, "sum_size", running_sum(), pbtxt="max_batch_size: 64\n")
    add(root, "det_said", detector(), pbtxt=said)
    with running(root, tmp_path, ["--http-addr", "127.0.0.1:0"]) as server:
        for name in ("sum_said", "sum_yaml"):
            with pytest.raises(AssertionError, match="of 300"):
                _check(server, name, running_sum())
            assert max(_batches(server, name)) > 3
        # The size alone is no such word, and nobody's word divides what has no rows.
        _check(server, "sum_size", running_sum())
        _check(server, "det_said", detector())
        log = server.log
    assert "requests are joined, because `dynamic_batching` says so" in log
    assert "requests are joined, because `batching: true` says so" in log
    assert "model 'det_said' version 1: rows depend on each other: output 'det' is [" in log

    checked = run("check", str(root)).stdout
    assert checked.count("`dynamic_batching` says so") == 1
    assert checked.count("each request runs alone") == 2


def _filter() -> onnx.ModelProto:
    """Rows whose first number is below a thousand: no random row of a probe is left out."""
    return graph(
        [
            node("Gather", "x first", "column", axis=1),
            node("Less", "column most", "keep"),
            node("Compress", "x keep", "y", axis=0),
        ],
        [("x", 1, ["n", 2])],
        [("y", 1, ["m", 2])],
        first=np.int64(0),
        most=np.float32(1000),
    )


def test_a_run_with_another_number_of_rows_is_repeated_request_by_request_and_is_the_last_joint_one(
    tmp_path: Any,
) -> None:
    root = tmp_path / "models"
    add(root, "filter", _filter(), DELAYED)
    with running(root, tmp_path, ["--http-addr", "127.0.0.1:0"]) as server:
        _check(server, "filter", _filter())
        before = _batches(server, "filter")
        assert max(before) > 3
        assert "rows depend" not in server.log

        # One of them is left out, and no other caller hears of it.
        wrong: list[str] = []

        def ask(number: int) -> None:
            rows = np.full((2, 2), number, np.float32)
            rows[0, 0] = 2_000 if number % 3 == 0 else number
            with triton.InferenceServerClient(server.address) as client:
                found = _ask_grpc(client, "filter", _filter(), rows, triton)
            if found.tolist() != rows[rows[:, 0] < 1_000].tolist():
                wrong.append(f"{found.tolist()} for {rows.tolist()}")

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong
        wait_until(lambda: "its requests are not joined any more" in server.log)
        assert server.log.count("its requests are not joined any more") == 1

        joint = {rows: count for rows, count in _batches(server, "filter").items() if rows > 3}
        _check(server, "filter", _filter())
        assert {rows: count for rows, count in _batches(server, "filter").items() if rows > 3} == joint


def test_a_batch_size_of_0_alone_switches_batching_off_in_files_and_in_requests(tmp_path: Any) -> None:
    root = tmp_path / "models"
    add(root, "zero", running_sum(), pbtxt="# max_batch_size: 8\nmax_batch_size : 0\n")
    add(root, "comment", INDEPENDENT["mlp"], pbtxt='# max_batch_size: 0\nplatform: "onnxruntime_onnx"\n')
    flags = ["--http-addr", "127.0.0.1:0", "--model-control-mode", "explicit", "--load-model", "*"]
    with running(root, tmp_path, flags) as server:
        assert _config(server, "zero").max_batch_size == 0
        assert list(_config(server, "zero").input[0].dims) == [-1, 2]
        _check(server, "zero", running_sum())
        assert _config(server, "comment").max_batch_size == 64
        with triton.InferenceServerClient(server.address) as client:
            client.load_model("comment", config='{"max_batch_size": 0}')
            assert client.get_model_config("comment").config.max_batch_size == 0
            client.load_model("comment", config="{}")
            assert client.get_model_config("comment").config.max_batch_size == 64
        with http.InferenceServerClient(f"127.0.0.1:{server.rest_port}") as client:
            client.load_model("comment", config='{"maxBatchSize": 0}')
            assert client.get_model_config("comment")["max_batch_size"] == 0
        assert "rows depend" not in server.log


def test_rows_of_sequences_whose_model_mixes_rows_are_run_by_themselves(tmp_path: Any) -> None:
    root = tmp_path / "models"
    model = running_sum()
    said = (
        'backend: "onnxruntime"\nmax_batch_size: 8\n'
        "sequence_batching { %s }\n"
        'input { name: "x" data_type: TYPE_FP32 dims: [ 2 ] }\noutput { name: "y" data_type: TYPE_FP32 dims: [ 2 ] }\n'
    )
    add(root, "oldest", model, pbtxt=said % "oldest { max_candidate_sequences: 16 max_queue_delay_microseconds: 5000 }")
    add(
        root,
        "direct",
        model,
        pbtxt=said % "direct { minimum_slot_utilization: 0.5 max_queue_delay_microseconds: 5000 }",
    )
    wrong: list[str] = []

    def ask(server: ServerProcess, name: str, number: int) -> None:
        with triton.InferenceServerClient(server.address) as client:
            for step in range(1, 11):
                rows = np.array([[number, step]], np.float32)
                given = triton.InferInput("x", rows.shape, "FP32")
                given.set_data_from_numpy(rows)
                more = {"sequence_id": number + 1, "sequence_start": step == 1, "sequence_end": step == 10}
                found = client.infer(name, [given], **more).as_numpy("y")
                if not np.array_equal(found, rows):
                    wrong.append(f"{name}: {found.tolist()} for {rows.tolist()}")

    with running(root, tmp_path) as server:
        for name in ("oldest", "direct"):
            threads = [threading.Thread(target=ask, args=(server, name, number)) for number in range(6)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    assert not wrong


def test_a_quantized_graph_and_one_that_draws_numbers_are_judged_by_what_they_are(tmp_path: Any) -> None:
    root = tmp_path / "models"
    value: Any = ["n", 4]
    random = graph([node("RandomNormalLike", "x", "y")], [("x", 1, value)], [("y", 1, value)])
    add(root, "random", random, DELAYED)
    add(root, "quantized", quantized(), DELAYED)
    checked = run("check", str(root))
    assert "rows depend" not in checked.stdout + checked.stderr
