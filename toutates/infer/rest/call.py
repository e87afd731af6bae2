"""What the path of an inference over REST needs of requests: of HTTP/1.1 today, of any transport that has bodies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

import msgspec

from toutates.protocol.rest.request import Target
from toutates.protocol.rest.response import InferResponse

__all__ = ["Asked", "Asks", "RestCall", "request_id"]


def request_id(identifier: bytes) -> str:
    """A request's id, from its text in JSON without quotation marks; "" for none."""
    return msgspec.json.decode(b'"%b"' % identifier, type=str) if identifier else ""


class Asks(Enum):
    """What a request asks for, and how."""

    INFER = "one answer, in the form of the v2 protocol"
    GENERATE = "one answer, as one flat object"
    STREAM = "all answers, as server-sent events"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the head of a request says. It is made once for all requests with the same head.

    Attributes:
        handle: answers the request.
        target: what the request is for.
        key: of the target and of the answer's form, different for different ones.
        json_field: the value of the field Inference-Header-Content-Length; None without one.
        json_size: the number that it is, where it is plainly one above 0; else 0.
        asks: what for, and how.
        is_coded: whether the answer is to be compressed.
    """

    handle: Callable[[Any], None]
    target: Target
    key: bytes
    json_field: str | None
    json_size: int
    asks: Asks
    is_coded: bool


class RestHead(Protocol):
    """The head of requests.

    Attributes:
        purpose: what it says.
    """

    purpose: Asked


class RestCall(Protocol):
    """A request on its way to an answer; see ``toutates.infer.call.Call`` for the rest.

    Attributes:
        body: in full. Nobody keeps it when the handler has returned.
        head: the same for all requests with the same one.
        connection: it came by; requests of one wait for each other where there is a queue.
    """

    body: bytes | bytearray
    open: bool
    deadline_ns: int
    context: Any

    @property
    def head(self) -> RestHead: ...

    @property
    def connection(self) -> object: ...

    def coded(self, response: InferResponse, /) -> InferResponse:
        """The answer as it is sent, compressed where that is wanted. Any thread may call it."""
        ...

    def answer(self, response: InferResponse, /) -> None:
        """Answer a request that succeeded. Does nothing once it is no longer open."""
        ...

    def hold(self, size: int, /) -> None:
        """Count bytes that are kept for the request beside its connection; negative ones when they are let go."""
        ...
