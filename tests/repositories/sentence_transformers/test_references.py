"""Graphs compute what transformers computes: models that transformers has saved, with its outputs beside them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from toutates.repositories.sentence_transformers.converting import make_graph
from toutates.repositories.sentence_transformers.family import Output

#: Made by ``make_references.py`` with transformers 5.23.0 and PyTorch 2.13.0 on a CPU.
REFERENCES = Path(__file__).parent / "references"
MODELS = sorted(path.name for path in REFERENCES.iterdir())
CASES = [
    (name, output) for name in MODELS for output in Output if output is Output.HIDDEN or name.endswith(output.value)
]


@pytest.mark.parametrize(("name", "output"), CASES, ids=[f"{name}-{output.value}" for name, output in CASES])
def test_a_graph_computes_what_transformers_computes(name: str, output: Output, tmp_path: Path) -> None:
    folder = REFERENCES / name
    with np.load(folder / "outputs.npz") as file:
        wanted = dict(file)
    config = json.loads((folder / "config.json").read_text())
    path = tmp_path / "model.onnx"
    make_graph(folder, config, output).write(path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    inputs = {one.name: wanted[one.name].astype(np.int64) for one in session.get_inputs()}
    assert set(inputs) == set(wanted) - {"last_hidden_state", "logits"}
    (computed,) = session.run(None, inputs)
    expected = wanted["last_hidden_state" if output is Output.HIDDEN else "logits"]
    if computed.ndim == 3:
        computed = computed[:, ::10] * inputs["attention_mask"][:, ::10, None]
    np.testing.assert_allclose(computed, expected, rtol=1e-4, atol=2e-5)
