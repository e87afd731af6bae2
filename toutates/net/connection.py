"""What a worker drives, without a word of any protocol: connections, and the services that they belong to.

A protocol needs two classes. Its ``Connection`` turns bytes into events and answers into bytes; it has no socket. Its
``Service`` makes connections, and handles their events. What an event is, only the two of them know. A worker holds
connections of several services at once.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Final, Protocol

import trio

from toutates.h2grpc.stream import NEVER, Buffer
from toutates.h2grpc.vector import Vector

__all__ = ["NO_DEADLINES", "SILENCE_S", "Connection", "Deadlines", "Exchange", "Service"]

#: How long a client may take to make the request whose answer tells it to leave, seconds.
SILENCE_S: Final = 5


class Deadlines(Protocol):
    """The deadlines of a connection's requests."""

    #: the earliest moment at which one may have expired, on the driver's monotonic clock; ``NEVER`` for none
    next_ns: int


class _NoDeadlines:
    next_ns: int = NEVER


class Connection(Protocol):
    """Bytes in, events and bytes out. ``h2grpc.ServerConnection`` is one.

    No call takes longer than some milliseconds. ``behind`` says that something is left to do then, and ``go_on`` does
    the next piece of it; meanwhile no data is handed in. Used by one thread only.

    A connection that inherits from this class gets, for what its protocol does not have, what is given here.
    """

    #: whether ``go_on`` has something to do; the driver may set it to be called for reasons of its own
    behind: bool = False
    #: whether it can take no data until one of its requests is answered; it then calls ``Worker.go_on``
    full: bool = False
    #: whether the next bytes had better be put into ``views`` than handed in
    direct: bool = False
    #: whether a peer is told to leave by the answer to its next request, so that one is waited for
    told_by_answers: bool = False

    # --- bytes in and out

    @abstractmethod
    def receive_data(self, data: bytes, now_ns: int) -> list[Any]:
        """Take received bytes; returns what they completed, in order: events for the connection's service."""

    @property
    def awaited_bytes(self) -> int:
        """While ``direct`` is set, how many more are to come of a message, which the peer sends without waiting."""
        return 0

    @property
    def head_bytes(self) -> int:
        """How many of the next bytes tell whether the large message that is foreseen comes; 0 if none is foreseen."""
        return 0

    def foreseen_bytes(self, head: bytes) -> int:
        """Bytes that come together where the first ``head_bytes`` are these; 0 where that is not known."""
        return 0

    @property
    def next_bytes(self) -> int:
        """Bytes of the next large message, where one is foreseen; 0 if none is."""
        return 0

    def vector(self) -> Vector | None:
        """What ``views`` would give, where it is known as the system wants it; the same holds for it."""
        return None

    def views(self) -> list[memoryview]:
        """Where to put the next bytes, in this order, while ``direct`` is set; none if they are to be handed in.

        They are put there and told to ``take_direct`` before anything else is done, and no view is kept.
        """
        return []

    def take_direct(self, count: int, now_ns: int) -> list[Any]:
        """Take ``count`` bytes that are in ``views``; returns what they completed."""
        return []

    @abstractmethod
    def go_on(self, now_ns: int) -> list[Any]:
        """Do the next piece of the work that one turn had no time for; returns what came of it."""

    @abstractmethod
    def take_output(self) -> Sequence[Buffer]:
        """The bytes to send now, in order; the connection forgets them."""

    @abstractmethod
    def bind(self, link: Any) -> None:
        """Have ``link`` put into ``Worker.dirty`` as soon as there is output; None when the driver lets go."""

    @property
    @abstractmethod
    def has_output(self) -> bool:
        """Whether ``take_output`` would return anything."""

    @property
    def bulky(self) -> bool:
        """Whether the output is worth sending piece by piece instead of joined."""
        return False

    # --- time

    @property
    def deadlines(self) -> Deadlines:
        """When ``expire`` may have something to do."""
        return NO_DEADLINES

    def expire(self, now_ns: int) -> list[Any]:
        """Fail the requests whose deadline has passed."""
        return []

    def ping(self) -> None:
        """Ask whether the peer is there; anything that it sends is an answer. Does nothing where there is no way to."""
        return

    # --- the end

    def announce_end(self) -> None:
        """The server is about to stop, and serves on: answers tell the peer to leave, where they can.

        Where peers can be told at any moment this does nothing: they stay until ``begin_shutdown``.
        """
        return

    def say_goodbye(self) -> None:
        """Called before the output of a connection that is to leave is sent, which may have its last answer."""
        return

    @abstractmethod
    def begin_shutdown(self, reason: str) -> None:
        """Tell the peer to leave, if the protocol can; requests that have begun are answered. May be called twice."""

    def finish_shutdown(self) -> None:
        """Answer no more new requests."""
        return

    @abstractmethod
    def refuse(self, reason: str) -> None:
        """Turn the connection away before it begins, and count it as a limit; the driver then closes it."""

    @abstractmethod
    def end(self, reason: str, limit: str) -> list[Any]:
        """End the connection: because of ``limit``, of ``LIMIT_NAMES``, or for a mistake of ours where that is "".

        One of the events makes the service call ``Worker.connection_over``.
        """

    @abstractmethod
    def connection_lost(self) -> list[Any]:
        """The socket is gone, and every request is over."""

    # --- what it is at

    @property
    @abstractmethod
    def closed(self) -> bool:
        """Whether the connection is over."""

    @property
    def established(self) -> bool:
        """Whether the peer has said what it has to before its first request."""
        return True

    @property
    @abstractmethod
    def drained(self) -> bool:
        """Whether a shutdown is complete: nothing is read any more, and all answers are out or in ``take_output``."""

    @property
    @abstractmethod
    def open_calls(self) -> int:
        """Requests that have not ended."""

    @property
    @abstractmethod
    def calls_begun(self) -> int:
        """Requests so far."""

    @property
    @abstractmethod
    def awaits_request(self) -> bool:
        """Whether the peer owes the rest of a request."""

    @property
    def awaits_window(self) -> int:
        """Bytes of responses that wait for room at the peer's, beside its socket."""
        return 0

    @property
    @abstractmethod
    def held_bytes(self) -> int:
        """About how many bytes the connection's requests and their answers take."""

    def wake_senders(self) -> None:
        """The peer's socket takes more again: handlers that wait for that may go on."""
        return

    def trim(self) -> None:
        """Forget what only makes the next requests cheaper. Called while there have been none for some time."""
        return


