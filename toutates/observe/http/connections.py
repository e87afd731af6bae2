"""The connections of the HTTP thread, with their limits of number and time.

``ConnectionTable`` holds them all, and makes room for a new one. ``HttpConnection`` drives one. A peer that does not
read loses its connection. Requests wait for their connection's turn (``turns``).
"""

from __future__ import annotations

import math
import re
import select
import ssl
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import trio

from toutates.http1 import Connection, Limits, Receiving, Refused, Request
from toutates.observe.http.responses import Response, text_response
from toutates.observe.http.site import Asked, Site
from toutates.observe.http.turns import Flow, Lanes

__all__ = ["ConnectionLimits", "ConnectionTable", "HttpConnection", "hung_up", "is_probe"]


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """How many connections there may be, and for how long, in seconds.

    Attributes:
        most: connections at once; those of scrapers, probes and browsers are a handful.
        send_s: within which a peer takes CHUNK_BYTES, or loses its connection.
        keep_alive_s: how long a connection without a request is kept, and how long a request may take to come: longer
            than the usual pause between two scrapes, so that they need no new connection.
        silence_s: without a byte in either direction after which a connection ends; no answer takes so long to make. A
            connection without a request is told to leave after ``keep_alive_s``, by the answer to its next one, and
            ends then too.
        last_answer_s: for which a peer that has shut down its side is still answered.
        sweep_s: between two searches for silent connections.
    """

    most: int = 128
    send_s: float = 10.0
    keep_alive_s: float = 75.0
    silence_s: float = 90.0
    last_answer_s: float = 2.0
    sweep_s: float = 5.0


#: Beyond them, at most, connections that have not asked for anything yet: while all others have, a client gets in so.
NEWCOMERS: Final = 32
#: Bytes per read: what a peer can make us parse in one turn.
READ_BYTES: Final = 8_192
#: Bytes that a peer has to take within a time, see ``ConnectionLimits``.
CHUNK_BYTES: Final = 65_536
#: At the end, connections without a request are waited for where they were used in the last so many seconds.
LATELY_S: Final = 10.0
#: Seconds that a TLS handshake may take.
HANDSHAKE_S: Final = 10.0
#: Before a connection is closed, what the peer still sends is read and dropped: for LAST_LOOK_S seconds, up to
#: LAST_BYTES bytes.
LAST_LOOK_S: Final = 0.5
LAST_BYTES: Final = 262_144
#: While an answer takes long: seconds between two checks whether its client still waits.
GONE_LOOK_S: Final = 0.1

#: Requests are answered one by one, each in its connection's turn.
LIMITS: Final = Limits(max_pipelined=1, keep_alive_s=int(ConnectionLimits().keep_alive_s))

#: How a probe's request begins. A request that only begins like one uses the probes' budget until its path is known.
_PROBE: Final = re.compile(rb"(?:GET|HEAD) /health/")


def is_probe(path: str) -> bool:
    """Whether a request for ``path`` asks for the server's health."""
    return path.startswith("/health/")


