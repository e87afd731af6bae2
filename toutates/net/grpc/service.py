"""gRPC as a worker serves it: handlers of calls and of single messages are called, those of streams get tasks."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import lru_cache, partial
from types import MappingProxyType
from typing import Any, Final

import trio

from toutates.h2grpc.call import Call
from toutates.h2grpc.connection import ServerConnection
from toutates.h2grpc.events import (
    CallCancelled,
    ConnectionTerminated,
    Event,
    InflationDue,
    LargeRequest,
    MessageReceived,
    RequestEnded,
    StreamOpened,
)
from toutates.h2grpc.header_field import HeaderField
from toutates.h2grpc.method import Guard, MessageHandler, Method, NoMethods, Variant
from toutates.h2grpc.plain import Admit, PlainCall
from toutates.h2grpc.shared import Shared
from toutates.h2grpc.status import CallRefused, GrpcError, LimitExceeded, Metadata, Status
from toutates.net.connection import Service
from toutates.net.grpc.inflation import inflation
from toutates.net.grpc.streaming import ServerStream
from toutates.net.http2.plain import PlainHttp
from toutates.net.worker import Worker
from toutates.system.errors import RequestError
from toutates.system.retry import retry_after_ms

__all__ = ["GrpcService", "retry_metadata"]

#: Streaming calls that get a task before Trio has its turn, in which a task takes 0.1 ms to begin.
STREAMS_PER_TURN: Final = 16
#: Answers of a call whose messages are handled one by one that may wait for its window, bytes. As much as one call may
#: upload before it waits: clients that send some messages before they read the answers are within it.
MAX_UNREAD_BYTES: Final = 4 * 1024 * 1024


def retry_metadata(error: RequestError) -> Metadata:
    """What tells a caller when to try again: the field of HTTP, and gRPC's own for retry policies (gRFC A6)."""
    after_ms = retry_after_ms(error)
    return () if after_ms is None else _retry_metadata(after_ms)


