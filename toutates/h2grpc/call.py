"""One call: what a handler reads, and how it answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from toutates.h2grpc.request_head import RequestHead
from toutates.h2grpc.responder import Responder
from toutates.h2grpc.status import Metadata, Status
from toutates.h2grpc.stream import Buffer, Stream

__all__ = ["Call", "UnaryHandler"]


class Call(Stream):
    """One call of a method. It is the record of its stream too, so that a request makes one object instead of two.

    Attributes:
        responder: sends the answers of all calls of the connection.
    """

    #: for the handler's own use; None until it sets it
    context: Any = None

    def __init__(
        self, responder: Responder, stream_id: int, head: RequestHead, send_window: int, receive_window: int
    ) -> None:
        self.responder = responder
        self.stream_id = stream_id
        self.head = head
        self.send_window = send_window
        self.receive_window = receive_window

    @property
    def link(self) -> Any:
        """The driver's object for the connection (``ServerConnection.bind``); None once the connection is closed."""
        return self.responder.output.link

    @property
    def message(self) -> bytes:
        """The request message of a unary call, copied."""
        return self.buffer[self.start : self.end]

    def metadata(self) -> list[tuple[str, str | bytes]]:
        """The caller's custom metadata (``RequestHead.metadata``)."""
        return self.head.metadata()

    def reply(self, message: Buffer, metadata: Metadata = (), trailing_metadata: Metadata = ()) -> None:
        """Answer a unary call with one message and status OK. Does nothing once the call is no longer open."""
        if metadata or trailing_metadata:
            self.responder.reply_with_metadata(self, message, metadata, trailing_metadata)
        else:
            self.responder.reply(self, (message,), len(message))

    def send(self, message: Buffer) -> None:
        """Send one of several response messages. The call goes on until ``fail``, or until the client ends it.

        For streaming calls whose handler is no task: of one request and many responses, and of ``MessageHandler``.
        """
        self.responder.send_headers(self)
        self.responder.send_message(self, (message,))

    def fail(self, status: Status, text: str, metadata: Metadata = ()) -> None:
        """End the call with a status other than OK. Does nothing if the call is no longer open."""
        self.responder.fail(self, status, text, metadata)


#: Called on the worker's thread with a call whose request is complete: ``call.buffer[call.start:call.end]`` is the
#: message. Answers through ``call.reply`` or ``call.fail``, or raises GrpcError, or an error that the driver has a
#: status for. Must not block. To answer later, use a callback of ``Worker.call_soon``, or a task of the worker's that
#: calls ``Worker.flush`` afterwards.
UnaryHandler = Callable[[Call], None]
