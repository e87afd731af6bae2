"""A servable with sequences over a backend that is made up: failures of rows, bounds, callers that leave, the end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pytest

from tests.engine.hosting import running
from tests.signatures import signature, spec
from tests.waiting import DEADLINES_S, wait_until
from toutates.engine.batched import BatchedServable
from toutates.engine.result import BatchResult, Outputs
from toutates.engine.sequences.rules import SequenceRules
from toutates.engine.sequences.servable import SequenceBounds, SequenceServable
from toutates.engine.sequences.tensors import Control, ControlKind, RowStates, SequenceTensors, State
from toutates.engine.servable import Consumer, Host, RequestAbout
from toutates.engine.supertensor import SuperTensor
from toutates.system.errors import (
    Cancelled,
    ExecutionFailed,
    ModelNotReady,
    Overloaded,
    RequestError,
    TooLate,
    Unavailable,
)

X, READY, Y = (spec(name, "FP32", [1]) for name in ("x", "ready", "y"))
PAST, NEXT = (spec(name, "FP32", [-1]) for name in ("past", "next"))
ZERO, ONE = np.float32(0).tobytes(), np.float32(1).tobytes()
TENSORS: Final = SequenceTensors(
    signature([X], [Y]),
    signature([X, READY, PAST], [Y, NEXT]),
    (Control(1, ControlKind.READY, X.datatype, ZERO, ONE),),
    (State(2, 1),),
    RowStates(((1,),), (bytearray(ZERO),), 4),
)
DIRECT: Final = SequenceRules(instances=1, slots=4, batch_rows=4, by_slot=True, idle_ns=10**12)
OLDEST: Final = replace(DIRECT, by_slot=False)
HOST: Final = Host(take_cpus=lambda: (), anywhere=(), on_death=lambda: None, on_ready_change=lambda: None)


class Summing:
    """A backend: y = x + past where ready, and next = y. It fails where an x is negative, and waits for ``may_run``.

    Attributes:
        next_values: how many numbers ``next`` has, all of them y.
        outputs: makes the outputs of a run.
    """

    on_cpu = one_thread = True

    def __init__(self) -> None:
        self.started_ns = self.ended_ns = 0
        self.may_run = threading.Event()
        self.may_run.set()
        self.is_running = threading.Event()
        self.sizes: list[int] = []
        self.next_values = 1
        self.outputs: Callable[..., Outputs] = Outputs

    def run(self, batch: Any, first: int, rows: int) -> Outputs:
        """See ``Backend``."""
        self.started_ns = time.monotonic_ns()
        self.is_running.set()
        assert self.may_run.wait(120)
        self.is_running.clear()
        given: dict[int, Any] = {**batch.lane.inputs(batch, first, rows)}
        x, ready, past = (given[index] for index in range(3))
        self.sizes.append(rows)
        self.ended_ns = time.monotonic_ns()
        if (x < 0).any():
            raise ExecutionFailed("below zero")
        y = ((x + past[:, :1]) * ready).astype(np.float32)
        after = y.repeat(self.next_values, axis=1)
        return self.outputs((y.tobytes(), after.tobytes()), (4, 4 * self.next_values), ((1,), (self.next_values,)))

    def close(self) -> None:
        """See ``Backend``."""


@dataclass(eq=False)
class Caller:
    """A request's context."""

    about: RequestAbout
    wanted: bool = True
    answer: float | RequestError | None = None


class Scene:
    """A model with sequences and one consumer, whose requests go out with ``commit``."""

    def __init__(self, servable: SequenceServable, backend: Summing) -> None:
        self.servable, self.backend = servable, backend
        self.port = servable.port(
            Consumer(self._finish, self._finish, lambda callback: None, lambda caller, by_ns: caller.wanted,
                     about=lambda caller: caller.about)
        )  # fmt: skip
        self.way = self.port.way(((0, (1,)),))

    def add(self, identifier: int, x: float, flags: str = "", timeout: int = 0) -> Caller:
        said: dict[str, Any] = {"sequence_id": identifier, "sequence_start": "S" in flags, "sequence_end": "E" in flags}
        caller = Caller(RequestAbout(parameters={**said, "timeout": timeout}))
        self.port.add_packed(self.way, 1, caller, np.float32(x).tobytes(), (0, 4))
        return caller

    def ask(self, identifier: int, x: float, flags: str = "") -> float | RequestError:
        answer: float | RequestError = self.answers(self.add(identifier, x, flags))[0]
        return answer

    def answers(self, *callers: Caller) -> list[Any]:
        self.port.commit(inline=False)
        wait_until(lambda: all(caller.answer is not None for caller in callers))
        return [caller.answer for caller in callers]

    @contextmanager
    def holding(self) -> Iterator[None]:
        """While runs wait for the end of the block."""
        self.backend.may_run.clear()
        try:
            yield
        finally:
            self.backend.may_run.set()

    def _finish(self, result: BatchResult) -> None:
        outputs = result.outputs
        for caller, first, rows, part in result.pending:
            assert (rows, part) == (1, None)
            if outputs is None:
                caller.answer = result.error
            else:
                caller.answer = float(np.frombuffer(outputs.rows(0, first, 1, batched=True), np.float32)[0])


