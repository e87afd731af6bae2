"""Spans, and the thread that sends them to a collector on a real socket."""

from __future__ import annotations

import itertools
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import trio
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from tests.infer.tracing.collector import Collector, attributes_of, children_of, collecting, wait_until
from tests.ports import dead_port
from toutates.infer.tracing.exporter import MAX_BATCH, MAX_WAITING, PAUSE_S, TraceExporter
from toutates.infer.tracing.record import TracedRequest
from toutates.infer.tracing.spans import SpanMaker

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"
STEPS = ("batch assembly", "queue", "execution", "response")


def make_request() -> TracedRequest:
    """One that has just been answered, and took 700 us."""
    now_ns = time.monotonic_ns()
    return TracedRequest(
        arrived_ns=now_ns - 700_000,
        planned_ns=now_ns - 600_000,
        copied_ns=now_ns - 500_000,
        taken_ns=now_ns - 400_000,
        started_ns=now_ns - 300_000,
        ended_ns=now_ns - 200_000,
        answered_ns=now_ns,
        model="mlp",
        version="3",
        rows=2,
        batch_rows=7,
        status=0,
        request_id="möp",
        peer="::1:5000",
    )


def export(
    url: str, *requests: TracedRequest, until: Callable[[], bool] = lambda: True, flush_s: float = 30.0
) -> TraceExporter:
    """Let an exporter send requests to its end, which comes when ``until`` is true."""
    exporter = TraceExporter(f"{url}/v1/traces", "1.2.3")

    async def run() -> None:
        async with exporter.running(flush_s=flush_s):
            for request in requests:
                exporter.put(request)
            await trio.to_thread.run_sync(wait_until, until, "the exporter did not come so far")

    trio.run(run)
    return exporter


async def until_failed(exporter: TraceExporter, requests: int) -> None:
    """Wait until so many could not be sent."""
    what = "no attempt failed"
    await trio.to_thread.run_sync(wait_until, lambda: exporter.statistics().failed >= requests, what)


def test_request_becomes_a_span_with_a_child_for_each_step() -> None:
    with collecting() as collector:
        before_ns = time.time_ns()
        exporter = export(collector.url, make_request())
        after_ns = time.time_ns()
    assert collector.paths == ["/v1/traces"]
    assert (exporter.statistics().sent, exporter.statistics().waiting) == (1, 0)
    [server] = collector.servers()
    assert server.name == "inference.GRPCInferenceService/ModelInfer"
    assert server.parent_span_id == b""
    assert server.status.code == Status.STATUS_CODE_UNSET
    assert attributes_of(server) == {
        "rpc.system": "grpc",
        "rpc.service": "inference.GRPCInferenceService",
        "rpc.method": "ModelInfer",
        "rpc.grpc.status_code": 0,
        "triton.model_name": "mlp",
        "triton.model_version": "3",
        "toutates.request.rows": 2,
        "toutates.batch.rows": 7,
        "triton.request_id": "möp",
        "client.address": "::1",
        "client.port": 5000,
    }
    assert server.end_time_unix_nano - server.start_time_unix_nano == 700_000
    assert before_ns - 1_000_000 < server.start_time_unix_nano < server.end_time_unix_nano < after_ns
    children = children_of(collector, server)
    assert tuple(children) == STEPS
    for name, start, length in zip(STEPS, (100, 200, 400, 500), (100, 100, 100, 200), strict=True):
        child = children[name]
        assert child.kind == Span.SPAN_KIND_INTERNAL
        assert child.trace_id == server.trace_id
        assert child.start_time_unix_nano - server.start_time_unix_nano == start * 1000
        assert child.end_time_unix_nano - child.start_time_unix_nano == length * 1000
    spans = collector.spans()
    assert len({span.span_id for span in spans}) == len(spans) == 5
    assert all(len(span.span_id) == 8 and len(span.trace_id) == 16 for span in spans)


