"""Which requests of a worker are observed, and what is written down of them, by a clock that tests turn."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.infer.calls import PEER, KnownCall, KnownTransport, Status, Turned
from toutates.engine.result import PendingRequest, Timing
from toutates.infer import observing
from toutates.infer.observing import STEPS_INTERVAL, Observation, Observer, Sampling
from toutates.system.errors import CallerLeft, InvalidRequest, TooLate, UnknownModel


def observer_of() -> Observer:
    return Observer(KnownTransport())


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Turned:
    clock = Turned()
    monkeypatch.setattr(observing, "time", clock)
    return clock


def plan(model: str = "m", rows: int = 1) -> Any:
    return SimpleNamespace(version=SimpleNamespace(model=model), rows=rows)


def refuse(observer: Observer, **more: Any) -> Observation:
    """Observe a request that is refused."""
    call: Any = KnownCall()
    observation = observer.begin(call, 1, **more)
    observer.refused(call, InvalidRequest("no"))
    return observation


def pending_of(*calls: KnownCall) -> list[PendingRequest]:
    return [((cast(Any, call),), 0, 1, None) for call in calls]


def test_the_first_request_is_due_and_then_one_of_each_interval() -> None:
    observer = observer_of()
    due: list[int] = []
    for number in range(3 * STEPS_INTERVAL):
        if observer.due:
            due.append(number)
            refuse(observer)
        observer.count(1)
    assert due == [0, STEPS_INTERVAL, 2 * STEPS_INTERVAL]
    assert observer.seen == 3 * STEPS_INTERVAL


def test_each_sink_gets_one_request_of_its_interval() -> None:
    observer = observer_of()
    got: list[int] = []
    sampling = Sampling(lambda observation: got.append(observer.seen))
    observer.sample(sampling, 10)
    for _ in range(40):
        if observer.due:
            refuse(observer)
        observer.count(1)
    assert got == [0, 10, 20, 30]
    observer.sample(sampling, 0)
    for _ in range(2 * STEPS_INTERVAL):
        if observer.due:
            refuse(observer)
        observer.count(1)
    assert got == [0, 10, 20, 30]
    observer.sample(sampling, 1)
    seen = observer.seen
    for _ in range(3):
        assert observer.due
        refuse(observer)
        observer.count(1)
    assert got[4:] == [seen, seen + 1, seen + 2]


def test_more_requests_than_an_interval_at_once_are_made_up_for() -> None:
    observer = observer_of()
    got: list[Observation] = []
    observer.sample(Sampling(got.append), 10)
    observer.count(35)
    observed = 0
    while observer.due:
        refuse(observer)
        observed += 1
    assert observed == len(got) == 4  # those of 0, 10, 20 and 30


def test_a_sampling_that_chooses_a_request_gets_it_once() -> None:
    observer = observer_of()
    got: list[Observation] = []
    chosen = Sampling(got.append)
    observer.sample(chosen, 5)
    first = refuse(observer, chosen=chosen)
    observer.count(1)
    second = refuse(observer, chosen=chosen)
    assert got == [first, second]
    assert list(second.wants) == [chosen]


def test_a_refused_request_has_its_status_and_its_times(clock: Turned) -> None:
    observer = observer_of()
    got: list[Observation] = []
    observer.sample(Sampling(got.append), 1)
    call: Any = KnownCall()
    observer.begin(call, 400)
    assert observer.under_way == 1
    clock.now_ns = 1_500
    observer.refused(call, UnknownModel("there is no such model"))
    assert observer.under_way == 0
    assert call.context is None
    [observation] = got
    assert (observation.error, observation.text) == (UnknownModel, "there is no such model")
    assert observation.status is Status.WRONG
    assert (observation.arrival_ns, observation.taken_ns, observation.answered_ns) == (400, 0, 1_500)
    assert (observation.version, observation.rows, observation.peer) == (None, 0, PEER)
    assert not observer.steps


def test_an_answered_request_has_the_steps_of_its_batch(clock: Turned) -> None:
    observer = observer_of()
    got: list[Observation] = []
    observer.sample(Sampling(got.append), 1)
    call: Any = KnownCall()
    observation = observer.begin(call, 400)
    observation.found(plan(rows=3), b"\x1a\x04\xc3\xa91\x21")
    observation.copied_ns = 1_700
    call.open = False
    observer.are_over([call], Timing(2_000, 2_100, 2_200, 2_300), 8)
    assert got == [observation]
    assert (observation.rows, observation.batch_rows, observation.request_id) == (3, 8, "é1!")
    assert (observation.taken_ns, observation.started_ns) == (2_000, 2_100)
    assert (observation.ended_ns, observation.done_ns, observation.answered_ns) == (2_200, 2_300, 1_000)
    steps = observer.steps["m"]
    assert (steps.to_plan.sum_ns, steps.to_copy.sum_ns) == (600, 700)
    assert observer.under_way == 0


@pytest.mark.parametrize(("copied_ns", "shown_ns"), [(0, 2_000), (2_000, 2_000), (1_999, 1_999), (2_001, 2_000)])
def test_rows_are_copied_before_their_batch_is_taken(clock: Turned, copied_ns: int, shown_ns: int) -> None:
    observer = observer_of()
    call: Any = KnownCall()
    observation = observer.begin(call, 400)
    observation.found(plan(), b"")
    observation.copied_ns = copied_ns
    call.open = False
    observer.are_over([call], Timing(2_000, 2_100, 2_200, 2_300), 1)
    assert observation.copied_ns == shown_ns


def test_a_request_in_several_batches_is_over_with_the_last() -> None:
    observer = observer_of()
    got: list[Observation] = []
    observer.sample(Sampling(got.append), 1)
    call: Any = KnownCall()
    observation = observer.begin(call, 1)
    observer.are_over([call], Timing(1, 2, 3, 4), 8)
    assert not got
    assert observer.under_way == 1
    call.open = False
    observer.are_over([call], Timing(5, 6, 7, 8), 2)
    assert got == [observation]
    assert (observation.taken_ns, observation.batch_rows) == (5, 2)


def test_callers_that_have_left_were_late_or_have_cancelled(clock: Turned) -> None:
    observer = observer_of()
    observer.sample(Sampling(lambda observation: None), 1)
    here, late, just_late, gone, unseen = (
        KnownCall(),
        KnownCall(open=False, deadline_ns=999),
        KnownCall(open=False, deadline_ns=1_000),
        KnownCall(open=False, deadline_ns=1_001),
        KnownCall(open=False),
    )
    for call in (here, late, just_late, gone):
        observer.begin(cast(Any, call), 1)
    among: list[Any] = list(observer.among(pending_of(here, unseen, late, just_late, gone)))
    assert among == [here, late, just_late, gone]
    assert [call.context.error for call in (here, late, just_late, gone)] == [None, TooLate, TooLate, CallerLeft]


def test_an_observation_has_what_its_transport_says_of_the_caller() -> None:
    observer = observer_of()
    call: Any = KnownCall()
    observation = observer.begin(call, 1)
    assert (observation.peer, observation.status) == (PEER, Status.FINE)
    assert (observation.traceparent, observation.tracestate) == ("00-a", "x=1,y=2")


def test_a_sink_that_fails_harms_no_other(caplog: pytest.LogCaptureFixture) -> None:
    observer = observer_of()
    got: list[Observation] = []

    def fail(observation: Observation) -> None:
        raise ValueError("full")

    observer.sample(Sampling(fail), 1)
    observer.sample(Sampling(got.append), 1)
    observation = refuse(observer)
    assert got == [observation]
    assert "could not be passed on" in caplog.text
