"""Batches that wait for more rows, because the model asks for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from tests.engine.support import DOUBLE, wait_until
from toutates.backends.onnx.session import ModelSession
from toutates.backends.onnx.signature_reader import read_signature
from toutates.engine.executor import Executor
from toutates.engine.lane import PackedLane
from toutates.engine.result import BatchResult
from toutates.engine.servable import Consumer
from toutates.engine.submitter import Submitter
from toutates.engine.supertensor import SuperTensor
from toutates.models.config.settings import ModelSettings

ROW = np.ones(4, np.float32).tobytes()


class Model:
    """A SuperTensor that doubles, with executors, and one worker's way into it."""

    def __init__(self, delay_ms: float, enough_rows: int, executors: int) -> None:
        from pathlib import Path

        import onnxruntime

        sessions = [onnxruntime.InferenceSession(DOUBLE) for _ in range(executors)]
        signature = read_signature(sessions[0], ModelSettings(), source=Path("config.yaml"))
        self.supertensor = SuperTensor(
            "m", signature, batch_size=8, capacity=8, delay_ns=int(delay_ms * 1e6), enough_rows=enough_rows
        )
        self.batches: list[tuple[int, float]] = []
        self.results: list[BatchResult] = []
        self.threads = [
            threading.Thread(
                target=Executor(
                    self.supertensor, ModelSession(session, signature, "m", number), on_batch=self._note
                ).run
            )
            for number, session in enumerate(sessions)
        ]
        for thread in self.threads:
            thread.start()
        self._rounds: list[Any] = []
        self.submitter = Submitter(
            self.supertensor, Consumer(self.results.append, self.results.append, self._rounds.append)
        )
        lane = self.supertensor.lane(((0, (4,)),))
        assert isinstance(lane, PackedLane)
        self.writer = self.submitter.writer(lane)

    def _note(self, rows: int, requests: int, timing: Any) -> None:
        self.batches.append((rows, time.monotonic()))

    def send(self, rows: int = 1) -> None:
        """One request, in a round of its own."""
        self.submitter.add_packed(self.writer, rows, "context", ROW * rows, [0, 16 * rows])
        while self._rounds:
            self._rounds.pop()()


@contextmanager
def model(delay_ms: float, enough_rows: int = 8, executors: int = 1) -> Iterator[Model]:
    one = Model(delay_ms, enough_rows, executors)
    try:
        wait_until(lambda: one.supertensor.occupancy().idle_executors == executors)
        yield one
    finally:
        one.supertensor.close(workers_ended=True)
        for thread in one.threads:
            thread.join(20)
            assert not thread.is_alive()


@pytest.mark.parametrize("executors", [1, 3])
def test_requests_of_several_rounds_run_together_when_the_delay_is_over(executors: int) -> None:
    with model(300, executors=executors) as one:
        for _ in range(5):
            began = time.monotonic()
            one.batches.clear()
            for _ in range(3):
                one.send()
            wait_until(lambda: bool(one.batches))
            assert one.batches[0][0] == 3
            assert 0.28 < one.batches[0][1] - began < 5


def test_a_batch_that_has_enough_rows_does_not_wait() -> None:
    with model(60_000, enough_rows=4) as one:
        one.send(3)
        time.sleep(0.05)
        assert not one.batches
        one.send()
        wait_until(lambda: bool(one.batches))
        assert one.batches[0][0] == 4


def test_a_full_batch_does_not_wait() -> None:
    with model(60_000) as one:
        one.send(8)
        wait_until(lambda: bool(one.batches))
        assert one.batches[0][0] == 8


def test_what_waits_is_run_when_the_model_is_closed() -> None:
    with model(60_000) as one:
        one.send(2)
        one.supertensor.close()
        wait_until(lambda: bool(one.results))
        assert one.batches[0][0] == 2


@pytest.mark.parametrize("executors", [1, 2])
def test_no_request_is_forgotten_whatever_comes_when(executors: int) -> None:
    rng = np.random.default_rng(3)
    with model(2, enough_rows=5, executors=executors) as one:
        sent = 0
        for pause_ms in rng.integers(0, 5, 400):
            rows = int(rng.integers(1, 8))
            wait_until(lambda: one.supertensor.occupancy().in_flight < 7)  # which a busy machine takes its time for
            one.send(rows)
            sent += rows
            if pause_ms:
                time.sleep(pause_ms / 1e3)
        wait_until(lambda: sum(rows for rows, _ in one.batches) == sent)
        assert len(one.batches) < 400


def test_rows_alone_wait_no_longer_than_the_delay() -> None:
    with model(20) as one:
        waits = []
        for _ in range(20):
            one.batches.clear()
            began = time.monotonic()
            one.send()
            wait_until(lambda: bool(one.batches))
            waits.append(one.batches[0][1] - began)
        assert min(waits) >= 0.019
        assert sorted(waits)[10] < 0.2
