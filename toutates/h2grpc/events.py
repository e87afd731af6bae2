"""The events that ``ServerConnection`` returns to its driver. Most complete unary requests are the ``Call`` itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from toutates.h2grpc.budget import MemoryBudget
from toutates.h2grpc.call import Call
from toutates.h2grpc.frames import ErrorCodes
from toutates.h2grpc.request_head import RequestHead
from toutates.h2grpc.stream import NEVER

__all__ = [
    "CallCancelled",
    "ConnectionTerminated",
    "Event",
    "InflationDue",
    "LargeRequest",
    "MessageReceived",
    "RequestEnded",
    "StreamOpened",
    "tell_handler",
]


@dataclass(slots=True)
class StreamOpened:
    """A streaming call has begun; its handler can start."""

    call: Call


class MessageReceived:
    """A streaming call's next message. Give its window back with ``ServerConnection.message_read`` once it is used.

    It is its handler's record of the message too, so that a message makes one object instead of two. As with ``Call``,
    what most messages never change are class attributes.

    Attributes:
        call: the streaming call.
        buffer, start, end: the message is ``buffer[start:end]``. The buffer may be the whole read, so whoever keeps the
            message for longer than its handler runs copies what it needs.
        open: whether an answer to this message can still reach the client; its handler keeps it.
        deadline_ns: when nobody waits for that answer any more.
        context, responder, answer: for the handler's own use.
        is_counted: whether it counts as unread (``Stream.unread_bytes``). The ``FrameLoop`` makes messages that do not,
            because nearly all are handled with their read; whoever keeps one calls ``ServerConnection.keep_message``.
    """

    context: Any = None
    responder: Any = None
    answer: Any = None
    is_counted: bool = False
    open: bool = True
    deadline_ns: int = NEVER

    def __init__(self, call: Call, buffer: bytes, start: int, end: int) -> None:
        self.call = call
        self.buffer = buffer
        self.start = start
        self.end = end

    @property
    def message(self) -> bytes:
        """The message, copied."""
        return self.buffer[self.start : self.end]

    @property
    def head(self) -> RequestHead:
        """The contents of the call's header block."""
        return self.call.head

    @property
    def link(self) -> Any:
        """The driver's object for the connection; None once that is closed."""
        return self.call.link


@dataclass(slots=True)
class RequestEnded:
    """The client of a streaming call will send no more messages."""

    call: Call


@dataclass(slots=True)
class CallCancelled:
    """A streaming call ended before its handler: reset by the client, expired, failed, or its connection was lost."""

    call: Call


@dataclass(slots=True)
class InflationDue:
    """A unary request is complete, but decompressing it takes too long here.

    The driver decompresses it elsewhere, and gives the outcome to ``ServerConnection.inflated``.

    Attributes:
        call: the call.
        message: the request message, compressed.
        encoding: one of ``messages.ENCODINGS``.
        max_size: the largest size of the decompressed message, bytes.
        budget: to be asked before each piece of it.
    """

    call: Call
    message: bytes
    encoding: str
    max_size: int
    budget: MemoryBudget


@dataclass(slots=True)
class LargeRequest:
    """A unary request that is complete, and has a MessageMemory for its buffer.

    Once its handler has returned, the driver gives that memory back (``MemoryPool.give_back``).
    """

    call: Call


@dataclass(slots=True)
class ConnectionTerminated:
    """The connection is over; send what ``take_output`` holds, then close the socket.

    Attributes:
        code: NO_ERROR after a graceful shutdown, else what the peer did wrong.
        text: the reason, for the log.
    """

    code: ErrorCodes
    text: str


Event = (
    Call  # and ``plain.PlainCall``, which is one
    | LargeRequest
    | StreamOpened
    | MessageReceived
    | RequestEnded
    | CallCancelled
    | InflationDue
    | ConnectionTerminated
)


def tell_handler(call: Call, events: list[Event]) -> None:
    """Add CallCancelled for a call that has ended, if it is a streaming one."""
    if call.is_streaming:
        events.append(CallCancelled(call))
