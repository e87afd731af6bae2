"""gRPC as a worker serves it: unary handlers are called, those of streams get tasks."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from functools import partial
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
    MessageReceived,
    RequestEnded,
    StreamOpened,
)
from toutates.h2grpc.method import Method
from toutates.h2grpc.shared import Shared
from toutates.h2grpc.status import GrpcError, Status
from toutates.net.grpc.inflation import Inflation
from toutates.net.grpc.streaming import ServerStream
from toutates.net.worker import Worker
from toutates.system.errors import RequestError

__all__ = ["GrpcService"]

#: Streaming calls that get a task before Trio has its turn, in which a task takes 0.1 ms to begin.
STREAMS_PER_TURN: Final = 16


class GrpcService:
    """The gRPC methods that one worker serves; a ``net.connection.Service``.

    Args:
        worker: whose connections these are.
        methods: by ``:path`` (``h2grpc.method_table``); their handlers usually know the worker.
        response_encoding: compression of compressible methods' responses, or "".
        statuses: the status of each kind of RequestError that handlers of unary calls raise.

    Attributes:
        methods: the table, as given.
        streams: streaming calls that have a handler.
        inflation: decompresses large messages.
        shared: what the connections have in common, once ``start`` was called.
    """

    def __init__(
        self,
        worker: Worker,
        methods: Mapping[bytes, Method],
        response_encoding: str = "",
        statuses: Mapping[type[RequestError], Status] = MappingProxyType({}),
    ) -> None:
        self._worker = worker
        self.methods = methods
        self._response_encoding = response_encoding
        self._statuses = statuses
        self.streams: dict[Call, ServerStream] = {}
        #: streaming calls that have no task yet
        self._to_start: deque[ServerStream] = deque()
        self.inflation = Inflation(f"{worker.name}-inflation", self._inflation_done)
        self.shared: Shared
        self._nursery: trio.Nursery

    # --- for the worker ----------------------------------------------------------------------------------------------

    def start(self, nursery: trio.Nursery) -> None:
        """Make what the connections share, on the worker's thread; handlers of streams run in ``nursery``."""
        self._nursery = nursery
        worker = self._worker
        self.shared = Shared(worker.buffer_bytes, worker.limit_hits, worker.limits.inflation)

    def stop(self) -> None:
        """End the thread that decompresses; forget the streams that have no task."""
        self.inflation.stop()
        while self._to_start:
            del self.streams[self._to_start.popleft().call]

    def connect(self) -> ServerConnection:
        """A connection for a socket that was accepted."""
        return ServerConnection(
            self.methods,
            self._worker.limits,
            self._worker.dirty,
            response_encoding=self._response_encoding,
            shared=self.shared,
        )

    def handle(self, link: Any, event: Event) -> None:
        """Deal with one event of a connection. A unary call, nearly every event, is handed to its handler here."""
        if event.__class__ is not Call:
            self._handle_rest(link, event)
            return
        call: Any = event
        try:
            try:
                call.head.method.unary(call)
            except GrpcError as error:
                call.fail(error.status, error.text, error.metadata)
            except RequestError as error:
                call.fail(self._statuses[type(error)], str(error))
            except MemoryError:  # which comes with every request then: no traceback for each
                call.fail(Status.RESOURCE_EXHAUSTED, "the server is out of memory")
        except Exception as error:
            self._log_failure(call, error)
            call.fail(Status.INTERNAL, "internal error")
        call.buffer = b""  # a call that waits, for its batch or its peer, must not keep all that was read with it

    def is_wanted(self, event: Event) -> bool:
        """Whether an event that has waited for its connection's turn still means something."""
        if isinstance(event, Call):
            return event.open
        return not isinstance(event, StreamOpened) or event.call.open

    def _handle_rest(self, link: Any, event: Event) -> None:
        if isinstance(event, InflationDue):
            self._have_inflated(event)
        elif isinstance(event, ConnectionTerminated):
            self._worker.connection_over(link, f"{event.text} ({event.code.name})")
        elif isinstance(event, StreamOpened):
            self._start_stream(event.call)
        elif isinstance(event, MessageReceived | RequestEnded | CallCancelled):
            stream = self.streams.get(event.call)
            if stream is None:
                return  # its handler ended while this waited for the connection's turn
            self._worker.task_woken()
            if isinstance(event, MessageReceived):
                stream.put(event.message)
            elif isinstance(event, RequestEnded):
                stream.end_request()
            else:
                stream.cancel()

    def _log_failure(self, call: Call, error: Exception) -> None:
        path = call.head.method.path if call.head.method is not None else "?"
        self._worker.incidents.bug(f"handler of {path}", error, self._worker.peer(call))

    # --- large messages ----------------------------------------------------------------------------------------------

    def _have_inflated(self, due: InflationDue) -> None:
        try:
            self.inflation.put(due)
        except RuntimeError:
            self._take_inflated(due, GrpcError(Status.RESOURCE_EXHAUSTED, "the server has no thread for this request"))

    def _inflation_done(self, due: InflationDue, outcome: bytes | GrpcError) -> None:
        self._worker.call_soon(partial(self._take_inflated, due, outcome))

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
