"""Throughput of a text model against batches of 8 in the order of arrival, by the same session; and of a table.

    python bench/texts.py [--model .cache/minilm/minilm] [--texts 200] [--rounds 3]

`python tests/minilm.py` brings the default model. All texts are under way at once, from one caller, so that the batches
are what is measured. A figure is CPU time, the least of some rounds: other work on the machine makes it larger, never
smaller. "padded" is how many tokens were run for each real one. The table has 256 dimensions and the model's tokenizer;
its figure is of one core, tokenizing included.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import trio

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from toutates.backends.onnx.session import SessionOptions, load_session
from toutates.backends.text.interface import DEFAULT_OPTIONS, TextModel
from toutates.backends.text.kind import TextKind
from toutates.backends.text.tokenizing import load_tokenizer
from toutates.engine.servable import Host
from toutates.models.kinds import load_version
from toutates.models.repository import scan_model
from toutates.system.placement import Placement

WORDS = [
    "the",
    "server",
    "of",
    "a",
    "model",
    "answers",
    "small",
    "requests",
    "in",
    "batches",
    "while",
    "memory",
    "lasts",
]
#: Words of a text, by the name of a distribution.
LENGTHS: dict[str, Callable[[random.Random], int]] = {
    "short queries": lambda rng: rng.randint(2, 12),
    "paragraphs": lambda rng: rng.randint(40, 220),
    "a mix": lambda rng: rng.choice([1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233]),
}


def texts_of(distribution: str, count: int) -> list[str]:
    """Texts of a distribution, the same each time."""
    rng = random.Random(7)
    return [" ".join(rng.choices(WORDS, k=LENGTHS[distribution](rng))) for _ in range(count)]


@contextmanager
def served(path: Path) -> Iterator[TextModel]:
    """A model that computes."""
    [version] = scan_model(path).versions
    kinds = [TextKind(SessionOptions())]
    servable = load_version(kinds, path.name, version, overridden=False, placement=Placement()).servable
    assert isinstance(servable, TextModel)
    host = Host(lambda: (), (), lambda: None, lambda: None)
    thread = threading.Thread(target=lambda: trio.run(servable.run, host))
    thread.start()
    try:
        yield servable
    finally:
        servable.close()
        thread.join()


def compute(model: TextModel, texts: Sequence[str]) -> None:
    """Compute texts, each in a request of its own."""
    left = threading.Semaphore(0)
    for text in texts:
        model.compute([text], DEFAULT_OPTIONS, lambda result: left.release())
    for _ in texts:
        left.acquire()


def counted(model: TextModel) -> tuple[float, float]:
    """Tokens that were run, and the same with padding."""
    batches = model.statistics().batches.values()  # type: ignore[attr-defined]
    return sum(one.real_elements for one in batches), sum(one.padded_elements for one in batches)


def in_order(path: Path, limit: int) -> Callable[[Sequence[str]], None]:
    """What computes texts in batches of 8, in the order in which they come."""
    graph = next(found for name in ("model.onnx", "onnx/model.onnx") if (found := path / name).exists())
    session = load_session(graph, SessionOptions())
    names = {tensor.name for tensor in session.get_inputs()}
    tokenizer = load_tokenizer(path)

    def run(texts: Sequence[str]) -> None:
        for first in range(0, len(texts), 8):
            ids = [found.ids[:limit] for found in tokenizer.read(texts[first : first + 8], special=True, limit=limit)]
            shape = len(ids), max(map(len, ids))
            feed = {name: np.zeros(shape, np.int64) for name in names}
            for at, own in enumerate(ids):
                feed["input_ids"][at, : len(own)] = own
                feed["attention_mask"][at, : len(own)] = 1
            hidden: Any = session.run(None, feed)[0]
            np.einsum("bl,bld->bd", feed["attention_mask"].astype(np.float32), hidden)

    return run


def least_s(run: Callable[[], object], rounds: int) -> float:
    """CPU seconds of the process, the least of some rounds."""
    found = []
    for _ in range(rounds):
        began = time.process_time()
        run()
        found.append(time.process_time() - began)
    return min(found)


def make_table(model: Path, path: Path) -> None:
    """The folder of a table of vectors, with a model's tokenizer."""
    path.mkdir()
    document = json.loads((model / "tokenizer.json").read_text())
    (path / "tokenizer.json").write_text(json.dumps({**document, "truncation": None}))
    kinds = ("StaticEmbedding", ""), ("Normalize", "1_Normalize")
    modules = [{"path": folder, "type": f"sentence_transformers.models.{kind}"} for kind, folder in kinds]
    (path / "modules.json").write_text(json.dumps(modules))
    table = np.random.default_rng(0).standard_normal((len(document["model"]["vocab"]), 256)).astype(np.float32)
    entry = {"dtype": "F32", "shape": list(table.shape), "data_offsets": [0, table.nbytes]}
    header = json.dumps({"embedding.weight": entry}).encode()
    (path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + table.tobytes())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=Path(".cache/minilm/minilm"))
    parser.add_argument("--texts", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    [version] = scan_model(options.model).versions
    print(f"{'texts':16}{'batches of 8':>16}{'toutates':>12}{'times':>8}{'padded':>9}")
    with served(options.model) as model:
        other = in_order(version.path, model.info.max_tokens)
        for name in LENGTHS:
            texts = texts_of(name, options.texts)
            before = counted(model)
            own_s = least_s(lambda texts=texts: compute(model, texts), options.rounds)  # type: ignore[misc]
            tokens, padded = (after - start for after, start in zip(counted(model), before, strict=True))
            other_s = least_s(lambda texts=texts: other(texts), options.rounds)  # type: ignore[misc]
            count = options.texts
            print(
                f"{name:16}{count / other_s:>10.0f} /s{count / own_s:>9.0f} /s"
                f"{other_s / own_s:>8.2f}{padded / tokens:>9.2f}"
            )
    root = Path(tempfile.mkdtemp())
    try:
        make_table(version.path, root / "table")
        with served(root / "table") as model:
            texts = texts_of("short queries", 2_000)
            seconds = least_s(lambda: compute(model, texts), options.rounds)
            print(f"a table, short queries: {len(texts) / seconds:.0f} texts a second of one core")
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
