"""What Triton's example clients read of a model before they send anything, and of classes afterwards."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from tests.e2e.control import EXPLICIT, POLL, client_of, fails
from tests.e2e.process import ServerProcess, running
from tests.e2e.support import Tensor, channel_to, infer, outputs_of, refused, request, triton
from tests.triton_repository import add_model, negative, write_config
from tests.waiting import wait_until

CLASSES: Final = 5
LABELS: Final = ("tench", "goldfish", "great white shark", "", "Übung")

IMAGE_CONFIG: Final = """
name: "image"
max_batch_size: 8
input { name: "data" data_type: TYPE_FP32 format: FORMAT_NCHW dims: [ 3, 2, 2 ] }
output { name: "prob" data_type: TYPE_FP32 dims: [ 5 ] label_filename: "labels.txt" }
instance_group { kind: KIND_CPU passive: false profile: "one" }
dynamic_batching {
  preferred_batch_size: [ 8, 4 ]
  default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 1000 max_queue_size: 64 }
}
optimization { graph { level: 1 } priority: PRIORITY_MAX eager_batching: true }
parameters { key: "threshold" value { string_value: "0.25" } }
metric_tags { key: "region" value: "eu" }
cc_model_filenames { key: "7.5" value: "other.onnx" }
response_cache { enable: true }
model_warmup { name: "one" inputs { key: "data" value { data_type: TYPE_FP32 dims: [ 3, 2, 2 ] zero_data: true } } }
"""


def classifier() -> ModelProto:
    """prob [n, 5] = the sums of data [n, 3, 2, 2], times 0 to 4."""
    nodes = [
        helper.make_node("Flatten", ["data"], ["flat"]),
        helper.make_node("MatMul", ["flat", "weights"], ["prob"]),
    ]
    weights = np.tile(np.arange(CLASSES, dtype=np.float32), (12, 1))
    graph = helper.make_graph(
        nodes,
        "image",
        [helper.make_tensor_value_info("data", TensorProto.FLOAT, ["n", 3, 2, 2])],
        [helper.make_tensor_value_info("prob", TensorProto.FLOAT, ["n", CLASSES])],
        [numpy_helper.from_array(weights, "weights")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def speech() -> ModelProto:
    """As silero-vad: samples with a rate, which is a scalar; and a scalar for an answer."""
    nodes = [helper.make_node("Mul", ["input", "gain"], ["output"]), helper.make_node("Neg", ["sr"], ["rate"])]
    graph = helper.make_graph(
        nodes,
        "speech",
        [
            helper.make_tensor_value_info("input", TensorProto.FLOAT, [None, None]),
            helper.make_tensor_value_info("sr", TensorProto.INT64, []),
        ],
        [
            helper.make_tensor_value_info("output", TensorProto.FLOAT, [None, None]),
            helper.make_tensor_value_info("rate", TensorProto.INT64, []),
        ],
        [numpy_helper.from_array(np.array(2, np.float32), "gain")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("clients")
    add_model(root, "image", classifier())
    write_config(root, "image", IMAGE_CONFIG)
    (root / "image" / "labels.txt").write_text("\n".join(LABELS) + "\n")
    yaml = add_model(root, "yaml", classifier())
    (yaml / "config.yaml").write_text(
        "backend: supertensor\nbatch_size: 5\ncapacity: 4\nnum_executors: 1\nallocator: cpu\nlabels: {prob: names}\n"
    )
    # Of another system, without an end to its last line, and of fewer classes.
    (root / "yaml" / "names").write_bytes(b"tench\r\ngoldfish\r\nshark\r\nray")
    add_model(root, "speech", speech())
    add_model(root, "declared", speech())
    write_config(
        root,
        "declared",
        'input [ { name: "sr" data_type: TYPE_INT64 dims: [ 1 ] },'
        '        { name: "input" data_type: TYPE_FP32 dims: [ -1, -1 ] } ]'
        'output [ { name: "rate" data_type: TYPE_INT64 dims: [ 1 ] },'
        '         { name: "output" data_type: TYPE_FP32 dims: [ -1, -1 ] } ]'
        + "".join(
            f'model_warmup {{ name: "{name}"'
            f'  inputs {{ key: "sr" value {{ data_type: TYPE_INT64 {dims} zero_data: true }} }}'
            '  inputs { key: "input" value { data_type: TYPE_FP32 dims: [ 1, 4 ] zero_data: true } } }'
            for name, dims in (("one dimension", "dims: [ 1 ]"), ("none", ""))
        ),
    )
    return root


@pytest.fixture(scope="module")
def server(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with running(root, tmp_path_factory.mktemp("log"), (*EXPLICIT, "--load-model", "*")) as process:
        yield process
        assert process.stop() == 0
        assert "Traceback" not in process.log


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Any]:
    with client_of(server) as client:
        yield client


@pytest.fixture
def channel(server: ServerProcess) -> Iterator[Any]:
    with channel_to(server.address) as channel:
        yield channel


# --- the configuration as it was written


def test_a_configuration_comes_back_as_it_was_written_and_completed(client: Any) -> None:
    assert client.get_model_config("image", as_json=True)["config"] == {
        "name": "image",
        "platform": "onnxruntime_onnx",
        "backend": "onnxruntime",
        "version_policy": {"latest": {"num_versions": 1}},
        "max_batch_size": 8,
        "input": [{"name": "data", "data_type": "TYPE_FP32", "format": "FORMAT_NCHW", "dims": ["3", "2", "2"]}],
        "output": [{"name": "prob", "data_type": "TYPE_FP32", "dims": ["5"], "label_filename": "labels.txt"}],
        "instance_group": [{"name": "image_0", "kind": "KIND_CPU", "count": 1, "profile": ["one"]}],
        "default_model_filename": "model.onnx",
        "dynamic_batching": {
            "preferred_batch_size": [8, 4],
            "default_queue_policy": {
                "timeout_action": "DELAY",
                "default_timeout_microseconds": "1000",
                "max_queue_size": 64,
            },
        },
        "optimization": {
            "graph": {"level": 1},
            "priority": "PRIORITY_MAX",
            "eager_batching": True,
            "input_pinned_memory": {"enable": True},
            "output_pinned_memory": {"enable": True},
        },
        "parameters": {"threshold": {"string_value": "0.25"}},
        "metric_tags": {"region": "eu"},
        "cc_model_filenames": {"7.5": "other.onnx"},
        "response_cache": {"enable": True},
        "model_warmup": [
            {
                "name": "one",
                "inputs": {"data": {"data_type": "TYPE_FP32", "dims": ["3", "2", "2"], "zero_data": True}},
            }
        ],
    }


def parse_model(metadata: Any, config: Any) -> tuple[int, str, str, int, int, int, int, str]:
    """What image_client of Triton's examples does with both, message for message."""
    from tritonclient.grpc import model_config_pb2

    formats = model_config_pb2.ModelInput
    [given], [output], [configured] = metadata.inputs, metadata.outputs, config.input
    assert output.datatype == "FP32"
    batched = config.max_batch_size > 0
    assert sum(size > 1 for size in output.shape[1 if batched else 0 :]) <= 1
    assert len(given.shape) == 3 + batched
    if configured.format not in (formats.FORMAT_NCHW, formats.FORMAT_NHWC):
        raise ValueError(f"unexpected input format {formats.Format.Name(configured.format)}")
    assert configured.format == formats.FORMAT_NCHW
    channels, height, width = given.shape[1 if batched else 0 :]
    return (
        config.max_batch_size, given.name, output.name, channels, height, width, configured.format, given.datatype
    )  # fmt: skip


