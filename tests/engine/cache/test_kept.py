"""What the cache before a version keeps, and what makes room."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import astuple
from typing import Any

import numpy as np
import pytest

from tests.engine.cache.support import ONE_ENTRY, SIGNATURE, TIMING, Caller, Inner, cached, outputs_of
from tests.signatures import signature
from toutates.engine.cache import port
from toutates.engine.result import BatchResult, Outputs, PendingRequest, Split
from toutates.protocol.strings import EncodedStrings
from toutates.system.errors import ExecutionFailed


@pytest.fixture
def inner() -> Inner:
    return Inner()


def test_a_request_that_was_split_is_kept_whole(inner: Inner) -> None:
    servable, _ = cached(inner)
    caller = Caller(servable)
    caller.send("split", 1, rows=3)
    caller.send("waiting", 1, rows=3)
    consumer, context, _ = inner.added[0]
    split = Split(2)
    consumer.finish(BatchResult([(context, 0, 1, (split, 1))], outputs_of(9), None, TIMING))
    assert "waiting" not in caller.results
    consumer.finish(BatchResult([(context, 1, 2, (split, 0))], outputs_of(0, 7, 8), None, TIMING))
    assert caller.contents["waiting"] == outputs_of(7, 8, 9).data[0]
    caller.send("found", 1, rows=3)
    caller.end_round()
    assert caller.contents["found"] == outputs_of(7, 8, 9).data[0]
    assert len(inner.added) == 1


def test_a_split_request_fails_whole(inner: Inner) -> None:
    servable, cache = cached(inner)
    caller = Caller(servable)
    caller.send("split", 1, rows=2)
    caller.send("waiting", 1, rows=2)
    consumer, context, _ = inner.added[0]
    split = Split(2)
    consumer.finish(BatchResult([(context, 0, 1, (split, 0))], None, ExecutionFailed("no"), TIMING))
    assert "waiting" not in caller.results
    consumer.finish(BatchResult([(context, 0, 1, (split, 1))], outputs_of(1), None, TIMING))
    assert str(caller.results["waiting"].error) == "no"
    assert cache.statistics().entries == 0


def test_rows_are_cut_from_the_answers_of_their_batch(inner: Inner) -> None:
    servable, _ = cached(inner)
    caller = Caller(servable)
    for name, value in (("a", 1), ("b", 2)):
        caller.send(name, value)
    consumer = inner.added[0][0]
    pending: list[PendingRequest] = [(context, at, 1, None) for at, (_, context, _) in enumerate(inner.added)]
    consumer.finish(BatchResult(pending, outputs_of(10, 20), None, TIMING))
    assert caller.results["a"] is caller.results["b"], "the batch is handed over as it came"
    caller.send("b again", 2)
    caller.end_round()
    assert caller.contents["b again"] == outputs_of(20).data[0]


def test_strings_are_kept_with_their_bounds() -> None:
    inner = Inner()
    servable, _ = cached(inner)
    caller = Caller(servable)
    strings = EncodedStrings.of([b"aa", b"", b"cccc", b"d"], (2, 2))
    outputs = Outputs((strings,), (0,), ((2,),))
    for name, value in (("a", 1), ("b", 2)):
        caller.send(name, value)
    pending: list[PendingRequest] = [(context, at, 1, None) for at, (_, context, _) in enumerate(inner.added)]
    inner.added[0][0].finish(BatchResult(pending, outputs, None, TIMING))
    caller.send("b again", 2)
    caller.end_round()
    assert caller.contents["b again"] == strings.rows(1, 1)
    found = caller.results["b again"].outputs
    assert found is not None
    assert list(found.data[0].bounds) == [0, 8, 13]  # type: ignore[union-attr]


def test_empty_outputs_are_not_kept(inner: Inner) -> None:
    servable, cache = cached(inner)
    caller = Caller(servable)
    caller.send("a", 1)
    inner.answer(Outputs((b"",), (0,), ((0,),)))
    assert cache.statistics().entries == 0


def test_an_answer_larger_than_the_cache_is_told_once_and_still_shared(
    inner: Inner, caplog: pytest.LogCaptureFixture
) -> None:
    servable, cache = cached(inner, 4_096)
    caller = Caller(servable)
    large = Outputs((bytes(8_192),), (8_192,), ((2_048,),))
    for number in range(2):
        caller.send(f"{number}", 1)
        caller.send(f"{number} waits", 1)
        inner.answer(large, at=number)
        assert len(caller.contents[f"{number} waits"]) == 8_192
    assert len(caplog.records) == 1
    assert "Failed to insert an answer of model 'm' version 1 into response cache" in caplog.text
    assert cache.statistics().entries == 0


def test_the_copy_of_a_request_that_is_awaited_counts_as_bytes_of_the_cache(inner: Inner) -> None:
    servable, cache = cached(inner, 4_096)
    caller = Caller(servable)
    for value in range(4):
        caller.send(f"first {value}", value)
        inner.answer(outputs_of(value), at=value)
    assert cache.statistics().entries == 3
    for number in range(3):
        caller.send(f"large {number}", 1, rows=700)
    assert len(inner.added) == 5, "the last two wait, and answers have made room"
    assert cache.statistics().used_bytes == 4 * 700 + 1_024
    for number in range(3):
        caller.send(f"other {number}", 2, rows=700)
    assert len(inner.added) == 8, "of whose copy there is no room"
    for at in range(4, 8):
        inner.answer(outputs_of(*[0.0] * 700), at=at)
    assert len(caller.contents) == 10
    assert cache.statistics().used_bytes <= 4_096


def test_a_version_that_has_ended_leaves_nothing(inner: Inner) -> None:
    servable, cache = cached(inner)
    inner.free = lambda: None  # type: ignore[attr-defined]
    caller = Caller(servable)
    for value in range(600):
        caller.send(f"{value}", value)
        inner.answer(outputs_of(value), at=value)
    caller.send("late", -1)
    servable.free()
    inner.answer(outputs_of(1), at=600)
    statistics = cache.statistics()
    assert (statistics.entries, statistics.used_bytes) == (0, 0)


def test_threads_that_send_the_same_get_the_same(inner: Inner) -> None:
    servable, cache = cached(inner, 40 * ONE_ENTRY)
    inner.answers_at_once = lambda rows: outputs_of(3)
    counts = [0] * 4

    def run(number: int) -> None:
        caller = Caller(servable)
        for turn in range(300):
            caller.send(f"{turn}", turn % 60)
            caller.end_round()
            counts[number] += caller.contents[f"{turn}"] == outputs_of(3).data[0]

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts == [300] * 4
    statistics = cache.statistics()
    assert statistics.hits + statistics.misses == 1_200
    assert statistics.used_bytes == statistics.entries * ONE_ENTRY <= 40 * ONE_ENTRY


def sequence_of(caller: Caller, values: Sequence[int], inner: Inner) -> list[int]:
    """Which of the values are computed, one in each round."""
    before = len(inner.added)
    computed = []
    for value in values:
        caller.send(f"{before} {value}", value)
        if len(inner.added) > before:
            before = len(inner.added)
            computed.append(value)
        caller.end_round()
    return computed


def test_the_least_recently_used_answers_make_room(inner: Inner) -> None:
    servable, cache = cached(inner, 3 * ONE_ENTRY + 100)
    caller = Caller(servable)
    inner.answers_at_once = lambda rows: outputs_of(1)
    assert sequence_of(caller, [1, 2, 3], inner) == [1, 2, 3]
    assert sequence_of(caller, [1, 4], inner) == [4]
    assert sequence_of(caller, [1, 3, 4], inner) == []
    assert sequence_of(caller, [2], inner) == [2]
    assert cache.statistics().evictions == 2


def test_what_is_found_before_its_answer_makes_room_is_answered(inner: Inner) -> None:
    servable, cache = cached(inner, 3 * ONE_ENTRY + 100)
    caller = Caller(servable)
    inner.answers_at_once = lambda rows: outputs_of(1)
    caller.send("a", 1)
    caller.send("a again", 1)
    for value in range(2, 6):
        caller.send(f"{value}", value)
    caller.end_round()
    assert caller.here[-1] == "a again"
    assert caller.contents["a again"] == outputs_of(1).data[0]
    assert (cache.statistics().hits, cache.statistics().evictions) == (1, 2)


def test_small_answers_of_a_round_are_handed_over_together(inner: Inner) -> None:
    servable, _ = cached(inner)
    caller = Caller(servable)
    values = {"a": 1, "b": 2, "wide": 3, "rows": 4, "large": 5}
    answers = {
        "a": outputs_of(10),
        "b": outputs_of(20),
        "wide": Outputs((np.array([30, 31], np.float32).tobytes(),), (8,), ((2,),)),
        "rows": outputs_of(40, 41),
        "large": Outputs((bytes(8_192),), (8_192,), ((2_048,),)),
    }
    for at, (name, value) in enumerate(values.items()):
        caller.send(name, value, rows=2 if name == "rows" else 1)
        inner.answer(answers[name], at=at)
    for name, value in [*values.items(), ("b", 2)]:
        caller.send(f"{name} again", value, rows=2 if name == "rows" else 1)
    caller.end_round()
    for name, outputs in answers.items():
        assert caller.contents[f"{name} again"] == outputs.data[0]
    together = {name for name in values if caller.results[f"{name} again"] is caller.results["a again"]}
    assert together == {"a", "b", "rows"}
    assert len(caller.results["a again"].pending) == 4
    assert len(inner.added) == 5


def test_answers_without_rows_are_handed_over_one_by_one() -> None:
    inner = Inner(signature(SIGNATURE.inputs, SIGNATURE.outputs, batched=False))
    servable, _ = cached(inner)
    caller = Caller(servable)
    for at, value in enumerate((1, 2)):
        caller.send(f"{value}", value)
        inner.answer(outputs_of(value * 10), at=at)
    for value in (1, 2):
        caller.send(f"{value} again", value)
    caller.end_round()
    assert caller.results["1 again"] is not caller.results["2 again"]
    assert [caller.contents[f"{value} again"] for value in (1, 2)] == [outputs_of(10).data[0], outputs_of(20).data[0]]


def test_a_request_with_very_large_inputs_is_not_hashed(inner: Inner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(port, "MAX_HASHED_BYTES", 1_200)
    servable, cache = cached(inner)
    caller = Caller(servable)
    for name in ("a", "b"):
        caller.send(name, 1, rows=301)
    assert [context for _, context, _ in inner.added] == ["a", "b"]
    caller.send("c", 1, rows=300)
    assert cache.statistics().misses == 1


class Uncopied(Outputs):
    """Outputs for whose copies there is no memory any more after ``forbid``."""

    is_forbidden = False

    def forbid(self) -> None:
        self.is_forbidden = True

    def rows(self, *given: Any, **more: Any) -> Any:
        if self.is_forbidden:
            raise MemoryError
        return super().rows(*given, **more)


def test_an_answer_that_cannot_be_kept_leaves_nobody_waiting(inner: Inner, caplog: pytest.LogCaptureFixture) -> None:
    servable, _ = cached(inner)
    caller = Caller(servable)
    for name, value in (("a", 1), ("b", 2), ("a waits", 1), ("b waits", 2)):
        caller.send(name, value)
    pending: list[PendingRequest] = [(context, at, 1, None) for at, (_, context, _) in enumerate(inner.added)]

    outputs = Uncopied(*astuple(outputs_of(10, 20)))
    caller.on_result = outputs.forbid  # once it is answered
    inner.added[0][0].finish(BatchResult(pending, outputs, None, TIMING))
    assert caller.contents["a"] == outputs_of(10).data[0]
    for name in ("a waits", "b waits"):
        assert str(caller.results[name].error) == "internal error"
    assert caplog.text.count("keeping an answer failed") == 2
    caller.send("a again", 1)
    assert len(inner.added) == 3, "nobody waits for a request that is over"
