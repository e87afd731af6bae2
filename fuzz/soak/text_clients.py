"""A client of a soak that sends texts of any length to a text model, by OpenAI's API and as BYTES over gRPC.

Every run of ONNX Runtime has another shape. The vectors are those that ONNX Runtime has for each text alone, whatever
company it ran in.
"""

from __future__ import annotations

import base64
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnxruntime
from tritonclient.grpc import InferenceServerClient, InferInput
from tritonclient.utils import InferenceServerException

from bench.encoder import Size, encoder
from fuzz.soak.account import Entry
from fuzz.soak.round import PATIENCE_S, Round
from tests.e2e.http import peer_of, post
from tests.text_models import WORDS, ids_of, make_folder

__all__ = ["TEXTS", "build_text_model", "run_texts"]

TEXTS: Final = "sentences"
_SIZE: Final = Size(2, 64, 4, 128, len(WORDS), 1_024)
#: Words of a text at most, and of four texts of five.
_LONGEST: Final = 900
_SHORT: Final = 40
_CALLERS: Final = 6
#: Those that are one token each.
_PLAIN_WORDS: Final = WORDS[6:11]
_POOLING: Final = ("1_Pooling", "sentence_transformers.models.Pooling", {"pooling_mode_mean_tokens": True})
_OPTIONS: Final = [("grpc.use_local_subchannel_pool", 1)]


def build_text_model(repository: Path) -> None:
    """Make the model's folder."""
    graph = encoder(_SIZE).SerializeToString()
    make_folder(repository / TEXTS, graph=graph, modules=[_POOLING], config={"max_position_embeddings": 1_024})


def run_texts(around: Round) -> Entry:
    """Some callers at once, by one API or the other; most texts are short."""
    entry = Entry()
    session = onnxruntime.InferenceSession(encoder(_SIZE).SerializeToString(), providers=["CPUExecutionProvider"])
    lock = threading.Lock()
    seeds = [around.rng.randrange(2**32) for _ in range(_CALLERS)]

    def call(seed: int) -> None:
        rng = np.random.default_rng(seed)
        with InferenceServerClient(f"127.0.0.1:{around.port}", channel_args=_OPTIONS) as client:
            while not around.is_over():
                texts = [_text(rng) for _ in range(int(rng.integers(1, 5)))]
                with lock:
                    entry.sent += 1
                problem = ""
                try:
                    found = _ask_openai(around.port, texts) if rng.random() < 0.5 else _ask_grpc(client, texts)
                    if not np.allclose(found, [_alone(session, text) for text in texts], atol=1e-4):
                        problem = f"a vector of {len(texts)} texts is not what its text gives alone"
                except InferenceServerException as error:
                    problem = f"{len(texts)} texts: {error}"
                with lock:
                    if problem:
                        entry.faults.append(problem)
                    else:
                        entry.right += 1
                time.sleep(rng.uniform(0, 0.02))

    with ThreadPoolExecutor(len(seeds)) as pool:
        list(pool.map(call, seeds))
    return entry


def _text(rng: np.random.Generator) -> str:
    most = _SHORT if rng.random() < 0.8 else _LONGEST
    return " ".join(rng.choice(_PLAIN_WORDS, int(rng.integers(1, most))))


def _alone(session: onnxruntime.InferenceSession, text: str) -> npt.NDArray[np.float32]:
    ids = np.array([ids_of(text)])
    [embedding] = session.run(["embedding"], {"input_ids": ids, "attention_mask": np.ones_like(ids)})
    vector: npt.NDArray[np.float32] = embedding[0]
    return vector


def _ask_openai(port: int, texts: list[str]) -> list[npt.NDArray[np.float32]]:
    body = json.dumps({"model": TEXTS, "input": texts, "encoding_format": "base64"})
    with peer_of(port) as peer:
        answer = peer.ask(post("/v1/embeddings", body, "Content-Type: application/json"))
    if answer.status != 200:
        raise InferenceServerException(f"{answer.status} {answer.body[:200]!r}")
    return [np.frombuffer(base64.b64decode(one["embedding"]), np.float32) for one in answer.document["data"]]


def _ask_grpc(client: InferenceServerClient, texts: list[str]) -> Any:
    tensor = InferInput("text", [len(texts), 1], "BYTES")
    tensor.set_data_from_numpy(np.array([[text.encode()] for text in texts], np.object_))
    return client.infer(TEXTS, [tensor], client_timeout=PATIENCE_S).as_numpy("embedding")
