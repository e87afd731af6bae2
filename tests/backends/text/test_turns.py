"""Callers take turns within a text model: what a text waits for is counted in batches, whatever it takes."""

from __future__ import annotations

from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest

from tests.cpu_time import lines_run
from tests.text_models import load, make_folder, running
from tests.waiting import PATIENCE_S
from toutates.backends.text.backend import TextBackend
from toutates.backends.text.interface import DEFAULT_OPTIONS, TextResult
from toutates.backends.text.queue import ReadingBatch
from toutates.backends.text.turns import RowsInTurn
from toutates.backends.text.work import Row
from toutates.engine.lengths import Buckets

POOLING = ("1_Pooling", "sentence_transformers.models.Pooling", {"pooling_mode_mean_tokens": True})
LONG = "one two three four five six " * 10
TEXTS = 500
#: Whose texts were in a batch, and whether these were only read.
Seen = list[tuple[bool, set[object]]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("turns") / "m", modules=[POOLING])


def order_of(
    folder: Path, monkeypatch: pytest.MonkeyPatch, many: dict[str, int], others: dict[int, tuple[str, str]]
) -> Seen:
    """Run texts, and see in which order.

    Args:
        folder: of the model.
        many: requests of so many long texts, by their callers, which come first.
        others: callers and their texts, which come while the batch of a number is under way.
    """
    servable: Any = load(folder).servable
    results: SimpleQueue[TextResult] = SimpleQueue()
    seen: Seen = []
    run = TextBackend.run

    def note(self: TextBackend, batch: Any, first: int, rows: int) -> Any:
        is_read = isinstance(batch, ReadingBatch)
        requests = [one for one, _, _ in batch.slices] if is_read else [row.request for _, row in batch.entries]
        if len(seen) in others:
            caller, text = others[len(seen)]
            servable.add([text], DEFAULT_OPTIONS, results.put, caller=caller)
            servable.commit()
        seen.append((is_read, {one.caller for one in requests}))
        return run(self, batch, first, rows)

    monkeypatch.setattr(TextBackend, "run", note)
    for caller, requests in many.items():
        for _ in range(requests):
            servable.add([LONG] * TEXTS, DEFAULT_OPTIONS, results.put, caller=caller)
    with running(servable):
        for _ in range(sum(many.values()) + len(others)):
            assert results.get(timeout=PATIENCE_S).error is None
    servable.free()
    return seen


@pytest.mark.parametrize("comes", [0, 1, 5, 8, 9, 10, 12, 20])
@pytest.mark.parametrize("many", [{"a": 2}, {"a": 1, "c": 1}])
def test_no_text_waits_behind_more_than_one_batch_of_anybody_else(
    folder: Path, monkeypatch: pytest.MonkeyPatch, comes: int, many: dict[str, int]
) -> None:
    seen = order_of(folder, monkeypatch, many, {comes: ("b", "one")})
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
