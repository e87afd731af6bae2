"""Graphs as ONNX files, for tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, TensorProto, ValueInfoProto, helper, numpy_helper

__all__ = ["DOUBLE", "DOUBLE_LENGTHS", "SEGMENTS", "TEXTS", "Shape", "double", "gather", "model", "tensor", "unary"]

INT32, INT64 = TensorProto.INT32, TensorProto.INT64

Shape = Sequence[int | str | None]


def tensor(name: str, shape: Shape | None, element: int = TensorProto.FLOAT) -> ValueInfoProto:
    """A tensor of a graph; names and None are open dimensions."""
    return helper.make_tensor_value_info(name, element, shape)


def model(
    nodes: Sequence[Any],
    inputs: Sequence[ValueInfoProto],
    outputs: Sequence[ValueInfoProto],
    opset: int = 17,
    **constants: npt.ArrayLike,
) -> bytes:
    """A graph as an ONNX file; ``constants`` are initializers by name."""
    initializers = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph(list(nodes), "graph", list(inputs), list(outputs), initializer=initializers)
    made: ModelProto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    return made.SerializeToString()


def unary(operator: str, shape: Shape, element: int = TensorProto.FLOAT, result: int | None = None) -> bytes:
    """y = operator(x), of one shape."""
    node = helper.make_node(operator, ["x"], ["y"])
    return model([node], [tensor("x", shape, element)], [tensor("y", shape, result or element)])


def double(shape: Shape, element: int = TensorProto.FLOAT) -> bytes:
    """y = x + x."""
    node = helper.make_node("Add", ["x", "x"], ["y"])
    return model([node], [tensor("x", shape, element)], [tensor("y", shape, element)])


#: Rows of four numbers, so that the outputs are known beforehand.
DOUBLE: Final = double(["n", 4])
#: Rows of any length, so that they are not.
DOUBLE_LENGTHS: Final = double(["n", "length"])


def gather() -> bytes:
    """y = [10, 20, 30][x], which fails for a whole batch when one index is out of bounds."""
    node = helper.make_node("Gather", ["table", "x"], ["y"])
    x = tensor("x", ["n", 1], TensorProto.INT64)
    return model([node], [x], [tensor("y", ["n", 1])], table=np.array([10, 20, 30], np.float32))


#: each = table[ids] * mask, sum = the sum of each row, width = the padded length; ids above 99 fail the run.
TEXTS = model(
    [
        helper.make_node("Gather", ["table", "ids"], ["values"]),
        helper.make_node("Mul", ["values", "mask"], ["each"]),
        helper.make_node("ReduceSum", ["each", "one"], ["sum"], keepdims=1),
        helper.make_node("Shape", ["ids"], ["length"], start=1),
        helper.make_node("Mul", ["sum", "zero"], ["nothing"]),
        helper.make_node("Add", ["nothing", "length"], ["width"]),
    ],
    [tensor("ids", ["n", "length"], INT64), tensor("mask", ["n", "length"], INT64)],
    [
        tensor("each", ["n", "length"], INT64),
        tensor("sum", ["n", 1], INT64),
        tensor("width", ["n", 1], INT64),
    ],
    table=np.arange(100, dtype=np.int64) * 10,
    one=np.array([1], np.int64),
    zero=np.array([0], np.int64),
)

#: sum = the sum of each request's values, by offsets, x weight; scaled = values x 2; values above 99 fail the run.
SEGMENTS = model(
    [
        helper.make_node("Gather", ["table", "values"], ["own"]),
        helper.make_node("CumSum", ["own", "axis"], ["running"]),
        helper.make_node("Concat", ["zero", "running"], ["from_zero"], axis=0),
        helper.make_node("Gather", ["from_zero", "offsets"], ["at"]),
        helper.make_node("Slice", ["at", "one", "end", "zero"], ["ends"]),
        helper.make_node("Slice", ["at", "zero", "last", "zero"], ["starts"]),
        helper.make_node("Sub", ["ends", "starts"], ["total"]),
        helper.make_node("Unsqueeze", ["total", "one"], ["column"]),
        helper.make_node("Mul", ["column", "weight"], ["sum"]),
        helper.make_node("Mul", ["values", "two"], ["scaled"]),
    ],
    [tensor("values", ["all"], INT64), tensor("offsets", ["edges"], INT32), tensor("weight", ["n", 1], INT64)],
    [tensor("sum", ["n", 1], INT64), tensor("scaled", ["all"], INT64)],
    table=np.arange(100, dtype=np.int64),
    axis=np.array(0, np.int64),
    zero=np.array([0], np.int64),
    one=np.array([1], np.int64),
    end=np.array([2**31], np.int64),
    last=np.array([-1], np.int64),
    two=np.array([2], np.int64),
)
