"""Adapters of RPCs with one request and one response: from a function of the data plane to a handler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from google.protobuf.message import Message

from toutates.h2grpc import Call, UnaryHandler
from toutates.protocol.parsing import parse
from toutates.system.errors import InvalidRequest

__all__ = ["check_size", "unary", "unread"]

#: Most of a request that holds a name or two. Fields that mean nothing to us take the pure-Python protobuf a second per
#: megabyte.
MAX_REQUEST_BYTES: Final = 65_536

Request = TypeVar("Request", bound=Message)


def check_size(request_type: type[Message], call: Call) -> None:
    """See that a request is no larger than any of its kind needs to be, before it is parsed.

    Raises:
        InvalidRequest: it is.
    """
    size = call.end - call.start
    if size > MAX_REQUEST_BYTES:
        raise InvalidRequest(
            f"a {request_type.DESCRIPTOR.name} of {size} bytes is too large, at most {MAX_REQUEST_BYTES} are taken"
        )


def unary(request_type: type[Request], answer: Callable[[Request], Message]) -> UnaryHandler:
    """A handler that parses the request, calls ``answer``, and sends what it returns.

    Args:
        request_type: the request's message class.
        answer: raises RequestError for requests that it refuses. Must not block.
    """

    def handle(call: Call) -> None:
        check_size(request_type, call)
        call.reply(answer(parse(request_type, call.message)).SerializeToString())

    return handle


def unread(request_type: type[Request], answer: Callable[[Request], Message]) -> UnaryHandler:
    """``unary`` for an RPC that is answered alike whatever is asked: the request is not read, ``answer`` gets none."""

    def handle(call: Call) -> None:
        call.reply(answer(request_type()).SerializeToString())

    return handle
