"""Ensembles with decoupled steps: each response flows on by itself, in order, and what is under way is bounded."""

from __future__ import annotations

import queue
import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Final

import numpy as np
import pytest

from tests.backends.ensemble.made import ensemble_of
from tests.backends.ensemble.members import MANY, Asking, adding, answered
from tests.engine.test_calls import ADD, Adding
from tests.ensembles import Step, pbtxt, step
from tests.waiting import wait_until
from toutates.backends.ensemble import waves as module
from toutates.engine import open_request
from toutates.engine.calls import Calls, ModelCall, Outcome
from toutates.engine.tensor import Tensor
from toutates.models.table import Member, Need
from toutates.system.errors import InvalidRequest, TooLate

#: OUT = what "many" sends + IN.
CHAIN: Final = [step("many", "x=IN", "y=t"), step("add", "a=t", "b=IN", "y=OUT")]
#: OUT = what "more" sends + what "many" has sent, which goes into "more".
NESTED: Final = [step("many", "x=IN", "y=t"), step("more", "x=t", "y=u"), step("add", "a=u", "b=t", "y=OUT")]


def _chained(steps: Sequence[Step], outputs: Sequence[str] = ("OUT FP32 [-1]",), scheduling: str = "") -> str:
    return pbtxt(["IN FP32 [-1]"], outputs, steps, scheduling=scheduling)


class Gate(Adding):
    """Adds, and holds each run of a number until the test lets it go."""

    def __init__(self, held: set[float], changed: threading.Condition) -> None:
        super().__init__()
        self._held, self._changed = held, changed

    def run(self, batch: Any, first: int, rows: int) -> Any:
        """See ``Backend``."""
        value = float(np.asarray(batch.lane.inputs(batch, first, rows)[0]).flat[0])
        with self._changed:
            assert self._changed.wait_for(lambda: value not in self._held, 60)
        return super().run(batch, first, rows)


def send(request: Any, *values: float, final: bool = False) -> None:
    """Send responses of one number each; ``final`` is for the last of them."""
    for at, value in enumerate(values):
        request.send({"y": np.full((1, 2), value, np.float32)}, final=final and at == len(values) - 1)


class Ensemble:
    """An ensemble over the models "many" and "more", which the test answers, and "add"."""

    def __init__(self, stack: ExitStack, steps: Sequence[Step], more: str = "", bytes_: int = 2**20) -> None:
        self.many, self.more = Asking(), Asking()
        self.held: set[float] = set()
        self._changed = threading.Condition()
        self.servable = ensemble_of(_chained(steps, scheduling=more), memory_bytes=bytes_)
        gates = [Gate(self.held, self._changed) for _ in range(2)]
        members = {
            "add": stack.enter_context(adding("add", gates, batch_size=1, capacity=64, quick_ns=0)),
            "many": stack.enter_context(answered("many", self.many)),
            "more": stack.enter_context(answered("more", self.more)),
        }
        self.servable.bind({need: members[need.model] for need in self.servable.needs})
        self.calls = Calls("e", 1, self.servable)
        self.is_wanted = True

    def ask(self, value: float = 100.0) -> Answers:
        """Send a request of one number."""
        answers = Answers()
        call = ModelCall(0, answers.outcomes.put, is_wanted=lambda by_ns: self.is_wanted)
        self.calls.call(call, {"IN": Tensor.of(np.full((1, 2), value, np.float32))})
        return answers

    def let_go(self, *values: float) -> None:
        """Let runs of these numbers go on."""
        with self._changed:
            self.held.difference_update(values)
            self._changed.notify_all()

    @property
    def is_empty(self) -> bool:
        """Whether nothing is under way."""
        state = self.servable.state
        not_taken = self.many.bytes_not_taken + self.more.bytes_not_taken
        return (state.groups, state.rows, state.memory_bytes, not_taken) == (0, 0, 0, 0)


class Answers:
    """What becomes of a request."""

    def __init__(self) -> None:
        self.outcomes: queue.SimpleQueue[Outcome] = queue.SimpleQueue()

    def next(self) -> tuple[float | str | None, bool]:
        """The next response: its number, the text of its error, or None; and whether more may follow."""
        outcome = self.outcomes.get(timeout=120)
        if outcome.error is not None:
            return f"{type(outcome.error).__name__}: {outcome.error}", outcome.more
        return None if outcome.outputs is None else float(outcome.tensor(0, MANY).array()[0, 0]), outcome.more

    def rest(self) -> list[float | str | None]:
        """All that is left to come."""
        found = []
        more = True
        while more:
            value, more = self.next()
            found.append(value)
        assert self.outcomes.empty()
        return found


