"""The port before a version: what is found, what waits for a request under way, and what goes on."""

from __future__ import annotations

import time

import numpy as np
import pytest

from tests.engine.cache.support import ONE_ENTRY, SHAPES, Caller, Inner, cached, outputs_of
from toutates.engine.cache.port import MAX_WAITING
from toutates.engine.result import BatchResult
from toutates.system.errors import ExecutionFailed, Overloaded


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


def test_only_so_many_wait_for_one_request(inner: Inner) -> None:
    servable, _ = cached(inner)
    caller = Caller(servable)
    for number in range(MAX_WAITING + 3):
        caller.send(f"{number}", 1)
    assert len(inner.added) == 3
    for number in range(3):
        inner.answer(outputs_of(2), at=number)
    assert len(caller.contents) == MAX_WAITING + 3


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
