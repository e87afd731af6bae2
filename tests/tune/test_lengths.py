"""Requests of different length, as files that the client reads."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from toutates.bench.calls import Refused
from toutates.bench.data import DataSettings, make_contents
from toutates.bench.metadata import ModelFacts, TensorFacts
from toutates.tune.lengths import Lengths, read_lengths, write_rows, write_texts

RNG = np.random.default_rng(1)


def facts(*inputs: TensorFacts) -> ModelFacts:
    return ModelFacts("m", "", inputs, [], batches=True)


def test_rows_are_of_all_lengths_and_the_client_reads_them(tmp_path: Path) -> None:
    model = facts(
        TensorFacts("ids", "INT64", (-1, -1)),
        TensorFacts("mask", "INT64", (-1, -1)),
        TensorFacts("token_type_ids", "INT64", (-1, -1)),
        TensorFacts("frames", "FP32", (-1, 4, -1)),
        TensorFacts("scale", "FP32", (-1, 1)),
    )
    padding = {"inputs": {"ids": {"axis": 1}, "frames": {"axis": 2}, "token_type_ids": {}}, "mask": "mask"}
    write_rows(tmp_path / "rows.json", model, padding, Lengths(3, 40), RNG)
    made = make_contents(model, DataSettings(str(tmp_path / "rows.json")), RNG)
    lengths = {one.inputs["ids"].shape[1] for one in made}
    assert min(lengths) >= 3
    assert max(lengths) <= 40
    assert len(lengths) > 10
    for one in made:
        length = one.inputs["ids"].shape[1]
        assert one.inputs["frames"].shape == (1, 4, length)
        assert one.inputs["mask"].tolist() == [[1] * length]
        assert one.inputs["token_type_ids"].tolist() == [[0] * length]
        assert one.inputs["scale"].shape == (1, 1)


def test_texts_are_of_all_lengths(tmp_path: Path) -> None:
    write_texts(tmp_path / "texts.json", facts(TensorFacts("text", "BYTES", (-1, 1))), Lengths(5, 300), RNG)
    texts = [one["text"][0] for one in json.loads((tmp_path / "texts.json").read_text())["data"]]
    assert 100 < max(map(len, texts)) <= 300
    assert min(map(len, texts)) < 20


def test_inputs_that_cannot_be_made_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="no text; name a file by --data"):
        write_texts(tmp_path / "x", facts(TensorFacts("ids", "INT64", (-1, 1))), Lengths(1, 2), RNG)
    with pytest.raises(Refused, match="'words' of type BYTES cannot be made"):
        write_rows(tmp_path / "x", facts(TensorFacts("words", "BYTES", (-1, 1))), {}, Lengths(1, 2), RNG)


@pytest.mark.parametrize("text", ["", "8", "8:4", "0:4", "a:b", "1:2:3"])
def test_what_is_no_range_of_lengths_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="such as 8:128"):
        read_lengths(text)
    assert read_lengths("8:128") == Lengths(8, 128)
