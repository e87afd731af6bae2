"""A repository laid out for Triton: a config.pbtxt beside the version directories of most of its models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

__all__ = ["CONFIGS", "add_model", "adder", "build_triton_repository", "custom", "negative", "write_config"]

Shape = Sequence[int | str | None]


def _model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[tuple[str, int, Shape]],
    outputs: Sequence[tuple[str, int, Shape]],
    initializers: Mapping[str, np.ndarray] | None = None,
    opset: int = 17,
    domain: str = "",
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "model",
        [helper.make_tensor_value_info(*tensor) for tensor in inputs],
        [helper.make_tensor_value_info(*tensor) for tensor in outputs],
        [numpy_helper.from_array(values, name) for name, values in (initializers or {}).items()],
    )
    opsets = [helper.make_opsetid("", opset)] + ([helper.make_opsetid(domain, 1)] if domain else [])
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def negative(shape: Shape = ("n", 4), datatype: int = TensorProto.FLOAT, opset: int = 17) -> onnx.ModelProto:
    """OUTPUT = -INPUT."""
    node = helper.make_node("Neg", ["INPUT"], ["OUTPUT"])
    return _model([node], [("INPUT", datatype, shape)], [("OUTPUT", datatype, shape)], opset=opset)


def custom() -> onnx.ModelProto:
    """An operator of a library that is not there."""
    node = helper.make_node("Mystery", ["INPUT"], ["OUTPUT"], domain="com.example")
    tensors: list[tuple[str, int, Shape]] = [(name, TensorProto.FLOAT, ["n", 4]) for name in ("INPUT", "OUTPUT")]
    return _model([node], tensors[:1], tensors[1:], domain="com.example")


def adder(number: int) -> onnx.ModelProto:
    """OUTPUT = INPUT + number, int32."""
    node = helper.make_node("Add", ["INPUT", "number"], ["OUTPUT"])
    tensors: list[tuple[str, int, Shape]] = [(name, TensorProto.INT32, ["n", 4]) for name in ("INPUT", "OUTPUT")]
    return _model([node], tensors[:1], tensors[1:], {"number": np.array(number, np.int32)})


def two_outputs() -> onnx.ModelProto:
    """SUM = A + B and DIFFERENCE = A - B, int32."""
    nodes = [helper.make_node("Add", ["A", "B"], ["SUM"]), helper.make_node("Sub", ["A", "B"], ["DIFFERENCE"])]
    inputs: list[tuple[str, int, Shape]] = [(name, TensorProto.INT32, ["n", 16]) for name in "AB"]
    outputs: list[tuple[str, int, Shape]] = [(name, TensorProto.INT32, ["n", 16]) for name in ("SUM", "DIFFERENCE")]
    return _model(nodes, inputs, outputs)


def with_bias() -> onnx.ModelProto:
    """OUTPUT = INPUT + bias of 10, which a request may replace."""
    node = helper.make_node("Add", ["INPUT", "bias"], ["OUTPUT"])
    tensors: list[tuple[str, int, Shape]] = [(name, TensorProto.INT32, [4]) for name in ("INPUT", "bias", "OUTPUT")]
    return _model([node], tensors[:2], tensors[2:], {"bias": np.full(4, 10, np.int32)})


def image() -> onnx.ModelProto:
    """OUTPUT [n, width, height] = INPUT [n, 1, height, width] transposed: shapes that a request sends otherwise."""
    nodes = [
        helper.make_node("Squeeze", ["INPUT", "axis"], ["plain"]),
        helper.make_node("Transpose", ["plain"], ["OUTPUT"], perm=[0, 2, 1]),
    ]
    inputs: list[tuple[str, int, Shape]] = [("INPUT", TensorProto.FLOAT, ["n", 1, "h", "w"])]
    outputs: list[tuple[str, int, Shape]] = [("OUTPUT", TensorProto.FLOAT, ["n", "w", "h"])]
    return _model(nodes, inputs, outputs, {"axis": np.array([1], np.int64)})


#: config.pbtxt by model.
CONFIGS: Final = {
    "full": """
        name: "full"
        platform: "onnxruntime_onnx"
        max_batch_size: 8
        input [ { name: "A" data_type: TYPE_INT32 dims: [ 16 ] }, { name: "B" data_type: TYPE_INT32 dims: [ 16 ] } ]
        output { name: "SUM" data_type: TYPE_INT32 dims: [ 16 ] }
        instance_group [ { count: 2 kind: KIND_CPU } ]
        dynamic_batching {
          preferred_batch_size: [ 4, 8 ]
          max_queue_delay_microseconds: 100
          default_queue_policy { max_queue_size: 64 }
        }
        model_warmup {
          name: "both"
          batch_size: 4
          inputs { key: "A" value { data_type: TYPE_INT32 dims: 16 zero_data: true } }
          inputs { key: "B" value { data_type: TYPE_INT32 dims: 16 random_data: true } }
        }
        parameters { key: "intra_op_thread_count" value { string_value: "2" } }
        parameters { key: "memory.enable_memory_arena_shrinkage" value { string_value: "cpu:0" } }
        optimization { graph { level: 1 } }
    """,
    "reshaped": """
        backend: "onnxruntime"
        max_batch_size: 4
        input { name: "INPUT" data_type: TYPE_FP32 dims: [ -1, -1 ] reshape { shape: [ 1, -1, -1 ] } }
        output { name: "OUTPUT" data_type: TYPE_FP32 dims: [ -1, -1, 1 ] reshape { shape: [ -1, -1 ] } }
    """,
    "scalars": """
        backend: "onnxruntime"
        max_batch_size: 4
        input { name: "INPUT" data_type: TYPE_INT32 dims: [ 1 ] reshape { shape: [ ] } }
        output { name: "OUTPUT" data_type: TYPE_INT32 dims: [ 1 ] reshape { shape: [ ] } }
    """,
    "optional": """
        backend: "onnxruntime"
        input [ { name: "INPUT" data_type: TYPE_INT32 dims: 4 },
                { name: "bias" data_type: TYPE_INT32 dims: 4 optional: true } ]
        output { name: "OUTPUT" data_type: TYPE_INT32 dims: 4 }
    """,
    "specific": "version_policy { specific { versions: [ 1, 3 ] } }",
    "latest": 'name: "latest"',
    "every": "version_policy { all { } }",
    "named": 'default_model_filename: "weights.onnx" max_batch_size: 16',
    "unbatched": """
        input { name: "INPUT" data_type: TYPE_FP32 dims: [ -1, 4 ] }
        output { name: "OUTPUT" data_type: TYPE_FP32 dims: [ -1, 4 ] }
    """,
    "warned": 'model_operations { op_library_filename: "a" } parameters { key: "strange" value { string_value: "1" } }',
}


def add_model(
    root: Path, name: str, model: onnx.ModelProto | bytes, version: int = 1, file: str = "model.onnx"
) -> Path:
    """Write a version; returns its directory."""
    folder = root / name / str(version)
    folder.mkdir(parents=True)
    (folder / file).write_bytes(model if isinstance(model, bytes) else model.SerializeToString())
    return folder


def write_config(root: Path, name: str, text: str) -> Path:
    """Write a model's config.pbtxt."""
    path = root / name / "config.pbtxt"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def build_triton_repository(root: Path) -> None:
    """Write a repository in which every model loads."""
    add_model(root, "full", two_outputs())
    add_model(root, "reshaped", image())
    add_model(root, "scalars", negative(["n"], TensorProto.INT32))
    add_model(root, "optional", with_bias())
    for name in ("specific", "latest", "every"):
        for number in (1, 2, 3):
            add_model(root, name, adder(number), number)
    add_model(root, "named", negative(), file="weights.onnx")
    add_model(root, "unbatched", negative())
    add_model(root, "warned", negative())
    add_model(root, "bare", negative())
    for name, text in CONFIGS.items():
        write_config(root, name, text)
