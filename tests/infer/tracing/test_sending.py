"""What reaches a collector on a real socket, how often it is tried, and what OpenTelemetry's variables say of it."""

from __future__ import annotations

import logging
import random
import ssl
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans

from tests.certificates import issue
from tests.infer.tracing.collector import collecting
from tests.ports import dead_port
from toutates.infer.tracing.sending import NotTaken, OtlpSender

MESSAGE = ExportTraceServiceRequest(resource_spans=[ResourceSpans(schema_url="x" * 1_000)])
OTLP = "OTEL_EXPORTER_OTLP_"
TRACES = "OTEL_EXPORTER_OTLP_TRACES_"
ATTEMPTS = 6


def send(url: str, environment: Mapping[str, str] | None = None) -> None:
    """Send MESSAGE."""
    sender = OtlpSender(f"{url}/v1/traces", "1.2.3", environment or {})
    try:
        sender.send(MESSAGE.SerializeToString())
    finally:
        sender.close()


class NoTime(threading.Event):
    """Waits for nothing, and remembers for how long it was to wait."""

    waits: list[float]

    def __init__(self) -> None:
        super().__init__()
        NoTime.waits = []

    def wait(self, timeout: float | None = None) -> bool:
        NoTime.waits.append(timeout or 0.0)
        return self.is_set()


@pytest.fixture
def no_time(monkeypatch: pytest.MonkeyPatch) -> type[NoTime]:
    """Pauses take no time, and are not left to chance."""
    monkeypatch.setattr("toutates.infer.tracing.sending.Event", NoTime)
    monkeypatch.setattr(random, "uniform", lambda least, most: (least + most) / 2)
    return NoTime


def test_request_arrives_as_otlp_over_http() -> None:
    with collecting() as collector:
        send(collector.url)
    assert collector.requests == [MESSAGE]
    assert collector.paths == ["/v1/traces"]
    [headers] = collector.headers
    assert headers["content-type"] == "application/x-protobuf"
    assert headers["user-agent"] == "toutates/1.2.3"
    assert "content-encoding" not in headers


@pytest.mark.parametrize("name", [OTLP, TRACES])
def test_headers_are_what_the_environment_says(name: str) -> None:
    with collecting() as collector:
        send(collector.url, {f"{OTLP}HEADERS": "a=0", f"{name}HEADERS": "Authorization=Bearer%20token,x=Basic a=="})
    [headers] = collector.headers
    assert headers["authorization"] == "Bearer token"
    assert headers["x"] == "Basic a=="
    assert "a" not in headers


@pytest.mark.parametrize("name", [OTLP, TRACES])
@pytest.mark.parametrize("compression", ["gzip", "deflate", "GZIP "])
def test_body_is_compressed_as_the_environment_says(name: str, compression: str) -> None:
    with collecting() as collector:
        send(collector.url, {f"{OTLP}COMPRESSION": "none", f"{name}COMPRESSION": compression})
    [headers] = collector.headers
    assert headers["content-encoding"] == compression.strip().lower()
    assert int(headers["content-length"]) < MESSAGE.ByteSize() / 2
    assert collector.requests == [MESSAGE]


def test_values_that_mean_nothing_are_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with collecting() as collector:
        send(collector.url, {f"{OTLP}COMPRESSION": "zstd", f"{OTLP}TIMEOUT": "soon"})
    assert collector.requests == [MESSAGE]
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING] == [
        "OTEL_EXPORTER_OTLP_TIMEOUT=soon is no number; it is 10 seconds",
        "OTEL_EXPORTER_OTLP_COMPRESSION=zstd is not known; traces are not compressed",
    ]


