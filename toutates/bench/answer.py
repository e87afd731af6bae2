"""What both protocols' connections have in common: how a call ended, and how a connection is driven."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Protocol

__all__ = ["LOST", "Answer", "ClientSide", "ConnectionFailed"]

#: The status of a call whose stream or connection was ended without one: not one of gRPC's.
LOST: Final = -1


class ConnectionFailed(Exception):
    """The server has ended the connection, or does not speak the protocol."""


class Answer(NamedTuple):
    """How a call ended.

    Attributes:
        stream_id: of the call.
        status: gRPC's, 0 for OK; of HTTP the status, 0 for 200; or LOST.
        message: gRPC's length-prefixed message or HTTP's body; b"" if there is none.
    """

    stream_id: int
    status: int
    message: bytes | bytearray


class ClientSide(Protocol):
    """A connection of a client, without its socket.

    Attributes:
        greeted: whether calls can begin.
        ended: why no call can begin any more, or "".
        under_way: calls without an answer.
        texts: the first text of each status.
    """

    greeted: bool
    ended: str
    under_way: int
    texts: dict[int, str]

    @property
    def has_room(self) -> bool:
        """Whether a call can begin now."""

    def begin(self, request: Any) -> int:
        """Begin a call, where ``has_room``; returns its number, which is odd, and by two above that before."""

    def data_to_send(self) -> bytes:
        """What is to be sent now."""

    def receive(self, data: bytes) -> Sequence[Answer]:
        """Take bytes; returns the calls that they end.

        Raises:
            ConnectionFailed: they are not those of such a server.
        """

    def receive_end(self) -> Sequence[Answer]:
        """The server has closed the connection; returns the calls that this ends as they should be."""
