from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from tests.engine.shown import shown_version
from toutates.api.grpc.inference import GrpcTransport
from toutates.h2grpc import Limits
from toutates.infer.observing import Observation
from toutates.net import Worker
from toutates.observe.access_log import AT_ONCE, LOOK_NS, MAX_WAITING, PAUSE_NS, AccessLog
from toutates.protocol.grpc_service_pb2 import ModelInferRequest
from toutates.protocol.signature import Signature
from toutates.system.errors import Unavailable
from toutates.system.logs.levels import LogLevels
from toutates.system.logs.output import LAST
from toutates.system.logs.rendering import LogFormatter

VERSION = shown_version("m", 3, Signature((), (), batched=True))


def request(*, request_id: str = "r1", **fields: Any) -> Observation:
    """An observation that is complete."""
    one = Observation(1_000_000, GrpcTransport(Worker("test", Limits())), "10.0.0.1:5", ())
    one.id_field = ModelInferRequest(id=request_id).SerializeToString()
    given = {"taken_ns": 2_000_000, "done_ns": 4_000_000, "answered_ns": 4_500_000, "rows": 2, "batch_rows": 8}
    for name, value in (given | fields).items():
        setattr(one, name, value)
    return one


@pytest.fixture(autouse=True)
def _info_is_logged() -> Iterator[None]:
    logger = logging.getLogger("toutates.access")
    before = logger.level
    logger.setLevel(logging.INFO)
    yield
    logger.setLevel(before)


def made() -> tuple[AccessLog, list[str]]:
    lines: list[str] = []
    return AccessLog(LogFormatter("json", LogLevels), lines.append), lines


def line_of(**fields: Any) -> dict[str, Any]:
    log, lines = made()
    log.sink()(request(**fields))
    assert log.drain(time.monotonic_ns()) == LOOK_NS
    [line] = lines
    found: dict[str, Any] = json.loads(line)
    del found["timestamp"]
    return found


def test_a_request_is_a_line_with_its_times_in_milliseconds() -> None:
    assert line_of(version=VERSION) == {
        "level": "info",
        "area": "access",
        "event": "ModelInfer",
        "model": "m",
        "version": 3,
        "rows": 2,
        "batch_rows": 8,
        "status": "OK",
        "queue_ms": 1.0,
        "compute_ms": 2.0,
        "total_ms": 3.5,
        "request_id": "r1",
        "peer": "10.0.0.1:5",
    }


def test_a_request_that_was_refused_has_only_what_is_known() -> None:
    line = line_of(taken_ns=0, done_ns=0, batch_rows=0, request_id="", error=Unavailable, text="no\nmodel")
    assert {key: line[key] for key in line if key not in ("level", "area", "event")} == {
        "status": "UNAVAILABLE",
        "total_ms": 3.5,
        "peer": "10.0.0.1:5",
        "error": "no\\nmodel",
    }


def test_its_time_is_that_of_the_answer() -> None:
    log, lines = made()
    log.sink()(request(answered_ns=time.monotonic_ns()))
    log.drain(time.monotonic_ns())
    stamp = json.loads(lines[0])["timestamp"]
    assert abs(time.time() - datetime.fromisoformat(stamp).timestamp()) < 300


def test_some_lines_are_made_at_a_time() -> None:
    log, lines = made()
    sink = log.sink()
    for _ in range(3 * AT_ONCE):
        sink(request())
    began_ns = time.monotonic_ns()
    pause_ns = log.drain(began_ns)
    assert len(lines) == AT_ONCE
    assert pause_ns is not None
    assert pause_ns <= max(PAUSE_NS, time.monotonic_ns() - began_ns)  # as long as it took
    log.drain(LAST)
    assert len(lines) == 3 * AT_ONCE


def test_what_does_not_fit_is_counted_and_told(caplog: pytest.LogCaptureFixture) -> None:
    log, _ = made()
    sinks = [log.sink(), log.sink()]
    for sink in sinks:
        for _ in range(MAX_WAITING + 7):
            sink(request())
        assert len(sink.waiting) == MAX_WAITING
    log.drain(1)
    assert caplog.messages == ["14 requests have no line in the access log: they came faster than lines are made"]
    sinks[0](request())
    log.drain(2)
    assert len(caplog.messages) == 1, "told now and then"
    sinks[1].left_out += 1
    log.drain(20_000_000_000)
    assert caplog.messages[1].startswith("1 requests")


def test_its_level_switches_it_off() -> None:
    log, lines = made()
    logging.getLogger("toutates.access").setLevel(logging.WARNING)
    sink = log.sink()
    for _ in range(10 * AT_ONCE):
        sink(request())
    log.drain(1)
    assert not lines
    assert not sink.waiting