class ConnectionTable:
    """The connections that are open, those used longest ago first. Used in one Trio run.

    Newcomers, which have not asked for anything yet, take the places of newcomers alone.

    Args:
        limits: of the connections.

    Attributes:
        limits: as given.
    """

    def __init__(self, limits: ConnectionLimits | None = None) -> None:
        self.limits = limits or ConnectionLimits()
        self._newcomers: OrderedDict[HttpConnection, None] = OrderedDict()
        self._asked: OrderedDict[HttpConnection, None] = OrderedDict()
        self._empty = trio.Event()
        #: since when all are told to leave; None before
        self.left_at: float | None = None
        #: connections that were cut off to make room, since the start
        self.evicted = 0

    def __len__(self) -> int:
        return len(self._newcomers) + len(self._asked)

    def __iter__(self) -> Iterator[HttpConnection]:
        return iter([*self._newcomers, *self._asked])

    def add(self, connection: HttpConnection) -> None:
        """Add a connection. If there are too many, the newcomer used longest ago is closed."""
        if len(self) >= self.limits.most and len(self._newcomers) >= NEWCOMERS:
            self._evict(self._newcomers)
        self._newcomers[connection] = None
        if self.left_at is not None:
            connection.leave()

    def has_asked(self, connection: HttpConnection) -> None:
        """Note that a connection has sent a request. If too many have, the one of them used longest ago is closed."""
        if connection in self._newcomers:
            del self._newcomers[connection]
            self._asked[connection] = None
            if len(self._asked) > self.limits.most:
                self._evict(self._asked)

    def _evict(self, connections: OrderedDict[HttpConnection, None]) -> None:
        self.evicted += 1
        next(iter(connections)).abort()

    def touch(self, connection: HttpConnection) -> None:
        """Note that a connection was just used."""
        for connections in (self._newcomers, self._asked):
            if connection in connections:
                connections.move_to_end(connection)

    def remove(self, connection: HttpConnection) -> None:
        """Remove a connection that has ended."""
        self._newcomers.pop(connection, None)
        self._asked.pop(connection, None)
        if not len(self):
            self._empty.set()

    async def wait_empty(self) -> None:
        """Return when no connection is left."""
        while len(self):
            self._empty = trio.Event()
            await self._empty.wait()

    def leave(self) -> None:
        """Have all connections, those to come too, told to leave by their next answers."""
        if self.left_at is None:
            self.left_at = trio.current_time()
            for connection in self:
                connection.leave()

    def drain(self, since: float = math.inf) -> None:
        """End the connections that wait for a request; the others answer what has begun.

        Args:
            since: those that were used after that go on.
        """
        for connection in self:
            if connection.used_at < since:
                connection.drain()

    def abort_all(self) -> None:
        """Close all connections."""
        for connection in self:
            connection.abort()

    async def sweep(self) -> None:
        """Close silent connections, for ever."""
        while True:
            await trio.sleep(self.limits.sweep_s)
            now = trio.current_time()
            for connection in self:
                if connection.used_at < now - self.limits.silence_s:
                    connection.abort()
                elif connection.used_at < now - self.limits.keep_alive_s and connection.is_idle:
                    connection.leave()


