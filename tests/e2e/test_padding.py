"""Rows of different length share a batch (``padding``, ``ragged``): over gRPC, REST, and as a step of an ensemble."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.testing as npt
import pytest

from tests.e2e.process import ServerProcess, running
from tests.e2e.support import Tensor, channel_to, infer, outputs_of, refused, request, statistics_of, triton
from tests.ensembles import add_ensemble, add_graph, pbtxt
from tests.graphs import SEGMENTS, TEXTS
from tests.waiting import wait_until

http = pytest.importorskip("tritonclient.http")

CONFIG = """\
backend: supertensor
batch_size: 8
capacity: 16
num_executors: 1
allocator: cpu
padding:
  inputs: {ids: {axis: 1, value: 0}}
  mask: mask
  outputs: {each: 1}
  buckets: [8, 16, 24, 40, 64]
  max_batch_tokens: 256
"""


SEGMENTS_PBTXT = """\
platform: "onnxruntime_onnx"
max_batch_size: 16
input { name: "values" data_type: TYPE_INT64 dims: [ -1 ] allow_ragged_batch: true }
input { name: "weight" data_type: TYPE_INT64 dims: [ 1 ] }
output { name: "sum" data_type: TYPE_INT64 dims: [ 1 ] }
output { name: "scaled" data_type: TYPE_INT64 dims: [ -1 ] }
batch_input {
  kind: BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO
  target_name: "offsets" data_type: TYPE_INT32 source_input: "values"
}
batch_output { target_name: "scaled" kind: BATCH_SCATTER_WITH_INPUT_SHAPE source_input: "values" }
dynamic_batching { }
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    root = tmp_path_factory.mktemp("repository")
    add_graph(root, "texts", TEXTS)
    (root / "texts" / "1" / "config.yaml").write_text(CONFIG)
    add_graph(root, "segments", SEGMENTS, config=SEGMENTS_PBTXT)
    whole = pbtxt(
        ["IN INT64 [-1]"],
        ["OUT INT64 [-1]"],
        [("texts", {"ids": "IN"}, {"each": "t"}), ("texts", {"ids": "t"}, {"each": "OUT"})],
    )
    add_ensemble(root, "twice", whole)
    with running(
        root, tmp_path_factory.mktemp("server"), ["--http-addr", "127.0.0.1:0", "--metrics-addr", "127.0.0.1:0"]
    ) as process:
        yield process
        assert process.stop() == 0
        assert "Traceback" not in process.log


@pytest.fixture(scope="module")
def channel(server: ServerProcess) -> Iterator[Any]:
    with channel_to(server.address) as channel:
        yield channel


def numbers(length: int, rows: int = 1) -> Any:
    return np.arange(rows * length, dtype=np.int64).reshape(rows, length) % 10


def texts(length: int, rows: int = 1, **fields: Any) -> Any:
    return request("texts", Tensor.of("ids", "INT64", numbers(length, rows)), **fields)


def check(response: Any, length: int, rows: int = 1) -> None:
    outputs = outputs_of(response)
    npt.assert_array_equal(outputs["each"], numbers(length, rows) * 10)
    npt.assert_array_equal(outputs["sum"], numbers(length, rows).sum(axis=1, keepdims=True) * 10)


def test_clients_send_their_own_length_and_get_it_back(server: ServerProcess) -> None:
    def client(number: int) -> None:
        with channel_to(server.address) as channel:
            for at in range(20):
                length, rows = 1 + (7 * number + 11 * at) % 60, 1 + at % 3
                check(infer(channel, texts(length, rows, id=f"{number}-{at}")), length, rows)

    with channel_to(server.address) as channel:
        before = statistics_of(channel, "texts")
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(client, range(8)))
        after = statistics_of(channel, "texts")
    assert after.inference_stats.success.count - before.inference_stats.success.count == 160
    assert after.execution_count - before.execution_count <= 160


def test_a_request_that_comes_again_is_not_parsed_again(channel: Any) -> None:
    for _ in range(3):
        check(infer(channel, texts(33)), 33)


def test_the_mask_may_be_sent(channel: Any) -> None:
    mask = np.array([[1, 0, 0, 1, 1]], np.int64)
    message = request("texts", Tensor.of("ids", "INT64", numbers(5)), Tensor.of("mask", "INT64", mask))
    npt.assert_array_equal(outputs_of(infer(channel, message))["each"], numbers(5) * 10 * mask)


def test_a_request_of_many_rows_is_split(channel: Any) -> None:
    check(infer(channel, texts(60, 40)), 60, 40)


def test_over_rest(server: ServerProcess) -> None:
    with http.InferenceServerClient(f"127.0.0.1:{server.rest_port}") as client:
        for binary in (True, False):
            tensor = http.InferInput("ids", [2, 13], "INT64")
            tensor.set_data_from_numpy(numbers(13, 2), binary_data=binary)
            asked = [http.InferRequestedOutput("each", binary_data=binary)]
            answer = client.infer("texts", [tensor], outputs=asked)
            npt.assert_array_equal(answer.as_numpy("each"), numbers(13, 2) * 10)


