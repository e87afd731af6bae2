"""Adapters of RPCs with one request and one response: from a function of the data plane to a handler."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

from google.protobuf.message import Message

from toutates.api.grpc.statuses import STATUSES
from toutates.h2grpc import Call, UnaryHandler
from toutates.net.side_thread import SideThread, outcome_of
from toutates.protocol.parsing import parse
from toutates.system.errors import InvalidRequest, Overloaded, RequestError

__all__ = ["beside", "check_size", "unary"]

#: Most bytes of a request: it has a name or two. Unknown fields take the pure-Python protobuf a second per megabyte.
MAX_REQUEST_BYTES: Final = 65_536

Request = TypeVar("Request", bound=Message)


def check_size(request_type: type[Message], call: Call) -> None:
    """Check, before a request is parsed, that it is no larger than a request of its type needs to be.

    Raises:
        InvalidRequest: it is larger than MAX_REQUEST_BYTES.
    """
    size = call.end - call.start
    if size > MAX_REQUEST_BYTES:
        raise InvalidRequest(
            f"a {request_type.DESCRIPTOR.name} of {size} bytes is too large, at most {MAX_REQUEST_BYTES} are taken"
        )


def unary(request_type: type[Request], answer: Callable[[Request], Message]) -> UnaryHandler:
    """A handler that parses the request, calls ``answer``, and sends the response.

    Args:
        request_type: the request's message class.
        answer: returns the response; raises RequestError for a request that it refuses. Must not block.
    """

    def handle(call: Call) -> None:
        check_size(request_type, call)
        call.reply(answer(parse(request_type, call.message)).SerializeToString())

    return handle


def beside(side: SideThread, request_type: type[Request], answer: Callable[[Request], Message]) -> UnaryHandler:
    """The same, where ``answer`` may block: it is called in a thread beside the worker's.

    Args:
        side: the thread.
        request_type, answer: see ``unary``.
    """

    def handle(call: Call) -> None:
        check_size(request_type, call)
        message = call.message

        def work() -> bytes:
            return answer(parse(request_type, message)).SerializeToString()

        def job() -> Callable[[], None]:
            return partial(_send, call, outcome_of(work, f"answering a {request_type.DESCRIPTOR.name}"))

        try:
            side.put(call.responder, job)
        except RuntimeError:
            raise Overloaded("the server has no thread for this request") from None

    return handle


def _send(call: Call, outcome: bytes | RequestError) -> None:
    if isinstance(outcome, RequestError):
        call.fail(STATUSES[type(outcome)], str(outcome))
    else:
        call.reply(outcome)
