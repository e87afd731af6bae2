"""The HTTP side's connections: how many there may be, how long they may take, and how fast they are read.

Hypercorn speaks HTTP on whatever stream it is given, and waits for as long as its peer likes. ``BoundedStream`` is what
it is given here: a peer that does not read loses its connection, and what was read waits for the connection's turn.
``ConnectionTable`` knows them all, and makes room for a new one.
"""

from __future__ import annotations

import re
import select
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import trio

from toutates.observe.http.turns import Flow, Lanes

__all__ = ["MAX_CONNECTIONS", "BoundedStream", "ConnectionTable", "hung_up", "is_probe"]

#: Connections at once; those of scrapers, probes and browsers are a handful.
MAX_CONNECTIONS: Final = 128
#: Bytes per read: what a peer can make us parse in one turn.
READ_BYTES: Final = 8_192
#: A peer takes what is written within so many seconds, which is CHUNK_BYTES of ``responses`` at most.
SEND_S: Final = 10.0
#: Without a byte in either direction for so many seconds a connection ends; no answer takes so long to make.
SILENCE_S: Final = 90.0
#: What a peer that has said its last may still be answered, for so many seconds.
LAST_ANSWER_S: Final = 2.0
#: What is read and dropped before a connection is closed, for so long and up to so many bytes.
LAST_LOOK_S: Final = 0.5
LAST_BYTES: Final = 262_144
#: Seconds between two looks for silent ones.
SWEEP_S: Final = 5.0

#: How a probe's request begins. What merely begins like one pays from the probes' budget until its path is known.
_PROBE: Final = re.compile(rb"(?:GET|HEAD) /health/")


def is_probe(path: str) -> bool:
    """Whether a request for ``path`` asks for the server's health."""
    return path.startswith("/health/")


class ConnectionTable:
    """The connections that are open, the one that was used longest ago first. Used in one Trio run."""

    def __init__(self, most: int = MAX_CONNECTIONS) -> None:
        self._most = most
        self._streams: OrderedDict[BoundedStream, None] = OrderedDict()
        #: connections that were cut off to make room, since the start
        self.evicted = 0

    def __len__(self) -> int:
        return len(self._streams)

    def add(self, stream: BoundedStream) -> None:
        """One more; it takes the place of the one used longest ago where there are too many."""
        if len(self._streams) >= self._most:
            self.evicted += 1
            next(iter(self._streams)).abort()
        self._streams[stream] = None

    def touch(self, stream: BoundedStream) -> None:
        """It was just used."""
        if stream in self._streams:
            self._streams.move_to_end(stream)

    def remove(self, stream: BoundedStream) -> None:
        """It has ended."""
        self._streams.pop(stream, None)

    def abort_all(self, *, only_silent: bool = False) -> None:
        """Cut off what is left.

        Args:
            only_silent: those alone that have said nothing yet.
        """
        for stream in list(self._streams):
            if not (only_silent and stream.has_spoken):
                stream.abort()

    async def sweep(self) -> None:
        """Cut off silent ones, for ever."""
        while True:
            await trio.sleep(SWEEP_S)
            silent_since = trio.current_time() - SILENCE_S
            for stream in list(self._streams):
                if stream.used_at > silent_since:
                    break
                stream.abort()


