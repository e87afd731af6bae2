"""What the path of an inference over REST needs of requests: of HTTP/1.1 today, of any transport that has bodies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

import msgspec

from toutates.access.callers import Caller
from toutates.protocol.rest.request import Target
from toutates.protocol.rest.response import InferResponse
from toutates.system.errors import RequestError

__all__ = ["Asked", "Asks", "BodyTensors", "RestCall", "request_id", "start_of"]


def request_id(identifier: bytes) -> str:
    """A request's id, from its text in JSON without quotation marks; "" for none."""
    return msgspec.json.decode(b'"%b"' % identifier, type=str) if identifier else ""


def start_of(body: object) -> int:
    """Where a body begins in its buffer: at its beginning, but for a large one in memory of its own."""
    start: int = getattr(body, "start", 0)
    return start


class Asks(Enum):
    """What a request asks for, and how."""

    INFER = "one answer, in the form of the v2 protocol"
    GENERATE = "one answer, as one flat object"
    STREAM = "all answers, as server-sent events"
    BODY = "the bytes of an output, for the bytes of an input"


@dataclass(frozen=True, slots=True)
class BodyTensors:
    """The tensors of models that get a request's body as it came and give the answer's: BYTES of one element each.

    Attributes:
        body: the input that gets the body.
        head: the input that gets ``head_content``; a model may be without.
        head_content: what the model is told of the request's head.
        result: the output that is the answer's body.
        result_head: the output that says more of the answer; a model may be without.
        write: from the contents of ``result_head``, b"" without it, and ``result`` to status, header fields and body.
    """

    body: str
    head: str
    head_content: bytes
    result: str
    result_head: str
    write: Callable[[bytes, Any], tuple[int, bytes, Any]]


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
        tensors: where the body is one of them.
        refusal: makes status, header fields and body of an error's answer; None for REST's own.
        caller: who sends a request that is read beside the worker, where callers are known; else None.
    """

    handle: Callable[[Any], None]
    target: Target
    key: bytes
    json_field: str | None
    json_size: int
    asks: Asks
    is_coded: bool
    tensors: BodyTensors | None = None
    refusal: Callable[[RequestError], tuple[int, bytes, bytes]] | None = None
    caller: Caller | None = None


class RestHead(Protocol):
    """The head of requests.

    Attributes:
        purpose: what it says.
    """

    purpose: Asked


class RestCall(Protocol):
    """A request on its way to an answer; see ``toutates.infer.call.Call`` for the rest.

    Attributes:
        body: in full. Nobody keeps it when the handler has returned. ``start_of`` says where in its buffer it begins.
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
