"""What both protocols' connections have in common: how a call ended, and how a connection is driven."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final, Protocol, TypeAlias

__all__ = ["LOST", "Answer", "ClientSide", "ConnectionFailed"]

#: The status of a call whose stream or connection was ended without one: not one of gRPC's.
LOST: Final = -1


class ConnectionFailed(Exception):
    """The server has ended the connection, or does not speak the protocol."""


#: How a call ended: its number, which was given to ``begin``; its status, gRPC's, 0 for OK, or of HTTP the status, 0
#: for 200, or LOST; and gRPC's length-prefixed message or HTTP's body, b"" if there is none. A plain tuple, because
#: making one takes a twentieth of the time of a named one (4 against 120 ns).
Answer: TypeAlias = tuple[int, int, bytes | bytearray]


class ClientSide(Protocol):
    """A connection of a client, without its socket.

    Attributes:
        greeted: whether calls can begin.
        ended: why no call can begin any more, or "".
        texts: the first text of each status.
    """

    greeted: bool
    ended: str
    texts: dict[int, str]

    @property
    def room(self) -> int:
        """How many calls can begin now."""

    @property
    def under_way(self) -> Collection[int]:
        """The numbers of calls without an answer."""

    def begin(self, request: Any, number: int) -> None:
        """Begin a call, where there is room.

        Args:
            request: as the protocol has it.
            number: by which its answer is told; no other call under way has it.
        """

    def data_to_send(self) -> bytes:
        """What is to be sent now."""

    def receive(self, data: bytes) -> Sequence[Answer]:
        """Take bytes; returns the calls that they end.

        Raises:
            ConnectionFailed: they are not those of such a server.
        """

    def receive_end(self) -> Sequence[Answer]:
        """The server has closed the connection; returns the calls that this ends as they should be."""
