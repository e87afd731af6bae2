"""Repositories with ensembles: small graphs that compute on numbers, and configurations that join them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from onnx import TensorProto, helper

from tests.graphs import DOUBLE, DOUBLE_LENGTHS, gather, model, tensor, unary

__all__ = ["MODELS", "Step", "add_ensemble", "add_graph", "pbtxt", "step"]

_ADD_SUB: Final = model(
    [helper.make_node("Add", ["a", "b"], ["sum"]), helper.make_node("Sub", ["a", "b"], ["difference"])],
    [tensor("a", ["n", 4]), tensor("b", ["n", 4])],
    [tensor("sum", ["n", 4]), tensor("difference", ["n", 4])],
)
#: y = x + bias, where bias may be left out.
_BIASED: Final = model(
    [helper.make_node("Add", ["x", "bias"], ["y"])],
    [tensor("x", [1, 4]), tensor("bias", [1, 4])],
    [tensor("y", [1, 4])],
    bias=np.full((1, 4), 100, np.float32),
)

#: Graphs by the name of their model.
MODELS: Final[Mapping[str, bytes]] = {
    "double": DOUBLE,
    "negate": unary("Neg", ["n", 4]),
    "lengths": DOUBLE_LENGTHS,
    "add_sub": _ADD_SUB,
    "biased": _BIASED,
    "lookup": gather(),
    "words": unary("Identity", ["n", 2], TensorProto.STRING),
    "flat": model([helper.make_node("Add", ["x", "x"], ["y"])], [tensor("x", [4])], [tensor("y", [4])]),
}

#: Member, inputs and outputs of a step; the version after a slash, such as "double/2".
Step = tuple[str, Mapping[str, str], Mapping[str, str]]


def step(member: str, *flow: str) -> Step:
    """A step: ``step("double", "x=IN", "y=t")`` maps input x and output y; what a model gives is named in MODELS."""
    outputs = {"y", "sum", "difference", "OUT", "SUM"}
    pairs = [one.split("=") for one in flow]
    return (
        member,
        {own: tensor for own, tensor in pairs if own not in outputs},
        {own: tensor for own, tensor in pairs if own in outputs},
    )


def pbtxt(
    inputs: Sequence[str],
    outputs: Sequence[str],
    steps: Sequence[Step],
    *,
    batch: int = 8,
    more: str = "",
    scheduling: str = "",
) -> str:
    """A config.pbtxt. Tensors are written as ``IN FP32 [4]``, with ``optional`` behind it where they are."""

    def declared(text: str) -> str:
        name, datatype, dims = text.split(" ", 2)
        dims, _, optional = dims.partition("]")
        words = " optional: true" if optional else ""
        return f"{{ name: '{name}' data_type: TYPE_{datatype} dims: {dims}] {words} }}"

    def mapped(field: str, mapping: Mapping[str, str]) -> str:
        return " ".join(f"{field} {{ key: '{key}' value: '{value}' }}" for key, value in mapping.items())

    written = [
        f"{{ model_name: '{name.partition('/')[0]}' model_version: {name.partition('/')[2] or -1} "
        f"{mapped('input_map', ins)} {mapped('output_map', outs)} }}"
        for name, ins, outs in steps
    ]
    return (
        f"platform: 'ensemble' max_batch_size: {batch} {more}\n"
        f"input [ {', '.join(map(declared, inputs))} ]\noutput [ {', '.join(map(declared, outputs))} ]\n"
        f"ensemble_scheduling {{ {scheduling} step [ {', '.join(written)} ] }}\n"
    )


def add_graph(root: Path, name: str, graph: bytes, version: int = 1, config: str = "") -> None:
    """Put a graph into a repository."""
    folder = root / name / str(version)
    folder.mkdir(parents=True, exist_ok=True)
    half = folder / ".model.onnx"
    half.write_bytes(graph)
    half.replace(folder / "model.onnx")
    if config:
        (root / name / "config.pbtxt").write_text(config)


def add_ensemble(root: Path, name: str, config: str) -> None:
    """Put an ensemble into a repository: a configuration, and an empty version."""
    (root / name / "1").mkdir(parents=True, exist_ok=True)
    (root / name / "config.pbtxt").write_text(config)
