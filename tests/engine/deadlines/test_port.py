"""Requests to a version with a latency target: real runs in executors' threads, and a clock that the test turns."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import numpy as np
import numpy.testing as npt
import pytest

from tests.engine.parts import Clock
from tests.engine.rig import Rig
from tests.graphs import DOUBLE, DOUBLE_LENGTHS, unary
from tests.waiting import PATIENCE_S
from toutates.engine.deadlines.port import DeadlinePort
from toutates.engine.deadlines.supertensor import DeadlineSuperTensor
from toutates.engine.lane import PackedLane
from toutates.engine.servable import Consumer
from toutates.engine.submitter import StringPort
from toutates.system.errors import BeyondTarget, TooLate, WouldBeLate

MS = 1_000_000


def rows(count: int, length: int = 4) -> Any:
    return np.arange(count * length, dtype=np.float32).reshape(count, length)


def rig_of(content: bytes = DOUBLE, **settings: Any) -> tuple[Rig, Clock]:
    """A version that is busy, whose runs take 10 ms, whatever their rows, as far as it knows; its target is 20 ms."""
    clock = Clock()
    make = partial(DeadlineSuperTensor, target_ns=20 * MS, executors=1, clock_ns=clock)
    rig = Rig(content, make=make, **settings)
    queue = rig.supertensor.queue
    queue.profile.note(1, 10 * MS)  # type: ignore[attr-defined]
    queue.profile.note(64, 10 * MS)  # type: ignore[attr-defined]
    queue.profile.error, queue.profile._scale = 0.0, 1.0  # type: ignore[attr-defined]
    queue._ran_ns = clock.now_ns  # type: ignore[attr-defined]
    queue._lately.note(10**9, clock.now_ns)  # type: ignore[attr-defined]
    return rig, clock


def run_one(rig: Rig, lane: Any, *arrays: Any) -> threading.Event:
    """Have the only executor busy until the event is set."""
    rig.wait_idle()
    begun, may_run = threading.Event(), threading.Event()
    [runs] = rig.runs

    def wait(*arguments: Any) -> Any:
        begun.set()
        assert may_run.wait(PATIENCE_S)
        return runs.backend.run(*arguments)

    runs.instead = wait
    rig.worker.add("running", lane, *arrays)
    rig.worker.end_round()
    assert begun.wait(PATIENCE_S)
    return may_run


@pytest.mark.parametrize("length", [4, 6], ids=["packed", "of any length"])
def test_a_request_that_would_be_late_is_refused_and_leaves_nothing(length: int) -> None:
    rig, clock = rig_of(DOUBLE_LENGTHS if length == 6 else DOUBLE)
    lane = rig.lane((length,))
    with rig.running():
        may_run = run_one(rig, lane, rows(1, length))
        for context in range(2):
            with pytest.raises(BeyondTarget, match="10 of them for what is in front of it"):
                rig.worker.add(context, lane, rows(2, length))
        clock.now_ns += 4 * MS
        rig.worker.add("waits", lane, rows(2, length))
        rig.worker.end_round()
        may_run.set()
        npt.assert_array_equal(rig.worker.collect("running", "waits")[1], 2 * rows(2, length))
        rig.assert_empty()
    assert sorted(rig.worker.answers) == ["running", "waits"]


def test_strings_are_refused_as_well() -> None:
    rig, _ = rig_of(unary("Identity", ["n", 1], element=8))
    lane = rig.lane((1,))
    strings = np.array([[b"one"]], object)
    with rig.running():
        may_run = run_one(rig, lane, strings)
        with pytest.raises(BeyondTarget):
            rig.worker.add("late", lane, strings)
        with pytest.raises(BeyondTarget):
            StringPort(rig.worker.port).add_packed(lane, 1, "late too", b"\3\0\0\0one", (0, 7))
        may_run.set()
        rig.worker.collect("running")
        rig.assert_empty()


def test_contents_of_several_inputs_are_looked_at_once() -> None:
    rig, clock = rig_of()
    lane = rig.packed((4,))
    content = rows(1).tobytes()
    with rig.running():
        may_run = run_one(rig, lane, rows(1))
        port = rig.worker.port
        with pytest.raises(BeyondTarget):
            port.add_contents(port.writer(lane), 1, "late", [content])
        clock.now_ns += 4 * MS
        port.add_contents(port.writer(lane), 1, "waits", [content])
        rig.worker.end_round()
        may_run.set()
        npt.assert_array_equal(rig.worker.collect("waits")[0], 2 * rows(1))
        rig.assert_empty()


def test_a_callers_deadline_and_its_timeout_are_both_looked_at() -> None:
    rig, clock = rig_of()
    supertensor = rig.supertensor
    assert isinstance(supertensor, DeadlineSuperTensor)
    timeouts: dict[str, Any] = {"short": 5_000, "long": 2**63 - 1, "none": 0, "before": -1, "text": "1"}
    consumer = Consumer(
        rig.worker.deliver,
        rig.worker.results.put,
        rig.worker.at_round_end,
        is_wanted=lambda context, by_ns: rig.deadlines.get(context, by_ns) >= by_ns,
        parameters=lambda context: {"timeout": timeouts[context]} if context in timeouts else {},
    )
    port = DeadlinePort(supertensor, consumer)
    lane = rig.lane((4,))
    assert isinstance(lane, PackedLane)
    rig.deadlines = {"early": clock.now_ns + 9 * MS, "enough": clock.now_ns + 11 * MS}

    def add(context: str) -> None:
        port.add_packed(port.writer(lane), 1, context, rows(1).tobytes(), (0, 16))

    with pytest.raises(WouldBeLate, match="would take 10 ms, 0 of them"):
        add("early")
    # Real time: a request's timeout begins when it comes.
    clock.now_ns = 2**62
    supertensor.deadlines._ran_ns = clock.now_ns
    with pytest.raises(WouldBeLate):
        add("short")
    with rig.running():
        others = ("none", "before", "text", "long")
        for context in others:
            add(context)
        rig.worker.end_round()
        rig.worker.collect(*others)
        rig.assert_empty()


def test_a_request_of_several_batches_is_answered_whole() -> None:
    rig, clock = rig_of(batch_size=4, capacity=8)
    with rig.running():
        clock.now_ns += 10**10
        rig.worker.add("large", rig.lane((4,)), rows(14))
        rig.worker.end_round()
        npt.assert_array_equal(rig.worker.collect("large")[0], 2 * rows(14))
        rig.assert_empty()


def test_what_has_waited_for_longer_than_the_target_is_not_run() -> None:
    rig, clock = rig_of()
    lane = rig.lane((4,))
    with rig.running():
        may_run = run_one(rig, lane, rows(1))
        clock.now_ns += 4 * MS
        for context in ("first", "second"):
            rig.worker.add(context, lane, rows(2))
        rig.worker.end_round()
        clock.now_ns += 21 * MS
        may_run.set()
        errors = rig.worker.collect("first", "second")
        assert all(type(error) is TooLate for error in errors)
        assert "latency target" in str(errors[0])
        rig.assert_empty()
        # The executor goes on. What was left out as soon as an executor had it would have taken what others take.
        clock.now_ns += 80 * MS
        rig.worker.add("next", lane, rows(1))
        rig.worker.end_round()
        npt.assert_array_equal(rig.worker.collect("next")[0], 2 * rows(1))
    assert rig.batches == [(1, 1), (1, 1)]


def test_quick_runs_are_run_inline_and_learned_from() -> None:
    rig, _ = rig_of(quick_ns=2**62)
    lane = rig.lane((4,))
    with rig.running():
        rig.wait_idle()
        for context in range(20):
            rig.worker.add(context, lane, rows(1 + context % 5))
            rig.worker.end_round()
            rig.worker.collect(context)
        rig.assert_empty()
        assert rig.supertensor.forecast().row_ns >= 0  # type: ignore[attr-defined]
        assert not rig.supertensor.profiles(0)  # type: ignore[attr-defined]
    assert sum(count for count, _ in rig.batches) == 60
