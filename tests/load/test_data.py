"""Contents of requests fit the model, and files are read as perf_analyzer and NumPy write them."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from toutates.bench.calls import Refused
from toutates.bench.data import ZEROS, Contents, DataSettings, make_contents
from toutates.bench.metadata import ModelFacts, TensorFacts
from toutates.bench.texts import make_texts

BATCHED = ModelFacts("m", "", [TensorFacts("A", "FP32", (-1, 2)), TensorFacts("B", "BYTES", (-1, 1))], [], batches=True)
SINGLE = ModelFacts("m", "", [TensorFacts("A", "INT32", (-1, 2))], [], batches=False)


def make(facts: ModelFacts, settings: DataSettings) -> list[Contents]:
    return make_contents(facts, settings, np.random.default_rng(1))


def test_random_values_have_the_models_types_and_the_wanted_shapes() -> None:
    types = ["FP32", "FP16", "FP64", "INT8", "UINT64", "BOOL", "BF16", "BYTES"]
    facts = ModelFacts("m", "", [TensorFacts(name, name, (-1, -1)) for name in types], [], batches=True)
    made = make(facts, DataSettings(batch=3, shapes={"FP32": [5]}))
    assert len(made) == 4
    assert {name: array.shape for name, array in made[0].inputs.items()} == {
        name: (3, 5) if name == "FP32" else (3, 1) for name in types
    }
    assert [str(made[0].inputs[name].dtype) for name in types] == [
        *("float32", "float16", "float64", "int8", "uint64", "bool", "uint16", "object"),
    ]
    assert any((one.inputs["FP32"] != made[0].inputs["FP32"]).any() for one in made[1:])


def test_strings_have_their_length_or_are_all_one() -> None:
    (first, *_) = make(BATCHED, DataSettings(string_length=7, batch=2))
    assert [len(text) for text in first.inputs["B"].ravel()] == [7, 7]
    (first, *_) = make(BATCHED, DataSettings(string="same"))
    assert first.inputs["B"].tolist() == [[b"same"]]


def test_zeros_are_one_request() -> None:
    (only,) = make(BATCHED, DataSettings(ZEROS))
    assert only.inputs["A"].tolist() == [[0, 0]]
    assert only.inputs["B"].tolist() == [[b""]]


def test_perf_analyzers_json_is_read(tmp_path: Path) -> None:
    file = tmp_path / "data.json"
    entries: Sequence[Any] = [
        {"A": [1.5, 2], "B": ["one"]},
        [{"A": {"content": [[3, 4]], "shape": [2]}, "B": {"b64": base64.b64encode(b"t\0wo").decode()}}],
    ]
    file.write_text(json.dumps({"data": entries, "validation_data": [{"O": [1]}, {"O": [2]}]}))
    first, second = make(BATCHED, DataSettings(str(file), batch=2))
    assert first.inputs["A"].tolist() == [[1.5, 2], [3, 4]]
    assert first.inputs["B"].tolist() == [[b"one"], [b"t\0wo"]]
    assert first.expected["O"].tolist() == [1, 2]
    assert second.inputs["A"].tolist() == [[3, 4], [1.5, 2]]


def test_an_npz_file_is_cut_into_batches(tmp_path: Path) -> None:
    file = tmp_path / "data.npz"
    np.savez(file, A=np.arange(10, dtype=np.float32).reshape(5, 2), B=np.array([["a"], ["b"], ["c"], ["d"], ["e"]]))
    first, second = make(BATCHED, DataSettings(str(file), batch=2))
    assert first.inputs["A"].tolist() == [[0, 1], [2, 3]]
    assert second.inputs["B"].tolist() == [[b"c"], [b"d"]]
    np.savez(file, A=np.arange(6, dtype=np.int32).reshape(3, 2))
    (only,) = make(SINGLE, DataSettings(str(file)))
    assert only.inputs["A"].shape == (3, 2)


@pytest.mark.parametrize(
    ("settings", "facts", "why"),
    [
        (DataSettings(shapes={"X": [1]}), BATCHED, "has no input 'X'; it has 'A', 'B'"),
        (DataSettings(shapes={"A": [1, 3]}), BATCHED, r"has the shape \[-1, 2\], which \[1, 3\] is not"),
        (DataSettings(batch=4), SINGLE, "does not batch"),
        (DataSettings(shapes={"A": [2**28, 2]}), BATCHED, "at most"),
        (DataSettings("/nonexistent.json"), BATCHED, "No such file"),
        (DataSettings(), ModelFacts("m", "", [TensorFacts("A", "FP8", (1,))], [], False), "of type 'FP8'"),
    ],
)
def test_what_does_not_fit_is_refused(settings: DataSettings, facts: ModelFacts, why: str) -> None:
    with pytest.raises(Refused, match=why):
        make(facts, settings)


@pytest.mark.parametrize(
    ("document", "why"),
    [
        ("{}", "expected JSON"),
        ("[1]", "expected JSON"),
        ('{"data": [1]}', "expected JSON"),
        ('{"data": []}', "holds no data"),
        ('{"data": [{"A": [1, 2]}]}', r"values for \['A'\]"),
        ('{"data": [{"A": [1, 2, 3], "B": ["x"]}]}', "entry 0: input 'A'"),
        ('{"data": [{"A": ["x", 2], "B": ["x"]}]}', "entry 0: input 'A'"),
        ('{"data": [{"A": [1, 2], "B": {"b64": "%"}}]}', "entry 0: input 'B'"),
        ('{"data": [{"A": [1, 2], "B": ["x"]}], "validation_data": [{}, {}]}', "2"),
    ],
)
def test_a_wrong_json_file_is_refused(tmp_path: Path, document: str, why: str) -> None:
    file = tmp_path / "data.json"
    file.write_text(document)
    with pytest.raises(Refused, match=why):
        make(BATCHED, DataSettings(str(file)))


def test_a_wrong_npz_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "data.npz"
    file.write_bytes(b"nothing")
    with pytest.raises(Refused, match="no NPZ file"):
        make(SINGLE, DataSettings(str(file)))
    np.savez(file, A=np.zeros((3, 2)))
    with pytest.raises(Refused, match="expected INT32"):
        make(SINGLE, DataSettings(str(file)))
    np.savez(file, A=np.zeros((3, 4), np.int32))
    with pytest.raises(Refused, match=r"the shape \[3, 4\]"):
        make(SINGLE, DataSettings(str(file)))


def test_texts_are_words_or_lines_of_a_file(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    made = make_texts(DataSettings(batch=2, string_length=30), rng)
    assert [len(texts) for texts in made] == [2] * 4
    assert all(20 <= len(text) <= 30 for texts in made for text in texts)
    file = tmp_path / "texts.txt"
    file.write_text("one\n\ntwo\nthree\n")
    assert make_texts(DataSettings(str(file), batch=2), rng) == [["one", "two"], ["three", "one"]]
    lines = tmp_path / "texts.jsonl"
    lines.write_text('{"text": "one"}\n{"input": "two"}\n')
    assert make_texts(DataSettings(str(lines)), rng) == [["one"], ["two"]]
    lines.write_text('{"other": "one"}\n')
    with pytest.raises(Refused, match="expected lines"):
        make_texts(DataSettings(str(lines)), rng)
