"""Workers and executors in threads, all at once: every answer is the right one, whatever shared its batch.

On free-threaded Python this is what shows a list, a view or a counter that two threads must not share. To be sure of a
change, run it many times: ``for i in $(seq 50); do python -m pytest tests/engine/test_stress.py || break; done``.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections import deque
from queue import Empty
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from tests.engine.rig import Rig
from tests.engine.workers import TestWorker
from tests.graphs import model, tensor
from tests.waiting import PATIENCE_S, wait_until
from toutates.system.errors import ExecutionFailed, Overloaded, TooLate

REQUESTS = 1_500  # of each worker
#: The longest makes outputs that are handed over in ONNX Runtime's own memory, and sliced by several workers.
LENGTHS = (1, 3, 16, 700, 3_000)


def arithmetic(length: str | int) -> bytes:
    """y = x + x, and z = table[x[:, :1]] of a table of one entry per index below 1000, beyond which the run fails."""
    nodes = [
        helper.make_node("Add", ["x", "x"], ["y"]),
        helper.make_node("Gather", ["table", "index"], ["z"]),
    ]
    inputs = [tensor("x", ["n", length]), tensor("index", ["n", 1], TensorProto.INT64)]
    outputs = [tensor("y", ["n", length]), tensor("z", ["n", 1])]
    return model(nodes, inputs, outputs, table=np.arange(1_000, dtype=np.float32))


def texts() -> bytes:
    """y = x + x, and the text that came with it."""
    nodes = [helper.make_node("Add", ["x", "x"], ["y"]), helper.make_node("Identity", ["text"], ["same"])]
    inputs = [tensor("x", ["n", "length"]), tensor("text", ["n", 1], TensorProto.STRING)]
    outputs = [tensor("y", ["n", "length"]), tensor("same", ["n", 1], TensorProto.STRING)]
    return model(nodes, inputs, outputs)


class Client:
    """One worker's thread: adds random requests in random rounds, and checks each answer."""

    def __init__(self, rig: Rig, worker: TestWorker, kind: str, seed: int) -> None:
        self.rig, self.worker, self.kind = rig, worker, kind
        self.random = random.Random(seed)
        self.waiting: dict[Any, tuple[Any, bool]] = {}
        self.counts = {"answered": 0, "failed": 0, "cancelled": 0, "overloaded": 0}
        #: answers that are kept for a while, as responses that a client reads slowly
        self.slow: deque[Any] = deque(maxlen=20)
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            sent = 0
            while sent < REQUESTS:
                for _ in range(self.random.randrange(1, 12)):
                    self.send(sent)
                    sent += 1
                self.worker.end_round()
                self.receive(most_waiting=40)
            self.receive(most_waiting=0)
        except BaseException as error:
            self.error = error

    def send(self, number: int) -> None:
        context = (self.worker.number, number)
        rows = self.random.choice([0, 1, 1, 1, 2, 3, 5, 13])
        length = 16 if self.kind == "known" else self.random.choice(LENGTHS)
        # Whole numbers that single precision holds exactly, different for every request.
        x = np.arange(rows * length, dtype=np.float32).reshape(rows, length) + number
        fails = False
        other: Any
        if self.kind == "texts":
            other = np.array([f"{context} {row}".encode() for row in range(rows)], object).reshape(rows, 1)
        else:
            other = np.full((rows, 1), number % 1_000, np.int64)
            fails = rows > 0 and self.random.random() < 0.01
            other[:1] = 5_000 if fails else other[:1]
        lane = self.rig.lane((length,), (1,))
        if self.random.random() < 0.05:
            self.rig.unwanted.add(context)
        while True:
            try:
                self.worker.add(context, lane, x, other)
                break
            except Overloaded:
                self.counts["overloaded"] += 1
                self.worker.end_round()
                self.receive(most_waiting=max(0, len(self.waiting) - 1))
                time.sleep(0)
        self.waiting[context] = (x, other), fails

    def receive(self, most_waiting: int) -> None:
        while len(self.waiting) > most_waiting:
            self.take(PATIENCE_S)
        try:
            while True:
                self.take(0)
        except Empty:
            pass

    def take(self, timeout: float) -> None:
        result = self.worker.results.get(timeout=timeout) if timeout else self.worker.results.get_nowait()
        self.worker.take(result)
        for context, error in self.worker.errors.items():
            if context in self.waiting:  # of a split request every part may fail
                _, fails = self.waiting.pop(context)
                assert isinstance(error, (ExecutionFailed, TooLate))  # of all that share its batch one may wait
                assert fails or context in self.rig.unwanted, error
                self.counts["failed" if fails else "cancelled"] += 1
        for context, answer in self.worker.answers.items():
            expected, fails = self.waiting.pop(context)
            assert not fails
            self.check(expected, answer)
            self.slow.append((expected, answer))
            self.counts["answered"] += 1
        self.worker.answers.clear()
        self.worker.seen.clear()
        if self.slow and self.random.random() < 0.1:
            self.check(*self.slow[0])

    @staticmethod
    def check(sent: Any, answer: Any) -> None:
        x, other = sent
        y, second = answer
        assert np.array_equal(y, x + x)
        assert np.array_equal(second, other)


@pytest.mark.parametrize("kind", ["known", "dynamic", "texts"])
def test_every_answer_is_right_with_many_workers_executors_shapes_and_failures(kind: str) -> None:
    content = texts() if kind == "texts" else arithmetic(16 if kind == "known" else "length")
    rig = Rig(content, batch_size=8, capacity=12, workers=3, executors=2)
    clients = [Client(rig, worker, kind, seed) for seed, worker in enumerate(rig.workers)]
    threads = [threading.Thread(target=client.run) for client in clients]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with rig.running():
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            for client in clients:
                if client.error is not None:
                    raise client.error
            wait_until(lambda: rig.supertensor.occupancy().in_flight == 0)
            rig.assert_empty()
            occupancy = rig.supertensor.occupancy()
            kept = list(rig.supertensor.lanes)
            assert occupancy.spare_bytes == sum(len(lane.spare) * lane.batch_bytes for lane in kept)
            assert all(batch.busy == 0 == batch.rows for lane in kept for batch in lane.spare)
    finally:
        sys.setswitchinterval(interval)
    counts = {name: sum(client.counts[name] for client in clients) for name in clients[0].counts}
    assert sum(counts.values()) - counts["overloaded"] >= 3 * REQUESTS
    assert counts["answered"] > 2 * REQUESTS
    assert counts["cancelled"] > 0
    if kind != "texts":
        assert counts["failed"] > 0
