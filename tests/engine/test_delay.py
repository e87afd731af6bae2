"""Batches that wait for more rows, with threads and a clock as they are; see ``test_batch_queue`` for the rules."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.engine.rig import Rig
from tests.graphs import DOUBLE, DOUBLE_LENGTHS
from tests.waiting import DEADLINES_S, wait_until
from toutates.engine.pool import ExecutorPool
from toutates.system.errors import TooLate


@pytest.fixture(params=["threads of their own", "pool of one thread", "pool of three"])
def pool(request: pytest.FixtureRequest) -> Iterator[ExecutorPool | None]:
    """What has threads for the executors."""
    threads = {"pool of one thread": 1, "pool of three": 3}.get(request.param)
    if threads is None:
        yield None
        return
    shared = ExecutorPool(threads)
    yield shared
    shared.end()


def send(rig: Rig, context: Any, rows: int = 1) -> None:
    """One request, in a round of its own."""
    rig.worker.add(context, rig.lane((4,)), np.ones((rows, 4), np.float32))
    rig.worker.end_round()


@pytest.mark.parametrize("executors", [1, 3])
def test_requests_of_several_rounds_run_together_when_the_delay_is_over(
    executors: int, pool: ExecutorPool | None
) -> None:
    for delay_s in DEADLINES_S:
        delay_ns, in_time = int(delay_s * 1e9), True
        rig = Rig(DOUBLE, executors=executors, delay_ns=delay_ns, enough_rows=8, pool=pool)
        with rig.running():
            rig.wait_idle()
            for _ in range(2):
                began_ns = time.monotonic_ns()
                for context in range(3):
                    send(rig, context)
                in_time = in_time and time.monotonic_ns() - began_ns < delay_ns
                rig.worker.collect(0, 1, 2)
                assert rig.worker.seen[-1].timing.taken_ns - began_ns >= delay_ns
                rig.worker.answers.clear()
        if in_time:
            break
    assert rig.batches == [(3, 3)] * 2


def test_what_waits_is_run_when_the_model_is_closed(pool: ExecutorPool | None) -> None:
    rig = Rig(DOUBLE, delay_ns=60 * 10**9, enough_rows=8, pool=pool)
    with rig.running():
        rig.wait_idle()
        send(rig, "a", 2)
        rig.supertensor.close()
        rig.worker.collect("a")
    assert rig.batches == [(2, 1)]


@pytest.mark.parametrize("executors", [1, 2])
def test_no_request_is_forgotten_whatever_comes_when(executors: int, pool: ExecutorPool | None) -> None:
    rng = np.random.default_rng(3)
    rig = Rig(DOUBLE, capacity=8, executors=executors, delay_ns=1_000_000, enough_rows=5, pool=pool)
    with rig.running():
        for context, pause_ms in enumerate(rng.integers(0, 3, 200)):
            wait_until(lambda: rig.supertensor.occupancy().in_flight < 7)  # which a busy machine takes its time for
            send(rig, context, int(rng.integers(1, 8)))
            if pause_ms:
                time.sleep(pause_ms / 1e3)
        rig.worker.collect(*range(200))
    assert len(rig.batches) < 200


def test_a_batch_that_is_full_runs_though_its_delay_is_long(pool: ExecutorPool | None) -> None:
    rig = Rig(DOUBLE, delay_ns=3600 * 10**9, enough_rows=8, pool=pool)
    with rig.running():
        rig.wait_idle()
        for context in range(4):
            send(rig, context, 2)
        rig.worker.collect(*range(4))
    assert rig.batches == [(8, 4)]


@pytest.mark.parametrize("delay_ns", [0, 3600 * 10**9])
def test_of_batches_that_are_ready_together_the_first_one_gets_the_thread_that_the_pool_has(delay_ns: int) -> None:
    pool = ExecutorPool(1)
    pool.open()
    rig = Rig(DOUBLE_LENGTHS, executors=2, delay_ns=delay_ns, enough_rows=2, pool=pool)
    with rig.running():
        rig.wait_idle()
        wait_until(lambda: not pool.is_busy)
        for length, rows in ((4, 2), (5, 3)):
            rig.worker.add(length, rig.lane((length,)), np.ones((rows, length), np.float32))
        rig.worker.end_round()
        rig.worker.collect(4, 5)
    assert rig.batches == [(2, 1), (3, 1)]
    pool.end()


def test_a_request_whose_caller_has_left_while_it_waited_is_not_run(pool: ExecutorPool | None) -> None:
    rig = Rig(DOUBLE, delay_ns=50_000_000, enough_rows=8, pool=pool)
    with rig.running():
        rig.wait_idle()
        rig.unwanted.add("gone")
        send(rig, "gone")
        rig.worker.collect("gone")
        assert isinstance(rig.worker.errors["gone"], TooLate)
        send(rig, "there")
        rig.worker.collect("there")
    assert rig.batches == [(1, 1)]


def test_many_models_wait_without_threads_and_each_answers_when_its_delay_is_over() -> None:
    pool = ExecutorPool(2)
    rigs = [Rig(DOUBLE, delay_ns=(1 + number % 7) * 10_000_000, enough_rows=8, pool=pool) for number in range(40)]
    for rig in rigs:
        rig.start()
    for _ in range(3):
        began_ns = time.monotonic_ns()
        for rig in rigs:
            send(rig, "a")
        for number, rig in enumerate(rigs):
            rig.worker.collect("a")
            assert rig.worker.seen[-1].timing.taken_ns - began_ns >= (1 + number % 7) * 10_000_000
            rig.worker.answers.clear()
    assert pool.threads <= 2
    for rig in rigs:
        rig.close(workers_ended=True)
        rig.supertensor.free()
    pool.end()


def test_a_thread_that_dies_in_a_run_after_a_delay_leaves_the_model_with_another_one() -> None:
    class Ended(BaseException):
        """What is no Exception."""

    pool = ExecutorPool(1)
    rig = Rig(DOUBLE, delay_ns=10_000_000, enough_rows=8, pool=pool)
    with rig.running():
        rig.faults["on_batch"] = Ended()
        send(rig, "a")
        rig.worker.collect("a")
        assert "a" in rig.worker.errors
        rig.faults.clear()
        send(rig, "b")
        rig.worker.collect("b")
        assert "b" in rig.worker.answers
    pool.end()
