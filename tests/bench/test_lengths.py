"""The measurement of batching by length: both ways compute the same rows, and the encoder is one."""

from __future__ import annotations

import random

import numpy as np
import numpy.testing as npt
import onnx
import onnxruntime

from bench.encoder import MINILM, Size, encoder
from bench.lengths import LENGTHS, by_length, in_order

SIZE = Size(1, MINILM.hidden, 4, 8, 50, 512)


def session() -> onnxruntime.InferenceSession:
    made = encoder(SIZE)
    onnx.checker.check_model(made)
    return onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])


def test_a_rows_embedding_does_not_depend_on_its_padding() -> None:
    ids = np.arange(12, dtype=np.int64).reshape(2, 6)
    mask = np.array([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0]], np.int64)
    run = session().run
    both = run(["embedding"], {"input_ids": ids, "attention_mask": mask})[0]
    alone = run(["embedding"], {"input_ids": ids[1:, :3], "attention_mask": mask[1:, :3]})[0]
    npt.assert_allclose(both[1:], alone, atol=1e-5)


def test_both_ways_run_all_rows() -> None:
    rng = random.Random(1)
    rows = [np.arange(LENGTHS["mixed"](rng), dtype=np.int64) % 50 for _ in range(40)]
    real = sum(map(len, rows))
    made = session()
    fifo, ours = in_order(made, rows), by_length(made, rows, 16)
    assert fifo.batches == 5
    assert real < ours.padded <= 1.25 * real < fifo.padded
