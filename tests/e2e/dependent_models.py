"""Graphs whose rows depend on each other, and such as only look so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

__all__ = ["DEPENDENT", "INDEPENDENT", "add", "detector", "graph", "node", "quantized", "running_sum"]

F: Final = TensorProto.FLOAT
Value = tuple[str, int, Sequence[int | str]]


def graph(
    nodes: Sequence[onnx.NodeProto], inputs: Sequence[Value], outputs: Sequence[Value], **constants: Any
) -> onnx.ModelProto:
    """A graph of these nodes, with these constants."""
    made = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(*value) for value in inputs],
        [helper.make_tensor_value_info(*value) for value in outputs],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def node(operator: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    """A node; names are divided by spaces."""
    return helper.make_node(operator, inputs.split(), outputs.split(), **attributes)


def detector() -> onnx.ModelProto:
    """Two numbers of each row whose first one is above a half, the greatest first: as a detector after its NMS."""
    return graph(
        [
            node("Split", "x sizes", "score box", axis=1),
            node("Squeeze", "score last", "scores"),
            node("Greater", "scores half", "keep"),
            node("Compress", "box keep", "kept", axis=0),
            node("Compress", "scores keep", "best", axis=0),
            node("Shape", "best", "count"),
            node("TopK", "best count", "sorted order"),
            node("Gather", "kept order", "det", axis=0),
        ],
        [("x", F, ["batch", 3])],
        [("det", F, ["det", 2])],
        sizes=np.array([1, 2]),
        last=np.array([1]),
        half=np.float32(0.5),
    )


def running_sum(element: int = F, rows: str = "t") -> onnx.ModelProto:
    """The running sum over the rows."""
    return graph(
        [node("CumSum", "x axis", "y")], [("x", element, ["t", 2])], [("y", element, [rows, 2])], axis=np.int64(0)
    )


def _over_rows(operator: str, *rest: onnx.NodeProto, element: int = F, **constants: Any) -> onnx.ModelProto:
    nodes = [node(operator, "x", "m", axes=[0], keepdims=1), *rest]
    return graph(nodes, [("x", F, ["n", 4])], [("y", element, ["n", 4])], **constants)


def _hidden_reshape(shape: Sequence[int]) -> onnx.ModelProto:
    """A Reshape of which nobody can tell the shape beforehand."""
    return graph(
        [
            node("ReduceSum", "x", "sum", keepdims=0),
            node("Mul", "sum zero", "none"),
            node("Cast", "none", "whole", to=TensorProto.INT64),
            node("Add", "shape whole", "to"),
            node("Reshape", "x to", "y"),
        ],
        [("x", F, ["n", 4])],
        [("y", F, ["m", "k"])],
        zero=np.float32(0),
        shape=np.array(shape),
    )


#: By name; each has one input ``x`` and one output.
DEPENDENT: Final[Mapping[str, onnx.ModelProto]] = {
    "detector": detector(),
    "sum": running_sum(),
    "sum_named": running_sum(rows="u"),
    "sum_int64": running_sum(TensorProto.INT64),
    "softmax": graph([node("Softmax", "x", "y", axis=0)], [("x", F, ["n", 4])], [("y", F, ["n", 4])]),
    "mean": _over_rows("ReduceMean", node("Sub", "x m", "y")),
    "mean_part": _over_rows("ReduceMean", node("Mul", "m part", "p"), node("Add", "x p", "y"), part=np.float32(0.05)),
    "greatest": _over_rows("ReduceMax", node("Equal", "x m", "y"), element=TensorProto.BOOL),
    "reshape": _hidden_reshape([1, -1]),
    "reshape_one": _hidden_reshape([1, 4]),
    "gram": graph(
        [node("Transpose", "x", "t"), node("MatMul", "x t", "y")], [("x", F, ["n", 4])], [("y", F, ["n", "k"])]
    ),
}

_WEIGHTS: Final = np.random.default_rng(1).normal(size=(3, 4, 4)).astype(np.float32)


def _mlp(first: str = "n", last: str = "n") -> onnx.ModelProto:
    nodes = [node("MatMul", "x w", "h"), node("Relu", "h", "r"), node("MatMul", "r v", "y")]
    return graph(nodes, [("x", F, [first, 4])], [("y", F, [last, 4])], w=_WEIGHTS[0], v=_WEIGHTS[1])


def quantized() -> onnx.ModelProto:
    """A layer of which each run quantizes its input by the whole batch's range."""
    return graph(
        [
            node("DynamicQuantizeLinear", "x", "q scale zero"),
            node("MatMulInteger", "q w zero", "i"),
            node("Cast", "i", "f", to=F),
            node("Mul", "scale ws", "s"),
            node("Mul", "f s", "y"),
        ],
        [("x", F, ["n", 4])],
        [("y", F, ["n", 4])],
        w=np.round(_WEIGHTS[2] * 40).clip(-127, 127).astype(np.int8),
        ws=np.float32(1 / 40),
    )


#: Of these, requests share runs.
INDEPENDENT: Final[Mapping[str, onnx.ModelProto]] = {
    "mlp": _mlp(),
    "mlp_unk": _mlp("unk__1", "unk__2"),
    "quantized": quantized(),
}


def add(root: Path, name: str, model: onnx.ModelProto, config: str = "", pbtxt: str = "") -> None:
    """Put a model into a repository."""
    folder = root / name / "1"
    folder.mkdir(parents=True)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    if config:
        (folder / "config.yaml").write_text(config)
    if pbtxt:
        (root / name / "config.pbtxt").write_text(pbtxt)
