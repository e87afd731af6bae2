"""The port before a version: what is found, what waits for a request under way, and what goes on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from toutates.engine.cache import port
from toutates.engine.cache.keys import head_of
from toutates.engine.cache.port import MAX_WAITING
from toutates.engine.cache.servable import CachingServable
from toutates.engine.cache.store import ENTRY_BYTES, ResponseCache
from toutates.engine.counters import VersionCounters
from toutates.engine.result import BatchResult, Outputs, PendingRequest, Split, Timing
from toutates.engine.servable import Consumer
from toutates.protocol.datatypes import BY_NAME
from toutates.protocol.signature import Signature, TensorSpec
from toutates.protocol.strings import EncodedStrings
from toutates.system.errors import ExecutionFailed, Overloaded

FP32 = BY_NAME["FP32"]
SIGNATURE = Signature((TensorSpec("x", FP32, (1,)),), (TensorSpec("y", FP32, (1,)),), batched=True)
SHAPES = ((0, (1,)),)
TIMING = Timing(1, 2, 3, 4)
#: What the cache counts for an answer of four bytes to a request of one value.
ONE_ENTRY = ENTRY_BYTES + len(head_of(bytes(24), 1)) + 4 + 4


class Way:
    packed = True


class Inner:
    """A servable whose batches a test answers by hand."""

    def __init__(self, signature: Signature = SIGNATURE) -> None:
        self.signature = signature
        self.counters = VersionCounters()
        #: what has come, by consumer: (consumer, context, rows)
        self.added: list[tuple[Consumer, Any, int]] = []
        self.refusal: Exception | None = None
        self.answers_at_once: Callable[[int], Outputs] | None = None
        self.commits = 0

    def port(self, consumer: Consumer) -> Any:
        return InnerPort(self, consumer)

    def answer(self, outputs: Outputs | None = None, error: Any = None, *, at: int = 0, part: Any = None) -> None:
        """Let the batch with one request end."""
        consumer, context, rows = self.added[at]
        consumer.finish(BatchResult([(context, 0, rows, part)], outputs, error, TIMING))


class InnerPort:
    def __init__(self, inner: Inner, consumer: Consumer) -> None:
        self.inner, self.consumer = inner, consumer

    def way(self, row_shapes: Any, outputs: Any = None) -> Way:
        return Way()

    def add_packed(self, way: Way, rows: int, context: Any, buffer: Any, spans: Any) -> None:
        self._add(context, rows)

    def add_contents(self, way: Way, rows: int, context: Any, contents: Any) -> None:
        self._add(context, rows)

    def add_gathered(self, way: Way, rows: int, context: Any, arrays: Any, held_bytes: int = 0) -> None:
        self._add(context, rows)

    def commit(self, *, inline: bool = True) -> None:
        self.inner.commits += 1

    def _add(self, context: Any, rows: int) -> None:
        if self.inner.refusal is not None:
            raise self.inner.refusal
        self.inner.added.append((self.consumer, context, rows))
        if self.inner.answers_at_once is not None:
            outputs = self.inner.answers_at_once(rows)
            self.consumer.finish_here(BatchResult([(context, 0, rows, None)], outputs, None, TIMING))


class Caller:
    """A consumer that keeps what it gets, by context."""

    def __init__(self, servable: CachingServable) -> None:
        self.results: dict[str, BatchResult] = {}
        self.contents: dict[str, bytes] = {}
        self.here: list[str] = []
        self.unwanted: set[str] = set()
        self.said: dict[str, dict[str, Any]] = {}
        self.rounds: list[Callable[[], None]] = []
        self.on_result: Callable[[], None] = lambda: None
        consumer = Consumer(
            self._finish,
            self._finish_here,
            self.rounds.append,
            lambda context, by_ns: context not in self.unwanted,
            parameters=lambda context: self.said.get(context, {}),
            may_have_left=lambda context: context in self.unwanted,
        )
        self.port = servable.port(consumer)
        self.way = self.port.way(SHAPES)

    def send(self, context: str, value: float, rows: int = 1, *, way: Any = None, **said: Any) -> None:
        self.said[context] = said
        content = np.full(rows, value, np.float32).tobytes()
        self.port.add_packed(way or self.way, rows, context, content, (0, len(content)))

    def end_round(self) -> None:
        callbacks, self.rounds[:] = list(self.rounds), []
        for callback in callbacks:
            callback()

    def _finish(self, result: BatchResult) -> None:
        for context, first, rows, _ in result.pending:
            self.results[context] = result
            if result.outputs is not None:
                self.contents[context] = bytes(result.outputs.rows(0, first, rows, batched=True))
        on_result, self.on_result = self.on_result, lambda: None
        on_result()

    def _finish_here(self, result: BatchResult) -> None:
        self.here += [context for context, *_ in result.pending]
        self._finish(result)


def outputs_of(*values: float) -> Outputs:
    return Outputs((np.array(values, np.float32).tobytes(),), (4,), ((1,),), fixed=True)


def cached(inner: Inner, size: int = 1 << 20, *, reads: bool = False) -> tuple[CachingServable, ResponseCache]:
    cache = ResponseCache(size)
    return CachingServable(inner, cache, "m", 1, lambda: reads), cache  # type: ignore[arg-type]


@pytest.fixture
def inner() -> Inner:
    return Inner()


def test_an_answer_is_found_again_at_the_end_of_the_round(inner: Inner) -> None:
    servable, cache = cached(inner)
    caller = Caller(servable)
    caller.send("first", 1)
    inner.answer(outputs_of(2))
    assert caller.contents["first"] == outputs_of(2).data[0]
    for name in ("second", "third"):
        caller.send(name, 1)
    assert "second" not in caller.results
    caller.end_round()
    assert caller.here == ["second", "third"]
    assert caller.contents["second"] == caller.contents["third"] == outputs_of(2).data[0]
    assert caller.results["second"] is caller.results["third"], "one hand-over for requests of one answer"
    assert caller.results["second"].timing.cached
    assert not caller.results["first"].timing.cached
    assert len(inner.added) == 1
    statistics = cache.statistics()
    assert (statistics.hits, statistics.misses, statistics.entries) == (2, 1, 1)
    assert statistics.used_bytes == ONE_ENTRY
    assert (servable.counters.cache.hits, servable.counters.cache.misses) == (2, 1)


def test_requests_that_differ_in_anything_are_not_found(inner: Inner) -> None:
    servable, _ = cached(inner)
    caller = Caller(servable)
    caller.send("a", 1)
    inner.answer(outputs_of(2))
    caller.send("other value", 2)
    caller.send("other rows", 1, rows=2)
    caller.send("other outputs", 1, way=caller.port.way(SHAPES, (0,)))
    caller.send("other shape", 1, way=caller.port.way(((0, (1, 1)),)))
    other, _ = cached(inner)
    again = Caller(other)
    again.send("loaded again", 1)
    caller.end_round()
    assert len(inner.added) == 6
    assert set(caller.results) == {"a"}


def test_identical_requests_under_way_are_computed_once_for_all_workers(inner: Inner) -> None:
    servable, cache = cached(inner)
    callers = [Caller(servable) for _ in range(3)]
    callers[0].send("leader", 1)
    callers[0].send("beside it", 1)
    callers[1].send("elsewhere", 1)
    callers[2].send("another", 3)
    assert inner.added[0][1].context == "leader"
    assert len(inner.added) == 2
    inner.answer(outputs_of(2))
    assert callers[0].contents == {"leader": outputs_of(2).data[0], "beside it": outputs_of(2).data[0]}
    assert callers[1].contents == {"elsewhere": outputs_of(2).data[0]}
    assert not callers[2].results
    assert callers[1].results["elsewhere"].timing.cached
    assert (cache.statistics().hits, cache.statistics().misses) == (2, 2)
    callers[1].send("later", 1)
    callers[1].end_round()
    assert callers[1].here == ["later"]


def test_no_time_of_an_answer_is_before_its_request(inner: Inner) -> None:
    servable, _ = cached(inner)
    caller = Caller(servable)
    caller.send("leader", 1)
    caller.on_result = lambda: caller.send("as soon as it has heard", 1)
    since_ns = time.monotonic_ns()
    inner.answer(outputs_of(2))
    assert caller.results["as soon as it has heard"].timing.taken_ns >= since_ns


def test_an_error_goes_to_all_that_wait_and_is_not_kept(inner: Inner) -> None:
    servable, cache = cached(inner)
    caller = Caller(servable)
    caller.send("leader", 1)
    caller.send("waiting", 1)
    inner.answer(error=ExecutionFailed("no"))
    assert str(caller.results["waiting"].error) == str(caller.results["leader"].error) == "no"
    assert cache.statistics().entries == 0
    caller.send("again", 1)
    assert len(inner.added) == 2


def test_nobody_waits_for_a_version_whose_answers_have_lacked_an_output(inner: Inner) -> None:
    servable, cache = cached(inner)
    caller = Caller(servable)
    lacking = outputs_of(2)
    lacking.missing = (1,)
    caller.send("first", 1)
    inner.answer(lacking)
    assert cache.statistics().entries == 0
    caller.send("again", 1)
    caller.send("beside it", 1)
    assert len(inner.added) == 3
    inner.answer(outputs_of(3))  # which is kept
    caller.send("later", 1)
    assert len(inner.added) == 3


@pytest.mark.parametrize("refusal", [Overloaded("full"), MemoryError()])
def test_each_that_waits_hears_of_an_answer_that_is_not_its_own_and_cannot_be_computed(
    inner: Inner, refusal: Exception
) -> None:
    servable, _ = cached(inner)
    caller = Caller(servable)
    lacking = outputs_of(2)
    lacking.missing = (1,)
    for name in ("first", "gone", "waits", "waits too"):
        caller.send(name, 1)

    class Results(dict[str, BatchResult]):
        """Of a caller whose connection breaks while it is told."""

        def __setitem__(self, name: str, result: BatchResult) -> None:
            if name == "gone":
                raise BrokenPipeError
            super().__setitem__(name, result)

    caller.results = Results()
    inner.refusal = refusal
    inner.answer(lacking)
    assert len(inner.added) == 1
    text = str(refusal) or "internal error"
    for name in ("waits", "waits too"):
        assert str(caller.results[name].error) == text


def test_a_refused_request_leaves_nothing_behind(inner: Inner) -> None:
    servable, _ = cached(inner)
    caller = Caller(servable)
    inner.refusal = Overloaded("full")
    with pytest.raises(Overloaded, match="full"):
        caller.send("refused", 1)
    inner.refusal = None
    caller.send("next", 1)
    assert [added[1].context for added in inner.added] == ["next"]


def test_a_run_within_adding_is_kept_and_awaited_by_nobody(inner: Inner) -> None:
    servable, cache = cached(inner)
    caller = Caller(servable)
    inner.answers_at_once = lambda rows: outputs_of(*[5] * rows)
    caller.send("first", 1)
    caller.send("second", 1)
    caller.end_round()
    assert caller.here == ["first", "second"]
    assert len(inner.added) == 1
    assert cache.statistics().entries == 1


def test_a_request_is_wanted_while_somebody_waits_for_its_answer_and_is_left_out_for_good_after(inner: Inner) -> None:
    servable, _ = cached(inner)
    caller, other = Caller(servable), Caller(servable)
    caller.send("leader", 1)
    other.send("waiting", 1)
    consumer, computed, _ = inner.added[0]
    caller.unwanted.add("leader")
    assert consumer.is_wanted(computed, 0)
    assert not consumer.may_have_left(computed)
    other.unwanted.add("waiting")
    assert not consumer.is_wanted(computed, 0)
    other.send("late", 1)
    assert len(inner.added) == 2, "nobody joins a request that may be left out"
    inner.answer(error=ExecutionFailed("left out"))
    assert "late" not in other.results
    inner.answer(outputs_of(2), at=1)
    assert other.contents["late"] == outputs_of(2).data[0]


def test_a_request_with_a_timeout_of_its_own_neither_waits_nor_is_awaited(inner: Inner) -> None:
    servable, _ = cached(inner)
    caller = Caller(servable)
    caller.send("hurried", 1, timeout=5)
    caller.send("second", 1)
    caller.send("hurried too", 1, timeout=5)
    assert len(inner.added) == 3
    inner.answer(outputs_of(2), at=1)
    caller.send("found", 1, timeout=5)
    caller.end_round()
    assert caller.here == ["found"]


def test_a_request_may_opt_out(inner: Inner) -> None:
    servable, cache = cached(inner)
    caller = Caller(servable)
    caller.send("a", 1, response_cache=False)
    inner.answer(outputs_of(2))
    assert caller.contents["a"] == outputs_of(2).data[0]
    assert cache.statistics().entries == 0
    caller.send("b", 1, response_cache=True)
    inner.answer(outputs_of(2), at=1)
    caller.send("c", 1, response_cache=False)
    assert len(inner.added) == 3
    statistics = cache.statistics()
    assert (statistics.hits, statistics.misses) == (0, 1)


@pytest.mark.parametrize(("reads", "computed"), [(True, 3), (False, 1)])
def test_parameters_count_where_the_model_reads_them(inner: Inner, reads: bool, computed: int) -> None:
    servable, _ = cached(inner, reads=reads)
    caller = Caller(servable)
    inner.answers_at_once = lambda rows: outputs_of(1)
    caller.send("a", 1, mode="x")
    caller.send("b", 1, mode="y")
    caller.send("c", 1)
    caller.send("d", 1, mode="x", priority=1)
    assert len(inner.added) == computed


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


def test_only_so_many_wait_for_one_request(inner: Inner) -> None:
    servable, _ = cached(inner)
    caller = Caller(servable)
    for number in range(MAX_WAITING + 3):
        caller.send(f"{number}", 1)
    assert len(inner.added) == 3
    for number in range(3):
        inner.answer(outputs_of(2), at=number)
    assert len(caller.contents) == MAX_WAITING + 3


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


def test_inputs_given_as_arrays_and_contents_are_the_same_as_packed_ones(inner: Inner) -> None:
    servable, _ = cached(inner)
    caller = Caller(servable)
    caller.send("packed", 1)
    inner.answer(outputs_of(2))
    array = np.ones(1, np.float32)
    caller.port.add_contents(caller.way, 1, "contents", [array.tobytes()])
    caller.port.add_gathered(caller.way, 1, "arrays", [array])
    caller.end_round()
    assert caller.here == ["contents", "arrays"]


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
    inner = Inner(Signature(SIGNATURE.inputs, SIGNATURE.outputs, batched=False))
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


def test_an_answer_that_cannot_be_kept_leaves_nobody_waiting(
    inner: Inner, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    servable, _ = cached(inner)
    caller = Caller(servable)
    for name, value in (("a", 1), ("b", 2), ("a waits", 1), ("b waits", 2)):
        caller.send(name, value)
    pending: list[PendingRequest] = [(context, at, 1, None) for at, (_, context, _) in enumerate(inner.added)]

    def out_of_memory(*_: Any, **__: Any) -> None:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(port, "cut", out_of_memory)
        inner.added[0][0].finish(BatchResult(pending, outputs_of(10, 20), None, TIMING))
    assert caller.contents["a"] == outputs_of(10).data[0]
    for name in ("a waits", "b waits"):
        assert str(caller.results[name].error) == "internal error"
    assert caplog.text.count("keeping an answer failed") == 2
    caller.send("a again", 1)
    assert len(inner.added) == 3, "nobody waits for a request that is over"
