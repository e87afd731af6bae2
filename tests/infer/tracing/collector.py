"""An OpenTelemetry collector: OTLP over HTTP on a real socket, read with OpenTelemetry's own messages."""

from __future__ import annotations

import gzip
import ssl
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span

__all__ = ["Collector", "attributes_of", "children_of", "collecting", "wait_until"]

_PATIENCE_S: Final = 120.0
_UNPACKED: Final[Mapping[str, Callable[[bytes], bytes]]] = {"gzip": gzip.decompress, "deflate": zlib.decompress}


class Collector:
    """What has come in. Other threads write."""

    def __init__(self) -> None:
        self.requests: list[ExportTraceServiceRequest] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.url = ""
        #: the HTTP status that it answers with
        self.status = 200
        #: cleared, it takes requests and never answers
        self.answering = threading.Event()
        self.answering.set()
        #: what its answers have beside the usual headers
        self.further_headers: dict[str, str] = {}
        #: requests that have begun to come in
        self.begun = 0

    def spans(self) -> list[Span]:
        """All spans so far."""
        return [
            span
            for request in list(self.requests)
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def servers(self) -> list[Span]:
        """The spans of whole requests."""
        return [span for span in self.spans() if span.kind == Span.SPAN_KIND_SERVER]


def attributes_of(span: Any) -> dict[str, Any]:
    """Attributes of a span or a resource."""
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in span.attributes}


def children_of(collector: Collector, parent: Span) -> dict[str, Span]:
    """The spans below one, by name."""
    return {span.name: span for span in collector.spans() if span.parent_span_id == parent.span_id}


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Wait for another process or thread, on a machine that may be busy."""
    deadline = time.monotonic() + _PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


@contextmanager
def collecting(tls: ssl.SSLContext | None = None) -> Iterator[Collector]:
    """A collector on a port of this machine."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            collector.begun += 1
            body = self.rfile.read(int(self.headers["content-length"]))
            collector.answering.wait()
            unpack = _UNPACKED.get(self.headers.get("content-encoding", ""))
            if unpack is not None:
                body = unpack(body)
            if collector.status == 200:
                collector.paths.append(self.path)
                collector.headers.append({name.lower(): value for name, value in self.headers.items()})
                collector.requests.append(ExportTraceServiceRequest.FromString(body))
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(collector.status)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", str(len(answer)))
            for name, value in collector.further_headers.items():
                self.send_header(name, value)
            try:
                self.end_headers()
                self.wfile.write(answer)
            except OSError:
                pass  # whoever asked did not wait

        def log_message(self, format: str, *args: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        block_on_close = False

    server = Server(("127.0.0.1", 0), Handler)
    collector.url = f"http://127.0.0.1:{server.server_address[1]}"
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
        collector.url = collector.url.replace("http", "https")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield collector
    finally:
        collector.answering.set()
        server.shutdown()
        thread.join()
        server.server_close()
