"""Calls of a model from inside the server: arrays in, outputs out, from any thread."""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.testing as npt
import pytest

from tests.engine.hosting import running
from tests.engine.workers import inline_time
from tests.signatures import signature, spec
from tests.waiting import wait_until
from toutates.engine.batched import BatchedServable
from toutates.engine.calls import THREAD, Calls, ModelCall, Outcome
from toutates.engine.result import Outputs
from toutates.engine.servable import Host
from toutates.engine.supertensor import SuperTensor
from toutates.engine.tensor import Tensor
from toutates.protocol.strings import EncodedStrings
from toutates.system.errors import ExecutionFailed, InvalidRequest, ModelNotReady, RequestError

ADD = signature([spec("a", "FP32", [-1]), spec("b", "FP32", [-1], optional=True)], [spec("y", "FP32", [-1])])
TEXT = signature([spec("t", "BYTES", [2])], [spec("u", "BYTES", [2])])
HOST = Host(take_cpus=lambda: (), anywhere=(), on_death=lambda: None, on_ready_change=lambda: None)


class Adding:
    """A backend: y = a + b, or upper case of text."""

    on_cpu = one_thread = True

    def __init__(self) -> None:
        self.started_ns = self.ended_ns = 0

    def run(self, batch: Any, first: int, rows: int) -> Outputs:
        """See ``Backend``."""
        self.started_ns = time.monotonic_ns()
        given: dict[int, Any] = {**batch.lane.inputs(batch, first, rows)}
        if batch.lane.signature is TEXT:
            shouted = [element.upper() for element in given[0].elements()]
            self.ended_ns = time.monotonic_ns()
            return Outputs((EncodedStrings.of(shouted, (rows, 2)),), (0,), ((2,),))
        y = np.asarray(sum(given.values()), np.float32)
        if (y < 0).any():
            raise ExecutionFailed("below zero")
        self.ended_ns = time.monotonic_ns()
        return Outputs((y.tobytes(),), (4 * y.shape[1],), (y.shape[1:],))

    def close(self) -> None:
        """See ``Backend``."""


@contextmanager
def serving(tensors: Any = ADD, executors: int = 1, **settings: Any) -> Iterator[tuple[Calls, BatchedServable]]:
    """A model with its executors' threads."""
    settings = {"batch_size": 8, "capacity": 4, **settings}
    servable = BatchedServable(1, SuperTensor("m", tensors, **settings), [Adding() for _ in range(executors)])
    with running(servable, HOST):
        yield Calls("m", 1, servable), servable


def ask(calls: Calls, **inputs: Any) -> Any:
    """Call and wait for the output; raises the call's error."""
    outcomes: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
    calls.call(ModelCall(0, outcomes.put), {name: Tensor.of(np.asarray(value)) for name, value in inputs.items()})
    outcome = outcomes.get(timeout=120)
    if outcome.error is not None:
        raise outcome.error
    return outcome.tensor(0, calls.signature).array()


def rows(*values: Any) -> Any:
    return np.array(values, np.float32)


def test_arrays_go_in_and_come_out_and_are_counted_as_requests() -> None:
    with serving() as (calls, servable):
        npt.assert_array_equal(ask(calls, a=rows([1, 2]), b=rows([3, 4])), [[4, 6]])
        npt.assert_array_equal(ask(calls, a=rows([1, 2], [5, 6])), [[1, 2], [5, 6]])
        many = np.arange(40, dtype=np.float32).reshape(20, 2)
        npt.assert_array_equal(ask(calls, b=many, a=many), 2 * many)
        counted = servable.statistics().requests
        assert (counted.success, counted.rows) == (3, 23)


def test_strings_go_in_and_come_out_also_when_they_take_several_batches() -> None:
    with serving(TEXT) as (calls, _):
        npt.assert_array_equal(ask(calls, t=np.array([["a", "bé"]], object)), [[b"A", "bé".encode().upper()]])
        words = np.array([[f"w{i}", "x" * i] for i in range(20)], object)
        assert ask(calls, t=words).tolist() == [[a.upper().encode(), b.upper().encode()] for a, b in words.tolist()]


