"""Outputs whose sizes a file tells wrongly: what comes is sent, and metadata promises what runs at load have kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.e2e.models import CONFIG, add_model
from tests.e2e.process import ServerProcess, run, running
from tests.e2e.support import triton

http = pytest.importorskip("tritonclient.http")

Shape = Sequence[int | str]


def _tensor(name: str, shape: Shape) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def _model(nodes: list[onnx.NodeProto], given: Shape, outputs: dict[str, Shape]) -> bytes:
    declared = [_tensor(name, shape) for name, shape in outputs.items()]
    constants = [
        numpy_helper.from_array(np.zeros(1, np.int64), "first"),
        numpy_helper.from_array(np.ones(8, np.bool_), "all"),
    ]
    graph = helper.make_graph(nodes, "model", [_tensor("x", given)], declared, constants)
    opsets = [helper.make_opsetid("", 17)]
    octets: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    return octets


def copying_model(given: Shape, declared: Shape) -> bytes:
    """y is x, whatever is declared: no inference of shapes sees through it."""
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Cast", ["s"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Cast", ["f"], ["i"], to=TensorProto.INT64),
        helper.make_node("Shape", ["i"], ["rank"]),
        helper.make_node("Slice", ["all", "first", "rank"], ["each"]),
        helper.make_node("Compress", ["i", "each"], ["any"]),
        helper.make_node("Reshape", ["x", "any"], ["y"]),
    ]
    return _model(nodes, given, {"y": declared})


def labelling_model() -> bytes:
    """A classifier as exporters of gradient boosters write it: a label for each row, declared [1], and scores."""
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "first"], ["n"]),
        helper.make_node("Cast", ["n"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Cast", ["f"], ["i"], to=TensorProto.INT64),
        helper.make_node("ReduceMax", ["x"], ["m"], axes=[1], keepdims=0),
        helper.make_node("Reshape", ["m", "i"], ["label"]),
        helper.make_node("Neg", ["x"], ["scores"]),
    ]
    return _model(nodes, ["n", 3], {"label": [1], "scores": ["n", 3]})


YAML: Final = CONFIG.format(8, 8) + "output_shapes: {{y: {}}}\n"
PBTXT: Final = """max_batch_size: {}
input {{ name: "x" data_type: TYPE_FP32 dims: {} }}
output {{ name: "y" data_type: TYPE_FP32 dims: {} }}
"""
#: By name: the model, config.yaml, config.pbtxt, and the shape of y in metadata.
MODELS: Final[dict[str, tuple[bytes, str, str, list[int]]]] = {
    "fixed": (copying_model([1, "k"], [1, 3]), "", "", [1, -1]),
    "batched": (copying_model(["n", "k"], ["n", 3]), "", "", [-1, -1]),
    "kept": (copying_model(["n", 1], ["n", 1]), "", "", [-1, 1]),
    "other_rank": (copying_model([2, "k"], [2]), "", "", [2]),
    "yaml": (copying_model([1, "k"], [1, 3]), YAML.format("[1, -1]"), "", [1, -1]),
    "whole_yaml": (copying_model([1, "k"], [1, 3]), YAML.format("[-1, -1]"), "", [-1, -1]),
    "pbtxt": (copying_model([1, "k"], [1, 3]), "", PBTXT.format(0, "[ 1, -1 ]", "[ -1, -1 ]"), [-1, -1]),
    "batched_pbtxt": (copying_model(["n", "k"], ["n", 3]), "", PBTXT.format(8, "[ -1 ]", "[ -1 ]"), [-1, -1]),
}
#: Those whose runs at load have contradicted what is declared.
WRONG: Final = ("fixed", "batched", "other_rank", "labels")


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    models = tmp_path_factory.mktemp("models")
    for name, (model, yaml, pbtxt, _) in MODELS.items():
        add_model(models, name, model, config=yaml)
        if pbtxt:
            (models / name / "config.pbtxt").write_text(pbtxt)
    add_model(models, "labels", labelling_model())
    return models


@pytest.fixture(scope="module")
def server(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with running(repository, tmp_path_factory.mktemp("server"), ("--http-addr", "127.0.0.1:0")) as process:
        yield process
        assert process.stop() == 0
        assert "Traceback" not in process.log
        for name in WRONG:
            assert process.log.count(f"model '{name}' version 1: output '") == 1
        assert process.log.count(" is declared ") == len(WRONG)


@pytest.fixture(params=["grpc", "http"])
def client(server: ServerProcess, request: pytest.FixtureRequest) -> Iterator[Any]:
    module = triton if request.param == "grpc" else http
    address = server.address if request.param == "grpc" else f"127.0.0.1:{server.rest_port}"
    with module.InferenceServerClient(address) as client:
        client.module = module
        yield client


def asked(client: Any, model: str, *shape: int, of: str = "y") -> None:
    """Ask for x itself, of this shape."""
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    tensor = client.module.InferInput("x", list(shape), "FP32")
    tensor.set_data_from_numpy(x)
    found = client.infer(model, [tensor]).as_numpy(of)
    assert found.shape == ((shape[0],) if of == "label" else shape)
    np.testing.assert_array_equal(found, x.max(1) if of == "label" else x)


def shapes_of(client: Any, model: str) -> dict[str, list[int]]:
    """The shapes of a model's outputs, as its metadata tells them."""
    if client.module is http:
        return {own["name"]: own["shape"] for own in client.get_model_metadata(model)["outputs"]}
    return {own.name: list(own.shape) for own in client.get_model_metadata(model).outputs}


