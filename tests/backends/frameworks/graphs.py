"""Models that tests of several frameworks have."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

__all__ = ["mlp", "openvino_alone", "running_sum"]


def openvino_alone() -> Any:
    """The package, without its converter of models, which sends telemetry."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "openvino.tools.ovc", None)
        import openvino
    return openvino


def running_sum() -> Any:
    """OpenVINO's model y = all x since its state was reset, FP32 [1, 2]."""
    package = openvino_alone()
    operators = package.opset13
    x = operators.parameter([1, 2], np.float32)
    x.output(0).get_tensor().set_names({"x"})
    before = operators.read_value(operators.constant(np.zeros((1, 2), np.float32)), "v")
    total = operators.add(before, x)
    y = operators.relu(total)
    y.output(0).get_tensor().set_names({"y"})
    return package.Model([operators.result(y)], [operators.assign(total, "v")], [x], "m")


def mlp(features: int = 4, classes: int = 3, batch: int | str = "n") -> tuple[Any, npt.NDArray[Any]]:
    """An ONNX model, OUTPUT = INPUT x weights, and the weights."""
    import onnx

    weights = np.random.default_rng(1).random((features, classes), np.float32)
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMul", ["INPUT", "W"], ["OUTPUT"])],
        "g",
        [onnx.helper.make_tensor_value_info("INPUT", onnx.TensorProto.FLOAT, [batch, features])],
        [onnx.helper.make_tensor_value_info("OUTPUT", onnx.TensorProto.FLOAT, [batch, classes])],
        [onnx.numpy_helper.from_array(weights, "W")],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    return model, weights