@lru_cache(maxsize=256)
def _retry_metadata(after_ms: int) -> Metadata:
    return ("retry-after", str(max(1, -(-after_ms // 1_000)))), ("grpc-retry-pushback-ms", str(after_ms))


class GrpcService(Service):
    """The gRPC methods that one worker serves; a ``net.connection.Service``.

    Args:
        worker: whose connections these are.
        methods: by ``:path`` (``h2grpc.method_table``); their handlers usually know the worker.
        response_encoding: compression of compressible methods' responses, or "".
        statuses: the status of each kind of RequestError that handlers raise, except those of streams.
        http_fields: gives header fields of the answers to peers that speak HTTP/1; None for none.
        plain: has requests over HTTP/2 answered that are no gRPC; None refuses them.

    Attributes:
        methods: the table, as given.
        streams: streaming calls that have a handler.
        shared: what the connections have in common, once ``start`` was called.
    """

    def __init__(
        self,
        worker: Worker,
        methods: Mapping[bytes, Method],
        response_encoding: str = "",
        statuses: Mapping[type[RequestError], Status] = MappingProxyType({}),
        http_fields: Callable[[], bytes] | None = None,
        plain: PlainHttp | None = None,
    ) -> None:
        self._worker = worker
        self._plain = plain
        self._http_fields = http_fields
        self.methods = self._judging(methods)
        self._response_encoding = response_encoding
        self._statuses = statuses
        #: what this one was made beside of; None for nothing
        self._origin: GrpcService | None = None
        self._shared: Shared | None = None
        self.streams: dict[Call, ServerStream] = {}
        #: streaming calls that have no task yet
        self._to_start: deque[ServerStream] = deque()
        self.shared: Shared
        self._nursery: trio.Nursery

    # --- for the worker ----------------------------------------------------------------------------------------------

    def _judging(self, methods: Mapping[bytes, Method]) -> Mapping[bytes, Method]:
        """The same methods; what their guards and variants fail with ends one call, and not its connection."""
        if isinstance(methods, NoMethods):
            return methods  # which have no list: whatever is called is refused
        return {
            path: method
            if method.guard is None and method.variant is None
            else replace(
                method,
                guard=None if method.guard is None else partial(self._judge, method, method.guard),
                variant=None if method.variant is None else partial(self._vary, method, method.variant),
            )
            for path, method in methods.items()
        }

    def _judge(self, method: Method, guard: Guard, fields: Sequence[HeaderField]) -> GrpcError | None:
        try:
            return guard(fields)
        except MemoryError:
            return CallRefused(Status.RESOURCE_EXHAUSTED, "the server is out of memory")
        except Exception as error:
            self._worker.incidents.bug(f"judging of a call of {method.path}", error)
            return CallRefused(Status.INTERNAL, "internal error")

    def _vary(self, method: Method, variant: Variant, fields: Sequence[HeaderField]) -> Method | None:
        try:
            return variant(fields)
        except Exception as error:
            self._worker.incidents.bug(f"judging of a call of {method.path}", error)
            return None

    def start(self, nursery: trio.Nursery) -> None:
        """Make what the connections share, on the worker's thread; handlers of streams run in ``nursery``."""
        self._nursery = nursery
        worker = self._worker
        first = self._origin or self
        if first._shared is None:
            limits = worker.limits
            first._shared = Shared(
                worker.budget, worker.limit_hits, limits.inflation, worker.message_memory, self._http_fields
            )
        self.shared = first._shared

    def stop(self) -> None:
        """Forget the streams that have no task."""
        while self._to_start:
            del self.streams[self._to_start.popleft().call]

    def beside(self, plain: PlainHttp, methods: Mapping[bytes, Method] | None = None) -> GrpcService:
        """The same service on a port whose other requests are for ``plain``; with other methods where these are given.

        Its connections share with those of this one.
        """
        other = copy(self)
        other._origin = self._origin or self
        other._plain = plain
        other.methods = self.methods if methods is None else self._judging(methods)
        return other

    def connect(self) -> ServerConnection:
        """A connection for a socket that was accepted."""
        connection = ServerConnection(
            self.methods,
            self._worker.limits,
            self._worker.dirty,
            response_encoding=self._response_encoding,
            shared=self.shared,
            admit=self._admit,
        )
        connection.carrier = self._plain
        return connection

    def take(self, link: Any) -> None:
        """Have requests to come on a connection of a service that this one was made beside of; those there are go on.

        Called on the worker's thread, and not while the connection has its turn.
        """
        link.service = self
        link.connection.header_reader.judge_by(self.methods, self._admit)
        link.connection.carrier = self._plain

    @property
    def _admit(self) -> Admit | None:
        return None if self._plain is None else self._plain.admit

    def handle(self, link: Any, event: Event) -> None:
        """Deal with one event of a connection. A unary call, nearly every event, is handed to its handler here."""
        if event.__class__ is not Call:
            if event.__class__ is MessageReceived:
                self._handle_message(event)
            elif event.__class__ is PlainCall:
                link.connection.carrier.handle(link, event)
            else:
                self._handle_rest(link, event)
            return
        call: Any = event
        try:
            call.head.method.unary(call)
        except Exception as error:
            self._fail(call, error)
        call.buffer = b""  # a call that waits, for its batch or its peer, must not keep all that was read with it

    def reads_to_the_end(self, link: Any) -> bool:
        """See ``Service``: whoever sends many calls and leaves at once has none of them read."""
        return False

    def receive_end(self, link: Any) -> None:
        """A peer of HTTP/2 that sends no more has left: it could not even take part in flow control."""
        return

    def is_wanted(self, event: Event) -> bool:
        """Whether an event that has waited for its connection's turn still means something."""
        if isinstance(event, Call):
            return event.open
        return not isinstance(event, StreamOpened | LargeRequest | MessageReceived) or event.call.open

    def _handle_rest(self, link: Any, event: Event) -> None:
        if isinstance(event, LargeRequest):
            memory: Any = event.call.buffer
            self.handle(link, event.call)
            self.shared.pool.give_back(memory)
        elif isinstance(event, InflationDue):
            self._have_inflated(event)
        elif isinstance(event, ConnectionTerminated):
            self._worker.connection_over(link, f"{event.text} ({event.code.name})")
        elif isinstance(event, StreamOpened):
            self._start_stream(event.call)
        elif isinstance(event, RequestEnded | CallCancelled):
            method = event.call.head.method
            if method is not None and method.message is not None:
                if isinstance(event, RequestEnded):
                    self._half_close(event.call, method)
                return
            stream = self.streams.get(event.call)
            if stream is None:
                return  # its handler ended while this waited for the connection's turn
            self._worker.task_woken()
            if isinstance(event, RequestEnded):
                stream.end_request()
            else:
                stream.cancel()

    def _handle_message(self, message: Any) -> None:
        """Hand a message of a streaming call to what handles messages one by one, or to the task of the call."""
        call = message.call
        method = call.head.method
        if method.half_close is not None:
            if call.open:
                try:
                    method.message(message)
                except Exception as error:
                    self._fail(call, error)
        elif method.message is not None:
            self._answer_message(message, method.message)
        elif (stream := self.streams.get(call)) is not None:
            self._worker.task_woken()
            stream.put(message.message)

    def _answer_message(self, message: MessageReceived, handle: MessageHandler) -> None:
        call, link = message.call, message.link
        if not call.open or link is None:
            return
        link.connection.take_message(message)
        try:
            self._refuse_if_unread(call)
            handle(message)
        except Exception as error:
            self._fail(call, error)

    def _half_close(self, call: Call, method: Method) -> None:
        """The client of a call whose messages are handled one by one sends no more."""
        if not call.open or call.link is None:
            return
        if method.half_close is None:
            call.responder.send_headers(call)
            call.responder.finish(call)
            return
        try:
            method.half_close(call)
        except Exception as error:
            self._fail(call, error)

    def _refuse_if_unread(self, call: Call) -> None:
        """Refuse a further message of a caller who does not read the answers to those before.

        Nothing else holds it up: messages are handled as they come, and an answer may be many times as long as they.

        Raises:
            LimitExceeded: too much waits for the call's window, for those of its connection, or for its socket.
        """
        limits, link = self._worker.limits, call.link
        waiting = link.connection.awaits_window
        if call.outbox_bytes > MAX_UNREAD_BYTES or waiting > limits.max_queued_bytes or link.congested:
            self._worker.limit_hits["unread_responses"] += 1
            raise LimitExceeded("unread_responses", "the caller leaves too many answers of this call unread")

    def _fail(self, call: Call, error: Exception) -> None:
        """End a call with the status of what its handler raised."""
        try:
            if isinstance(error, GrpcError):
                call.fail(error.status, error.text, error.metadata)
            elif isinstance(error, RequestError):
                call.fail(self._statuses[type(error)], str(error), retry_metadata(error))
            elif isinstance(error, MemoryError):  # which comes with every request then: no traceback for each
                call.fail(Status.RESOURCE_EXHAUSTED, "the server is out of memory")
            else:
                self._log_failure(call, error)
                call.fail(Status.INTERNAL, "internal error")
        except Exception as mistake:  # an error without a status, or metadata that no header field may have
            self._log_failure(call, mistake)
            call.fail(Status.INTERNAL, "internal error")

    def _log_failure(self, call: Call, error: Exception) -> None:
        path = call.head.method.path if call.head.method is not None else "?"
        self._worker.incidents.bug(f"handler of {path}", error, self._worker.peer(call))

    # --- large messages ----------------------------------------------------------------------------------------------

    def _have_inflated(self, due: InflationDue) -> None:
        try:
            self._worker.side.put(due.call.responder, inflation(due, self._take_inflated))
        except RuntimeError:
            self._take_inflated(due, GrpcError(Status.RESOURCE_EXHAUSTED, "the server has no thread for this request"))

    def _take_inflated(self, due: InflationDue, outcome: bytes | GrpcError) -> None:
        link = due.call.link
        if link is not None:  # else the connection is gone
            link.handle_all(link.connection.inflated(due.call, outcome))

    # --- streams -----------------------------------------------------------------------------------------------------

    def _start_stream(self, call: Call) -> None:
        if call.link is None:
            return  # the connection is gone
        stream = self.streams[call] = ServerStream(call, call.link.connection, self._worker)
        if not self._to_start:
            self._worker.call_soon(self._start_some_streams)
        self._to_start.append(stream)

    def _start_some_streams(self) -> None:
        """Give some streaming calls their tasks; Trio has its turn before the next ones get theirs."""
        self._worker.task_woken()
        for _ in range(min(STREAMS_PER_TURN, len(self._to_start))):
            stream = self._to_start.popleft()
            if stream.call.open:
                self._nursery.start_soon(self._run_stream, stream)
            else:
                del self.streams[stream.call]
        if self._to_start:
            self._worker.call_soon(self._start_some_streams)

    async def _run_stream(self, stream: ServerStream) -> None:
        call = stream.call
        try:
            await stream.run(partial(self._log_failure, call))
            self._worker.exchange_ended(call)
        except Exception as error:
            self._worker.connection_failed(call, error)
        finally:
            self.streams.pop(call, None)
