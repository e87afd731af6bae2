"""Callers take turns within a text model: what a text waits for is counted in batches, whatever it takes."""

from __future__ import annotations

from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from tests.backends.ensemble.made import config_of, ensemble_of
from tests.backends.text.serving import load, running
from tests.ensembles import pbtxt
from tests.tables import version_of
from tests.text_models import make_folder
from tests.waiting import PATIENCE_S
from toutates.backends.text.backend import TextBackend
from toutates.backends.text.interface import DEFAULT_OPTIONS, TextResult
from toutates.backends.text.queue import ReadingBatch
from toutates.engine.calls import ModelCall, Outcome
from toutates.engine.tensor import Tensor
from toutates.models.table import ServedVersion
from toutates.protocol.datatypes import BY_NAME

POOLING = ("1_Pooling", "sentence_transformers.models.Pooling", {"pooling_mode_mean_tokens": True})
LONG = "one two three four five six " * 10
TEXTS = 500
#: Whose texts were in a batch, and whether these were only read.
Seen = list[tuple[bool, set[object]]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("turns") / "m", modules=[POOLING])


class Direct:
    """Adds texts to the model itself."""

    def __init__(self, version: ServedVersion) -> None:
        self._servable: Any = version.servable
        self.results: SimpleQueue[TextResult] = SimpleQueue()

    def add(self, texts: list[str], caller: str) -> None:
        self._servable.add(texts, DEFAULT_OPTIONS, self.results.put, caller=caller)
        self._servable.commit()


class Through:
    """Asks an ensemble of ensembles, the innermost of which asks the model."""

    def __init__(self, version: ServedVersion, depth: int) -> None:
        for at in range(depth):
            flow = {"text": "IN"} if not at else {"IN": "IN"}, {"embedding": "OUT"} if not at else {"OUT": "OUT"}
            text = pbtxt(["IN STRING [1]"], ["OUT FP32 [6]"], [(version.model, *flow)], batch=TEXTS)
            servable = ensemble_of(text, rows=10_000, memory_bytes=2**30, name=f"e{at}")
            servable.bind({need: version for need in servable.needs})
            version = version_of(servable, f"e{at}", description=config_of(text), takes_turns=servable.takes_turns)
        self._calls = version.calls
        self.results: SimpleQueue[Outcome] = SimpleQueue()

    def add(self, texts: list[str], caller: str) -> None:
        content = b"".join([len(text).to_bytes(4, "little") + text.encode() for text in texts])
        call = ModelCall(0, self.results.put, caller=caller)
        self._calls.call(call, {"IN": Tensor(BY_NAME["BYTES"], (len(texts), 1), content)})


def order_of(
    folder: Path, monkeypatch: pytest.MonkeyPatch, many: dict[str, int], others: dict[int, tuple[str, str]], depth: int
) -> Seen:
    """Run texts, and see in which order.

    Args:
        folder: of the model.
        many: requests of so many long texts, by their callers, which come first.
        others: callers and their texts, which come while the batch of a number is under way.
        depth: how many ensembles are around the model.
    """
    version = load(folder)
    servable: Any = version.servable
    door = Through(version, depth) if depth else Direct(version)
    seen: Seen = []
    run = TextBackend.run

    def note(self: TextBackend, batch: Any, first: int, rows: int) -> Any:
        is_read = isinstance(batch, ReadingBatch)
        requests = [one for one, _, _ in batch.slices] if is_read else [row.request for _, row in batch.entries]
        if len(seen) in others:
            caller, text = others[len(seen)]
            door.add([text], caller)
        seen.append((is_read, {one.caller for one in requests}))
        return run(self, batch, first, rows)

    monkeypatch.setattr(TextBackend, "run", note)
    for caller, requests in many.items():
        for _ in range(requests):
            door.add([LONG] * TEXTS, caller)
    with running(servable):
        for _ in range(sum(many.values()) + len(others)):
            assert door.results.get(timeout=PATIENCE_S).error is None
    servable.free()
    return seen


@pytest.mark.parametrize(
    ("comes", "depth"), [*((comes, 0) for comes in (0, 1, 5, 8, 9, 10, 12, 20)), (1, 1), (9, 1), (12, 2)]
)
@pytest.mark.parametrize("many", [{"a": 2}, {"a": 1, "c": 1}])
def test_no_text_waits_behind_more_than_one_batch_of_anybody_else(
    folder: Path, monkeypatch: pytest.MonkeyPatch, comes: int, many: dict[str, int], depth: int
) -> None:
    seen = order_of(folder, monkeypatch, many, {comes: ("b", "one")}, depth)
    waited = seen[comes + 1 :]
    waited = waited[: next(at for at, (is_read, callers) in enumerate(waited) if "b" in callers and not is_read)]
    assert len(seen) > comes + len(waited) + 5, "the others are not done by then"
    for is_read in (True, False):
        assert sum(kind is is_read and "b" not in callers for kind, callers in waited) <= len(many)