class BoundedStream:
    """See the module. Has of a Trio stream what Hypercorn uses.

    Attributes:
        socket: the peer's, for its address.
        used_at: when bytes last went in or out, on Trio's clock.
        scope: to serve the connection in.
        flow: what it costs, and its turns.
        has_spoken: whether a byte has come.
    """

    def __init__(self, stream: trio.SocketStream, table: ConnectionTable, lanes: Lanes) -> None:
        self.socket = stream.socket
        self.used_at = trio.current_time()
        self.scope = trio.CancelScope()
        self.flow = Flow(lanes.prompt)
        self._stream = stream
        self._table = table
        self._lanes = lanes
        self.has_spoken = False
        self._ended = False
        self._open_requests = 0
        self._first = b""
        self._in_request = False

    def _used(self) -> None:
        self.used_at = trio.current_time()
        self._table.touch(self)

    async def wait_spoken(self) -> bool:
        """Wait for the first bytes, and for the turn to serve the connection. Returns False if it has ended instead.

        To serve a connection costs ten times as much as to accept it, so that many that never speak cost little.
        """
        try:
            self._first = await self._receive()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        self.has_spoken = True
        return bool(self._first)

    async def receive_some(self, max_bytes: int = READ_BYTES) -> bytes:
        """What has come; b"" at its end. As ``trio.SocketStream``, but when it is this connection's turn."""
        if self._first:
            await trio.lowlevel.checkpoint()
            first, self._first = self._first, b""
            return first
        return await self._receive(max_bytes)

    async def _receive(self, max_bytes: int = READ_BYTES) -> bytes:
        data = bytes(await self._stream.receive_some(min(max_bytes, READ_BYTES)))
        if data:
            self._used()
            if not self._in_request:
                self._in_request = True
                self.flow.move_to(self._lanes.prompt if _PROBE.match(data) else self._lanes.other)
        else:
            # Hypercorn would keep it for as long as one that may still ask for something.
            self._ended = True
            self.scope.deadline = trio.current_time() + (LAST_ANSWER_S if self._open_requests else 0)
        await self._turn()
        return data

    @contextmanager
    def answering(self) -> Iterator[None]:
        """A request is waiting for its turn and being answered, for the block."""
        self._open_requests += 1
        try:
            yield
        finally:
            self._open_requests -= 1
            if self._ended and not self._open_requests:
                self.scope.deadline = trio.current_time()

    async def request_turn(self, path: str) -> None:
        """Wait until a request that has been read may be answered."""
        self.flow.move_to(self._lanes.prompt if is_probe(path) else self._lanes.other)
        await self._turn()

    async def _turn(self) -> None:
        """Wait for a turn. A connection whose peer has left meanwhile ends."""
        began = trio.current_time()
        if await self.flow.turn() and (ended := hung_up(self.socket)):
            now = trio.current_time()
            if ended & ~select.POLLRDHUP or now - began > LAST_ANSWER_S:
                self.abort()
                await trio.lowlevel.checkpoint_if_cancelled()
            self.scope.deadline = min(self.scope.deadline, now + LAST_ANSWER_S)

    async def send_all(self, data: bytes) -> None:
        """As ``trio.SocketStream``.

        Raises:
            trio.BrokenResourceError: the peer is gone, or did not take it within SEND_S. Then the connection ends, with
                whatever it has asked for.
        """
        self._in_request = False
        try:
            with trio.move_on_after(SEND_S) as limit:
                await self._stream.send_all(data)
                self._used()
        except trio.BrokenResourceError:
            self.abort()
            raise
        if limit.cancelled_caught:
            self.abort()
            raise trio.BrokenResourceError("the peer does not read")

    async def send_eof(self) -> None:
        """As ``trio.SocketStream``."""
        await self._stream.send_eof()

    async def aclose(self) -> None:
        """As ``trio.SocketStream``, but with a last look at what the peer still sends.

        Closing with unread bytes would make the kernel send a reset, which can overtake an answer such as 431 at the
        peer's (RFC 9112 section 9.6).
        """
        left = LAST_BYTES
        try:
            with trio.move_on_after(LAST_LOOK_S):
                while left > 0 and (data := await self._stream.receive_some(READ_BYTES)):
                    left -= len(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError, trio.BusyResourceError):
            pass
        finally:
            self._table.remove(self)
            await self._stream.aclose()

    def abort(self) -> None:
        """Close the socket now, and end what waits for it or is to be sent over it."""
        self._table.remove(self)
        self.socket.close()
        self.scope.cancel()


def hung_up(peer: trio.socket.SocketType) -> int:
    """What ``poll`` says of a peer's end: POLLRDHUP if it sends no more, POLLHUP or POLLERR if it is gone, or 0.

    It says so too where bytes that came before the end have not been read.
    """
    if peer.fileno() < 0:
        return select.POLLHUP
    poll = select.poll()
    poll.register(peer.fileno(), select.POLLRDHUP)
    return sum(events for _, events in poll.poll(0))