@pytest.mark.parametrize("model", ["fixed", "yaml", "whole_yaml", "pbtxt"])
def test_what_came_is_sent_of_a_model_without_batches(client: Any, model: str) -> None:
    for width in (3, 5, 1, 8_210, 3):
        assert shapes_of(client, model) == {"y": MODELS[model][-1]}
        asked(client, model, 1, width)


@pytest.mark.parametrize("model", ["batched", "batched_pbtxt"])
def test_what_came_is_sent_of_a_model_with_batches(client: Any, model: str) -> None:
    for rows, width in ((1, 3), (4, 5), (2, 1), (2, 8_210), (1, 3)):
        assert shapes_of(client, model) == {"y": MODELS[model][-1]}
        asked(client, model, rows, width)


def test_a_rank_that_is_another_stays_as_declared(client: Any) -> None:
    for width in (3, 5):
        asked(client, "other_rank", 2, width)
        assert shapes_of(client, "other_rank") == {"y": [2]}


def test_labels_that_are_declared_as_one_are_one_for_each_row(client: Any) -> None:
    for rows in (1, 5, 2, 1):
        assert shapes_of(client, "labels") == {"label": [-1], "scores": [-1, 3]}
        asked(client, "labels", rows, 3, of="label")


def test_what_is_kept_stays_declared(client: Any) -> None:
    asked(client, "kept", 3, 1)
    assert shapes_of(client, "kept") == {"y": [-1, 1]}


def test_check_tells_of_sizes_that_are_not_kept(repository: Path) -> None:
    said = run("check", str(repository))
    text = said.stdout + said.stderr
    for name in WRONG:
        assert f"output '{'label' if name == 'labels' else 'y'}' is declared" in text, text
    assert text.count(" is declared ") == len(WRONG), text


@pytest.mark.parametrize(
    ("yaml", "pbtxt"),
    [
        (YAML.format("[1, 4]"), ""),
        (CONFIG.format(8, 8) + "input_shapes: {x: [-1, -1]}\n", ""),
        ("", PBTXT.format(0, "[ 1, -1 ]", "[ 1, 4 ]")),
        ("", PBTXT.format(0, "[ -1, -1 ]", "[ 1, 3 ]")),
    ],
)
def test_sizes_that_are_neither_the_graphs_nor_open_are_refused(tmp_path: Path, yaml: str, pbtxt: str) -> None:
    add_model(tmp_path, "m", copying_model([1, "k"], [1, 3]), config=yaml)
    if pbtxt:
        (tmp_path / "m" / "config.pbtxt").write_text(pbtxt)
    assert run("check", str(tmp_path)).returncode == 1