class HttpConnection:
    """One connection and its driver, in a task of its own (``serve``).

    Args:
        stream: the socket.
        table: the connection adds itself to it.
        lanes: where it takes its turns.
        site: what it serves.
        common: the fields that every response has.
        failed: called with what an endpoint raised.
        tls: the context; None for plaintext.

    Attributes:
        used_at: when bytes last went in or out, on Trio's clock.
    """

    def __init__(
        self,
        stream: trio.SocketStream,
        table: ConnectionTable,
        lanes: Lanes,
        site: Site,
        common: Callable[[], bytes],
        failed: Callable[[Exception], None],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.used_at = trio.current_time()
        self._socket = stream.socket
        self._plain = stream
        self._stream: trio.SocketStream | trio.SSLStream[trio.SocketStream] = stream
        if tls is not None:
            self._stream = trio.SSLStream(stream, tls, server_side=True, https_compatible=True)
        self._table = table
        self._limits = table.limits
        self._lanes = lanes
        self._site = site
        self._failed = failed
        self._scope = trio.CancelScope()
        self._flow = Flow(lanes.prompt)
        self._http = Connection(LIMITS, site.admit, common)
        #: when the request that is being read has to be whole
        self._due = 0.0
        #: whether bytes are being sent
        self._sending = False
        self._peer: str | None = None
        table.add(self)

    @property
    def is_idle(self) -> bool:
        """Whether it waits for a request, of which nothing has come."""
        return self._http.receiving is Receiving.IDLE and not self._http.unanswered and not self._sending

    async def serve(self) -> None:
        """Answer what comes, until one of the two sides ends it."""
        self._flow.adopt_task()
        try:
            with self._scope:
                self._peer = self._socket.getpeername()[0]
                await self._serve()
                await self._last_look()
        except (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError, OSError):
            pass  # the peer is gone, or speaks no TLS
        finally:
            self.abort()

    def leave(self) -> None:
        """End with the answer to the request that has come, or to the next one."""
        self._http.leave()

    def drain(self) -> None:
        """End when what has begun is answered."""
        self._http.drain()
        if self._http.finished and not self._sending:
            self.abort()

    def abort(self) -> None:
        """Close the socket now, and end what waits for it or is to be sent over it."""
        self._table.remove(self)
        self._socket.close()
        self._scope.cancel()

    async def _serve(self) -> None:
        http = self._http
        if isinstance(self._stream, trio.SSLStream):
            with trio.fail_after(HANDSHAKE_S):
                await self._stream.do_handshake()
        while not http.finished:
            data = await self._receive()
            if data is None:
                http.time_out()
                requests: list[Request] = []
            elif data:
                requests = http.receive(data)
            else:
                http.receive_end()
                requests = []
            while True:
                for request in requests:
                    await self._answer(request)
                await self._send()
                if http.behind:
                    await self._turn()
                elif not requests:
                    break
                requests = http.go_on()

    # --- turns -------------------------------------------------------------------------------------------------------

    async def _turn(self) -> None:
        """Wait for a turn; end the connection if its peer has left meanwhile."""
        began = trio.current_time()
        if await self._flow.turn() and (ended := hung_up(self._socket)):
            now = trio.current_time()
            if ended & ~select.POLLRDHUP or now - began > self._limits.last_answer_s:
                self.abort()
                await trio.lowlevel.checkpoint_if_cancelled()
            self._scope.deadline = min(self._scope.deadline, now + self._limits.last_answer_s)

    async def _answer(self, request: Request) -> None:
        """Answer a request when it is its turn."""
        path = request.head.path
        self._table.has_asked(self)
        self._flow.move_to(self._lanes.prompt if is_probe(path) else self._lanes.other)
        await self._turn()
        try:
            request.respond(*await self._site.answer(Asked(request.head, self._peer, self._wait_gone)))
        except Refused as refusal:
            request.refuse(refusal)
        except Exception as error:
            self._failed(error)
            request.respond(*_FAILED)
        self._due = trio.current_time() + self._limits.keep_alive_s

    async def _wait_gone(self) -> None:
        """Return when the peer has left, or ``last_answer_s`` after it has shut down its side."""
        while not (ended := hung_up(self._socket)):  # noqa: ASYNC110  # only the kernel knows
            await trio.sleep(GONE_LOOK_S)
        if not ended & ~select.POLLRDHUP:
            await trio.sleep(self._limits.last_answer_s)

    # --- bytes -------------------------------------------------------------------------------------------------------

    def _used(self) -> None:
        self.used_at = trio.current_time()
        self._table.touch(self)

    async def _receive(self) -> bytes | None:
        """Read when it is this connection's turn. Returns b"" at the end, and None if a request takes too long."""
        if self._http.receiving is Receiving.IDLE:
            data = bytes(await self._stream.receive_some(READ_BYTES))
            self._flow.move_to(self._lanes.prompt if _PROBE.match(data) else self._lanes.other)
            self._due = trio.current_time() + self._limits.keep_alive_s
        else:
            with trio.move_on_at(self._due) as limit:
                data = bytes(await self._stream.receive_some(READ_BYTES))
            if limit.cancelled_caught:
                return None
        if data:
            self._used()
            await self._turn()
        return data

    async def _send(self) -> None:
        """Send the output of the connection.

        Raises:
            trio.BrokenResourceError: the peer is gone, or did not take it within ``send_s``.
        """
        pieces = self._http.take_output()
        self._sending = bool(pieces)
        for piece in pieces:
            rest = memoryview(piece)
            while rest:
                with trio.move_on_after(self._limits.send_s) as limit:
                    await self._stream.send_all(rest[:CHUNK_BYTES])
                if limit.cancelled_caught:
                    raise trio.BrokenResourceError("the peer does not read")
                rest = rest[CHUNK_BYTES:]
                self._used()
        self._sending = False

    async def _last_look(self) -> None:
        """Read and drop what the peer still sends.

        Closing with unread bytes would make the kernel send a reset, which can overtake an answer such as 431 at the
        peer's (RFC 9112 section 9.6).
        """
        left = LAST_BYTES
        with trio.move_on_after(LAST_LOOK_S):
            if isinstance(self._stream, trio.SSLStream):
                await self._stream.unwrap()  # which tells the peer that nothing was cut off
            await self._plain.send_eof()
            while left > 0 and (data := await self._plain.receive_some(READ_BYTES)):
                left -= len(data)


_FAILED: Final[Response] = text_response("the server has failed to answer; its log says why\n", status=500)


def hung_up(peer: trio.socket.SocketType) -> int:
    """What ``poll`` says of a peer's end: POLLRDHUP if it sends no more, POLLHUP or POLLERR if it is gone, or 0.

    It is known even while bytes that came before the end have not been read.
    """
    if peer.fileno() < 0:
        return select.POLLHUP
    poll = select.poll()
    poll.register(peer.fileno(), select.POLLRDHUP)
    return sum(events for _, events in poll.poll(0))
