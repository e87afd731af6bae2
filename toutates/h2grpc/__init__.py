"""gRPC over HTTP/2, the server's side: a sans-IO connection, and a worker that drives many of them.

It knows nothing of inference. A service is a table of methods::

    def echo(call: Call) -> None:
        call.reply(call.message)

    worker = Worker("worker-0", Limits())
    worker.methods = method_table([Method("/test.Echo/Unary", unary=echo)])
    trio.run(worker.run, listening_socket)

Sources: RFC 9113 (HTTP/2), RFC 7541 (HPACK), and the gRPC-over-HTTP/2 specification. Cleartext with
prior knowledge, or TLS (``Worker.tls``).
"""

from __future__ import annotations

from toutates.h2grpc.allowances import Allowance
from toutates.h2grpc.call import Buffer, Call
from toutates.h2grpc.connection import ServerConnection
from toutates.h2grpc.connection_state import ConnectionState
from toutates.h2grpc.events import (
    CallCancelled,
    ConnectionTerminated,
    Event,
    MessageReceived,
    RequestEnded,
    StreamOpened,
)
from toutates.h2grpc.header_field import HeaderField
from toutates.h2grpc.limits import Limits
from toutates.h2grpc.method import Guard, Method, StreamHandler, UnaryHandler, Variant, method_table
from toutates.h2grpc.status import GrpcError, LimitExceeded, Metadata, Status
from toutates.h2grpc.streaming import ServerStream
from toutates.h2grpc.tls import describe_tls_error, harden_tls
from toutates.h2grpc.worker import Worker

__all__ = [
    "Allowance",
    "Buffer",
    "Call",
    "CallCancelled",
    "ConnectionState",
    "ConnectionTerminated",
    "Event",
    "GrpcError",
    "Guard",
    "HeaderField",
    "LimitExceeded",
    "Limits",
    "MessageReceived",
    "Metadata",
    "Method",
    "RequestEnded",
    "ServerConnection",
    "ServerStream",
    "Status",
    "StreamHandler",
    "StreamOpened",
    "UnaryHandler",
    "Variant",
    "Worker",
    "describe_tls_error",
    "harden_tls",
    "method_table",
]
