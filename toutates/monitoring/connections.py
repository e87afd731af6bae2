"""The HTTP side's connections: how many there may be, how long they may take, and how fast they are read.

Hypercorn speaks HTTP on whatever stream it is given, and waits for as long as its peer likes. ``BoundedStream`` is what
it is given here: a peer that does not read loses its connection, and nothing is read while the thread has used up its
share of the CPU. ``ConnectionTable`` knows them all, and makes room for a new one.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

import trio

from toutates.monitoring.cpu_budget import CpuBudget

__all__ = ["MAX_CONNECTIONS", "BoundedStream", "ConnectionTable"]

#: Connections at once; those of scrapers, probes and browsers are a handful.
MAX_CONNECTIONS: Final = 128
#: Bytes per read: what a peer can make us parse before the next look at the CPU's budget.
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

    def abort_all(self) -> None:
        """Cut off what is left."""
        for stream in list(self._streams):
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
    """

    def __init__(self, stream: trio.SocketStream, table: ConnectionTable, budget: CpuBudget) -> None:
        self.socket = stream.socket
        self.used_at = trio.current_time()
        self.scope = trio.CancelScope()
        self._stream = stream
        self._table = table
        self._budget = budget

    def _used(self) -> None:
        self.used_at = trio.current_time()
        self._table.touch(self)

    async def receive_some(self, max_bytes: int = READ_BYTES) -> bytes:
        """What has come; b"" at its end. As ``trio.SocketStream``, but when the thread may work again."""
        data = bytes(await self._stream.receive_some(min(max_bytes, READ_BYTES)))
        if data:
            self._used()
        else:
            # Hypercorn would keep it for as long as one that may still ask for something.
            self.scope.deadline = trio.current_time() + LAST_ANSWER_S
        await self._budget.wait()
        return data

    async def send_all(self, data: bytes) -> None:
        """As ``trio.SocketStream``.

        Raises:
            trio.BrokenResourceError: the peer is gone, or did not take it within SEND_S.
        """
        with trio.move_on_after(SEND_S) as limit:
            await self._stream.send_all(data)
            self._used()
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
        """Close the socket now; whoever waits for it hears that it is closed."""
        self._table.remove(self)
        self.socket.close()
