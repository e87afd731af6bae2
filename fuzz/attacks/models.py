"""The models that are attacked: one cheap to ask, one of open shape, one whose answers are as large as asked for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

__all__ = ["VICTIM_ADDS", "build_composed", "build_repository"]

#: What the model "victim" adds to each element.
VICTIM_ADDS = 10


def build_repository(root: Path) -> None:
    """Write the models.

    - victim: OUTPUT = INPUT + 10, INT32 [n, 4].
    - shapes: OUTPUT = -INPUT, FP32 [n, m].
    - strings: OUTPUT = INPUT, BYTES [n, m].
    - generator: OUTPUT = INPUT[0] zeros, FP32.
    - sums: OUTPUT = the sum of the INPUTs of a sequence, FP32 [n, 4]; 16 sequences at once, which may rest for 0.2 s.
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

    inputs, outputs = _tensors(TensorProto.FLOAT, ["n", 4], TensorProto.FLOAT, ["n", 4])
    past, kept = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 4]) for name in ("PAST", "SUM"))
    _write(
        root / "sums",
        [helper.make_node("Add", ["INPUT", "PAST"], ["OUTPUT"]), helper.make_node("Identity", ["OUTPUT"], ["SUM"])],
        ([*inputs, past], [*outputs, kept]),
    )
    (root / "sums" / "1" / "config.yaml").write_text(_SUMS)


_SUMS = """
backend: supertensor
batch_size: 16
capacity: 16
num_executors: 1
allocator: cpu
sequences: {max_idle_us: 200000, states: [{input: PAST, output: SUM}]}
"""
#: An ensemble whose tensors, six times as large as asked for, are all there at once before the last step takes them.
_FAN = """
backend: ensemble
batching: false
capacity_bytes: 67108864
inputs: {INPUT: {datatype: INT64, shape: [1]}}
outputs: {OUTPUT: {datatype: FP32, shape: [1]}}
steps:
"""
#: Its second step fails for rows that are not in the table.
_FLOW = """
backend: ensemble
batch_size: 8
inputs: {INPUT: {datatype: INT64, shape: [1]}}
outputs: {OUTPUT: {datatype: FP32, shape: [1]}}
steps:
  - {model: pass, inputs: {INPUT: INPUT}, outputs: {OUTPUT: t}}
  - {model: table, inputs: {INPUT: t}, outputs: {OUTPUT: found}}
  - {model: shapes, inputs: {INPUT: found}, outputs: {OUTPUT: OUTPUT}}
"""
_BULK = """
import time
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            number = int(pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy()[0])
            time.sleep(max(-number, 0) / 1_000)
            array = np.zeros(max(number, 1), np.float32)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", array)]))
        return responses
"""


def build_composed(root: Path) -> None:
    """Write models that are made of those of ``build_repository``, and one in Python.

    - fan: INPUT[0] zeros, six times at once, of which OUTPUT has the sum of the first elements.
    - flow: OUTPUT = -[10, 20, 30][INPUT], INT64 to FP32 [n, 1]; fails for another INPUT in its second of three steps.
    - bulk: in Python: OUTPUT = INPUT[0] zeros, FP32; or it takes -INPUT[0] milliseconds.
    """
    names = "abcdef"
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["m"]) for name in names]
    output = helper.make_tensor_value_info("OUTPUT", TensorProto.FLOAT, [1])
    bounds = [numpy_helper.from_array(np.array([at], np.int64), name) for at, name in enumerate(("begin", "end"))]
    nodes = [helper.make_node("Slice", [name, "begin", "end"], [f"{name}0"]) for name in names]
    nodes.append(helper.make_node("Sum", [f"{name}0" for name in names], ["OUTPUT"]))
    _write(root / "first_sum", nodes, ([*inputs], [output]), bounds)
    steps = "".join(
        f"  - {{model: generator, inputs: {{INPUT: INPUT}}, outputs: {{OUTPUT: {name}}}}}\n" for name in names
    )
    taken = ", ".join(f"{name}: {name}" for name in names)
    _configure(
        root / "fan", _FAN + steps + f"  - {{model: first_sum, inputs: {{{taken}}}, outputs: {{OUTPUT: OUTPUT}}}}\n"
    )
    one = ["n", 1]
    _write(
        root / "pass",
        [helper.make_node("Identity", ["INPUT"], ["OUTPUT"])],
        _tensors(TensorProto.INT64, one, TensorProto.INT64, one),
    )
    table = numpy_helper.from_array(np.array([10, 20, 30], np.float32), "table")
    _write(
        root / "table",
        [helper.make_node("Gather", ["table", "INPUT"], ["OUTPUT"])],
        _tensors(TensorProto.INT64, one, TensorProto.FLOAT, one),
        [table],
    )
    _configure(root / "flow", _FLOW)
    (root / "bulk" / "1").mkdir(parents=True)
    (root / "bulk" / "1" / "model.py").write_text(_BULK)
    (root / "bulk" / "config.pbtxt").write_text(
        'backend: "python"\n'
        'input [ { name: "INPUT" data_type: TYPE_INT64 dims: [ 1 ] } ]\n'
        'output [ { name: "OUTPUT" data_type: TYPE_FP32 dims: [ -1 ] } ]\n'
    )


def _configure(folder: Path, text: str) -> None:
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "config.yaml").write_text(text)


def _tensors(
    input_type: int, input_shape: Sequence[int | str], output_type: int, output_shape: Sequence[int | str]
) -> tuple[list[onnx.ValueInfoProto], list[onnx.ValueInfoProto]]:
    return (
        [helper.make_tensor_value_info("INPUT", input_type, input_shape)],
        [helper.make_tensor_value_info("OUTPUT", output_type, output_shape)],
    )


def _write(
    folder: Path,
    nodes: Sequence[onnx.NodeProto],
    tensors: tuple[Sequence[onnx.ValueInfoProto], Sequence[onnx.ValueInfoProto]],
    initializers: Sequence[onnx.TensorProto] = (),
) -> None:
    graph = helper.make_graph(nodes, folder.name, tensors[0], tensors[1], list(initializers))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    version = folder / "1"
    version.mkdir(parents=True)
    (version / "model.onnx").write_bytes(model.SerializeToString())
