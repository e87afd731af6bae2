"""The models that are attacked: one cheap to ask, one of open shape, one whose answers are as large as asked for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

__all__ = ["VICTIM_ADDS", "build_composed", "build_many", "build_repository", "many_name"]

#: What the model "victim" adds to each element.
VICTIM_ADDS = 10


def build_repository(root: Path) -> None:
    """Write the models.

    - victim: OUTPUT = INPUT + 10, INT32 [n, 4].
    - shapes: OUTPUT = -INPUT, FP32 [n, m].
    - strings: OUTPUT = INPUT, BYTES [n, m].
    - numbers: OUTPUT = the number that INPUT says, FP64 of BYTES [n, 1].
    - cached: OUTPUT = -INPUT, FP32 [n, m], with the response cache.
    - queued: OUTPUT = -INPUT, FP32 [n, m], with priorities, timeouts and batches that wait for a second.
    - generator: OUTPUT = INPUT[0] zeros, FP32.
    - texts: embedding = about the mean of the words of text, FP32 [n, 4]; up to 512 tokens of each.
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
        root / "cached",
        [helper.make_node("Neg", ["INPUT"], ["OUTPUT"])],
        _tensors(TensorProto.FLOAT, ["n", "m"], TensorProto.FLOAT, ["n", "m"]),
    )
    (root / "cached" / "config.pbtxt").write_text(_CACHED)
    _write(
        root / "queued",
        [helper.make_node("Neg", ["INPUT"], ["OUTPUT"])],
        _tensors(TensorProto.FLOAT, ["n", "m"], TensorProto.FLOAT, ["n", "m"]),
    )
    (root / "queued" / "config.pbtxt").write_text(_QUEUED)
    _write(
        root / "strings",
        [helper.make_node("Identity", ["INPUT"], ["OUTPUT"])],
        _tensors(TensorProto.STRING, ["n", "m"], TensorProto.STRING, ["n", "m"]),
    )
    _write(
        root / "numbers",
        [helper.make_node("Cast", ["INPUT"], ["OUTPUT"], to=TensorProto.DOUBLE)],
        _tensors(TensorProto.STRING, ["n", 1], TensorProto.DOUBLE, ["n", 1]),
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
    from tests.text_models import make_folder  # which is more than attackers, who know these models, are to import

    pooling = ("1_Pooling", "sentence_transformers.models.Pooling", {"pooling_mode_mean_tokens": True})
    make_folder(root / "texts", modules=[pooling], config={"max_position_embeddings": 512})


_CACHED = """
max_batch_size: 8
input { name: "INPUT" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "OUTPUT" data_type: TYPE_FP32 dims: [ -1 ] }
dynamic_batching { }
response_cache { enable: true }
"""
_QUEUED = """
max_batch_size: 8
input { name: "INPUT" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "OUTPUT" data_type: TYPE_FP32 dims: [ -1 ] }
dynamic_batching {
  max_queue_delay_microseconds: 1000000
  priority_levels: 18446744073709551615
  default_priority_level: 5
  default_queue_policy { default_timeout_microseconds: 2000000 allow_timeout_override: true }
}
"""
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


_SLOW = """
import time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            tensor = pb_utils.get_input_tensor_by_name(request, "INPUT")
            time.sleep(0.02)
            if int(tensor.as_numpy()[0]) % 2:
                responses.append(pb_utils.InferenceResponse(error=pb_utils.TritonError("odd")))
            else:
                responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", tensor.as_numpy())]))
        return responses
"""
_ENDLESS = """
import threading
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.threads = []

    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            size = int(pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy()[0])
            self.threads = [thread for thread in self.threads if thread.is_alive()]
            self.threads.append(threading.Thread(target=self.send, args=(sender, size)))
            self.threads[-1].start()

    def send(self, sender, size):
        array = np.zeros((1, size), np.float32)
        while not sender.is_cancelled():
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", array)]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
_CHATTY = """
import time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            tensor = pb_utils.get_input_tensor_by_name(request, "INPUT")
            ends = time.monotonic() + int(tensor.as_numpy()[0]) / 1_000
            while time.monotonic() < ends:
                print("a line")
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", tensor.as_numpy())]))
        return responses
"""
_ENDLESS_FLOW = """
backend: ensemble
batching: false
inputs: {INPUT: {datatype: INT64, shape: [1]}}
outputs: {OUTPUT: {datatype: FP32, shape: [1, -1]}}
steps:
  - {model: endless, inputs: {INPUT: INPUT}, outputs: {OUTPUT: sent}}
  - {model: shapes, inputs: {INPUT: sent}, outputs: {OUTPUT: OUTPUT}}
"""


def many_name(number: int) -> str:
    """The name of one of the models of ``build_many``."""
    return f"many{number}"


def build_many(root: Path, count: int) -> None:
    """Write small models: OUTPUT = INPUT + number, INT32 [n, 4], for each number below ``count``."""
    for number in range(count):
        _write(
            root / many_name(number),
            [helper.make_node("Add", ["INPUT", "number"], ["OUTPUT"])],
            _tensors(TensorProto.INT32, ["n", 4], TensorProto.INT32, ["n", 4]),
            [numpy_helper.from_array(np.array(number, np.int32), "number")],
        )


def build_composed(root: Path) -> None:
    """Write models that are made of those of ``build_repository``, and some in Python.

    - fan: INPUT[0] zeros, six times at once, of which OUTPUT has the sum of the first elements.
    - flow: OUTPUT = -[10, 20, 30][INPUT], INT64 to FP32 [n, 1]; fails for another INPUT in its second of three steps.
    - bulk: in Python: OUTPUT = INPUT[0] zeros, FP32; or it takes -INPUT[0] milliseconds.
    - cached_slow: in Python, with the response cache: OUTPUT = INPUT, INT64, after 20 ms; fails where that is odd.
    - endless: in Python, decoupled: OUTPUT = INPUT[0] zeros, FP32 [1, m], again and again until its caller leaves.
    - chatty: in Python: OUTPUT = INPUT, INT64; it prints for INPUT[0] milliseconds.
    - endless_flow: what endless sends, through another model.
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
    one: Sequence[int | str] = ["n", 1]
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
    _write_python(root / "bulk", _BULK, "TYPE_FP32", "-1")
    _write_python(root / "cached_slow", _SLOW, "TYPE_INT64", "1", "response_cache { enable: true }")
    _write_python(root / "endless", _ENDLESS, "TYPE_FP32", "1, -1", "model_transaction_policy { decoupled: true }")
    _write_python(root / "chatty", _CHATTY, "TYPE_INT64", "1")
    _configure(root / "endless_flow", _ENDLESS_FLOW)


def _write_python(folder: Path, code: str, output_type: str, output_dims: str, further: str = "") -> None:
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.py").write_text(code)
    (folder / "config.pbtxt").write_text(
        'backend: "python"\n'
        'input [ { name: "INPUT" data_type: TYPE_INT64 dims: [ 1 ] } ]\n'
        f'output [ {{ name: "OUTPUT" data_type: {output_type} dims: [ {output_dims} ] }} ]\n{further}\n'
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