def test_who_sends_is_told_and_can_be_said_by_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20token,x-tenant=me")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
    with collecting() as collector:
        export(collector.url, make_request())
        monkeypatch.setenv("OTEL_SERVICE_NAME", "scores")
        monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test,service.version=9")
        export(collector.url, make_request())
        monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.instance.id=a")
        export(collector.url, make_request())
    first, second, third = [attributes_of(request.resource_spans[0].resource) for request in collector.requests]
    assert first["service.name"] == "toutates"
    assert first["service.version"] == "1.2.3"
    assert first["host.name"] == socket.gethostname()
    assert second["service.name"] == "scores"
    assert second["service.version"] == "9"
    assert second["deployment.environment"] == "test"
    instance = f"{socket.gethostname()}:{os.getpid()}"
    assert [one["service.instance.id"] for one in (first, second, third)] == [instance, instance, "a"]
    assert collector.headers[0]["authorization"] == "Bearer token"
    assert collector.headers[0]["x-tenant"] == "me"


def test_callers_trace_goes_on_with_its_state() -> None:
    called = replace(make_request(), traceparent=f"00-{TRACE}-{PARENT}-01", tracestate="rojo=1,congo=2")
    malformed = replace(make_request(), traceparent=f"00-{TRACE}-{PARENT}-01,00-{TRACE}-{PARENT}-01", tracestate="a=1")
    bad_state = replace(called, tracestate="rojo=1,=")
    with collecting() as collector:
        export(collector.url, called, malformed, bad_state)
    first, second, third = collector.servers()
    assert (first.trace_id.hex(), first.parent_span_id.hex()) == (TRACE, PARENT)
    assert first.trace_state == "rojo=1,congo=2"
    assert {span.trace_id.hex() for span in children_of(collector, first).values()} == {TRACE}
    assert first.flags & 0x300 == 0x300  # the parent is known to be of another process
    assert second.trace_id.hex() != TRACE
    assert (second.parent_span_id, second.trace_state) == (b"", "")
    assert (third.trace_id.hex(), third.trace_state) == (TRACE, "")


@pytest.mark.parametrize(
    ("status", "code"),
    [(3, Status.STATUS_CODE_UNSET), (8, Status.STATUS_CODE_UNSET), (13, Status.STATUS_CODE_ERROR)],
)
def test_request_that_was_refused_has_its_status_and_only_the_steps_it_came_to(status: int, code: int) -> None:
    refused = TracedRequest(5, 0, 0, 0, 0, 0, 9, "", "", 0, 0, status, "no such thing")
    with collecting() as collector:
        export(collector.url, refused)
    [span] = collector.spans()
    attributes = attributes_of(span)
    assert attributes["rpc.grpc.status_code"] == status
    assert attributes["error.message"] == "no such thing"
    assert "triton.model_name" not in attributes
    assert span.status.code == code
    assert span.status.message == ("no such thing" if code == Status.STATUS_CODE_ERROR else "")


def test_thread_rests_nine_times_as_long_as_it_worked_until_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    worked = itertools.count(0, 0.02)
    monkeypatch.setattr(time, "thread_time", lambda: next(worked))
    requests = [make_request()] * (6 * MAX_BATCH)
    with collecting() as collector:
        began_s = time.monotonic()
        export(collector.url, *requests, until=lambda: len(collector.servers()) >= len(requests))
        assert time.monotonic() - began_s > 5 * 9 * 0.02
        worked = itertools.count(0, 1_000)
        export(collector.url, *requests)  # at its end nobody waits for these hours


def test_requests_that_trickle_in_are_sent_together() -> None:
    with collecting() as collector:
        exporter = TraceExporter(f"{collector.url}/v1/traces", "1")
        began_s = time.monotonic()

        async def run() -> None:
            async with exporter.running():
                while time.monotonic() - began_s < 2.5:
                    exporter.put(make_request())
                    await trio.sleep(0.005)

        trio.run(run)
    assert exporter.statistics().sent == len(collector.servers()) > MAX_BATCH
    # Full batches, one that is not per pause, and the last.
    full = len(collector.servers()) // MAX_BATCH
    assert len(collector.requests) <= full + (time.monotonic() - began_s) / PAUSE_S + 1


def test_what_waits_at_the_end_is_sent() -> None:
    with collecting() as collector:
        exporter = export(collector.url, *[make_request()] * 1_000)
        assert len(collector.servers()) == 1_000
    assert exporter.statistics().sent == 1_000
    assert len({span.span_id for span in collector.spans()}) == 5_000


