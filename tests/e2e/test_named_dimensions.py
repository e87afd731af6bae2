"""Two inputs that share a dimension by its name, and differ in it: the caller's error, wherever the run fails."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.e2e.dependent_models import F, add, graph, node
from tests.e2e.http import peer_of, post
from tests.e2e.process import ServerProcess, run, running
from tests.e2e.streams import conversation
from tests.e2e.support import Tensor, bytes_tensor, channel_to, infer, outputs_of, refused, request
from tests.ensembles import add_ensemble, pbtxt

PAIR: Any = ["batch", "seq"]
CONFIG = "batch_size: 8\nnum_executors: 1\n"
TENSORS = """
input { name: "ids" data_type: TYPE_FP32 dims: [ -1 ] }
input { name: "mask" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ -1 ] }
"""
SEQUENCE = f"""max_batch_size: 4 {TENSORS}
sequence_batching {{ control_input [
  {{ name: "START" control [ {{ kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] }} ] }}
] }}
"""
RAGGED = f"""max_batch_size: 16 {TENSORS.replace("]", "] allow_ragged_batch: true", 2)}
batch_output {{ target_name: "y" kind: BATCH_SCATTER_WITH_INPUT_SHAPE source_input: "ids" }}
dynamic_batching {{ max_queue_delay_microseconds: 300000 }}
"""


def pair(axes: Any = PAIR, names: str = "ids mask", operator: str = "Add") -> onnx.ModelProto:
    """The sum of two inputs of one shape."""
    one, other = names.split()
    return graph([node(operator, names, "y")], [(one, F, axes), (other, F, axes)], [("y", F, axes)])


def with_start() -> onnx.ModelProto:
    """The same in a sequence, with the control that it begins."""
    nodes = [node("Add", "ids mask", "sum"), node("Mul", "START none", "nothing"), node("Add", "sum nothing", "y")]
    inputs: Any = [("ids", F, PAIR), ("mask", F, PAIR), ("START", F, ["batch", 1])]
    return graph(nodes, inputs, [("y", F, PAIR)], none=np.float32(0))


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("repository")
    add(root, "pair", pair(), CONFIG)
    add(root, "unbatched", pair([1, "seq"]))
    add(root, "square", graph([node("MatMul", "x x", "y")], [("x", F, ["n", "n"])], [("y", F, ["n", "n"])]))
    wide: Any = ["batch", "a"]
    add(root, "others", graph([node("Add", "ids mask", "y")], [("ids", F, PAIR), ("mask", F, wide)], [("y", F, PAIR)]))
    texts = [node("Concat", "ids mask", "y", axis=0)]
    add(root, "texts", graph(texts, [("ids", 8, PAIR), ("mask", 8, PAIR)], [("y", 8, ["rows", "seq"])]))
    steps = [("pair", {"ids": "A", "mask": "B"}, {"y": "OUT"})]
    add_ensemble(root, "ensemble", pbtxt(["A FP32 [-1]", "B FP32 [-1]"], ["OUT FP32 [-1]"], steps))
    add(root, "sequence", with_start())
    (root / "sequence/config.pbtxt").write_text(SEQUENCE)
    add(root, "ragged", pair(["total"]))
    (root / "ragged/config.pbtxt").write_text(RAGGED)
    return root


@pytest.fixture(scope="module")
def server(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with running(repository, tmp_path_factory.mktemp("server"), ["--http-addr", "127.0.0.1:0"]) as process:
        yield process


@pytest.fixture(scope="module")
def channel(server: ServerProcess) -> Iterator[Any]:
    with channel_to(server.address) as one:
        yield one


def two(first: int, second: int, names: str = "ids mask", rows: int = 1) -> list[Tensor]:
    values = (np.ones((rows, size), np.float32) for size in (first, second))
    return [Tensor.of(name, "FP32", value) for name, value in zip(names.split(), values, strict=True)]


def named(text: str, names: str = "ids mask", sizes: str = "5 and 4") -> bool:
    return all(f"'{name}'" in text for name in (*names.split(), "seq")) and sizes in text and "onnx" not in text


@pytest.mark.parametrize("model", ["pair", "unbatched"])
def test_inputs_that_differ_are_the_callers_error(channel: Any, server: ServerProcess, model: str) -> None:
    code, text = refused(channel, request(model, *two(5, 4)))
    assert (code, named(text)) == ("INVALID_ARGUMENT", True), text
    inputs = [
        {"name": name, "datatype": "FP32", "shape": [1, size], "data": [1] * size}
        for name, size in (("ids", 5), ("mask", 4))
    ]
    with peer_of(server.rest_port) as peer:
        answer = peer.ask(post(f"/v2/models/{model}/infer", json.dumps({"inputs": inputs})))
    assert (answer.status, named(answer.document["error"])) == (400, True), answer
    assert outputs_of(infer(channel, request(model, *two(5, 5))))["y"].tolist() == [[2] * 5]


def test_a_run_that_succeeds_is_what_the_model_gave(channel: Any) -> None:
    assert outputs_of(infer(channel, request("pair", *two(5, 1))))["y"].tolist() == [[2] * 5]


def test_without_a_name_in_common_the_models_error_stays(channel: Any) -> None:
    code, text = refused(channel, request("others", *two(5, 4)))
    assert (code, "onnx runtime error" in text) == ("INTERNAL", True), text


def test_one_input_that_has_a_name_twice(channel: Any) -> None:
    code, text = refused(channel, request("square", Tensor.of("x", "FP32", np.ones((2, 3), np.float32))))
    assert (code, "'x'" in text and "'n' twice" in text) == ("INVALID_ARGUMENT", True), text


def test_texts(channel: Any) -> None:
    tensors = [
        Tensor(name, "BYTES", (1, size), bytes_tensor(*[b"t"] * size)) for name, size in (("ids", 5), ("mask", 4))
    ]
    code, text = refused(channel, request("texts", *tensors))
    assert (code, named(text)) == ("INVALID_ARGUMENT", True), text


def test_streams_go_on(channel: Any) -> None:
    with conversation(channel) as stream:
        stream.send(request("pair", *two(5, 4), id="wrong"), request("pair", *two(3, 3), id="right"))
        answers = stream.read(2)
    texts = [one.error_message for one in answers if one.error_message]
    assert len(texts) == 1
    assert named(texts[0]), texts
    assert [outputs_of(one.infer_response)["y"].tolist() for one in answers if not one.error_message] == [[[2] * 3]]


def test_ensembles(channel: Any) -> None:
    code, text = refused(channel, request("ensemble", *two(5, 4, "A B")))
    assert (code, named(text)) == ("INVALID_ARGUMENT", True), text
    assert outputs_of(infer(channel, request("ensemble", *two(2, 2, "A B"))))["OUT"].tolist() == [[2, 2]]


def test_sequences(channel: Any) -> None:
    def of(first: int, second: int, *, start: bool = False) -> Any:
        message = request("sequence", *two(first, second))
        message.parameters["sequence_id"].int64_param = 7
        message.parameters["sequence_start"].bool_param = start
        return message

    infer(channel, of(3, 3, start=True))
    code, text = refused(channel, of(5, 4))
    assert (code, named(text)) == ("INVALID_ARGUMENT", True), text
    assert outputs_of(infer(channel, of(2, 2)))["y"].tolist() == [[2, 2]]


def test_of_requests_that_are_joined_only_the_wrong_one_fails(channel: Any) -> None:
    def ask(number: int) -> str:
        if number == 3:
            code, text = refused(channel, request("ragged", *two(5, 4)))
            return f"{code} {text}"
        return str(outputs_of(infer(channel, request("ragged", *two(number + 1, number + 1))))["y"].tolist())

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(ask, range(8)))
    wrong = found.pop(3)
    assert wrong.startswith("INVALID_ARGUMENT"), wrong
    assert "'ids'" in wrong
    assert "'mask'" in wrong
    assert "'total'" in wrong
    assert found == [str([[2.0] * (number + 1)]) for number in range(8) if number != 3]


def test_check_names_inputs_that_share_a_dimension(repository: Path) -> None:
    found = run("check", str(repository))
    assert found.returncode == 0, found.stderr
    lines = [line for line in found.stdout.splitlines() if "'ids', 'mask' share 'seq'" in line]
    assert {line.split()[0] for line in lines} >= {"pair", "unbatched", "texts"}
    assert "share 'batch'" not in found.stdout
    assert not any(line.startswith("others") and "share" in line for line in found.stdout.splitlines())


@pytest.mark.parametrize("dimensions", [[0, 2], ["n", 0]])
def test_a_dimension_of_zero_is_a_warning(tmp_path: Path, dimensions: Any) -> None:
    root = tmp_path / "repository"
    add(root, "empty", graph([node("Neg", "x", "y")], [("x", F, dimensions)], [("y", F, dimensions)]))
    found = run("check", str(root))
    assert "input 'x' has a dimension of zero" in found.stdout + found.stderr
    with running(root, tmp_path) as process:
        lines = [line for line in process.log.splitlines() if "dimension of zero" in line]
    assert len(lines) == 1
    assert "WARN" in lines[0]
    assert "'empty'" in lines[0]
