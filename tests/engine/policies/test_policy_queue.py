"""Queues with policies among real sessions and executors: what runs together, what is counted, who is told."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.testing as npt
import pytest
from onnx import TensorProto

from tests.engine.rig import Rig
from tests.engine.test_ragged import check, row, segments
from tests.engine.workers import received
from tests.graphs import DOUBLE_LENGTHS, gather, unary
from tests.waiting import wait_until
from toutates.engine.policies.keeper import tell_dropped
from toutates.engine.policies.queue import PolicyQueue
from toutates.engine.policies.rules import BatchingRules, QueuePolicy
from toutates.system.errors import InvalidRequest, ModelNotReady, Overloaded, QueueFull, QueueTimeout, TooLate

RULES = BatchingRules(8, (2, 4), 0, 3, 2)


def numbers(length: int = 3, rows: int = 1, first: float = 1) -> Any:
    return np.arange(first, first + rows * length, dtype=np.float32).reshape(rows, length)


def queue_of(rig: Rig) -> PolicyQueue:
    assert isinstance(rig.supertensor.queue, PolicyQueue)
    return rig.supertensor.queue


def test_requests_run_by_priority_in_batches_of_preferred_sizes() -> None:
    rig = Rig(DOUBLE_LENGTHS, rules=RULES)
    with rig.running():
        rig.wait_idle()
        given = {"a": numbers(), "b": numbers(5), "c": numbers(first=9), "d": numbers(rows=2), "e": numbers()}
        rig.said |= {"a": {"priority": 3}, "c": {"priority": 1}, "e": {"priority": 99}}
        for name, array in given.items():
            rig.worker.add_shaped(name, array)
        rig.worker.end_round()
        rig.worker.collect(*given)
        for name, array in given.items():
            npt.assert_array_equal(rig.worker.answers[name][0], array * 2)
        # c; b, whose rows are longer; then d, e and a, which are of the larger preferred size together
        assert rig.batches == [(1, 1), (1, 1), (4, 3)]
        rig.assert_empty()


def test_ragged_rows_wait_in_the_same_queue() -> None:
    rig = segments(rules=BatchingRules(8, (3,), 60_000_000_000, 2, 2))
    with rig.running():
        rig.wait_idle()
        given = {length: row(length, first=length) for length in (3, 90, 1)}
        for length, values in given.items():
            rig.worker.add_shaped(length, values, np.array([[3 + values.size]]))
        rig.worker.end_round()
        rig.worker.collect(*given)
        for length, values in given.items():
            check(rig.worker.answers[length], values)
        assert rig.batches == [(3, 3)]
        rig.assert_empty()


def test_strings_and_models_without_a_batch_wait_too() -> None:
    rig = Rig(unary("Identity", ["n", 2], TensorProto.STRING), rules=RULES)
    with rig.running():
        words = np.array([[b"a", b"\xff"]], object)
        port: Any = rig.worker.port
        for name in "xy":
            port.add_gathered(port.way(((0, (2,)),)), 1, name, [received(words)], 10)
        rig.worker.end_round()
        for found in rig.worker.collect("x", "y"):
            npt.assert_array_equal(found, words)
        rig.assert_empty()
    rig = Rig(unary("Neg", [4]), rules=BatchingRules(1, levels=2, default_level=1))
    with rig.running():
        port = rig.worker.port
        for name in "xy":
            port.add_contents(port.way(((0, (4,)),)), 1, name, [numbers(4).tobytes()])
        rig.worker.end_round()
        for found in rig.worker.collect("x", "y"):
            npt.assert_array_equal(found, -numbers(4)[0])
        assert rig.batches == [(1, 1), (1, 1)]


def test_only_the_request_fails_that_fails_its_batch() -> None:
    rig = Rig(gather(), rules=BatchingRules(8, (2,), 60_000_000_000))
    with rig.running():
        rig.worker.add_shaped("good", np.array([[1]]))
        rig.worker.add_shaped("bad", np.array([[7]]))
        rig.worker.end_round()
        good, bad = rig.worker.collect("good", "bad")
        npt.assert_array_equal(good, [[20]])
        assert "indices element out of data bounds" in str(bad)
        rig.assert_empty()


def test_late_requests_and_those_that_nobody_waits_for_are_told_and_not_counted() -> None:
    policies = MappingProxyType({1: QueuePolicy(timeout_us=1), 2: QueuePolicy()})
    rig = Rig(DOUBLE_LENGTHS, rules=BatchingRules(8, (4,), 60_000_000_000, 2, 2, policies=policies))
    rig.said["late"] = {"priority": 1}
    rig.unwanted.add("left")
    queue = queue_of(rig)
    for name in ("late", "left", "stays"):
        rig.worker.add_shaped(name, numbers())
    assert rig.supertensor.occupancy().waiting == 3
    wait_until(queue.expire)
    with rig.running():
        rig.worker.end_round()
        wait_until(lambda: len(queue.dropped) == 2)
        dropped, queue.dropped = queue.dropped, []
        tell_dropped(rig.supertensor, dropped)
        late, left = rig.worker.collect("late", "left")
        assert (type(late), str(late)) == (QueueTimeout, "Request timeout expired")
        assert type(left) is TooLate
        occupancy = rig.supertensor.occupancy()
        assert (occupancy.waiting, occupancy.rows) == (1, 1)
        rig.worker.add_shaped("others", numbers(rows=3))
        rig.worker.end_round()
        rig.worker.collect("stays", "others")
        assert rig.batches == [(4, 2)]
        rig.assert_empty()


def test_a_full_queue_first_gives_idle_executors_what_they_take() -> None:
    rig = Rig(DOUBLE_LENGTHS, rules=BatchingRules(2, default_policy=QueuePolicy(max_size=2)))
    for name in "ab":
        rig.worker.add_shaped(name, numbers())
    with pytest.raises(QueueFull, match="Exceeds maximum queue size: 2 requests of this priority wait for model 'm'"):
        rig.worker.add_shaped("c", numbers())
    with rig.running():
        rig.worker.end_round()
        rig.worker.collect("a", "b")
        rig.wait_idle()
        for name in "defg":  # two of them run while the others come
            rig.worker.add_shaped(name, numbers())
        rig.worker.end_round()
        rig.worker.collect(*"defg")
        rig.assert_empty()


def test_what_waits_is_bounded_by_rows_and_memory() -> None:
    rig = Rig(DOUBLE_LENGTHS, rules=BatchingRules(8, (4,), 60_000_000_000), batch_size=8, capacity=1)
    for name in range(8):
        rig.worker.add_shaped(name, numbers(first=name, length=1 + name))
    with pytest.raises(Overloaded, match="8 of at most 8 rows"):
        rig.worker.add_shaped("more", numbers())
    small = Rig(DOUBLE_LENGTHS, rules=BatchingRules(8, (4,), 60_000_000_000), capacity_bytes=5_000)
    small.worker.add_shaped(0, numbers())
    small.worker.add_shaped(1, numbers())
    with pytest.raises(Overloaded, match="bytes waiting or running"):
        small.worker.add_shaped(2, numbers(length=200))
    with pytest.raises(InvalidRequest, match="batch-size must be <= 8 for 'm'"):
        small.worker.add_shaped(3, numbers(rows=9))
    with pytest.raises(InvalidRequest, match="the batch dimension for model 'm' is 0"):
        small.worker.add_shaped(4, numbers(rows=0))


def test_what_waits_for_more_runs_when_the_version_is_closed() -> None:
    rig = Rig(DOUBLE_LENGTHS, rules=BatchingRules(8, (4,), 60_000_000_000))
    rig.start()
    rig.worker.add_shaped("waits", numbers())
    rig.worker.end_round()
    rig.close()
    rig.worker.collect("waits")
    with pytest.raises(ModelNotReady):
        rig.worker.add_shaped("more", numbers())