def test_collector_that_hangs_costs_a_bounded_time_at_the_end_and_what_does_not_fit_is_dropped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with collecting() as collector:
        collector.answering.clear()
        exporter = export(
            collector.url,
            *[make_request()] * (MAX_WAITING + 100),
            until=lambda: collector.begun > 0,
            flush_s=0.2,
        )
        statistics = exporter.statistics()
        assert not collector.requests
    assert (statistics.sent, statistics.waiting) == (0, 0)
    # The thread may have taken its first batch while they were put.
    assert 100 - MAX_BATCH <= statistics.dropped <= 100
    assert "were not sent before the end" in caplog.text
    # Its collector is gone: the thread that was left to itself ends, and says its last here, not in another test.
    wait_until(lambda: not any(thread.name == "traces" for thread in threading.enumerate()), "the thread did not end")


@pytest.fixture
def nobody_listens() -> Iterator[int]:
    with dead_port() as port:
        yield port


def test_collector_that_is_down_is_a_warning_now_and_then_and_no_line_per_attempt(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, nobody_listens: int
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1.5")  # a second attempt fits, and no third
    url = f"http://127.0.0.1:{nobody_listens}"
    exporter = TraceExporter(f"{url}/v1/traces", "1")

    async def run() -> None:
        async with exporter.running():
            for failed in range(3):
                exporter.put(make_request())
                await until_failed(exporter, failed + 1)

    with caplog.at_level(logging.DEBUG):
        trio.run(run)
    assert exporter.statistics().failed == 3
    warnings = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) == 2  # the first, and the rest at the end
    assert warnings[0].startswith(f"traces of 1 requests could not be sent to {url}/v1/traces: ")
    assert "refused" in warnings[0]
    assert warnings[1].startswith("traces of 2 requests")
    assert all(record.name.startswith("toutates.") for record in caplog.records if record.levelno >= logging.INFO)


def test_collector_that_refuses_is_named_with_its_status_and_gets_what_comes_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with collecting() as collector:
        collector.status = 400
        exporter = TraceExporter(f"{collector.url}/v1/traces", "1")

        async def run() -> None:
            async with exporter.running():
                exporter.put(make_request())
                await until_failed(exporter, 1)
                collector.status = 200
                exporter.put(make_request())

        trio.run(run)
    assert (exporter.statistics().sent, exporter.statistics().failed) == (1, 1)
    assert "could not be sent" in caplog.text
    assert "400" in caplog.text


def test_collector_that_comes_back_gets_what_it_missed_meanwhile() -> None:
    with collecting() as collector:
        collector.status = 503  # which passes
        exporter = export(collector.url, make_request(), until=lambda: _recovering(collector))
    assert exporter.statistics().sent == 1
    assert len(collector.servers()) == 1


def _recovering(collector: Collector) -> bool:
    if collector.begun:
        collector.status = 200
    return collector.begun > 0


def test_thread_goes_on_after_an_error_of_ours(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    spans = SpanMaker.spans

    def fail_once(maker: SpanMaker, request: TracedRequest) -> list[object]:
        monkeypatch.setattr(SpanMaker, "spans", spans)
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(SpanMaker, "spans", fail_once)
    with collecting() as collector:
        exporter = TraceExporter(f"{collector.url}/v1/traces", "1")

        async def run() -> None:
            async with exporter.running():
                exporter.put(make_request())
                await until_failed(exporter, 1)
                exporter.put(make_request())

        trio.run(run)
    assert (exporter.statistics().sent, exporter.statistics().failed) == (1, 1)
    assert "ZeroDivisionError: a bug" in caplog.text


def test_server_that_is_cancelled_sends_what_is_left_too() -> None:
    with collecting() as collector:
        exporter = TraceExporter(f"{collector.url}/v1/traces", "1")

        async def run() -> None:
            with trio.CancelScope() as scope:
                async with exporter.running():
                    exporter.put(make_request())
                    scope.cancel()
                    await trio.sleep_forever()

        trio.run(run)
    assert exporter.statistics().sent == 1