def test_image_client_reads_the_model_and_gets_labels(client: Any) -> None:
    config = client.get_model_config("image").config
    most, input_name, output_name, *shape, _, datatype = parse_model(client.get_model_metadata("image"), config)
    assert (most, shape, datatype) == (8, [3, 2, 2], "FP32")
    # As JSON too, which other clients read.
    as_json = client.get_model_config("image", as_json=True)["config"]
    assert (as_json["input"][0]["format"], as_json["max_batch_size"]) == ("FORMAT_NCHW", 8)
    assert client.get_model_metadata("image", as_json=True)["inputs"][0]["shape"] == ["-1", "3", "2", "2"]
    images = np.ones((2, *shape), np.float32)
    tensor = triton.InferInput(input_name, images.shape, datatype)
    tensor.set_data_from_numpy(images)
    result = client.infer("image", [tensor], outputs=[triton.InferRequestedOutput(output_name, class_count=3)])
    for row in result.as_numpy(output_name):
        for place, entry in enumerate(row):
            score, number, *label = entry.decode().split(":")
            assert (float(score), int(number)) == (12.0 * (4 - place), 4 - place)
            assert label == ([LABELS[4 - place]] if LABELS[4 - place] else [])


def classes(client: Any, model: str, count: int, rows: int = 1) -> list[list[str]]:
    images = np.ones((rows, 3, 2, 2), np.float32)
    tensor = triton.InferInput("data", images.shape, "FP32")
    tensor.set_data_from_numpy(images)
    result = client.infer(model, [tensor], outputs=[triton.InferRequestedOutput("prob", class_count=count)])
    return [[entry.decode() for entry in row] for row in result.as_numpy("prob")]


