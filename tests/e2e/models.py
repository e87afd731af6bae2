"""The models that the end-to-end tests are served, and the repositories that hold them.

Most of them compute on whole numbers, so that a row's answer is the same bits in whatever company it is run.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

__all__ = [
    "CONFIG",
    "DATATYPES",
    "VERSIONS",
    "add_model",
    "build_broken_repository",
    "build_repository",
    "gather_model",
    "greatest_model",
    "greedy_model",
    "heavy_model",
    "negating_model",
    "reload_model",
    "versioned_model",
]

Shape = Sequence[int | str | None]

#: Triton's names of element types, and ONNX's.
DATATYPES: Final = {
    "BOOL": TensorProto.BOOL,
    "UINT8": TensorProto.UINT8,
    "UINT16": TensorProto.UINT16,
    "UINT32": TensorProto.UINT32,
    "UINT64": TensorProto.UINT64,
    "INT8": TensorProto.INT8,
    "INT16": TensorProto.INT16,
    "INT32": TensorProto.INT32,
    "INT64": TensorProto.INT64,
    "FP16": TensorProto.FLOAT16,
    "FP32": TensorProto.FLOAT,
    "FP64": TensorProto.DOUBLE,
    "BYTES": TensorProto.STRING,
    "BF16": TensorProto.BFLOAT16,
}

#: Versions of the model "versions"; each adds its own number.
VERSIONS: Final = (1, 2, 10)

#: config.yaml: batch size and capacity; the small ring is easily filled.
CONFIG: Final = "backend: supertensor\nbatch_size: {}\ncapacity: {}\nnum_executors: 1\nallocator: cpu\n"
_SMALL_RING: Final = CONFIG.format(2, 2)


def _tensor(name: str, datatype: str, shape: Shape) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, DATATYPES[datatype], shape)


def _constant(name: str, values: npt.ArrayLike, dtype: npt.DTypeLike) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(values, dtype), name)


def _model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    initializers: Sequence[onnx.TensorProto] = (),
) -> bytes:
    graph = helper.make_graph(nodes, "model", inputs, outputs, list(initializers))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return model.SerializeToString()


def negating_model(width: int) -> bytes:
    """Turns the sign of rows of so many FP32 values."""
    return _unary("Neg", "FP32", ["n", width])


def _unary(operator: str, datatype: str, shape: Shape) -> bytes:
    """OUTPUT = operator(INPUT), of the same type and shape."""
    node = helper.make_node(operator, ["INPUT"], ["OUTPUT"])
    return _model([node], [_tensor("INPUT", datatype, shape)], [_tensor("OUTPUT", datatype, shape)])


def _mlp() -> bytes:
    rng = np.random.default_rng(3)
    weights = [
        _constant("w1", rng.normal(size=(64, 128)), np.float32),
        _constant("w2", rng.normal(size=(128, 8)), np.float32),
    ]
    nodes = [
        helper.make_node("MatMul", ["INPUT", "w1"], ["sums"]),
        helper.make_node("Relu", ["sums"], ["hidden"]),
        helper.make_node("MatMul", ["hidden", "w2"], ["OUTPUT"]),
    ]
    return _model(nodes, [_tensor("INPUT", "FP32", ["n", 64])], [_tensor("OUTPUT", "FP32", ["n", 8])], weights)


def _addsub() -> bytes:
    """OUTPUT0 = INPUT0 + INPUT1, OUTPUT1 = INPUT0 - INPUT1; the outputs are declared in the other order."""
    nodes = [
        helper.make_node("Add", ["INPUT0", "INPUT1"], ["OUTPUT0"]),
        helper.make_node("Sub", ["INPUT0", "INPUT1"], ["OUTPUT1"]),
    ]
    inputs = [_tensor(name, "INT32", ["n", 16]) for name in ("INPUT0", "INPUT1")]
    outputs = [_tensor(name, "INT32", ["n", 16]) for name in ("OUTPUT1", "OUTPUT0")]
    return _model(nodes, inputs, outputs)


def versioned_model(number: int) -> bytes:
    """OUTPUT = INPUT + number."""
    node = helper.make_node("Add", ["INPUT", "number"], ["OUTPUT"])
    tensors = [_tensor(name, "INT32", ["n", 4]) for name in ("INPUT", "OUTPUT")]
    return _model([node], tensors[:1], tensors[1:], [_constant("number", number, np.int32)])


def reload_model(number: int, weights: int = 2_000_000) -> bytes:
    """OUTPUT = INPUT + number for INPUT from 0 on, by way of as many weights, all zero."""
    nodes = [
        helper.make_node("Gather", ["weights", "INPUT"], ["weight"]),
        helper.make_node("Cast", ["weight"], ["zero"], to=TensorProto.INT32),
        helper.make_node("Add", ["INPUT", "number"], ["sum"]),
        helper.make_node("Add", ["sum", "zero"], ["OUTPUT"]),
    ]
    tensors = [_tensor(name, "INT32", ["n", 4]) for name in ("INPUT", "OUTPUT")]
    constants = [_constant("weights", np.zeros(weights), np.float32), _constant("number", number, np.int32)]
    return _model(nodes, tensors[:1], tensors[1:], constants)


def _optional() -> bytes:
    """OUTPUT = INPUT + bias, where a request may replace the bias of 10."""
    node = helper.make_node("Add", ["INPUT", "bias"], ["OUTPUT"])
    inputs = [_tensor("INPUT", "INT32", [4]), _tensor("bias", "INT32", [4])]
    return _model([node], inputs, [_tensor("OUTPUT", "INT32", [4])], [_constant("bias", [10] * 4, np.int32)])


def gather_model() -> bytes:
    """OUTPUT = 100 + INPUT for numbers from -8 to 7; for others ONNX Runtime fails."""
    table = _constant("table", [*range(100, 108)], np.int64)
    node = helper.make_node("Gather", ["table", "INPUT"], ["OUTPUT"])
    tensors = [_tensor(name, "INT64", ["n", 1]) for name in ("INPUT", "OUTPUT")]
    return _model([node], tensors[:1], tensors[1:], [table])


def _slow() -> bytes:
    """OUTPUT = INPUT, after as many matrix products as the greatest INPUT says, of about a millisecond each."""
    size = 512
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["state", "factor"], ["next"]),
            helper.make_node("Identity", ["go_on"], ["go_on_next"]),
        ],
        "body",
        [
            _tensor("step", "INT64", []),
            _tensor("go_on", "BOOL", []),
            _tensor("state", "FP32", [size, size]),
        ],
        [_tensor("go_on_next", "BOOL", []), _tensor("next", "FP32", [size, size])],
    )
    nodes = [
        helper.make_node("ReduceMax", ["INPUT"], ["steps"], keepdims=0),
        helper.make_node("Loop", ["steps", "yes", "first"], ["last"], body=body),
        helper.make_node("ReduceSum", ["last"], ["sum"], keepdims=0),
        helper.make_node("Mul", ["sum", "zero"], ["nothing"]),
        helper.make_node("Cast", ["nothing"], ["nothing_at_all"], to=TensorProto.INT64),
        helper.make_node("Add", ["INPUT", "nothing_at_all"], ["OUTPUT"]),
    ]
    initializers = [
        _constant("yes", True, np.bool_),
        _constant("zero", 0, np.float32),
        _constant("first", np.eye(size), np.float32),
        _constant("factor", np.eye(size), np.float32),
    ]
    tensors = [_tensor(name, "INT64", ["n", 1]) for name in ("INPUT", "OUTPUT")]
    return _model(nodes, tensors[:1], tensors[1:], initializers)


def heavy_model(products: int) -> bytes:
    """OUTPUT = INPUT, rows of 64 floats, after so many matrix products of about half a millisecond each per batch."""
    size = 384
    steps = [helper.make_node("MatMul", [f"state{at}", "factor"], [f"state{at + 1}"]) for at in range(products)]
    nodes = [
        # From the input, or all of it would be computed while the model is loaded.
        helper.make_node("ReduceMax", ["INPUT"], ["most"], keepdims=0),
        helper.make_node("Add", ["first", "most"], ["state0"]),
        *steps,
        helper.make_node("ReduceSum", [f"state{products}"], ["sum"], keepdims=0),
        helper.make_node("Mul", ["sum", "zero"], ["nothing"]),
        helper.make_node("Add", ["INPUT", "nothing"], ["OUTPUT"]),
    ]
    initializers = [
        _constant("first", np.eye(size), np.float32),
        _constant("factor", np.eye(size), np.float32),
        _constant("zero", 0, np.float32),
    ]
    tensors = [_tensor(name, "FP32", ["n", 64]) for name in ("INPUT", "OUTPUT")]
    return _model(nodes, tensors[:1], tensors[1:], initializers)


def _ragged() -> bytes:
    """OUTPUT = the first max(INPUT) columns of INPUT: the shape of its rows depends on all the rows of a batch."""
    nodes = [
        helper.make_node("ReduceMax", ["INPUT"], ["most"], keepdims=0),
        helper.make_node("Reshape", ["most", "one"], ["end"]),
        helper.make_node("Slice", ["INPUT", "start", "end", "one"], ["OUTPUT"]),
    ]
    initializers = [_constant("one", [1], np.int64), _constant("start", [0], np.int64)]
    return _model(nodes, [_tensor("INPUT", "INT64", ["n", 4])], [_tensor("OUTPUT", "INT64", ["n", None])], initializers)


def greatest_model() -> bytes:
    """OUTPUT = the greatest number of each row of INPUT, whatever the rows' length."""
    node = helper.make_node("ReduceMax", ["INPUT"], ["OUTPUT"], axes=[1])
    return _model([node], [_tensor("INPUT", "INT32", ["n", None])], [_tensor("OUTPUT", "INT32", ["n", 1])])