NO_DEADLINES: Final = _NoDeadlines()


class Exchange(Protocol):
    """A request that is to be answered, of whatever protocol. ``h2grpc.Call`` is one."""

    @property
    def link(self) -> Any:
        """What its connection is bound to (``Connection.bind``); None once that connection is gone."""


class Service(Protocol):
    """What answers the connections of one protocol, for one worker and on its thread.

    It knows its worker, and tells it what happens to connections: ``Worker.connection_over`` when one has ended itself,
    ``Worker.leave`` when one is to be closed after its last answer, ``Worker.go_on`` when one can go on although
    nothing was received, ``Worker.connection_failed`` when answering raised. What ``handle`` raises ends the
    connection, and nothing else.
    """

    #: whether a peer that sends no more is answered what it has asked for
    answers_half_closed: bool = False

    @property
    def parts(self) -> Sequence[Service]:
        """The services that it hands connections to."""
        return ()

    def start(self, nursery: trio.Nursery) -> None:
        """Called once, after those of its parts and before the first connection; tasks of handlers run in
        ``nursery``."""
        return

    def stop(self) -> None:
        """Called once, after the last connection."""
        return

    @abstractmethod
    def connect(self) -> Connection:
        """A connection for a socket that was accepted."""

    @abstractmethod
    def handle(self, link: Any, event: Any) -> None:
        """Deal with one event of a connection. Must not block.

        Args:
            link: the connection's ``Transport``: what it is bound to. It has the peer's address, and knows whether the
                peer leaves too much unread (``congested``).
            event: what ``receive_data``, ``go_on``, or another call of the connection returned.
        """

    def receive_end(self, link: Any) -> list[Any] | None:
        """The peer sends no more. Unless ``answers_half_closed`` is set, it has left, and its requests are over.

        Returns:
            The events of that, while something is still to be sent; the connection has to end itself when everything
            is. None where nothing is: it is closed at once.
        """
        return None

    def reads_to_the_end(self, link: Any) -> bool:
        """Whether what a peer has sent is read though it has ended its side."""
        return True

    def is_wanted(self, event: Any) -> bool:
        """Whether an event that has waited for its connection's turn still means something."""
        return True
