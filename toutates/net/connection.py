"""What a worker drives: a connection without a socket, whatever protocol it speaks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from toutates.h2grpc.events import Event
from toutates.h2grpc.stream import Buffer

__all__ = ["Connection", "Deadlines"]


class Deadlines(Protocol):
    """The deadlines of a connection's calls."""

    #: the earliest moment at which one may have expired, on the driver's monotonic clock; ``NEVER`` for none
    next_ns: int


class Connection(Protocol):
    """Bytes in, events and bytes out. ``h2grpc.ServerConnection`` is one, and the documentation of each member.

    No call takes longer than some milliseconds. ``behind`` says that something is left to do then, and ``go_on`` does
    the next piece of it; meanwhile no data is handed in. Used by one thread only.
    """

    #: whether ``go_on`` has something to do; the driver may set it to be called for reasons of its own
    behind: bool

    # --- bytes in and out

    def receive_data(self, data: bytes, now_ns: int) -> list[Event]:
        """Take received bytes; returns what they completed, in order."""

    def go_on(self, now_ns: int) -> list[Event]:
        """Do the next piece of the work that one turn had no time for; returns what came of it."""

    def take_output(self) -> Sequence[Buffer]:
        """The bytes to send now, in order; the connection forgets them."""

    def bind(self, link: Any) -> None:
        """Have ``link`` put into the driver's list as soon as there is output; None when the driver lets go."""

    @property
    def has_output(self) -> bool:
        """Whether ``take_output`` would return anything."""

    @property
    def bulky(self) -> bool:
        """Whether the output is worth sending piece by piece instead of joined."""

    # --- time

    @property
    def deadlines(self) -> Deadlines:
        """When ``expire`` may have something to do."""

    def expire(self, now_ns: int) -> list[Event]:
        """Fail the calls whose deadline has passed."""

    def ping(self) -> None:
        """Ask whether the peer is there; anything that it sends is an answer. Does nothing where there is no way to."""

    # --- the end

    def begin_shutdown(self, reason: str) -> None:
        """Tell the peer to leave; calls begun are answered."""

    def finish_shutdown(self) -> None:
        """Answer no more new calls."""

    def refuse(self, reason: str) -> None:
        """Turn the connection away before it begins; the driver then closes it."""

    def end(self, reason: str, limit: str) -> list[Event]:
        """End the connection: because of ``limit``, of ``LIMIT_NAMES``, or for a mistake of ours where that is ""."""

    def connection_lost(self) -> list[Event]:
        """The socket is gone, and every call is over."""

    # --- what it is at

    @property
    def closed(self) -> bool:
        """Whether the connection is over."""

    @property
    def established(self) -> bool:
        """Whether the peer has said what it has to before its first call."""

    @property
    def drained(self) -> bool:
        """Whether a shutdown is complete."""

    @property
    def open_calls(self) -> int:
        """Calls that have not ended."""

    @property
    def calls_begun(self) -> int:
        """Calls so far."""

    @property
    def awaits_request(self) -> bool:
        """Whether the peer owes the rest of a request."""

    @property
    def awaits_window(self) -> int:
        """Bytes of responses that wait for room at the peer's, beside its socket."""

    @property
    def held_bytes(self) -> int:
        """About how many bytes the connection's calls take."""

    def wake_senders(self) -> None:
        """The peer's socket takes more again: handlers that wait for that may go on."""