def test_collector_s_certificate_is_checked_and_ours_is_shown(tmp_path: Path, no_time: type[NoTime]) -> None:
    files = issue(tmp_path)
    one_file = tmp_path / "both.pem"
    one_file.write_bytes(files.cert.read_bytes() + files.key.read_bytes())
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=files.ca)
    context.load_cert_chain(files.cert, files.key)
    context.verify_mode = ssl.CERT_REQUIRED
    trusted = {f"{OTLP}CERTIFICATE": str(files.ca)}
    with collecting(context) as collector:
        with pytest.raises(NotTaken, match="certificate verify failed"):
            send(collector.url)
        with pytest.raises(NotTaken):
            send(collector.url, trusted)
        assert not collector.requests
        ours = {f"{TRACES}CLIENT_CERTIFICATE": str(files.cert), f"{TRACES}CLIENT_KEY": str(files.key)}
        send(collector.url, trusted | ours)
        send(collector.url, trusted | {f"{OTLP}CLIENT_CERTIFICATE": str(one_file)})
        assert len(collector.requests) == 2


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_status_that_passes_is_tried_again_with_growing_pauses(status: int, no_time: type[NoTime]) -> None:
    with collecting() as collector:
        collector.status = status
        with pytest.raises(NotTaken, match=f"^{status} "):
            send(collector.url, {f"{OTLP}TIMEOUT": "1000"})
        assert collector.begun == ATTEMPTS
    assert no_time.waits == [1, 2, 4, 8, 16]


@pytest.mark.parametrize("status", [400, 401, 404, 500])
def test_other_status_is_final(status: int) -> None:
    with collecting() as collector:
        collector.status = status
        with pytest.raises(NotTaken, match=f"^{status} "):
            send(collector.url)
        assert collector.begun == 1


def test_timeout_is_for_all_attempts(no_time: type[NoTime]) -> None:
    with collecting() as collector:
        collector.status = 503
        with pytest.raises(NotTaken):
            send(collector.url, {f"{OTLP}TIMEOUT": "1000", f"{TRACES}TIMEOUT": "3"})
        assert collector.begun == 3
    assert no_time.waits == [1, 2]  # 4 s are more than there are


def test_collector_that_hangs_is_waited_for_until_the_timeout() -> None:
    with collecting() as collector:
        collector.answering.clear()
        with pytest.raises(NotTaken, match="timed out"):
            send(collector.url, {f"{OTLP}TIMEOUT": "0.2"})


@pytest.mark.parametrize(
    ("value", "waits"),
    [
        ("0", [0.0] * 5),
        ("7", [7.0] * 5),
        ("Fri, 31 Dec 1999 23:59:59 GMT", [0.0] * 5),
        ("100000", []),
        ("soon", [1.0, 2.0, 4.0, 8.0, 16.0]),
    ],
)
def test_pause_is_the_one_that_the_collector_asks_for(value: str, waits: list[float], no_time: type[NoTime]) -> None:
    with collecting() as collector:
        collector.status = 503
        collector.further_headers["retry-after"] = value
        with pytest.raises(NotTaken):
            send(collector.url, {f"{OTLP}TIMEOUT": "1000"})
    assert no_time.waits == waits


def test_connection_that_cannot_be_made_is_tried_again_at_once_and_then_with_pauses(no_time: type[NoTime]) -> None:
    with dead_port() as port, pytest.raises(NotTaken, match="refused"):
        send(f"http://127.0.0.1:{port}", {f"{OTLP}TIMEOUT": "1000"})
    assert no_time.waits == [0, 2, 4, 8, 16]


def test_redirection_is_not_followed() -> None:
    with collecting() as collector:
        collector.status = 307
        collector.further_headers["location"] = f"{collector.url}/elsewhere"
        send(collector.url)
        assert collector.begun == 1


def test_stopped_sender_tries_nothing_again() -> None:
    with collecting() as collector:
        collector.status = 503
        sender = OtlpSender(f"{collector.url}/v1/traces", "1", {})
        sender.stop()
        with pytest.raises(NotTaken, match="503"):
            sender.send(MESSAGE.SerializeToString())
        assert collector.begun == 1
        sender.close()
