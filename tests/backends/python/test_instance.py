"""An instance whose process is another one than it should be: nothing raises, and no request runs twice."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from tests.signatures import signature, spec
from tests.waiting import wait_until
from toutates.backends.python.arena import Arena
from toutates.backends.python.instance import Limits, PythonInstance
from toutates.backends.python.process import ProcessEnded
from toutates.engine.lane import PackedLane
from toutates.engine.result import Separate
from toutates.engine.servable import Consumer
from toutates.system.errors import ExecutionFailed

SIGNATURE = signature([spec("x", "FP32", [4])], [spec("y", "FP32", [-1])])


class Process:
    """Answers every batch with the same."""

    alive = True
    on_exit: Any = None

    def __init__(self, says: Any) -> None:
        self.says = says
        self.asked = 0

    def tell(self, *_: Any) -> None:
        pass

    def ask(self, *_: Any) -> bytes:
        self.asked += 1
        if isinstance(self.says, Exception):
            raise self.says
        return b"x"

    def parsed(self, data: bytes) -> Any:
        return self.says

    def check(self) -> None:
        pass

    def kill(self) -> None:
        self.alive = False


PLACE = ["FP32", [1, 4], 0, 16]


def run(process: Any, following: Any) -> tuple[PythonInstance, Separate]:
    """An instance with a process, and another one after it; and what it makes of two requests."""
    arena = Arena(1 << 20)
    instance = PythonInstance("m_0", SIGNATURE, "m", arena, process, lambda: following, Limits())
    instance.ports = [Consumer(lambda result: None, lambda result: None, lambda callback: None)]
    lane = PackedLane(SIGNATURE, ((0, (4,)),), 8, allocate=arena.allocate)
    batch = lane.new_batch(1, 8)
    batch.arrays[0][:] = np.zeros((8, 4), np.float32)
    batch.rows = 2
    batch.pending[0] += [("a", 0, 1, None), ("b", 1, 1, None)]
    outcome = instance.run(batch, 0, 2)
    assert isinstance(outcome, Separate)
    return instance, outcome


@pytest.mark.parametrize("when", ["tell", "ask"])
@pytest.mark.parametrize("untouched", [True, False])
def test_a_batch_that_a_process_has_not_read_goes_to_the_next_one(when: str, untouched: bool) -> None:
    class Dying(Process):
        def die(self, *_: Any) -> bytes:
            self.kill()
            ended = ProcessEnded("it has ended with status 3")
            ended.untouched = untouched
            raise ended

    first, second = Dying({}), Process({"requests": [{"error": [1, "from the second"]}] * 2})
    setattr(first, when, first.die)
    instance, outcome = run(first, second)
    said = {str(error) for _, _, error in outcome.outcomes}
    if untouched:
        assert said == {"from the second"}
        assert (second.asked, instance.alive) == (1, True)
    else:
        assert len(said) == 1
        assert "it has ended with status 3" in said.pop()
        assert second.asked == 0
        wait_until(lambda: instance.alive)  # nobody asks for it


@pytest.mark.parametrize(
    ("says", "text"),
    [
        ({}, "no answer for each request"),
        ({"requests": "all"}, "no answer for each request"),
        ({"requests": [{}]}, "no answer for each request"),
        ({"requests": [3, None]}, "no answer"),
        ({"requests": [{"outputs": {"0": PLACE}}] * 2}, "output 'y' outside of its memory"),
        ({"requests": [{"outputs": {"0": ["FP32", [1, -4], 0, 16]}}] * 2}, "in no known form"),
        ({"requests": [{"outputs": {"0": ["FP32", [1, 4], -16, 16]}}] * 2}, "outside of its memory"),
        ({"requests": [{"outputs": {"0": ["FP32", [1, 4], "a", 16]}}] * 2}, "outside of its memory"),
        ({"requests": [{"outputs": {"0": ["FP32", [1, 2**62], 0, 2**64]}}] * 2}, "outside of its memory"),
        ({"requests": [{"outputs": {"0": ["INT64", [1, 2], 0, 16]}}] * 2}, "expected FP32"),
        ({"requests": [{"outputs": {"y": PLACE}}] * 2}, "no output 'y'"),
        ({"requests": [{"error": [99, "text"]}] * 2}, "text"),
        (RuntimeError("a bug"), "running the batch failed: RuntimeError"),
    ],
    ids=str,
)
def test_whatever_a_process_says_is_checked(says: Any, text: str) -> None:
    process: Any = Process(says)
    instance, outcome = run(process, process)
    assert [request[0] for _, request, _ in outcome.outcomes] == ["a", "b"]
    for _, _, error in outcome.outcomes:
        assert isinstance(error, Exception)
        assert text in str(error)
        assert isinstance(error, ExecutionFailed) or text == "text"
    assert process.asked == 1
    assert instance.started_ns <= instance.ended_ns <= time.monotonic_ns()
