"""The handler's side of a streaming call: messages in and out, awaited."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable

import trio

from toutates.h2grpc.call import Call
from toutates.h2grpc.connection import ServerConnection
from toutates.h2grpc.status import GrpcError, Metadata, Status

__all__ = ["ServerStream"]

#: Response bytes a stream may have queued for window before ``send`` waits.
MAX_QUEUED_BYTES = 65_536


class ServerStream:
    """One streaming call, used by one task: the handler's.

    Args:
        call: the call; ``metadata()`` and the rest of it are the handler's to read.
        connection: the connection it came on.
        flush: called after output was queued, to have it sent.
    """

    def __init__(self, call: Call, connection: ServerConnection, flush: Callable[[], None]) -> None:
        self.call = call
        self._connection = connection
        self._flush = flush
        self._messages: deque[bytes] = deque()
        self._request_ended = False
        self._arrivals = trio.lowlevel.ParkingLot()
        self._departures = trio.lowlevel.ParkingLot()
        self._scope = trio.CancelScope()
        call.on_drained = self._departures.unpark_all

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
        self._flush()
        return message

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (message := await self.receive()) is not None:
            yield message

    async def send_headers(self, metadata: Metadata = ()) -> None:
        """Initial metadata, before the first message; ``send`` does it by itself when there are none."""
        self._connection.send_headers(self.call, metadata)
        self._flush()
        await trio.lowlevel.checkpoint()

    async def send(self, message: bytes) -> None:
        """Send one response message; waits while the caller leaves more than MAX_QUEUED_BYTES unread."""
        self._connection.send_headers(self.call)
        self._connection.send_message(self.call, (message,))
        self._flush()
        await trio.lowlevel.checkpoint()
        while self.call.outbox_bytes > MAX_QUEUED_BYTES:
            await self._departures.park()

    # --- for the driver ----------------------------------------------------------------------------------------------

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

    async def run(self, on_error: Callable[[Exception], None]) -> None:
        """Run the method's handler to the call's end; ``on_error`` is told of exceptions that are no GrpcError."""
        method = self.call.head.method
        assert method is not None and method.stream is not None
        with self._scope:
            try:
                await method.stream(self)
            except GrpcError as error:
                self._connection.fail(self.call, error.status, error.text, error.metadata)
            except Exception as error:
                on_error(error)
                self._connection.fail(self.call, Status.INTERNAL, "internal error")
            else:
                self._connection.send_headers(self.call)
                self._connection.finish(self.call)
        self.call.on_drained = None
        self._flush()
