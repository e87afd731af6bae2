"""The texts of the benchmark have the lengths that their distribution says, and are the same in every run."""

from __future__ import annotations

import pytest

pytest.importorskip("tritonclient.grpc")

from bench.short_texts import metrics_of
from bench.text_load import DISTRIBUTIONS, some_texts


def test_texts_have_the_lengths_of_their_distribution() -> None:
    for name, shares in DISTRIBUTIONS.items():
        lengths = [len(text.split()) for text in some_texts(name, 300)]
        for share, least, most in shares:
            found = sum(least <= length <= most for length in lengths) / len(lengths)
            assert abs(found - share) < 0.1


def test_texts_are_the_same_for_the_same_seed() -> None:
    assert some_texts("mix", 20, 3) == some_texts("mix", 20, 3) != some_texts("mix", 20, 4)


def test_times_of_texts_are_those_of_the_model_alone() -> None:
    lines = [
        'toutates_text_read_seconds_total{model="table",version="1"} 0.5',
        'toutates_text_read_seconds_total{model="minilm",version="1"} 7.0',
        'toutates_text_read_total{model="table",version="1"} 40.0',
        'inference_model_execution_seconds_sum{model="table"} 0.25',
        'nv_inference_exec_count{model="table",version="1"} 8',
        'nv_inference_exec_count{model="table2",version="1"} 8',
    ]
    assert metrics_of("\n".join(lines), "table") == {"read": 0.5, "texts": 40, "run": 0.25, "batches": 8}
