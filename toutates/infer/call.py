"""What the path of an inference needs of the requests that it serves, whatever transport they came by.

gRPC is a transport today: its calls are ``toutates.h2grpc.Call`` objects, and ``toutates.api.grpc.inference`` has the
rest. A test's transport is a few lines. These interfaces add no call to the way of a request: the answer is written by
the very method of ``h2grpc`` that writes it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, Protocol

from toutates.engine.servable import Buffer
from toutates.system.errors import RequestError

__all__ = ["Call", "Handler", "Responder", "Transport"]


class Responder(Protocol):
    """Writes answers; one per connection."""

    def reply(self, call: Any, parts: Sequence[Buffer], length: int, /) -> None:
        """Answer a call with a ModelInferResponse. Does nothing once the call is no longer open.

        Args:
            call: the call.
            parts: the serialized message in pieces, which nobody changes until they are sent.
            length: bytes of all pieces.
        """
        ...


class Call(Protocol):
    """A request on its way to an answer.

    Attributes:
        buffer, start, end: ``buffer[start:end]`` is a serialized ModelInferRequest. Nobody keeps the buffer when the
            handler has returned: it may hold a megabyte of other requests.
        open: whether an answer can still reach the caller. Executors read it too.
        deadline_ns: when the caller stops waiting, monotonic nanoseconds.
        context: the request's ``Observation`` while it is observed; None for all others.
        responder: writes the answer.
    """

    buffer: bytes
    start: int
    end: int
    open: bool
    deadline_ns: int
    context: Any

    @property
    def responder(self) -> Responder: ...


#: Called on the worker's thread with a call whose request is complete. It raises RequestError for a request that is
#: refused, which the transport tells the caller. Everything else is answered later, by ``Responder`` or ``Transport``.
Handler = Callable[[Call], None]


class Transport(Protocol):
    """What the calls of one transport on one worker have in common. None of it is used for a call that goes well."""

    def fail(self, call: Any, error: RequestError, /) -> None:
        """Answer a call with an error. Does nothing once the call is no longer open."""
        ...

    def end_connection(self, call: Any, error: Exception, /) -> None:
        """End the connection of a call, because an error of the server's own may have cut its answer short."""
        ...

    def status_of(self, error: type[RequestError] | None, /) -> IntEnum:
        """The transport's status for a kind of error; for None, that of a request that went well."""
        ...

    def request_id(self, id_field: bytes, /) -> str:
        """A request's id, from what goes into the answer for it; "" for b""."""
        ...

    def hold(self, call: Any, size: int, /) -> None:
        """Count bytes that are kept for a request beside its connection; negative ones when they are let go."""
        ...

    def peer(self, call: Any, /) -> str:
        """The caller's address, ``HOST:PORT``; "" once its connection is gone."""
        ...

    def trace_context(self, call: Any, /) -> tuple[str, str]:
        """``traceparent`` and ``tracestate`` of the request's headers, several fields joined by commas; "" for none."""
        ...