@contextmanager
def ensemble(steps: Sequence[Step] = CHAIN, **options: Any) -> Iterator[Ensemble]:
    with ExitStack() as stack:
        one = Ensemble(stack, steps, **options)
        yield one
        one.let_go(*one.held)
        wait_until(lambda: one.is_empty)
        one.servable.bind(None)


@pytest.mark.parametrize("more", ["", "max_inflight_requests: 1"])
def test_each_response_flows_on_and_the_last_one_says_so(more: str) -> None:
    with ensemble(more=more) as one:
        answers = one.ask()
        request = one.many.next()
        send(request, 1, 2)
        assert [answers.next(), answers.next()] == [(101, True), (102, True)]
        send(request, 3, final=True)
        assert answers.rest() == [103]
        answers = one.ask()
        one.many.next().end()
        assert answers.next() == (None, False)
        statistics = one.servable.statistics()
        assert statistics.responses[0].success == 1
        assert statistics.responses[0].empty == 1
        assert {size: counters.count for size, counters in statistics.batches.items()} == {1: 2}


def test_responses_keep_their_order_whichever_wave_is_done_first() -> None:
    with ensemble() as one:
        one.held.add(1)
        answers = one.ask()
        request = one.many.next()
        send(request, 1, 2, 3, final=True)
        wait_until(lambda: _added(one) == 2)
        assert answers.outcomes.empty()
        one.let_go(1)
        assert answers.rest() == [101, 102, 103]


def _added(one: Ensemble) -> int:
    """Requests that "add" has answered."""
    binding = one.servable.state.binding
    assert binding is not None
    [add] = [version for version in binding.members.values() if version.model == "add"]
    return add.servable.statistics().requests.success


def test_waves_of_waves_come_in_the_order_of_their_responses() -> None:
    with ensemble(NESTED) as one:
        answers = one.ask()
        request = one.many.next()
        send(request, 10, 20, 30, final=True)
        for values in ((1, 2), (), (3,)):
            inner = one.more.next()
            assert one.more.requests.empty()
            send(inner, *values)
            inner.end()
        # That nothing follows may be known before 33 is sent, or after.
        assert answers.rest() in ([11, 12, 33], [11, 12, 33, None])


def test_an_error_halfway_ends_the_request_after_the_responses_before_it() -> None:
    with ensemble() as one:
        one.held.update((1, 3))
        answers = one.ask(0)
        request = one.many.next()
        send(request, 1, -5, 3, 4)
        one.let_go(1)
        assert answers.rest() == [1, "ExecutionFailed: in ensemble 'e', below zero"]
        assert request.cancelled
        send(request, 9, final=True)
        one.let_go(3)
        answers = one.ask()
        request = one.many.next()
        send(request, 1)
        request.fail(InvalidRequest("not this"), final=False)
        assert answers.rest() == [101, "InvalidRequest: in ensemble 'e', not this"]
        send(request, 2, final=True)


def test_a_response_without_outputs_fails_the_step_that_needs_them_and_is_empty_where_none_does() -> None:
    with ensemble() as one:
        answers = one.ask()
        one.many.next().send({}, final=True)
        [said] = answers.rest()
        assert "in ensemble 'e'" in str(said)
        assert "'add'" in str(said)
    with ensemble([step("many", "x=IN", "y=OUT")]) as one:
        answers = one.ask()
        request = one.many.next()
        request.send({})
        send(request, 5, final=True)
        outcome = answers.outcomes.get(timeout=120)
        assert outcome.outputs is not None
        assert list(outcome.outputs.missing) == [0]
        assert answers.rest() == [5]


def test_an_error_in_a_wave_between_two_decoupled_steps_ends_the_request() -> None:
    with ensemble(NESTED) as one:
        answers = one.ask()
        send(one.many.next(), 10, 20)
        one.more.next().fail(ValueError("lost"))
        assert answers.rest() == [
            "ExecutionFailed: in ensemble 'e', the backend 'b' failed to run model 'more': ValueError: lost"
        ]


def test_a_caller_who_leaves_ends_the_request_with_its_next_response() -> None:
    with ensemble(NESTED) as one:
        answers = one.ask()
        request = one.many.next()
        send(request, 10, 20)
        inner = one.more.next()
        one.is_wanted = False
        assert request.cancelled
        assert inner.cancelled
        send(inner, 1)
        assert answers.outcomes.get(timeout=120).error.__class__ is TooLate
        inner.end()
        request.end()


