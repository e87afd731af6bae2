"""Handlers off the hot path: a protobuf message in, a protobuf message out."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from toutates.errors import RequestError
from toutates.h2grpc import Call, GrpcError, Status, UnaryHandler
from toutates.service.statuses import as_grpc_error

__all__ = ["unary"]

Request = TypeVar("Request", bound=Message)


def unary(request_type: type[Request], answer: Callable[[Request], Message]) -> UnaryHandler:
    """A handler that parses the request, calls ``answer``, and sends what it returns.

    Args:
        request_type: the request's message class.
        answer: raises RequestError or GrpcError for requests it refuses. Must not block.
    """

    def handle(call: Call) -> None:
        try:
            request = request_type.FromString(call.message)
        except DecodeError as error:
            raise GrpcError(
                Status.INTERNAL, f"the message is not a {request_type.DESCRIPTOR.name}: {error}"
            ) from None
        try:
            response = answer(request)
        except RequestError as error:
            raise as_grpc_error(error) from None
        call.reply(response.SerializeToString())

    return handle

