"""Texts computed without a server: what the figures of text models are compared with.

    python text_offline.py fifo8|fastembed MODEL_FOLDER < TEXTS.json

``fifo8`` takes texts in the order in which they came, 8 to a batch, as servers do that neither sort nor wait for more;
``fastembed`` is the library of that name, in batches of its own size. Both use the server's graph and one thread. One
line of JSON says what it took. It runs in environments of its own and imports nothing of the benchmark.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from tokenizers import Tokenizer

_BATCH = 8
_DIMENSIONS = 384
_MOST_TOKENS = 256

Vectors = Any


def fifo8(folder: Path) -> tuple[Callable[[Sequence[str]], Vectors], Callable[[], float]]:
    """Computes texts in batches of 8, and tells how many tokens were computed for each real one."""
    tokenizer: Any = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(_MOST_TOKENS)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(folder / "model.onnx", options, providers=["CPUExecutionProvider"])
    tokens = [0, 0]

    def compute(texts: Sequence[str]) -> Vectors:
        found = []
        for first in range(0, len(texts), _BATCH):
            encoded = tokenizer.encode_batch(texts[first : first + _BATCH])
            longest = max(len(one.ids) for one in encoded)
            ids = np.zeros((len(encoded), longest), np.int64)
            mask = np.zeros_like(ids)
            for row, one in enumerate(encoded):
                ids[row, : len(one.ids)] = one.ids
                mask[row, : len(one.ids)] = 1
            tokens[0] += ids.size
            tokens[1] += int(mask.sum())
            fed = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
            hidden = session.run(None, fed)[0]
            means = np.einsum("bld,bl->bd", hidden, mask.astype(np.float32)) / mask.sum(1, keepdims=True)
            found.append(means / np.linalg.norm(means, axis=1, keepdims=True))
        return np.concatenate(found)

    return compute, lambda: tokens[0] / tokens[1]


def fastembed(folder: Path) -> tuple[Callable[[Sequence[str]], Vectors], Callable[[], float]]:
    """Computes texts by fastembed, which does not tell how much it pads."""
    from fastembed import TextEmbedding
    from fastembed.common.model_description import ModelSource, PoolingType

    TextEmbedding.add_custom_model(
        model="served",
        pooling=PoolingType.MEAN,
        normalization=True,
        sources=ModelSource(hf="none/none"),
        dim=_DIMENSIONS,
        model_file="model.onnx",
    )
    model: Any = TextEmbedding("served", specific_model_path=str(folder), threads=1, providers=["CPUExecutionProvider"])
    return lambda texts: np.stack(list(model.embed(list(texts)))), lambda: 0.0


def main() -> None:
    way, folder = sys.argv[1], Path(sys.argv[2])
    compute, padded = {"fifo8": fifo8, "fastembed": fastembed}[way](folder)
    texts = json.load(sys.stdin)
    compute(texts[:16])
    before, began = resource.getrusage(resource.RUSAGE_SELF), time.monotonic()
    vectors = compute(texts)
    seconds = time.monotonic() - began
    after = resource.getrusage(resource.RUSAGE_SELF)
    outcome = {
        "seconds": seconds,
        "user_s": after.ru_utime - before.ru_utime,
        "system_s": after.ru_stime - before.ru_stime,
        "padded": padded(),
        "peak_mib": after.ru_maxrss / 1024,
        "first": vectors[0].tolist(),
    }
    print(json.dumps(outcome))


if __name__ == "__main__":
    main()