BOUNDS: Final = SequenceBounds(100, 10_000, 10_000)


@contextmanager
def serving(
    rules: SequenceRules = DIRECT, bounds: SequenceBounds = BOUNDS, tensors: SequenceTensors = TENSORS
) -> Iterator[Scene]:
    backend = Summing()
    # Runs that wait for the test are never the test's own thread's.
    supertensor = SuperTensor("m", tensors.whole, batch_size=4, capacity=2, grows=False, quick_ns=0)
    instance = BatchedServable(1, supertensor, [backend])
    servable = SequenceServable("m", 1, tensors, rules, [instance], bounds)
    with running(servable, HOST):
        try:
            yield Scene(servable, backend)
        finally:
            backend.may_run.set()


@pytest.mark.parametrize("rules", [DIRECT, OLDEST], ids=["direct", "oldest"])
def test_sequences_of_a_batch_get_their_own_states(rules: SequenceRules) -> None:
    with serving(rules) as scene:
        callers = [scene.add(identifier, identifier, "S") for identifier in (1, 2, 3)]
        assert scene.answers(*callers) == [1, 2, 3]
        callers = [scene.add(identifier, 10, "E") for identifier in (3, 1)]
        assert scene.answers(*callers) == [13, 11]
        assert scene.backend.sizes == ([3, 3] if rules.by_slot else [3, 2])
        counted = scene.servable.statistics()
        assert (sum(rows * one.count for rows, one in counted.batches.items()), counted.occupancy.waiting) == (
            sum(scene.backend.sizes),
            0,
        )


@pytest.mark.parametrize("rules", [DIRECT, OLDEST], ids=["direct", "oldest"])
def test_only_the_request_that_fails_fails_and_its_state_stays(rules: SequenceRules) -> None:
    with serving(rules) as scene:
        scene.answers(*(scene.add(identifier, 5, "S") for identifier in (1, 2, 3)))
        answers = scene.answers(scene.add(1, 1), scene.add(2, -1), scene.add(3, 1))
        assert answers[::2] == [6, 6]
        assert isinstance(answers[1], ExecutionFailed)
        assert [scene.ask(identifier, 1, "E") for identifier in (1, 2, 3)] == [7, 6, 7]


def test_what_waits_is_bounded_by_requests_and_bytes() -> None:
    for bounds in (SequenceBounds(2, 10_000, 10_000), SequenceBounds(100, 12, 10_000)):
        with serving(bounds=bounds) as scene:
            with scene.holding():
                callers = [scene.add(1, 1, "S")]
                scene.port.commit(inline=False)
                assert scene.backend.is_running.wait(120)
                callers += [scene.add(1, 1), scene.add(1, 1)]
                with pytest.raises(Overloaded, match="2 requests of sequences wait"):
                    scene.add(1, 1)
            assert scene.answers(*callers) == [1, 2, 3]
            assert scene.ask(1, 1, "E") == 4


def test_no_sequence_begins_while_states_take_too_much() -> None:
    with serving(bounds=SequenceBounds(100, 10_000, 4)) as scene:
        scene.answers(scene.add(1, 1, "S"), scene.add(2, 1, "S"))
        with pytest.raises(Overloaded, match="the states of 2 sequences take 8 bytes, and may take 4"):
            scene.add(3, 1, "S")
        scene.ask(1, 1, "E")
        assert scene.ask(3, 1, "SE") == 1


