"""Small models with sequences, made by hand."""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import TensorProto, helper

__all__ = ["ACCUMULATOR", "write_accumulator"]

#: A config.pbtxt of the accumulator; its batches and its strategy come before it.
ACCUMULATOR = """
input [ { name: "INPUT" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ %s ]
sequence_batching {
  max_sequence_idle_microseconds: %d
  %s
  control_input [
    { name: "START" control [ { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } ] },
    { name: "READY" control [ { kind: CONTROL_SEQUENCE_READY bool_false_true: [ false, true ] } ] }
  ]
  state [ { input_name: "SUM_IN" output_name: "SUM_OUT" data_type: TYPE_INT32 dims: [ 1 ]
            initial_state: { name: "zero" data_type: TYPE_INT32 dims: [ 1 ] %s } } ]
}
"""


def write_accumulator(
    repository: Path,
    name: str,
    *,
    batch_size: int = 4,
    strategy: str = "",
    initial: str = "zero_data: true",
    outputs: tuple[str, ...] = ("OUTPUT",),
    idle_us: int = 60_000_000,
) -> Path:
    """A model whose OUTPUT is the sum of the INPUTs of its sequence; what its initial state holds is added too."""
    batch = ["n"] if batch_size else []
    tensors = {
        name: helper.make_tensor_value_info(name, kind, [*batch, 1])
        for name, kind in (
            ("INPUT", TensorProto.INT32),
            ("START", TensorProto.INT32),
            ("READY", TensorProto.BOOL),
            ("SUM_IN", TensorProto.INT32),
            ("OUTPUT", TensorProto.INT32),
            ("SUM_OUT", TensorProto.INT32),
        )
    }
    nodes = [
        helper.make_node("Cast", ["READY"], ["ready"], to=TensorProto.INT32),
        helper.make_node("Cast", ["START"], ["start"], to=TensorProto.INT32),
        helper.make_node("Add", ["INPUT", "SUM_IN"], ["sum"]),
        helper.make_node("Sub", ["start", "start"], ["nothing"]),
        helper.make_node("Add", ["sum", "nothing"], ["kept"]),
        helper.make_node("Mul", ["kept", "ready"], ["OUTPUT"]),
        helper.make_node("Identity", ["kept"], ["SUM_OUT"]),
    ]
    graph = helper.make_graph(
        nodes,
        "accumulator",
        [tensors[own] for own in ("INPUT", "START", "READY", "SUM_IN")],
        [tensors[own] for own in ("OUTPUT", "SUM_OUT")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (repository / name / "1").mkdir(parents=True)
    onnx.save(model, repository / name / "1" / "model.onnx")
    listed = ", ".join(f'{{ name: "{own}" data_type: TYPE_INT32 dims: [ 1 ] }}' for own in outputs)
    text = ACCUMULATOR % (listed, idle_us, strategy, initial)
    (repository / name / "config.pbtxt").write_text(f'backend: "onnxruntime"\nmax_batch_size: {batch_size}\n{text}')
    return repository / name