def test_as_a_step_of_an_ensemble(channel: Any) -> None:
    for length in (5, 6, 40):
        ids = numbers(length)
        answer = infer(channel, request("twice", Tensor.of("IN", "INT64", ids)))
        npt.assert_array_equal(outputs_of(answer)["OUT"], ids * 100)


def test_clients_are_told_that_the_mask_may_be_left_out(server: ServerProcess) -> None:
    with triton.InferenceServerClient(server.address) as client:
        config = client.get_model_config("texts").config
    assert {tensor.name: tensor.optional for tensor in config.input} == {"ids": False, "mask": True}


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (
            texts(65, id="a"),
            "input 'ids' for model 'texts' has 65 elements along the dimension that is padded; the model takes 64",
        ),
        (texts(0), "input 'ids' for model 'texts' has no elements along the dimension that is padded"),
        (
            request("texts", Tensor.of("ids", "INT64", numbers(5)), Tensor.of("mask", "INT64", numbers(6))),
            "inputs 'ids' and 'mask' for model 'texts' have 5 and 6 elements along the dimension that is padded",
        ),
    ],
)
def test_rows_that_do_not_fit_are_refused(channel: Any, message: Any, text: str) -> None:
    status, said = refused(channel, message)
    assert (status, text in said) == ("INVALID_ARGUMENT", True), said


KINDS = ("real", "padded")


def metrics_of(server: ServerProcess) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.http_port}/metrics") as answer:
        page: str = answer.read().decode()
        return page


def test_the_metrics_have_real_and_padded_elements(server: ServerProcess, channel: Any) -> None:
    def counts() -> list[float]:
        page = metrics_of(server)
        found = [re.search(rf'toutates_{kind}_elements_total\{{model="texts"[^}}]*\}} (\S+)', page) for kind in KINDS]
        return [float(one[1]) if one is not None else 0.0 for one in found]

    before = counts()
    check(infer(channel, texts(33, 2)), 33, 2)
    # What is served for a moment is one and the same.
    wait_until(lambda: [after - old for after, old in zip(counts(), before, strict=True)] == [66, 80])


def test_many_lengths_are_many_plans_and_few_lanes(server: ServerProcess, channel: Any) -> None:
    for length in range(1, 65):
        check(infer(channel, texts(length)), length)
    lanes = re.search(r'toutates_lanes\{model="texts"[^}]*\} (\S+)', metrics_of(server))
    assert lanes is not None
    # The buckets, for rows with a mask and without one, and the two forms.
    assert float(lanes[1]) <= 2 * 5 + 2


# --- ragged rows -----------------------------------------------------------------------------------------------------


def ask_segments(client: Any, module: Any, length: int, weight: int) -> None:
    """Send a row with tritonclient, and check the answer."""
    values = np.arange(length, dtype=np.int64).reshape(1, length) % 100
    tensors = []
    for name, array in (("values", values), ("weight", np.array([[weight]]))):
        tensors.append(module.InferInput(name, list(array.shape), "INT64").set_data_from_numpy(array))
    result = client.infer("segments", tensors)
    npt.assert_array_equal(result.as_numpy("sum"), [[values.sum() * weight]])
    npt.assert_array_equal(result.as_numpy("scaled"), values * 2)


def test_ragged_rows_over_grpc_and_rest(server: ServerProcess) -> None:
    def over_grpc(number: int) -> None:
        with triton.InferenceServerClient(server.address) as client:
            for at in range(12):
                ask_segments(client, triton, (7 * number + 11 * at) % 50, number)

    with channel_to(server.address) as channel:
        before = statistics_of(channel, "segments")
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(over_grpc, range(4)))
        with http.InferenceServerClient(f"127.0.0.1:{server.rest_port}") as client:
            for length in (5, 1_000, 5):
                ask_segments(client, http, length, 2)
        after = statistics_of(channel, "segments")
    assert after.inference_stats.success.count - before.inference_stats.success.count == 4 * 12 + 3
    assert after.execution_count - before.execution_count <= 4 * 12 + 3


def test_clients_of_ragged_rows_do_not_see_what_the_server_makes(server: ServerProcess, channel: Any) -> None:
    with triton.InferenceServerClient(server.address) as client:
        metadata = client.get_model_metadata("segments", as_json=True)
        config = client.get_model_config("segments").config
    assert [(one["name"], one["shape"]) for one in metadata["inputs"]] == [
        ("values", ["-1", "-1"]),
        ("weight", ["-1", "1"]),
    ]
    assert [one["shape"] for one in metadata["outputs"]] == [["-1", "1"], ["-1", "-1"]]
    assert config.input[0].allow_ragged_batch
    assert config.batch_input[0].target_name == ["offsets"]
    tensors = [Tensor.of(name, "INT64", np.ones((1, 1), np.int64)) for name in ("values", "weight", "offsets")]
    status, said = refused(channel, request("segments", *tensors))
    assert (status, "expected 2 inputs but got 3" in said) == ("INVALID_ARGUMENT", True), said
