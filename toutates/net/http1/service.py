"""HTTP/1.1 as a worker serves it: requests are handed to a handler, whose errors become answers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final, Protocol

from toutates.h2grpc.limits import Limits as ConnectionLimits
from toutates.http1 import Head, Limits, Refused
from toutates.net.connection import SILENCE_S, Connection, Service
from toutates.net.http1.call import HttpCall, LargeRequest
from toutates.net.http1.connection import Ended, HttpConnection
from toutates.net.worker import Worker
from toutates.system.errors import ExecutionFailed, Overloaded, RequestError

__all__ = ["Handler", "HttpService", "fail_call", "http_limits", "refusals"]

#: Requests of one connection that wait for their answers; further ones are not read meanwhile.
MAX_PIPELINED: Final = 64
#: Heads that a connection remembers: of tens of models, with and without a trace context or a token that stays.
REMEMBERED_HEADS: Final = 32
#: The names under which refusals are counted, by status.
_LIMITS: Final = {413: "message_size", 431: "header_list_size"}
#: Clients are not told of longer times, seconds.
MOST_KEPT_S: Final = 86_400


def http_limits(worker: Worker) -> Limits:
    """The limits of HTTP, of those that all connections of a worker have."""
    limits = worker.limits
    return Limits(
        max_head_size=limits.max_header_list_size,
        max_body_size=min(limits.max_message_size, limits.max_buffered_bytes),
        max_pipelined=MAX_PIPELINED,
        remembered_heads=REMEMBERED_HEADS,
        keep_alive_s=_kept_s(limits),
    )


def _kept_s(limits: ConnectionLimits) -> int:
    """Seconds for which a connection without a request is kept at least; 0 for ever."""
    idle_s = min(limits.max_idle_s, limits.keepalive_time_s + limits.keepalive_timeout_s)
    if limits.max_age_s < math.inf:
        idle_s = 0.0  # it may be old at any moment
    return int(idle_s) + SILENCE_S if idle_s < MOST_KEPT_S else 0


class Handler(Protocol):
    """What answers the requests of one worker, on its thread.

    Attributes:
        call_class: of the requests that it gets.
    """

    call_class: type[HttpCall]

    def admit(self, head: Head) -> int:
        """Look at a head before its body is read; returns the bytes that the body may have.

        It is asked once for heads that come again. What it finds out goes into ``Head.purpose``, whose method
        ``handle`` then gets the requests with this head. It answers them, now or later; must not block; and may raise
        RequestError, which ``fail`` answers. Where it sets ``Head.in_memory``, large bodies come as ``MessageMemory``,
        which is used again when the handler has returned, unless there is a view of it.

        Raises:
            Refused: the request is answered with an error.
        """
        ...

    def fail(self, call: Any, error: RequestError) -> None:
        """Answer a request with an error. Does nothing once it is no longer open."""
        ...

    def write_refusal(self, refusal: Refused) -> tuple[bytes, bytes]:
        """The fields and the body with which a refused request is answered."""
        ...


def refusals(worker: Worker, handler: Handler) -> Callable[[Refused], tuple[bytes, bytes]]:
    """What writes the answers to refused requests; where one is refused for its size, that is counted."""

    def write(refusal: Refused) -> tuple[bytes, bytes]:
        limit = _LIMITS.get(refusal.status)
        if limit is not None:
            worker.limit_hits[limit] += 1
        return handler.write_refusal(refusal)

    return write


def admission(worker: Worker, handler: Handler) -> Callable[[Head], int]:
    """What judges heads; whatever a judgement fails with is the refusal of one request."""

    def admit(head: Head) -> int:
        try:
            return handler.admit(head)
        except Refused:
            raise
        except MemoryError:
            raise Refused(503, "the server is out of memory", ends=True) from None
        except Exception as error:
            worker.incidents.bug(f"judging of {head.method} {head.path[:100]}", error)
            raise Refused(500, "internal error") from None

    return admit


def fail_call(worker: Worker, handler: Handler, call: HttpCall, error: Exception) -> None:
    """Answer a request with the status of what its handler raised."""
    try:
        if isinstance(error, RequestError):
            handler.fail(call, error)
            return
        if isinstance(error, MemoryError):  # which comes with every request then: no traceback for each
            handler.fail(call, Overloaded("the server is out of memory"))
            return
    except Exception as mistake:
        _fail_for_bug(worker, handler, call, mistake)
        return
    _fail_for_bug(worker, handler, call, error)


def _fail_for_bug(worker: Worker, handler: Handler, call: HttpCall, error: Exception) -> None:
    head = call.head
    worker.incidents.bug(f"handler of {head.method} {head.path[:100]}", error, worker.peer(call))
    handler.fail(call, ExecutionFailed("internal error"))


class HttpService(Service):
    """Serves the HTTP/1.1 connections of one worker.

    Args:
        worker: whose connections these are.
        handler: answers the requests.
        fields: gives the fields that every answer has, such as its date; None for none.
        half_close: whether a client that ends its side is answered what it has asked for, see ``receive_end``.
    """

    def __init__(
        self,
        worker: Worker,
        handler: Handler,
        fields: Callable[[], bytes] | None = None,
        *,
        half_close: bool = False,
    ) -> None:
        self.answers_half_closed = half_close
        self._worker = worker
        self._fields = fields
        self._handler = handler
        self._limits: Limits | None = None

    def connect(self) -> Connection:
        """A connection for a socket that was accepted."""
        if self._limits is None:
            self._limits = http_limits(self._worker)  # on the worker's thread, from its own copy
        handler = self._handler
        worker = self._worker
        return HttpConnection(
            worker,
            self._limits,
            admission(worker, handler),
            refusals(worker, handler),
            handler.call_class,
            worker.message_memory,
            self._fields,
        )

    def answer_by(self, handler: Handler) -> None:
        """Have all requests to come answered by ``handler``, on connections that are open too.

        Called on the worker's thread.
        """
        self._handler = handler
        write_refusal, admit = refusals(self._worker, handler), admission(self._worker, handler)
        for transport in self._worker.transports.open.values():
            connection = transport.connection
            if transport.service is self and isinstance(connection, HttpConnection):
                connection.answer_by(admit, write_refusal, handler.call_class)

    def handle(self, link: Any, event: Any) -> None:
        """Deal with one event of a connection. A request, nearly every event, is handed to the handler here."""
        if not isinstance(event, HttpCall):
            self._handle_rest(link, event)
            return
        call = event
        try:
            call.head.purpose.handle(call)
        except Exception as error:
            fail_call(self._worker, self._handler, call, error)
        call.body = b""  # a call that waits must not keep what it was asked with

    def _handle_rest(self, link: Any, event: Any) -> None:
        if isinstance(event, LargeRequest):
            memory: Any = event.call.body
            self.handle(link, event.call)
            self._worker.message_memory.give_back(memory)
        elif isinstance(event, Ended):
            self._worker.connection_over(link, event.reason)
        else:
            self._worker.leave(link, "")

    def receive_end(self, link: Any) -> list[Any] | None:
        """The peer sends no more: it has left, which is how clients cancel and time out.

        Some end their side behind their last request and wait for the answer, as ``nc -N`` does. Nobody can tell the
        two apart, so operators say whether such clients are to be expected.
        """
        events: list[Any] | None = link.connection.receive_end(
            answered=self.answers_half_closed, unsent=link.unsent_bytes > 0
        )
        return events

    def is_wanted(self, event: Any) -> bool:
        """Whether an event that has waited for its connection's turn still means something."""
        call = event.call if isinstance(event, LargeRequest) else event
        return not isinstance(call, HttpCall) or call.open