def test_labels_of_config_yaml_of_another_system_and_fewer_than_classes(client: Any, server: ServerProcess) -> None:
    [row] = classes(client, "yaml", 9)
    assert row == ["48.000000:4", "36.000000:3:ray", "24.000000:2:shark", "12.000000:1:goldfish", "0.000000:0:tench"]
    assert client.get_model_config("yaml").config.output[0].label_filename == "names"
    wait_until(lambda: "output 'prob' has 5 values, and 'names' 4 labels" in server.log)
    assert classes(client, "yaml", 1, rows=12) == [["48.000000:4"]] * 12  # in more than one batch


def test_a_configuration_in_the_request_is_shown_and_brings_its_labels(client: Any, root: Path) -> None:
    (root / "image" / "more").mkdir()
    (root / "image" / "more" / "names.txt").write_text("a\nb\nc\nd\ne\n")
    config = {
        "max_batch_size": 2,
        "output": [{"name": "prob", "dataType": "TYPE_FP32", "dims": [5], "labelFilename": "more/names.txt"}],
        "parameters": {"note": {"string_value": "hello"}},
    }
    client.load_model("image", config=json.dumps(config))
    shown = client.get_model_config("image").config
    assert (shown.parameters["note"].string_value, shown.output[0].label_filename) == ("hello", "more/names.txt")
    assert [one.name for one in shown.input] == ["data"]
    assert classes(client, "image", 1) == [["48.000000:4:e"]]
    # Other parameters alone are a change too.
    config["parameters"] = {"note": {"string_value": "bye"}}
    client.load_model("image", config=json.dumps(config))
    assert client.get_model_config("image").config.parameters["note"].string_value == "bye"
    client.unload_model("image")
    client.load_model("image")
    assert classes(client, "image", 1) == [["48.000000:4:Übung"]]


def test_an_uploaded_model_brings_its_labels(client: Any) -> None:
    output = {"name": "prob", "data_type": "TYPE_FP32", "dims": [5], "label_filename": "names.txt"}
    config = {"max_batch_size": 2, "output": [output]}
    graph = classifier().SerializeToString()
    files = {"file:1/model.onnx": graph, "file:names.txt": b"a\nb\nc\nd\ne\n"}
    client.load_model("brought", config=json.dumps(config), files=files)
    assert classes(client, "brought", 2) == [["48.000000:4:e", "36.000000:3:d"]]
    client.unload_model("brought")
    output["label_filename"] = "/etc/hostname"
    status, text = fails(lambda: client.load_model("brought", config=json.dumps(config), files=files))
    assert status == "INVALID_ARGUMENT"
    assert "label_filename: leaves the model's directory (got '/etc/hostname')" in text


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "No such file or directory"),
        (b"caf\xe9\n", "line 1: is not UTF-8; save it as UTF-8"),
        (b"x\n" * 1_000_001, "it has 1000001 lines, and no more than 1000000 values can be classified"),
        (b"x" * (2**24 + 1), "is larger than 16777216 bytes"),
        (b"a\nb\n" + b"x" * 1_025, "it has a line of 1025 bytes; write labels of at most 1024"),
    ],
    ids=["missing", "another encoding", "too many lines", "too large", "a line too long"],
)
def test_labels_that_cannot_be_read_fail_the_load_and_say_why(
    client: Any, root: Path, content: bytes | None, problem: str
) -> None:
    add_model(root, "unlabelled", classifier())
    write_config(root, "unlabelled", IMAGE_CONFIG.replace('"image"', '"unlabelled"'))
    if content is not None:
        (root / "unlabelled" / "labels.txt").write_bytes(content)
    try:
        status, text = fails(lambda: client.load_model("unlabelled"))
    finally:
        client.unload_model("unlabelled")
        shutil.rmtree(root / "unlabelled")
    assert status == "INVALID_ARGUMENT"
    assert "output 'prob' label_filename: failed to open text file for read '" in text
    assert problem in text


