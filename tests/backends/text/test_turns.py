"""Callers take turns within a text model: what a text waits for is counted in batches, whatever it takes."""

from __future__ import annotations

from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest
from google.protobuf import text_format

from tests.backends.text.serving import load, running
from tests.cpu_time import lines_run
from tests.ensembles import pbtxt
from tests.text_models import make_folder
from tests.waiting import PATIENCE_S
from toutates.backends.ensemble.graph import read_graph
from toutates.backends.ensemble.servable import EnsembleServable
from toutates.backends.ensemble.state import Bounds
from toutates.backends.text.backend import TextBackend
from toutates.backends.text.interface import DEFAULT_OPTIONS, TextResult
from toutates.backends.text.queue import ReadingBatch
from toutates.backends.text.turns import RowsInTurn
from toutates.backends.text.work import Row
from toutates.engine.calls import ModelCall, Outcome
from toutates.engine.lengths import Buckets
from toutates.engine.tensor import Tensor
from toutates.models.table import ServedVersion
from toutates.protocol.datatypes import BY_NAME
from toutates.protocol.model_config_pb2 import ModelConfig

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
            config = text_format.Parse(text, ModelConfig())
            graph = read_graph(config, f"e{at}", Path("config.pbtxt"))
            servable = EnsembleServable(graph, Bounds(10_000, 2**30), config)
            servable.bind({need: version for need in servable.needs})
            version = ServedVersion(f"e{at}", 1, config, servable, takes_turns=servable.takes_turns)
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


def lines_beside(callers: int) -> tuple[int, int]:
    """Lines that are run to take a row, and to add one, beside those of so many callers who have had a turn each."""
    waiting: RowsInTurn = RowsInTurn(Buckets(), 1, 512, on_none_left=lambda caller, led: None)

    def add(caller: object, led: int) -> None:
        request: Any = SimpleNamespace(caller=caller, led=led)
        waiting.add(Row(request, 0, [1, 2, 3]), 1, 3)

    for caller in range(callers):
        for _ in range(2):
            add(caller, 0)
    add("last", 0)
    for caller in range(callers):
        assert waiting.take().entries[0].context.caller == caller
    taken = []
    take = lines_run(lambda: taken.append(waiting.take().entries[0].context.caller))
    assert taken == ["last"], "its row is behind those of all others"
    put = lines_run(lambda: add("late", 1))
    assert waiting.take().entries[0].context.caller == 0
    assert waiting.take().entries[0].context.caller == "late"
    return take, put


def test_a_turn_takes_no_longer_with_ten_thousand_callers_than_with_ten() -> None:
    (take, put), (take_many, put_many) = lines_beside(10), lines_beside(10_000)
    assert take_many < 2 * take
    assert put_many < 2 * put
