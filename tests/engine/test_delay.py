"""Batches that wait for more rows, with threads and a clock as they are; see ``test_batch_queue`` for the rules."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from tests.engine.support import DOUBLE, Rig, wait_until


def send(rig: Rig, context: Any, rows: int = 1) -> None:
    """One request, in a round of its own."""
    rig.worker.add(context, rig.lane((4,)), np.ones((rows, 4), np.float32))
    rig.worker.end_round()


@pytest.mark.parametrize("executors", [1, 3])
def test_requests_of_several_rounds_run_together_when_the_delay_is_over(executors: int) -> None:
    rig = Rig(DOUBLE, executors=executors, delay_ns=500_000_000, enough_rows=8)
    with rig.running():
        rig.wait_idle()
        for _ in range(2):
            began_ns = time.monotonic_ns()
            for context in range(3):
                send(rig, context)
            rig.worker.collect(0, 1, 2)
            assert rig.worker.seen[-1].timing.taken_ns - began_ns >= 500_000_000
            rig.worker.answers.clear()
    assert rig.batches == [(3, 3)] * 2


def test_what_waits_is_run_when_the_model_is_closed() -> None:
    rig = Rig(DOUBLE, delay_ns=60 * 10**9, enough_rows=8)
    with rig.running():
        rig.wait_idle()
        send(rig, "a", 2)
        rig.supertensor.close()
        rig.worker.collect("a")
    assert rig.batches == [(2, 1)]


@pytest.mark.parametrize("executors", [1, 2])
def test_no_request_is_forgotten_whatever_comes_when(executors: int) -> None:
    rng = np.random.default_rng(3)
    rig = Rig(DOUBLE, capacity=8, executors=executors, delay_ns=1_000_000, enough_rows=5)
    with rig.running():
        for context, pause_ms in enumerate(rng.integers(0, 3, 200)):
            wait_until(lambda: rig.supertensor.occupancy().in_flight < 7)  # which a busy machine takes its time for
            send(rig, context, int(rng.integers(1, 8)))
            if pause_ms:
                time.sleep(pause_ms / 1e3)
        rig.worker.collect(*range(200))
    assert len(rig.batches) < 200
