"""From events to handlers: unary ones are called, those of streams get tasks, large messages are decompressed first."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import trio

from toutates.h2grpc.call import Call
from toutates.h2grpc.connection import ServerConnection
from toutates.h2grpc.events import CallCancelled, Event, InflationDue, MessageReceived, RequestEnded, StreamOpened
from toutates.h2grpc.status import GrpcError, Status
from toutates.net.incidents import Incidents
from toutates.net.inflation import Inflation
from toutates.net.mailbox import Mailbox
from toutates.net.streaming import ServerStream, StreamDriver
from toutates.system.errors import RequestError

__all__ = ["Handlers"]

#: Streaming calls that get a task before Trio has its turn, in which a task takes 0.1 ms to begin.
STREAMS_PER_TURN: Final = 16


class Handlers:
    """The handlers of one worker's calls.

    Args:
        name: of the worker.
        mailbox: of the worker.
        incidents: of the worker.
        driver: the worker, as its streams know it.
        stream_ended: told of each streaming call whose handler has returned, and of what it raised beyond its call.
        statuses: the status of each kind of RequestError that unary handlers raise.

    Attributes:
        streams: streaming calls that have a handler.
        inflation: decompresses large messages.
        trio_has_work: whether a task of Trio's was given something to do; the worker sets it back.
        nursery: where streaming handlers run; set before the first event.
    """

    def __init__(
        self,
        name: str,
        mailbox: Mailbox,
        incidents: Incidents,
        driver: StreamDriver,
        stream_ended: Callable[[Call, Exception | None], None],
        statuses: Mapping[type[RequestError], Status],
    ) -> None:
        self._statuses = statuses
        self._mailbox = mailbox
        self._incidents = incidents
        self._driver = driver
        self._stream_ended = stream_ended
        self.streams: dict[Call, ServerStream] = {}
        #: those of them that have no task yet
        self._to_start: deque[ServerStream] = deque()
        self.inflation = Inflation(f"{name}-inflation", self._inflation_done)
        self.trio_has_work = False
        self.nursery: trio.Nursery | None = None

    def start_unary(self, call: Call) -> None:
        """Call the handler of a unary call."""
        try:
            try:
                call.head.method.unary(call)  # type: ignore[union-attr,misc]  # only calls of unary methods are events
            except GrpcError as error:
                call.fail(error.status, error.text, error.metadata)
            except RequestError as error:
                call.fail(self._statuses[type(error)], str(error))
            except MemoryError:  # which comes with every request then: no traceback for each
                call.fail(Status.RESOURCE_EXHAUSTED, "the server is out of memory")
        except Exception as error:
            self._incidents.bug(f"handler of {_path(call)}", error, peer_of(call))
            call.fail(Status.INTERNAL, "internal error")
        call.buffer = b""  # a call that waits, for its batch or its peer, must not keep all that was read with it

    def dispatch(self, event: Event) -> None:
        """Events of streaming calls, and requests that have to be decompressed elsewhere."""
        if isinstance(event, InflationDue):
            self._have_inflated(event)
            return
        self.trio_has_work = True
        if isinstance(event, StreamOpened):
            self._start_stream(event.call)
        elif isinstance(event, MessageReceived | RequestEnded | CallCancelled):
            stream = self.streams.get(event.call)
            if stream is None:
                return  # its handler ended while this waited for the connection's turn
            if isinstance(event, MessageReceived):
                stream.put(event.message)
            elif isinstance(event, RequestEnded):
                stream.end_request()
            else:
                stream.cancel()

    def stop(self) -> None:
        """End the thread that decompresses; forget the streams that have no task."""
        self.inflation.stop()
        while self._to_start:
            del self.streams[self._to_start.popleft().call]

    # --- large messages ----------------------------------------------------------------------------------------------

    def _have_inflated(self, due: InflationDue) -> None:
        try:
            self.inflation.put(due)
        except RuntimeError:
            self._take_inflated(due, GrpcError(Status.RESOURCE_EXHAUSTED, "the server has no thread for this request"))

    def _inflation_done(self, due: InflationDue, outcome: bytes | GrpcError) -> None:
        self._mailbox.put(partial(self._take_inflated, due, outcome))

    def _take_inflated(self, due: InflationDue, outcome: bytes | GrpcError) -> None:
        if due.call.link is None:
            return  # the connection is gone
        for event in _connection_of(due.call).inflated(due.call, outcome):
            assert isinstance(event, Call)
            self.start_unary(event)

    # --- streams -----------------------------------------------------------------------------------------------------

    def _start_stream(self, call: Call) -> None:
        if call.link is None:
            return  # the connection is gone
        stream = self.streams[call] = ServerStream(call, _connection_of(call), self._driver)
        if not self._to_start:
            self._mailbox.put(self._start_some_streams)
        self._to_start.append(stream)

    def _start_some_streams(self) -> None:
        """Give some streaming calls their tasks; Trio has its turn before the next ones get theirs."""
        assert self.nursery is not None
        self.trio_has_work = True
        for _ in range(min(STREAMS_PER_TURN, len(self._to_start))):
            stream = self._to_start.popleft()
            if stream.call.open:
                self.nursery.start_soon(self._run_stream, stream)
            else:
                del self.streams[stream.call]
        if self._to_start:
            self._mailbox.put(self._start_some_streams)

    async def _run_stream(self, stream: ServerStream) -> None:
        call = stream.call

        def log(error: Exception) -> None:
            self._incidents.bug(f"handler of {_path(call)}", error, peer_of(call))

        try:
            await stream.run(log)
            self._stream_ended(call, None)
        except Exception as error:
            self._stream_ended(call, error)
        finally:
            self.streams.pop(call, None)


def peer_of(call: Call) -> str:
    """The address that a call came from; "" once its connection is gone."""
    peer: str = "" if call.link is None else call.link.peer
    return peer


def _connection_of(call: Call) -> ServerConnection:
    connection: ServerConnection = call.link.connection
    return connection


def _path(call: Call) -> str:
    return call.head.method.path if call.head.method is not None else "?"
