"""Ensembles while a member's run is held: bounds, deadlines, and members that are replaced meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.testing as npt
import pytest
from onnx import helper

from tests.e2e.control import EXPLICIT, client_of
from tests.e2e.held import Runs, running_held
from tests.e2e.process import ServerProcess
from tests.e2e.support import triton
from tests.e2e.test_ensemble_control import scaled
from tests.ensembles import add_graph
from tests.graphs import model, tensor
from tests.waiting import DEADLINES_S, wait_until

#: Four rows at once.
SMALL: Final = """
backend: ensemble
batch_size: 2
capacity: 2
inputs: {IN: {datatype: FP32, shape: [4]}}
outputs: {OUT: {datatype: FP32, shape: [4]}}
steps:
  - {model: slow, inputs: {x: IN}, outputs: {y: t}}
  - {model: after, inputs: {x: t}, outputs: {y: OUT}}
"""


def long_run() -> bytes:
    """y = 2 * x, in so many steps that no worker runs it itself: a worker that is held answers nobody."""
    names = ["x", *[f"h{at}" for at in range(22)], "y"]
    weights = ["first", *["identity"] * 21, "last"]
    nodes = [
        helper.make_node("MatMul", [source, weight], [target])
        for source, weight, target in zip(names[:-1], weights, names[1:], strict=True)
    ]
    first = 2 * np.eye(4, 512, dtype=np.float32)
    whole, last = np.eye(512, dtype=np.float32), np.eye(512, 4, dtype=np.float32)
    x, y = tensor("x", ["n", 4]), tensor("y", ["n", 4])
    return model(nodes, [x], [y], first=first, identity=whole, last=last)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("repository")
    add_graph(root, "slow", long_run())
    add_graph(root, "after", scaled(-1))
    (root / "pipe" / "1").mkdir(parents=True)
    (root / "pipe" / "1" / "config.yaml").write_text(SMALL)
    return root


@pytest.fixture(scope="module")
def held(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, Runs]]:
    flags = (*EXPLICIT, "--load-model", "pipe")
    with running_held(root, tmp_path_factory.mktemp("log"), flags) as (process, runs):
        yield process, runs
        assert process.stop() == 0
        assert "Traceback" not in process.log


@pytest.fixture
def client(held: tuple[ServerProcess, Runs]) -> Iterator[Any]:
    with client_of(held[0]) as one:
        yield one


class Calls:
    """Requests of one row under way, and what has come of them."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._left = threading.Semaphore(0)
        self.answers: list[tuple[Any, Any]] = []

    def send(self, value: float, timeout_s: float = 60) -> None:
        row = np.full((1, 4), value, np.float32)
        one = triton.InferInput("IN", [1, 4], "FP32")
        one.set_data_from_numpy(row)

        def done(result: Any, error: Any) -> None:
            self.answers.append((row, error if error is not None else result.as_numpy("OUT")))
            self._left.release()

        self._client.async_infer("pipe", [one], done, client_timeout=timeout_s)

    def wait(self, count: int) -> None:
        for _ in range(count):
            assert self._left.acquire(timeout=60)


def count_of(client: Any, model: str) -> Callable[[], int]:
    return lambda: int(client.get_inference_statistics(model).model_stats[0].inference_stats.success.count)


def test_above_its_bound_an_ensemble_refuses_at_once(held: tuple[ServerProcess, Runs], client: Any) -> None:
    calls = Calls(client)
    with held[1].held():
        begun = held[1].begun
        calls.send(1)
        held[1].wait_begun(begun + 1)
        for value in range(2, 9):
            calls.send(value)
        calls.wait(4)
        for _, error in calls.answers:
            assert error.status() == "StatusCode.RESOURCE_EXHAUSTED"
            assert "ensemble 'pipe' has 4 of at most 4 rows under way" in error.message()
    calls.wait(4)
    for row, got in calls.answers[4:]:
        npt.assert_array_equal(got, -2 * row)


def test_a_request_that_nobody_waits_for_goes_no_further(held: tuple[ServerProcess, Runs], client: Any) -> None:
    counted = count_of(client, "after")
    before = counted()
    calls = Calls(client)
    for deadline_s in DEADLINES_S:
        with held[1].held():
            begun = held[1].begun
            calls.send(1, timeout_s=deadline_s)
            calls.wait(1)
            assert calls.answers[-1][1].status() == "StatusCode.DEADLINE_EXCEEDED"
            reached_the_server = held[1].begun > begun
        if reached_the_server:
            break
    assert reached_the_server
    calls.send(2)
    calls.wait(1)
    wait_until(lambda: counted() == before + 1)


def test_a_request_under_way_keeps_the_members_that_it_began_with(
    held: tuple[ServerProcess, Runs], client: Any, root: Path
) -> None:
    calls = Calls(client)
    with held[1].held():
        begun = held[1].begun
        calls.send(1)
        held[1].wait_begun(begun + 1)
        add_graph(root, "after", scaled(-10))
        client.load_model("after")
        client.load_model("pipe")
    calls.wait(1)
    npt.assert_array_equal(calls.answers[0][1], [[-2] * 4])
    calls.send(1)
    calls.wait(1)
    npt.assert_array_equal(calls.answers[1][1], [[-20] * 4])
