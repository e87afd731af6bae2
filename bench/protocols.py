"""Names of what loads are sent over."""

from __future__ import annotations

__all__ = ["BINARY", "FORMS", "GRPC", "JSON", "STREAM"]

#: gRPC over HTTP/2.
GRPC = "grpc"
#: Messages of one call of ModelStreamInfer, on a connection of gRPC.
STREAM = "stream"
#: REST over HTTP/1.1, by the form in which tensors are sent and asked for.
BINARY, JSON = FORMS = ("binary", "json")
