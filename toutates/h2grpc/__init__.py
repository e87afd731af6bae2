"""gRPC over HTTP/2, the server's side: a sans-IO connection. Bytes in, bytes and events out.

It knows nothing of inference, and has no socket, no clock and no thread: ``toutates.net`` drives it.

Sources: RFC 9113 (HTTP/2), RFC 7541 (HPACK), and the gRPC-over-HTTP/2 specification.
"""

from __future__ import annotations

from toutates.h2grpc.allowances import Allowance
from toutates.h2grpc.call import Call, UnaryHandler
from toutates.h2grpc.connection import ServerConnection
from toutates.h2grpc.events import (
    CallCancelled,
    ConnectionTerminated,
    Event,
    MessageReceived,
    RequestEnded,
    StreamOpened,
)
from toutates.h2grpc.header_field import HeaderField, make_field, text_of, texts_of
from toutates.h2grpc.limits import Limits
from toutates.h2grpc.method import (
    Guard,
    HalfClose,
    MessageHandler,
    Method,
    NoMethods,
    StreamHandler,
    Variant,
    method_table,
)
from toutates.h2grpc.plain import PlainCall
from toutates.h2grpc.responder import Responder
from toutates.h2grpc.status import CallRefused, GrpcError, LimitExceeded, Metadata, Status
from toutates.h2grpc.stream import Buffer

__all__ = [
    "Allowance",
    "Buffer",
    "Call",
    "CallCancelled",
    "CallRefused",
    "ConnectionTerminated",
    "Event",
    "GrpcError",
    "Guard",
    "HalfClose",
    "HeaderField",
    "LimitExceeded",
    "Limits",
    "MessageHandler",
    "MessageReceived",
    "Metadata",
    "Method",
    "NoMethods",
    "PlainCall",
    "RequestEnded",
    "Responder",
    "ServerConnection",
    "Status",
    "StreamHandler",
    "StreamOpened",
    "UnaryHandler",
    "Variant",
    "make_field",
    "method_table",
    "text_of",
    "texts_of",
]