def test_what_is_under_way_is_bounded_and_the_model_waits_when_it_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_request, "MAX_HANDED_OVER", 8 * open_request.LEAST_BYTES)
    monkeypatch.setattr(module, "MAX_WAVES", 3)
    sent: list[float] = []
    most: list[int] = []
    with ensemble() as one:
        answers = one.ask(0)
        request = one.many.next()

        def work() -> None:
            for value in range(60):
                send(request, value, final=value == 59)
                sent.append(value)

        thread = threading.Thread(target=work)
        one.held.update(range(60))
        thread.start()
        for value in range(60):
            wait_until(lambda: one.servable.state.memory_bytes <= 6 * 1024)
            most.append(len(sent) - value)
            one.let_go(value)
            assert answers.next()[0] == value
        thread.join()
        # Eight, and the one that is being counted.
        assert max(most) <= 9


def test_a_response_that_is_too_large_to_be_under_way_ends_the_request() -> None:
    with ensemble(bytes_=1024) as one:
        answers = one.ask()
        one.many.next().send({"y": np.zeros((1, 2000), np.float32)}, final=True)
        [said] = answers.rest()
        assert str(said).startswith("Overloaded: in ensemble 'e', ensemble 'e' has 8 of at most 1024 bytes of tensors")


def test_many_requests_at_once_get_their_own_responses_and_nothing_is_left() -> None:
    with ensemble(NESTED) as one:
        stop = threading.Event()

        def answer(asking: Asking, seed: int) -> None:
            chance = random.Random(seed)
            while not stop.is_set():
                try:
                    request = asking.requests.get(timeout=0.05)
                except queue.Empty:
                    continue
                value = float(request.inputs["x"][0, 0])
                many = asking is one.many
                for at in range(3):
                    if value == 13 and not many and at == 1:
                        request.fail(ValueError("unlucky"), final=False)
                    send(request, value + at if many else 1000 * (at + 1), final=at == 2 and chance.random() < 0.5)
                request.end()

        def ask(seed: int) -> None:
            chance = random.Random(seed)
            for _ in range(20):
                value = float(10 * chance.randint(1, 99))
                if chance.random() < 0.2:
                    value = 12.0  # whose second wave is of 13
                expected: list[Any] = [value + wave + 1000 * at for wave in range(3) for at in range(1, 4)]
                got = one.ask(value).rest()
                if value == 12:
                    assert got[:4] == expected[:4]
                    assert "unlucky" in str(got[4])
                elif got not in (expected, [*expected, None]):
                    wrong.append((value, got))

        wrong: list[object] = []
        answering = [threading.Thread(target=answer, args=(one, seed)) for seed, one in enumerate((one.many, one.more))]
        asking = [threading.Thread(target=ask, args=(seed,)) for seed in range(3)]
        for thread in answering + asking:
            thread.start()
        for thread in asking:
            thread.join()
        stop.set()
        for thread in answering:
            thread.join()
        assert not wrong


def test_outputs_that_no_decoupled_step_is_needed_for_come_once() -> None:
    with ExitStack() as stack:
        one = Ensemble(stack, CHAIN)
        binding = one.servable.state.binding
        assert binding is not None
        steps = [*CHAIN, step("add", "a=IN", "y=SUM")]
        other = ensemble_of(_chained(steps, ["OUT FP32 [-1]", "SUM FP32 [-1]"]), rows=8)
        other.bind(binding.members)
        answers = Answers()
        call = ModelCall(0, answers.outcomes.put, outputs=(1,))
        Calls("o", 1, other).call(call, {"IN": Tensor.of(np.full((1, 2), 7, np.float32))})
        outcome = answers.outcomes.get(timeout=120)
        assert (outcome.more, float(outcome.tensor(1, other.signature).array()[0, 0])) == (False, 7)
        assert one.many.requests.empty()
        other.bind(None)
        one.servable.bind(None)


def test_an_ensemble_says_that_its_model_is_not_decoupled_any_more() -> None:
    members = {
        Need(name, None): Member(ADD if name == "add" else MANY, 8, decoupled=name != "add") for name in ("add", "many")
    }
    with ensemble() as one:
        changed = {**members, Need("many", None): Member(MANY, 8)}
        assert one.servable.disagreements(members) == []
        [said] = one.servable.disagreements(changed)
        assert said == "ensemble e was loaded with a decoupled model, and now none is; load it again"