def greedy_model() -> bytes:
    """OUTPUT = INPUT, by way of max(INPUT) numbers in memory."""
    nodes = [
        helper.make_node("ReduceMax", ["INPUT"], ["most"], keepdims=0),
        helper.make_node("Reshape", ["most", "one"], ["shape"]),
        helper.make_node("ConstantOfShape", ["shape"], ["zeros"]),
        helper.make_node("ReduceSum", ["zeros"], ["sum"], keepdims=0),
        helper.make_node("Cast", ["sum"], ["nothing"], to=TensorProto.INT64),
        helper.make_node("Add", ["INPUT", "nothing"], ["OUTPUT"]),
    ]
    tensors = [_tensor(name, "INT64", ["n", 1]) for name in ("INPUT", "OUTPUT")]
    return _model(nodes, tensors[:1], tensors[1:], [_constant("one", [1], np.int64)])


def add_model(root: Path, name: str, model: bytes, version: int = 1, config: str = "") -> None:
    """Write one version of a model into a repository."""
    folder = root / name / str(version)
    folder.mkdir(parents=True)
    (folder / "model.onnx").write_bytes(model)
    if config:
        (folder / "config.yaml").write_text(config)


def build_repository(root: Path) -> None:
    """Write a repository in which every model loads."""
    add_model(root, "mlp", _mlp())
    add_model(root, "addsub", _addsub(), config=CONFIG.format(8, 4))
    for datatype in DATATYPES:
        add_model(root, f"identity_{datatype}", _unary("Identity", datatype, ["n", 4]))
    for number in VERSIONS:
        add_model(root, "versions", versioned_model(number), number)
    add_model(root, "dynamic", _unary("Neg", "FP32", ["n", None]))
    add_model(root, "rank1", _unary("Neg", "INT32", ["n"]))
    add_model(root, "scalar", _unary("Neg", "FP32", []))
    add_model(root, "fixed", _unary("Neg", "FP32", [2, 3]))
    add_model(root, "open", _unary("Neg", "INT32", [2, None]))
    add_model(root, "texts", _unary("Identity", "BYTES", [3]))
    add_model(root, "optional", _optional(), config=CONFIG.format(1, 16) + "input_shapes: {bias: [4]}\n")
    add_model(root, "gather", gather_model())
    add_model(root, "slow", _slow(), config=_SMALL_RING)
    add_model(root, "ragged", _ragged(), config=_SMALL_RING)


def build_broken_repository(root: Path) -> None:
    """Write a repository in which one model loads, and the others fail in one way each."""
    add_model(root, "good", _unary("Neg", "FP32", ["n", 4]))
    add_model(root, "half", versioned_model(1), 1)
    add_model(root, "half", b"this is no graph", 2)
    add_model(root, "garbage", b"this is no graph")
    add_model(root, "misspelt", _unary("Neg", "FP32", ["n", 4]), config=_SMALL_RING.replace("capacity", "capacities"))
    (root / "missing" / "1").mkdir(parents=True)
    (root / "empty").mkdir()
    (root / "empty" / "config.pbtxt").touch()
