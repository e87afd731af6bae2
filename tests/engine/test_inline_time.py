"""The time that a round has for inline runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np
import numpy.testing as npt
import pytest

from tests.engine.rig import Rig
from tests.engine.test_inline_runs import ALWAYS, end_rounds_while_the_first_runs, learn, rows
from tests.engine.workers import inline_time
from tests.graphs import DOUBLE, DOUBLE_LENGTHS, gather
from toutates.engine.deadlines.supertensor import DeadlineSuperTensor
from toutates.engine.dispatcher import MAX_INLINE_BATCHES
from toutates.engine.lengths import Buckets
from toutates.engine.padded.padding import PaddedInput, Padding
from toutates.engine.policies.rules import BatchingRules
from toutates.engine.result import Separate
from toutates.system.errors import ExecutionFailed
from toutates.system.inline_time import INLINE_TIME


def add_one(rig: Rig, context: Any) -> None:
    """Add a request of one row."""
    rig.worker.add_shaped(context, rows(1))


def in_one_round(rigs: Sequence[Rig], context: Any) -> list[bool]:
    """Ask each of these models once in one round of the calling thread; returns which have run inline."""
    for rig in rigs:
        rig.wait_idle()
        add_one(rig, context)
    for rig in rigs:
        rig.worker.end_round()
    for rig in rigs:
        npt.assert_array_equal(rig.worker.collect(context)[0], 2 * rows(1))
    return [rig.ran_in[-1] is threading.current_thread() for rig in rigs]


@pytest.mark.parametrize(
    "settings",
    [
        dict,
        lambda: {"max_queue_size": 8},
        lambda: {"make": partial(DeadlineSuperTensor, target_ns=10**12, executors=1)},
        lambda: {"padding": Padding({0: PaddedInput(0)}, None, {0: 0}, Buckets(()), 4_096)},
        lambda: {"rules": BatchingRules(8, (2, 4), 0, 3, 2)},
    ],
    ids=["batches of its own", "shared batches", "latency target", "padded rows", "queue policies"],
)
def test_a_round_runs_batches_of_all_models_inline_until_its_time_is_over(
    settings: Callable[[], dict[str, Any]],
) -> None:
    rigs = [Rig(DOUBLE_LENGTHS, quick_ns=ALWAYS, **settings()) for _ in range(5)]
    with ExitStack() as stack:
        for rig in rigs:
            stack.enter_context(rig.running())
        in_one_round(rigs, "first runs")
        assert in_one_round(rigs, "no bound") == [True] * 5
        for number in range(2):
            with inline_time(1):  # the run that begins last takes more than is left
                assert in_one_round(rigs, number) == [True] + [False] * 4
        with inline_time(0):
            assert in_one_round(rigs, "no time") == [False] * 5
        with inline_time(10**12):
            assert in_one_round(rigs, "time enough") == [True] * 5


def test_what_came_meanwhile_is_left_to_the_executor_where_the_rounds_time_is_over() -> None:
    rig = Rig(DOUBLE, workers=3, quick_ns=ALWAYS)
    lane = rig.lane((4,))

    def end_short_round() -> None:
        with inline_time(1):
            rig.worker.end_round()

    with rig.running():
        learn(rig, lane, 1)
        for worker in rig.workers:
            worker.add("a", lane, rows(1))
        runner = end_rounds_while_the_first_runs(rig, end_short_round)
    assert rig.ran_in == [runner, rig.threads[0], rig.threads[0]]


def test_runs_that_fail_take_of_the_rounds_time_and_batches_that_are_not_run_do_not() -> None:
    one, other = (Rig(gather(), quick_ns=ALWAYS) for _ in range(2))
    with one.running(), other.running():
        for rig in (one, other):
            learn(rig, rig.lane((1,)), 1, 2)
        one.unwanted = {"late"}
        one.worker.add("late", one.lane((1,)), np.array([[1]]))
        one.worker.add("broken", one.lane((1,)), np.array([[9]]))
        with inline_time(1):
            one.worker.end_round()
            other.worker.add("after a failure", other.lane((1,)), np.array([[1]]))
            other.worker.end_round()
        other.worker.collect("after a failure")
        assert other.ran_in == [other.threads[0]]
        other.wait_idle()
        one.worker.add("late", one.lane((1,)), np.array([[1]]))
        with inline_time(1):
            one.worker.end_round()
            other.worker.add("after nothing", other.lane((1,)), np.array([[1]]))
            other.worker.end_round()
        other.worker.collect("after nothing")
        assert other.ran_in == [other.threads[0], threading.current_thread()]


def test_requests_that_are_run_one_by_one_take_of_the_rounds_time_until_the_last_has_run() -> None:
    rig = Rig(gather(), quick_ns=ALWAYS)
    lane = rig.lane((1,))
    with rig.running():
        learn(rig, lane, 1, 2, 4)
        for context in range(4):
            rig.worker.add(context, lane, np.array([[9]]))
        with inline_time(10**12):
            rig.worker.end_round()
            took_ns = 10**12 - INLINE_TIME.left_ns
        rig.worker.collect(0, 1, 2, 3)
    first, *_, last = [result.timing for result in rig.worker.seen]
    assert first.done_ns < last.done_ns
    assert took_ns == last.done_ns - first.taken_ns


def test_a_run_whose_requests_are_answered_by_others_ends_as_any() -> None:
    rig = Rig(DOUBLE, quick_ns=ALWAYS)
    lane = rig.lane((4,))

    with rig.running():
        learn(rig, lane, 1)
        rig.runs[0].instead = lambda batch, first, rows: Separate([])
        rig.worker.add("a", lane, rows(1))
        with inline_time(1):
            rig.worker.end_round()
        assert rig.ran_in == [threading.current_thread()]
        assert rig.supertensor.occupancy().idle_executors == 1


def test_requests_of_a_batch_that_fails_are_tried_by_its_executor_where_they_are_many() -> None:
    count = MAX_INLINE_BATCHES + 1
    rig = Rig(gather(), quick_ns=ALWAYS)
    lane = rig.lane((1,))
    with rig.running():
        learn(rig, lane, count)
        for context in range(count):
            rig.worker.add(context, lane, np.array([[9 if context == 2 else 1]]))
        with inline_time(10**12):
            rig.worker.end_round()
            assert INLINE_TIME.left_ns < 10**12
        answers = rig.worker.collect(*range(count))
    assert [isinstance(answer, ExecutionFailed) for answer in answers] == [context == 2 for context in range(count)]
    npt.assert_array_equal(answers[0], [[20]])
    assert rig.ran_in == [rig.threads[0]] * (count - 1)
