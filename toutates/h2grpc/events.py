"""What ``ServerConnection`` tells its driver. A complete unary request is the ``Call`` itself; the rest is here."""

from __future__ import annotations

from dataclasses import dataclass

from toutates.h2grpc.call import Call
from toutates.h2grpc.frames import ErrorCodes

__all__ = [
    "CallCancelled",
    "ConnectionTerminated",
    "Event",
    "InflationDue",
    "MessageReceived",
    "RequestEnded",
    "StreamOpened",
    "tell_handler",
]


@dataclass(slots=True)
class StreamOpened:
    """A streaming call has begun; its handler can start."""

    call: Call


@dataclass(slots=True)
class MessageReceived:
    """A streaming call's next message. Give its window back with ``ServerConnection.message_read`` once it is used."""

    call: Call
    message: bytes


@dataclass(slots=True)
class RequestEnded:
    """A streaming call's caller will send no more messages."""

    call: Call


@dataclass(slots=True)
class CallCancelled:
    """A streaming call is over before its handler was: reset by the caller, expired, failed, or its connection lost."""

    call: Call


@dataclass(slots=True)
class InflationDue:
    """A unary request is complete, and takes too long to decompress here. Hand what it becomes to ``inflated``.

    Attributes:
        call: the request's.
        message: as it was sent.
        encoding: of it, one of ``messages.ENCODINGS``.
        max_size: bytes that it may become.
    """

    call: Call
    message: bytes
    encoding: str
    max_size: int


@dataclass(slots=True)
class ConnectionTerminated:
    """The connection is over; send what ``take_output`` holds, then close the socket.

    Attributes:
        code: NO_ERROR after a graceful shutdown, else what the peer did wrong.
        text: the reason, for the log.
    """

    code: ErrorCodes
    text: str


Event = Call | StreamOpened | MessageReceived | RequestEnded | CallCancelled | InflationDue | ConnectionTerminated


def tell_handler(call: Call, events: list[Event]) -> None:
    """A call is over: its handler is told, if it is a task."""
    if call.is_streaming:
        events.append(CallCancelled(call))
