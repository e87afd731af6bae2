"""The models that are attacked: one cheap to ask, one of open shape, one whose answers are as large as asked for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

__all__ = ["VICTIM_ADDS", "build_repository"]

#: What the model "victim" adds to each element.
VICTIM_ADDS = 10


def build_repository(root: Path) -> None:
    """Write the models.

    - victim: OUTPUT = INPUT + 10, INT32 [n, 4].
    - shapes: OUTPUT = -INPUT, FP32 [n, m].
    - strings: OUTPUT = INPUT, BYTES [n, m].
    - generator: OUTPUT = INPUT[0] zeros, FP32.
    """
    ten = numpy_helper.from_array(np.array(VICTIM_ADDS, np.int32), "ten")
    _write(
        root / "victim",
        [helper.make_node("Add", ["INPUT", "ten"], ["OUTPUT"])],
        _tensors(TensorProto.INT32, ["n", 4], TensorProto.INT32, ["n", 4]),
        [ten],
    )
    _write(
        root / "shapes",
        [helper.make_node("Neg", ["INPUT"], ["OUTPUT"])],
        _tensors(TensorProto.FLOAT, ["n", "m"], TensorProto.FLOAT, ["n", "m"]),
    )
    _write(
        root / "strings",
        [helper.make_node("Identity", ["INPUT"], ["OUTPUT"])],
        _tensors(TensorProto.STRING, ["n", "m"], TensorProto.STRING, ["n", "m"]),
    )
    _write(
        root / "generator",
        [helper.make_node("ConstantOfShape", ["INPUT"], ["OUTPUT"])],
        _tensors(TensorProto.INT64, [1], TensorProto.FLOAT, ["m"]),
    )


def _tensors(
    input_type: int, input_shape: Sequence[int | str], output_type: int, output_shape: Sequence[int | str]
) -> tuple[onnx.ValueInfoProto, onnx.ValueInfoProto]:
    return (
        helper.make_tensor_value_info("INPUT", input_type, input_shape),
        helper.make_tensor_value_info("OUTPUT", output_type, output_shape),
    )


def _write(
    folder: Path,
    nodes: Sequence[onnx.NodeProto],
    tensors: tuple[onnx.ValueInfoProto, onnx.ValueInfoProto],
    initializers: Sequence[onnx.TensorProto] = (),
) -> None:
    graph = helper.make_graph(nodes, folder.name, tensors[:1], tensors[1:], list(initializers))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    version = folder / "1"
    version.mkdir(parents=True)
    (version / "model.onnx").write_bytes(model.SerializeToString())
