"""Which observed requests of a worker get a record, and what is in it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.infer.calls import PEER, KnownCall, KnownTransport, Status
from tests.infer.served import KnownWorker
from toutates.engine.result import Timing
from toutates.infer.observing import Observer
from toutates.infer.tracing.record import TracedRequest
from toutates.infer.tracing.settings import TraceSetting, TraceSettings, read_changes
from toutates.infer.tracing.tracer import WorkerTraces
from toutates.system.errors import UnknownModel

PLAN: Any = SimpleNamespace(version=SimpleNamespace(model="m", number=3), rows=2)


class Traced:
    """A worker's traces, and the records that were made."""

    def __init__(self, rate: int, traceparent: str = "") -> None:
        transport = KnownTransport()
        transport.traced = (traceparent, "x=1")
        self.worker = KnownWorker()
        self.observer = Observer(transport)
        self.settings = TraceSettings(TraceSetting(("TIMESTAMPS",), rate))
        self.records: list[TracedRequest] = []
        self.traces = WorkerTraces(cast(Any, self.worker), self.observer, self.settings, self.records.append)
        self.catch_up()

    def catch_up(self) -> None:
        """Run what the worker was asked to run."""
        while self.worker.soon:
            self.worker.soon.pop(0)()

    def answer(self, chosen: bool = False) -> None:
        call: Any = KnownCall()
        observation = self.observer.begin(call, 5, self.traces.sampling if chosen else None)
        observation.found(PLAN, b"\x1a\x01i")
        observation.copied_ns = 7
        call.open = False
        self.observer.are_over([call], Timing(10, 20, 30, 40), 8)
        self.observer.count(1)


def test_a_record_has_the_steps_and_the_outcome_of_its_request() -> None:
    traced = Traced(1)
    traced.answer()
    [record] = traced.records
    assert (record.arrived_ns, record.copied_ns, record.taken_ns) == (5, 7, 10)
    assert (record.started_ns, record.ended_ns, record.status) == (20, 30, Status.FINE)
    assert record.planned_ns
    assert record.answered_ns >= record.planned_ns
    assert (record.model, record.version, record.rows, record.batch_rows) == ("m", "3", 2, 8)
    assert (record.request_id, record.peer, record.tracestate, record.text) == ("i", PEER, "x=1", "")
    call: Any = KnownCall()
    traced.observer.begin(call, 6)
    traced.observer.refused(call, UnknownModel("no such model"))
    refused = traced.records[1]
    assert (refused.model, refused.version, refused.planned_ns) == ("", "", 0)
    assert (refused.status, refused.text) == (Status.WRONG, "no such model")


def test_one_of_so_many_requests_is_traced_and_changes_are_followed() -> None:
    traced = Traced(4)
    for _ in range(20):
        if traced.observer.due:
            traced.answer()
        else:
            traced.observer.count(1)
    assert len(traced.records) == 5
    traced.settings.update("", read_changes({"trace_level": ["OFF"]}))
    traced.catch_up()
    traced.observer.count(1_000)
    traced.answer()
    assert len(traced.records) == 5


@pytest.mark.parametrize(("flags", "records"), [("01", 1), ("00", 0)])
def test_a_caller_decides_for_its_request(flags: str, records: int) -> None:
    traced = Traced(0, f"00-{'a' * 32}-{'b' * 16}-{flags}")
    traced.answer(chosen=True)
    assert len(traced.records) == records


def test_without_a_collector_nothing_is_observed() -> None:
    worker: Any = KnownWorker()
    traces = WorkerTraces(worker, Observer(KnownTransport()), TraceSettings(TraceSetting(("TIMESTAMPS",), 1)), None)
    assert not traces.possible
    assert not worker.soon
