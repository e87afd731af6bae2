"""Build a small model repository to try the server with.

    python examples/make_repository.py DIR [--models NAME ...]

Every model fits in a few kilobytes and shows one thing: batching, strings, dynamic and fixed shapes, half precision.
Weights come from a fixed seed, so that two repositories hold the same models.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

# What ONNX Runtime releases of the last years all read: newer versions of the onnx package default to newer ones.
_OPSET = 17
_IR_VERSION = 8

_Shape = Sequence[int | str]


class Example(NamedTuple):
    """One model of the repository.

    Attributes:
        model: the ONNX graph.
        config: the text of config.yaml, or None for a model that is served by what its graph says.
    """

    model: onnx.ModelProto
    config: str | None = None


def _config(batch_size: int, extra: str = "") -> str:
    """The text of a config.yaml: buffers for 16 batches of ``batch_size`` rows, run by one session."""
    return (
        "backend: supertensor\n"
        f"batch_size: {batch_size}  # rows put together for one run, at most\n"
        "capacity: 16  # batches that may be filling, waiting or running\n"
        "num_executors: 1\n"
        "allocator: cpu\n"
    ) + extra


def _model(
    name: str,
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[tuple[str, int, _Shape]],
    outputs: Sequence[tuple[str, int, _Shape]],
    weights: dict[str, np.ndarray] | None = None,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        name,
        [helper.make_tensor_value_info(*tensor) for tensor in inputs],
        [helper.make_tensor_value_info(*tensor) for tensor in outputs],
        [numpy_helper.from_array(array, key) for key, array in (weights or {}).items()],
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR_VERSION, producer_name="toutates"
    )
    onnx.checker.check_model(model, full_check=True)
    return model


def mlp() -> Example:
    """The benchmark's model, 64-128-8: some microseconds of arithmetic, so that a server's own work shows."""
    rng = np.random.default_rng(7)
    weights = {
        "W1": rng.normal(0, 0.1, (64, 128)).astype(np.float32),
        "B1": rng.normal(0, 0.1, 128).astype(np.float32),
        "W2": rng.normal(0, 0.1, (128, 8)).astype(np.float32),
        "B2": rng.normal(0, 0.1, 8).astype(np.float32),
    }
    nodes = [
        helper.make_node("Gemm", ["INPUT", "W1", "B1"], ["hidden"]),
        helper.make_node("Relu", ["hidden"], ["active"]),
        helper.make_node("Gemm", ["active", "W2", "B2"], ["OUTPUT"]),
    ]
    fp32 = TensorProto.FLOAT
    return Example(
        _model("mlp", nodes, [("INPUT", fp32, ["batch", 64])], [("OUTPUT", fp32, ["batch", 8])], weights), _config(64)
    )


def simple() -> Example:
    """Triton's well-known first example: two inputs, their sum and their difference."""
    int32 = TensorProto.INT32
    shape: _Shape = ["batch", 16]
    nodes = [
        helper.make_node("Add", ["INPUT0", "INPUT1"], ["OUTPUT0"]),
        helper.make_node("Sub", ["INPUT0", "INPUT1"], ["OUTPUT1"]),
    ]
    inputs, outputs = ([(f"{side}{i}", int32, shape) for i in range(2)] for side in ("INPUT", "OUTPUT"))
    return Example(_model("simple", nodes, inputs, outputs), _config(32))


def identity_string() -> Example:
    """Strings in, the same strings out: BYTES elements of any length, any number to a row."""
    string = TensorProto.STRING
    shape = ["batch", "n"]
    nodes = [helper.make_node("Identity", ["INPUT0"], ["OUTPUT0"])]
    return Example(_model("identity_string", nodes, [("INPUT0", string, shape)], [("OUTPUT0", string, shape)]))


def dynamic() -> Example:
    """Softmax over rows of any length: requests of one length share a batch, others get their own."""
    fp32 = TensorProto.FLOAT
    shape = ["batch", "n"]
    nodes = [helper.make_node("Softmax", ["INPUT"], ["OUTPUT"], axis=-1)]
    return Example(_model("dynamic", nodes, [("INPUT", fp32, shape)], [("OUTPUT", fp32, shape)]))


def unbatched() -> Example:
    """A graph with fixed shapes and no batch dimension: every request is a run of its own."""
    fp32 = TensorProto.FLOAT
    weight = np.arange(16, dtype=np.float32).reshape(4, 4) / 16
    nodes = [helper.make_node("MatMul", ["INPUT", "W"], ["OUTPUT"])]
    return Example(
        _model("unbatched", nodes, [("INPUT", fp32, [4, 4])], [("OUTPUT", fp32, [4, 4])], {"W": weight}),
    )


def half() -> Example:
    """Half precision, which the protocol carries only as raw bytes; its shapes are written out in config.yaml."""
    fp16 = TensorProto.FLOAT16
    nodes = [helper.make_node("Mul", ["INPUT", "scale"], ["OUTPUT"])]
    shapes = "input_shapes:\n  INPUT: [-1, 8]  # -1 is the batch\noutput_shapes:\n  OUTPUT: [-1, 8]\n"
    return Example(
        _model(
            "half",
            nodes,
            [("INPUT", fp16, ["batch", 8])],
            [("OUTPUT", fp16, ["batch", 8])],
            {"scale": np.array(2, dtype=np.float16)},
        ),
        _config(16, shapes),
    )


EXAMPLES: dict[str, Callable[[], Example]] = {
    build.__name__: build for build in (mlp, simple, identity_string, dynamic, unbatched, half)
}


def write_repository(folder: Path, names: Sequence[str] = tuple(EXAMPLES)) -> None:
    """Write the named models into ``folder``, each as version 1."""
    for name in names:
        example = EXAMPLES[name]()
        version = folder / name / "1"
        version.mkdir(parents=True, exist_ok=True)
        onnx.save(example.model, version / "model.onnx")
        if example.config is not None:
            (version / "config.yaml").write_text(example.config, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description="Build a small model repository to try the server with.")
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--models", nargs="+", choices=EXAMPLES, default=list(EXAMPLES), metavar="NAME")
    arguments = parser.parse_args()
    write_repository(arguments.folder, arguments.models)
    print(f"{arguments.folder}: {', '.join(arguments.models)}")


if __name__ == "__main__":
    main()