def test_a_sequence_whose_state_grows_beyond_the_bound_ends() -> None:
    with serving(bounds=SequenceBounds(100, 10_000, 12)) as scene:
        scene.answers(scene.add(1, 1, "S"), scene.add(2, 1, "S"))
        scene.backend.next_values = 3
        with scene.holding():
            first, behind = scene.add(1, 1), scene.add(1, 1)
            scene.port.commit(inline=False)
        answers = scene.answers(first, behind)
        assert answers[0] == 2
        assert isinstance(answers[1], Overloaded)
        assert "states take 4 bytes" in scene.servable.describe(1)[0]
        with pytest.raises(RequestError, match="must specify the START flag"):
            scene.add(1, 1)


class NoMemory(Outputs):
    """Outputs whose states cannot be copied."""

    def rows(self, index: int, *given: Any, **more: Any) -> Any:
        if index == 1:
            raise MemoryError
        return super().rows(index, *given, **more)


def test_states_that_cannot_be_kept_fail_their_batch_and_leave_the_instance_free(
    caplog: pytest.LogCaptureFixture,
) -> None:
    states = RowStates(((1,),), (bytearray(ZERO),), 4)
    with serving(tensors=replace(TENSORS, initial=states)) as scene:
        scene.ask(1, 1, "S")
        scene.backend.outputs = NoMemory
        assert isinstance(scene.ask(1, 1), ExecutionFailed)
        scene.backend.outputs = Outputs
        states.contents = (None,)  # type: ignore[assignment]  # what a batch cannot be made of
        assert isinstance(scene.ask(2, 1, "S"), ExecutionFailed)
        assert scene.ask(1, 1, "E") == 2
    assert len([record for record in caplog.records if record.exc_info]) == 2


def test_a_caller_that_leaves_ends_its_sequence_and_the_requests_behind_it() -> None:
    with serving() as scene:
        scene.ask(1, 1, "S")
        with scene.holding():
            first = scene.add(2, 1, "S")
            scene.port.commit(inline=False)
            assert scene.backend.is_running.wait(120)
            left, behind = scene.add(1, 1), scene.add(1, 1)
            left.wanted = False
        assert scene.answers(first) == [1]
        told_left, told_behind = scene.answers(left, behind)
        assert isinstance(told_left, TooLate)
        assert isinstance(told_behind, Cancelled)
        assert "the caller of the request before this one does not wait any more" in str(told_behind)
        with pytest.raises(RequestError, match="must specify the START flag"):
            scene.add(1, 1)
        assert scene.ask(1, 1, "SE") == 1


def test_a_request_in_the_backlog_hears_that_its_time_is_over() -> None:
    with serving(replace(DIRECT, slots=1, batch_rows=1)) as scene:
        scene.ask(1, 1, "S")
        for deadline_s in (0.001, *DEADLINES_S):
            callers = [scene.add(2, 1, "S", timeout=round(deadline_s * 1e6))]
            with suppress(RequestError):  # its time was over before there was one behind it
                callers.append(scene.add(2, 1))
                break
            scene.answers(*callers)
        assert len(callers) == 2
        for answer in scene.answers(*callers):
            assert isinstance(answer, Unavailable)
            assert str(answer) == "timeout of the corresponding sequence has been expired"


def test_an_idle_sequence_leaves_no_state() -> None:
    with serving(replace(DIRECT, idle_ns=1_000_000)) as scene:
        scene.ask(1, 1, "S")
        wait_until(lambda: scene.servable.describe(1)[0].startswith("0 sequences"))
        assert "states take 0 bytes" in scene.servable.describe(1)[0]


def test_a_batch_waits_for_company_as_long_as_it_may() -> None:
    with serving(replace(OLDEST, delay_ns=10**13, enough_rows=2)) as scene:
        first = scene.add(1, 1, "S")
        scene.port.commit()
        assert first.answer is None
        assert scene.answers(first, scene.add(2, 1, "S")) == [1, 1]
    with serving(replace(OLDEST, delay_ns=1_000_000, enough_rows=2)) as scene:
        assert scene.ask(1, 1, "S") == 1  # nobody else came


def test_closing_answers_what_has_a_slot_and_refuses_the_rest() -> None:
    with serving(replace(DIRECT, slots=1, batch_rows=1)) as scene:
        scene.ask(1, 1, "S")
        with scene.holding():
            callers = [scene.add(1, 1), scene.add(1, 1)]
            scene.port.commit(inline=False)
            backlog = scene.add(2, 1, "S")
            scene.servable.close()
            with pytest.raises(Unavailable, match="Server is stopping"):
                scene.add(3, 1, "S")
        assert scene.answers(*callers) == [2, 3]
        assert isinstance(backlog.answer, ModelNotReady)
