"""Handlers off the hot path: a protobuf message in, a protobuf message out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from google.protobuf.message import DecodeError, Message

from toutates.h2grpc import Call, GrpcError, Status, UnaryHandler
from toutates.infer.statuses import as_grpc_error
from toutates.protocol.names import with_client_names
from toutates.system.errors import RequestError

__all__ = ["check_size", "parse", "unary"]

#: Most of a request that holds a name or two. Fields that mean nothing to us take the pure-Python protobuf a second per
#: megabyte.
MAX_REQUEST_BYTES: Final = 65_536

Request = TypeVar("Request", bound=Message)


def parse(request_type: type[Request], message: bytes) -> Request:
    """A message read by protobuf.

    Raises:
        GrpcError: INTERNAL, as from every gRPC server. The pure-Python protobuf, which is the one on free-threaded
            Python, has an exception of another kind for strings that are not UTF-8.
    """
    try:
        return request_type.FromString(message)
    except (DecodeError, UnicodeDecodeError) as error:
        reason = with_client_names(str(error))
        raise GrpcError(Status.INTERNAL, f"the message is not a {request_type.DESCRIPTOR.name}: {reason}") from None


def check_size(request_type: type[Message], call: Call) -> None:
    """See that a request is no larger than any of its kind needs to be, before it is parsed.

    Raises:
        GrpcError: it is.
    """
    size = call.end - call.start
    if size > MAX_REQUEST_BYTES:
        text = f"a {request_type.DESCRIPTOR.name} of {size} bytes is too large, at most {MAX_REQUEST_BYTES} are taken"
        raise GrpcError(Status.INVALID_ARGUMENT, text)


def unary(request_type: type[Request], answer: Callable[[Request], Message]) -> UnaryHandler:
    """A handler that parses the request, calls ``answer``, and sends what it returns.

    Args:
        request_type: the request's message class.
        answer: raises RequestError or GrpcError for requests it refuses. Must not block.
    """

    def handle(call: Call) -> None:
        check_size(request_type, call)
        request = parse(request_type, call.message)
        try:
            response = answer(request)
        except RequestError as error:
            raise as_grpc_error(error) from None
        call.reply(response.SerializeToString())

    return handle
