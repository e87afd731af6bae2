"""Groups of requests on many threads at once: each request gets one outcome, its own, and nothing is left behind."""

from __future__ import annotations

import queue
import random
import threading
from contextlib import ExitStack
from typing import Any

import numpy as np
import numpy.testing as npt
import pytest

from tests.backends.ensemble.made import ensemble_of
from tests.backends.ensemble.members import adding
from tests.engine.test_calls import Adding
from tests.ensembles import pbtxt, step
from toutates.engine.result import BatchResult
from toutates.engine.servable import Consumer
from toutates.models.table import Need
from toutates.system.errors import ExecutionFailed, ModelNotReady, Overloaded

#: OUT = 2 * IN + 3 * IN, by two branches that end at about the same time; IN below zero fails in both.
DIAMOND = pbtxt(
    ["IN FP32 [-1]"],
    ["OUT FP32 [-1]"],
    [
        step("left", "a=IN", "b=IN", "y=l"),
        step("right", "a=IN", "b=IN", "y=r2"),
        step("left", "a=r2", "b=IN", "y=r"),
        step("right", "a=l", "b=r", "y=OUT"),
    ],
    scheduling="max_inflight_requests: MOST",
)


class Client:
    """One consumer: sends rounds of requests, and checks their outcomes."""

    def __init__(self, ensemble: Any, seed: int) -> None:
        self.refused = self.answered = 0
        self.wrong: list[object] = []
        self._random = random.Random(seed)
        self._results: queue.SimpleQueue[BatchResult] = queue.SimpleQueue()
        self._rounds: list[Any] = []
        consumer = Consumer(self._results.put, self._results.put, self._rounds.append)
        self._port = ensemble.port(consumer)
        self._way = self._port.way(((0, (4,)),), (0,))

    def run(self) -> None:
        for _ in range(60):
            sent: dict[int, Any] = {}
            for number in range(self._random.randint(1, 12)):
                value = -1.0 if self._random.random() < 0.05 else float(self._random.randint(0, 99))
                rows = np.full((self._random.choice((1, 1, 2, 11)), 4), value, np.float32)
                try:
                    self._port.add_packed(self._way, len(rows), number, rows.tobytes(), (0, rows.nbytes))
                    sent[number] = rows
                except Overloaded:
                    self.refused += 1
            self._port.commit()
            while sent:
                self._check(self._results.get(timeout=120), sent)

    def _check(self, result: BatchResult, sent: dict[int, Any]) -> None:
        outputs = result.outputs
        for context, first, count, _ in result.pending:
            rows = sent.pop(context, None)
            if rows is None or count != len(rows):
                self.wrong.append("an outcome for nobody")
            elif outputs is not None:
                got = np.frombuffer(outputs.rows(0, first, count, batched=True), np.float32).reshape(count, 4)
                if (got != 5 * rows).any():
                    self.wrong.append((got, rows))
                self.answered += 1
            elif isinstance(result.error, ExecutionFailed) and rows[0, 0] < 0:
                self.refused += 1
            elif not isinstance(result.error, Overloaded | ModelNotReady):
                self.wrong.append(result.error)


@pytest.mark.parametrize("max_inflight", [0, 3])
@pytest.mark.parametrize("quick_ns", [0, 10**12], ids=["threads", "inline"])
def test_each_request_gets_one_outcome_its_own_and_nothing_is_left(quick_ns: int, max_inflight: int) -> None:
    ensemble = ensemble_of(DIAMOND.replace("MOST", str(max_inflight)), rows=400)
    clients = [Client(ensemble, seed) for seed in range(4)]
    with ExitStack() as stack:
        generations = [
            {
                Need(name, None): stack.enter_context(
                    adding(name, [Adding(), Adding()], batch_size=8, capacity=64, quick_ns=quick_ns)
                )
                for name in ("left", "right")
            }
            for _ in range(2)
        ]
        ensemble.bind(generations[0])
        threads = [threading.Thread(target=client.run) for client in clients]
        for thread in threads:
            thread.start()
        number = 0
        while any(thread.is_alive() for thread in threads):
            number += 1
            ensemble.bind(generations[number % 2])
            threads[0].join(0.005)
        for thread in threads:
            thread.join()
        state = ensemble.state
        assert (state.groups, state.rows, state.memory_bytes) == (0, 0, 0)
        assert state.binding is not None
        assert state.binding.groups == 0
        ensemble.bind(None)
        freed = [threading.Event() for _ in range(4)]
        for version, event in zip([one for made in generations for one in made.values()], freed, strict=True):
            version.calls.close(event.set)
        assert all(event.is_set() for event in freed)
    assert not [client.wrong for client in clients if client.wrong]
    answered = sum(client.answered for client in clients)
    assert answered > 500
    statistics = ensemble.statistics()
    assert sum(one.count for one in statistics.batches.values()) == answered
    npt.assert_equal(statistics.occupancy.in_flight, 0)
