"""A client of a soak that sends rows of any length to a small text encoder with ``padding``.

Every run of ONNX Runtime has another shape. The answer is the one that ONNX Runtime has for the rows alone, in whatever
company they ran.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnxruntime
from tritonclient.grpc import InferenceServerClient, InferInput
from tritonclient.utils import InferenceServerException

from bench.encoder import Size, encoder
from fuzz.soak.account import Entry
from fuzz.soak.round import PATIENCE_S, Round

__all__ = ["ENCODER", "build_encoder", "run_lengths"]

ENCODER: Final = "encoder"
_SIZE: Final = Size(2, 64, 4, 128, 1_000, 1_024)
_LONGEST: Final = 900
_CALLERS: Final = 6
_CONFIG: Final = """\
backend: supertensor
batch_size: 32
capacity: 32
num_executors: 1
allocator: cpu
padding:
  inputs: {input_ids: {}}
  mask: attention_mask
  outputs: {last_hidden_state: 1}
"""
_OPTIONS: Final = [("grpc.use_local_subchannel_pool", 1)]


def build_encoder(repository: Path) -> None:
    """Make the model."""
    folder = repository / ENCODER / "1"
    folder.mkdir(parents=True)
    (folder / "model.onnx").write_bytes(encoder(_SIZE).SerializeToString())
    (folder / "config.yaml").write_text(_CONFIG)


def run_lengths(around: Round) -> Entry:
    """tritonclient, some calls at a time, most of them short."""
    entry = Entry()
    session = onnxruntime.InferenceSession(encoder(_SIZE).SerializeToString(), providers=["CPUExecutionProvider"])
    lock = threading.Lock()
    seeds = [around.rng.randrange(2**32) for _ in range(_CALLERS)]

    def call(seed: int) -> None:
        rng = np.random.default_rng(seed)
        with InferenceServerClient(f"127.0.0.1:{around.port}", channel_args=_OPTIONS) as client:
            while not around.is_over():
                length = int(rng.integers(1, 40 if rng.random() < 0.8 else _LONGEST))
                ids = rng.integers(0, _SIZE.vocabulary, (int(rng.integers(1, 4)), length))
                with lock:
                    entry.sent += 1
                try:
                    tensor = InferInput("input_ids", ids.shape, "INT64").set_data_from_numpy(ids)
                    answer = client.infer(ENCODER, [tensor], client_timeout=PATIENCE_S)
                except InferenceServerException as error:
                    with lock:
                        entry.faults.append(f"{length} ids: {error}")
                    continue
                problem = _difference(session, ids, answer)
                with lock:
                    if problem:
                        entry.faults.append(problem)
                    else:
                        entry.right += 1
                time.sleep(rng.uniform(0, 0.02))

    with ThreadPoolExecutor(len(seeds)) as pool:
        list(pool.map(call, seeds))
    return entry


def _difference(session: onnxruntime.InferenceSession, ids: Any, answer: Any) -> str:
    names = ["embedding", "last_hidden_state"]
    alone = session.run(names, {"input_ids": ids, "attention_mask": np.ones_like(ids)})
    for name, expected in zip(names, alone, strict=True):
        found = answer.as_numpy(name)
        if found is None or found.shape != expected.shape or not np.allclose(found, expected, atol=1e-4):
            return f"{name} of {list(ids.shape)} ids is not what they give alone"
    return ""
