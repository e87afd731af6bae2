"""Spans as they are sent say what OpenTelemetry's own encoder says."""

from __future__ import annotations

from dataclasses import replace

import pytest
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource

from toutates.infer.tracing.encoding import SpanEncoder
from toutates.infer.tracing.record import TracedRequest
from toutates.infer.tracing.spans import SpanMaker

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
USUAL = TracedRequest(1, 2, 3, 4, 5, 6, 7, "mlp", "1", 1, 64, 0, "", "r-1", "127.0.0.1:65535")


@pytest.mark.parametrize(
    "request_",
    [
        USUAL,
        replace(USUAL, traceparent=PARENT),
        replace(USUAL, traceparent=PARENT, tracestate="rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"),
        replace(USUAL, status=13, text="ö" * 5_000, request_id="x" * 200),
        replace(USUAL, status=3, text="no", model="", version="", rows=0, batch_rows=0, planned_ns=0, started_ns=0),
        replace(USUAL, rows=2**31 - 1, batch_rows=128, peer="unix", request_id=""),
    ],
)
def test_encoding_is_opentelemetrys(request_: TracedRequest) -> None:
    maker = SpanMaker(Resource({"service.name": "tést", "process.pid": 2**20}), "1.2.3")
    spans = maker.spans(request_)
    encoder = SpanEncoder(maker.spans(USUAL)[0])
    data = encoder.request([encoder.span(span) for span in spans])
    assert ExportTraceServiceRequest.FromString(data) == encode_spans(spans)
    assert len(data) == encode_spans(spans).ByteSize()
