"""The handler's side of a streaming call: messages in and out, awaited."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import trio

from toutates.h2grpc.call import Call
from toutates.h2grpc.connection import ServerConnection
from toutates.h2grpc.status import GrpcError, Metadata, Status
from toutates.net.worker import Worker

__all__ = ["ServerStream"]

#: Response bytes a stream may have queued for window before ``send`` waits.
MAX_QUEUED_BYTES = 65_536


class ServerStream:
    """One streaming call, used by one task: the handler's. Iterating over it gives the request's messages.

    Args:
        call: the call; ``metadata()`` and the rest of it are the handler's to read.
        connection: the connection it came on.
        worker: sends what was queued.
    """

    def __init__(self, call: Call, connection: ServerConnection, worker: Worker) -> None:
        self.call = call
        self._connection = connection
        self._worker = worker
        self._messages: deque[bytes] = deque()
        self._request_ended = False
        self._arrivals = trio.lowlevel.ParkingLot()
        self._departures = trio.lowlevel.ParkingLot()
        self._scope = trio.CancelScope()
        call.on_drained = self._wake_sender

    # --- for the handler ---------------------------------------------------------------------------------------------

    async def receive(self) -> bytes | None:
        """The next request message, or None once the caller has half-closed the stream."""
        while not self._messages:
            if self._request_ended:
                await trio.lowlevel.checkpoint()
                return None
            await self._arrivals.park()
        message = self._messages.popleft()
        self._connection.message_read(self.call, len(message))
        self._worker.flush()
        return message

    # Not an async generator: one that its handler leaves early would have to be closed by the garbage collector.
    def __aiter__(self) -> ServerStream:
        return self

    async def __anext__(self) -> bytes:
        message = await self.receive()
        if message is None:
            raise StopAsyncIteration
        return message

    async def send_headers(self, metadata: Metadata = ()) -> None:
        """Initial metadata, before the first message; ``send`` does it by itself when there are none."""
        self.call.responder.send_headers(self.call, metadata)
        self._worker.flush()
        await trio.lowlevel.checkpoint()

    async def send(self, message: bytes) -> None:
        """Send one response message; waits while the caller leaves too much unread.

        That is more than MAX_QUEUED_BYTES waiting for its windows, or more than ``Limits.max_unsent_bytes`` waiting for
        its socket.
        """
        self.call.responder.send_headers(self.call)
        self.call.responder.send_message(self.call, (message,))
        self._worker.flush()
        await trio.lowlevel.checkpoint()
        while self.call.outbox_bytes > MAX_QUEUED_BYTES or (self.call.link is not None and self.call.link.congested):
            await self._departures.park()

    # --- for the service ---------------------------------------------------------------------------------------------

    def put(self, message: bytes) -> None:
        """A message has arrived."""
        self._messages.append(message)
        self._arrivals.unpark_all()

    def end_request(self) -> None:
        """The caller will send no more."""
        self._request_ended = True
        self._arrivals.unpark_all()

    def cancel(self) -> None:
        """The call is over; the handler is cancelled."""
        self._scope.cancel()

    def _wake_sender(self) -> None:
        if self._departures:
            self._departures.unpark_all()
            self._worker.task_woken()

    async def run(self, on_error: Callable[[Exception], None]) -> None:
        """Run the method's handler to the call's end; ``on_error`` is told of exceptions that are no GrpcError."""
        method = self.call.head.method
        assert method is not None
        assert method.stream is not None
        try:
            # The scope lies inside: a handler's nursery that is cancelled may still raise what its tasks raised.
            with self._scope:
                await method.stream(self)
            self.call.responder.send_headers(self.call)
            self.call.responder.finish(self.call)
        except GrpcError as error:
            self._fail(error, on_error)
        except Exception as error:
            on_error(error)
            self.call.responder.fail(self.call, Status.INTERNAL, "internal error")
        self.call.on_drained = None
        self._worker.flush()

    def _fail(self, error: GrpcError, on_error: Callable[[Exception], None]) -> None:
        try:
            self.call.responder.fail(self.call, error.status, error.text, error.metadata)
        except ValueError as mistake:  # metadata that no header field may have
            on_error(mistake)
            self.call.responder.fail(self.call, Status.INTERNAL, "internal error")