@pytest.mark.parametrize(
    ("inputs", "text"),
    [
        ({"b": rows([1])}, r"expected number of inputs between 1 and 2 but got 1 inputs for model 'm'"),
        ({"a": rows([1]), "z": rows([1])}, "unexpected inference input 'z' for model 'm'"),
        ({"a": np.array([[1.0]])}, "inference input 'a' data-type is 'FP64', but model 'm' expects 'FP32'"),
        ({"a": rows(1)}, r"unexpected shape for input 'a' for model 'm'. Expected \[-1,-1\], got \[1\]"),
        ({"a": rows([1]), "b": rows([1], [2])}, "input 'b' batch size does not match other inputs for 'm'"),
    ],
)
def test_what_does_not_fit_is_refused_in_tritons_words(inputs: dict[str, Any], text: str) -> None:
    with serving() as (calls, servable):
        with pytest.raises(InvalidRequest, match=text):
            ask(calls, **inputs)
        assert servable.statistics().requests.refused == 1


def test_errors_of_the_model_reach_the_caller_and_are_counted() -> None:
    with serving() as (calls, servable):
        with pytest.raises(ExecutionFailed, match="below zero"):
            ask(calls, a=rows([-1]))
        with pytest.raises(InvalidRequest, match="batch-size must be <= 32"):
            ask(calls, a=np.ones((8 * 4 + 1, 2), np.float32))
        counted = servable.statistics().requests
        assert (counted.fail, counted.broken, counted.refused) == (1, 1, 1)
    with pytest.raises(ModelNotReady):
        ask(calls, a=rows([1]))


def test_many_threads_call_at_once_and_get_their_own_answers() -> None:
    wrong: list[object] = []

    def call(number: int) -> None:
        for i in range(200):
            answer = ask(calls, a=rows([number, i]), b=rows([1, 1]))
            if answer.tolist() != [[number + 1, i + 1]]:
                wrong.append(answer)

    with serving(executors=2) as (calls, servable):
        threads = [threading.Thread(target=call, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong
        assert servable.statistics().requests.success == 8 * 200
        assert len(servable.supertensor.ports) <= 8 + 2


def test_a_call_out_of_an_outcome_is_no_deeper_on_the_stack_and_ends() -> None:
    done = threading.Event()
    depths: dict[int, list[int]] = {}  # by thread: the first outcomes may come on this one, which has pytest's frames

    def depth() -> int:
        frame: Any = sys._getframe()
        count = 0
        while frame is not None:
            frame, count = frame.f_back, count + 1
        return count

    def again(outcome: Outcome) -> None:
        depths.setdefault(threading.get_ident(), []).append(depth())
        value = outcome.tensor(0, calls.signature)
        if sum(map(len, depths.values())) == 200:
            done.set()
        else:
            calls.call(ModelCall(0, again), {"a": value, "b": Tensor.of(rows([1]))})

    with serving() as (calls, _):
        for _ in range(20):
            ask(calls, a=rows([1]))  # by now its runs are known to be quick
        calls.call(ModelCall(0, again), {"a": Tensor.of(rows([0]))})
        assert done.wait(120)
        assert all(max(seen) - min(seen) < 30 for seen in depths.values()), depths
        assert not THREAD._waiting


def test_calls_are_run_by_executors_where_the_round_has_no_time_left() -> None:
    def thread_of_a_run() -> threading.Thread:
        threads: queue.SimpleQueue[threading.Thread] = queue.SimpleQueue()
        calls.call(ModelCall(0, lambda outcome: threads.put(threading.current_thread())), {"a": Tensor.of(rows([1]))})
        return threads.get(timeout=120)

    with serving(quick_ns=2**61) as (calls, servable):

        def is_inline() -> bool:
            wait_until(lambda: servable.supertensor.occupancy().idle_executors)
            return thread_of_a_run() is threading.current_thread()

        is_inline()
        assert is_inline()
        with inline_time(0):
            assert not is_inline()
        with inline_time(1):
            assert is_inline()
            assert not is_inline()


def test_a_version_is_closed_only_once_nobody_holds_it() -> None:
    with serving() as (calls, _):
        free = threading.Event()
        assert calls.hold()
        assert calls.hold()
        calls.close(free.set)
        assert not calls.hold()
        calls.let_go()
        assert not free.is_set()
        calls.let_go()
        assert free.is_set()


def test_a_caller_who_has_left_is_not_answered_by_a_run() -> None:
    outcomes: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
    with serving() as (calls, servable):
        calls.call(ModelCall(0, outcomes.put, is_wanted=lambda by_ns: False), {"a": Tensor.of(rows([1]))})
        error = outcomes.get(timeout=120).error
        assert isinstance(error, RequestError)
        assert servable.statistics().requests.cancel == 1
        assert not servable.statistics().batches
