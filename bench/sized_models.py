"""Models of a stated run time, made for the machine that they are measured on."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime as ort
from onnx import helper

from bench.models import Model, Rows, write_model

__all__ = ["configured", "sized_model"]

#: Of a row: so many positions, each with so many values. Large enough that two rows take twice the time of one.
_POSITIONS, _WIDTH = 32, 128
_INPUTS, _OUTPUTS = 16, 8
#: Layers of the models whose difference tells what a layer takes.
_FEW, _MANY = 4, 44
_RUNS = 30


def sized_model(repository: Path, name: str, microseconds: float, batch_size: int) -> Model:
    """A model of matrix products whose run takes about so long for one row on one thread, and n times that for n rows.

    Args:
        repository: gets the model.
        name: of it.
        microseconds: of a run.
        batch_size: see ``Model``.
    """
    model = Model(
        *(name, "INPUT", "OUTPUT", "FP32", (_INPUTS,), (_OUTPUTS,)),
        *(batch_size, repository / name / "1" / "model.onnx", repository),
    )
    few, many = (_seconds(model, layers) for layers in (_FEW, _MANY))
    layer = max((many - few) / (_MANY - _FEW), 1e-7)
    _write(model, max(1, round(_FEW + (microseconds / 1e6 - few) / layer)))
    return model


def _seconds(model: Model, layers: int) -> float:
    """What a run with so many layers takes: the median of some."""
    _write(model, layers)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(str(model.path), options, providers=["CPUExecutionProvider"])
    row = {model.input: model.random_rows(np.random.default_rng(1), 1)}
    took = []
    for _ in range(_RUNS):
        began = time.perf_counter()
        session.run(None, row)
        took.append(time.perf_counter() - began)
    return float(np.median(took))


def _write(model: Model, layers: int) -> None:
    rng = np.random.default_rng(layers)

    def matrix(rows: int, columns: int) -> Rows:
        return rng.normal(0, (2 / rows) ** 0.5, (rows, columns)).astype(np.float32)

    weights: dict[str, Rows] = {
        "first": matrix(_INPUTS, _POSITIONS * _WIDTH),
        "layer": matrix(_WIDTH, _WIDTH),
        "last": matrix(_WIDTH, _OUTPUTS),
        "shape": np.array([-1, _POSITIONS, _WIDTH], np.int64),
    }
    nodes = [
        helper.make_node("MatMul", [model.input, "first"], ["spread"]),
        helper.make_node("Reshape", ["spread", "shape"], ["x0"]),
    ]
    for at in range(layers):
        nodes.append(helper.make_node("MatMul", [f"x{at}", "layer"], [f"y{at}"]))
        nodes.append(helper.make_node("Tanh", [f"y{at}"], [f"x{at + 1}"]))
    nodes.append(helper.make_node("ReduceMean", [f"x{layers}"], ["mean"], axes=[1], keepdims=0))
    nodes.append(helper.make_node("MatMul", ["mean", "last"], [model.output]))
    write_model(model, nodes, weights)


def configured(models: Sequence[Model], repository: Path, further: str) -> list[Model]:
    """Copies of models in another repository, with further lines in their config.yaml."""
    copies = []
    for model in models:
        copy = replace(model, path=repository / model.path.relative_to(model.repository), repository=repository)
        copy.path.parent.mkdir(parents=True)
        shutil.copy(model.path, copy.path)
        copies.append(copy)
        text = f"backend: supertensor\nbatch_size: {model.batch_size}\ncapacity: {-(-4096 // model.batch_size)}\n"
        (copy.path.parent / "config.yaml").write_text(text + f"num_executors: 1\nallocator: cpu\n{further}")
    return copies