def test_a_changed_file_of_labels_loads_the_model_anew(root: Path, tmp_path: Path) -> None:
    own = tmp_path / "models"
    for name in ("image", "yaml"):
        shutil.copytree(root / name, own / name)
    (tmp_path / "log").mkdir()
    with running(own, tmp_path / "log", POLL) as process, client_of(process) as client:
        (own / "image" / "labels.txt").write_text("\n".join("vwxyz"))
        (own / "yaml" / "names").write_text("\n".join("vwxyz"))
        for model in ("image", "yaml"):
            wait_until(lambda model=model: classes(client, model, 1) == [["48.000000:4:z"]])  # type: ignore[misc]
        # What cannot be read changes nothing of what is served.
        (own / "image" / "labels.txt").unlink()
        wait_until(lambda: "failed to open text file for read" in process.log)
        assert classes(client, "image", 1) == [["48.000000:4:z"]]
        assert client.is_server_ready()


# --- scalars


@pytest.mark.parametrize("model", ["speech", "declared"])
def test_scalars_have_one_dimension_for_clients(client: Any, model: str) -> None:
    metadata, config = client.get_model_metadata(model), client.get_model_config(model).config
    assert {one.name: list(one.shape) for one in metadata.inputs} == {"input": [-1, -1], "sr": [1]}
    assert {one.name: list(one.shape) for one in metadata.outputs} == {"output": [-1, -1], "rate": [1]}
    assert {one.name: list(one.dims) for one in config.input} == {"input": [-1, -1], "sr": [1]}
    assert not any(one.HasField("reshape") for one in (*config.input, *config.output))
    if model == "declared":  # in the order of the file
        assert [one.name for one in (*metadata.inputs, *metadata.outputs)] == ["sr", "input", "rate", "output"]


@pytest.mark.parametrize("model", ["speech", "declared"])
@pytest.mark.parametrize("sr", [np.array(16_000), np.array([16_000])], ids=["no dimensions", "one"])
def test_scalars_are_taken_with_and_without_a_dimension(channel: Any, model: str, sr: npt.NDArray[np.int64]) -> None:
    samples = np.ones((1, 4), np.float32)
    answer = outputs_of(
        infer(channel, request(model, Tensor.of("input", "FP32", samples), Tensor.of("sr", "INT64", sr)))
    )
    np.testing.assert_array_equal(answer["output"], 2 * samples)
    np.testing.assert_array_equal(answer["rate"], [-16_000], strict=True)


@pytest.mark.parametrize("shape", [(2,), (1, 1), (0,)])
def test_scalars_are_refused_in_other_shapes(channel: Any, shape: tuple[int, ...]) -> None:
    samples = Tensor.of("input", "FP32", np.ones((1, 4), np.float32))
    status, text = refused(channel, request("speech", samples, Tensor.of("sr", "INT64", np.ones(shape, np.int64))))
    shown = ",".join(map(str, shape))
    assert (status, f"Expected [1], got [{shown}]" in text) == ("INVALID_ARGUMENT", True)


def test_a_batched_row_without_dimensions_is_taken_with_one_as_by_triton(tmp_path: Path) -> None:
    add_model(tmp_path / "models", "rows", negative(["n"], TensorProto.INT32))
    (tmp_path / "log").mkdir()
    with running(tmp_path / "models", tmp_path / "log") as process, channel_to(process.address) as channel:
        answer = outputs_of(infer(channel, request("rows", Tensor.of("INPUT", "INT32", np.array([[3], [4]])))))
        np.testing.assert_array_equal(answer["OUTPUT"], np.array([[-3], [-4]], np.int32), strict=True)
        status, text = refused(channel, request("rows", Tensor.of("INPUT", "INT32", np.array([3, 4]))))
        assert (status, "Expected [-1,1], got [2]" in text) == ("INVALID_ARGUMENT", True)
