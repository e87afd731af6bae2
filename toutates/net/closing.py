"""How connections end: by a fault of either side, by leaving, and all of them when the worker is drained."""

from __future__ import annotations

import time
from typing import Final

from toutates.h2grpc.faults import ConnectionFault
from toutates.h2grpc.goodbye import STOPPING
from toutates.h2grpc.stream import NEVER
from toutates.net.housekeeping import Housekeeper
from toutates.net.incidents import Incidents
from toutates.net.schedule import Schedule
from toutates.net.transport import Transport
from toutates.net.transports import Transports

__all__ = ["Closing"]

#: How long a closing connection is read, so that the peer gets our last bytes.
CLOSE_LINGER_NS: Final = 1_000_000_000
#: How long a peer may take to answer the PING of a graceful shutdown, or to make one more request.
GOODBYE_NS: Final = 1_000_000_000
#: Peers of which nothing was heard for so long are not waited for then.
LATELY_NS: Final = 10_000_000_000


class Closing:
    """Ends connections of one worker.

    Args:
        transports, schedule, incidents, housekeeper: of the worker.

    Attributes:
        cut_off_calls: calls that were cut off because the drain's grace was over.
    """

    def __init__(
        self, transports: Transports, schedule: Schedule, incidents: Incidents, housekeeper: Housekeeper
    ) -> None:
        self._transports = transports
        self._schedule = schedule
        self._incidents = incidents
        self._housekeeper = housekeeper
        self._drain_until_ns: int | None = None
        self._goodbye_ns = NEVER
        self._to_finish: dict[Transport, None] = {}
        #: whether the server is about to stop
        self._stopping = False
        self.cut_off_calls = 0

    # --- faults ------------------------------------------------------------------------------------------------------

    def failed(self, transport: Transport, error: Exception) -> None:
        """Dealing with a connection raised ``error``: end this connection, and nothing else."""
        connection = transport.connection
        self._transports.behind.pop(transport, None)
        try:
            if connection.closed:
                self.drop(transport)
            elif isinstance(error, MemoryError):
                # Its memory is given back first, so that there is some for the rest.
                self.end(transport, "the server is out of memory", "memory")
                self._incidents.out_of_memory(transport.peer)
            else:
                self.end(transport, "internal error", "")
        except Exception as another:
            self._incidents.bug("end of a connection", another, transport.peer)
            self.drop(transport)
        if not isinstance(error, MemoryError):
            self._incidents.bug("connection", error, transport.peer)

    def end(self, transport: Transport, reason: str, limit: str) -> None:
        """End a connection: because of ``limit``, or for a mistake of ours where that is ""."""
        transport.handle_all(transport.connection.end(reason, limit))

    def over(self, transport: Transport, reason: str) -> None:
        """A connection has ended itself, and may have requests left to end."""
        self._incidents.ended(transport.peer, reason)
        if transport.connection.behind:
            self._transports.behind.pop(transport, None)
            self._transports.fall_behind(transport, [])
        self.close_gently(transport)

    def tls_failed(self, transport: Transport, fault: ConnectionFault) -> None:
        """End a connection whose TLS cannot go on."""
        if transport.closing:
            self.drop(transport)
            return
        if fault.limit:
            self._incidents.limit_hits[fault.limit] += 1
        transport.handle_all(transport.connection.connection_lost())
        self.over(transport, f"{fault} ({fault.code.name})")

    # --- leaving -----------------------------------------------------------------------------------------------------

    def tell_to_leave(self, transport: Transport, reason: str) -> None:
        """Say goodbye to a peer; its calls are answered."""
        self._transports.leaving[transport] = None
        transport.connection.begin_shutdown(reason)
        self.close_if_drained(transport)

    def finish_leaving_soon(self, transport: Transport) -> None:
        """Answer no more new calls of a peer that was told to leave, once the next round has read what came."""
        self._to_finish[transport] = None
        self._schedule.plan(time.monotonic_ns())

    def finish_leaving(self, transport: Transport) -> None:
        """Answer no more new calls of a peer that was told to leave."""
        transport.connection.finish_shutdown()
        self.close_if_drained(transport)

    def close_if_drained(self, transport: Transport) -> None:
        """Close a connection whose peer was told to leave, and which has nothing left to do."""
        # Output that waits for a TLS handshake is not waited for.
        sent = not (transport.unsent or transport.connection.has_output) or not transport.established
        done = transport.connection.drained and sent
        if transport in self._transports.leaving and done and not transport.closing:
            self.close_gently(transport)

    def announce_end(self) -> None:
        """The server is about to stop: answers say so from now on, on connections to come too, where they can."""
        self._stopping = True
        for transport in list(self._transports.open.values()):
            self.greet(transport)

    def greet(self, transport: Transport) -> None:
        """Tell a peer what its connection has to know from the beginning on: that the server is about to stop."""
        try:
            if self.draining:
                self.tell_to_leave(transport, STOPPING)
            elif self._stopping:
                transport.connection.announce_end()
                if transport.connection.told_by_answers:
                    self._transports.leaving[transport] = None
        except Exception as error:
            self.failed(transport, error)

    # --- sockets -----------------------------------------------------------------------------------------------------

    def close_gently(self, transport: Transport) -> None:
        """Send what is left, then end our side, and read until the peer ends its own or CLOSE_LINGER_NS are over."""
        self._transports.closing[transport] = None
        at_ns = time.monotonic_ns() + CLOSE_LINGER_NS
        self._schedule.plan(at_ns)
        if not transport.close_gently(at_ns):
            self.drop(transport)

    def drop(self, transport: Transport) -> None:
        """Close a socket and end its calls."""
        if not self._transports.remove(transport):
            return
        connection = transport.connection
        try:
            self._housekeeper.remove(transport)
            transport.close()
        except Exception as error:
            transport.sock.close()
            self._incidents.bug("end of a connection", error, transport.peer)
        try:
            transport.handle_all(connection.connection_lost())
        except Exception as error:
            connection.behind = True  # what is left is tried again
            self._incidents.bug("end of a connection", error, transport.peer)
        if connection.behind:
            self._transports.fall_behind(transport, [])
        connection.bind(None)

    def end_some_calls(self, transport: Transport, now_ns: int) -> bool:
        """End some calls of a connection whose socket is closed; whether there are more."""
        connection = transport.connection
        before = connection.open_calls
        try:
            transport.handle_all(connection.go_on(now_ns))
        except Exception as error:
            self._incidents.bug("end of a call", error)
            if connection.open_calls >= before:
                return False  # no call was ended, and trying again would end none either
        return connection.behind

    # --- the drain ---------------------------------------------------------------------------------------------------

    @property
    def draining(self) -> bool:
        """Whether the worker is to end once its connections have."""
        return self._drain_until_ns is not None

    def drain(self, grace_s: float) -> None:
        """Say goodbye on every connection, and close them all within ``grace_s``. A later call can shorten that."""
        now_ns = time.monotonic_ns()
        until_ns = now_ns + int(grace_s * 1e9)
        if self._drain_until_ns is None:
            self._drain_until_ns = until_ns
            self._goodbye_ns = now_ns + min(GOODBYE_NS, int(grace_s * 5e8))
            for transport in list(self._transports.open.values()):
                self.greet(transport)
                if now_ns - transport.last_read_ns >= LATELY_NS:
                    self._finish(transport)
            self._schedule.plan(self._goodbye_ns)
        self._drain_until_ns = min(self._drain_until_ns, until_ns)
        self._schedule.plan(self._drain_until_ns)

    def tick(self, now_ns: int) -> None:
        """Do what is due by time."""
        while self._to_finish:
            transport, _ = self._to_finish.popitem()
            if not transport.dropped:
                self._finish(transport)
        if self._drain_until_ns is not None:
            self._tick_drain(now_ns, self._drain_until_ns)
        for transport in list(self._transports.closing):
            if transport.close_at_ns > now_ns:
                self._schedule.plan(transport.close_at_ns)
                break
            self.drop(transport)

    def _tick_drain(self, now_ns: int, drain_until_ns: int) -> None:
        if now_ns >= self._goodbye_ns:
            self._goodbye_ns = NEVER
            for transport in list(self._transports.open.values()):
                self._finish(transport)
        if now_ns >= drain_until_ns:
            for transport in list(self._transports.open.values()):
                self.cut_off_calls += transport.connection.open_calls
                self.drop(transport)
            return
        self._schedule.plan(self._goodbye_ns)
        self._schedule.plan(drain_until_ns)

    def _finish(self, transport: Transport) -> None:
        connection = transport.connection
        is_silent = connection.told_by_answers and not (
            connection.open_calls or connection.has_output or transport.unsent
        )
        try:
            self.finish_leaving(transport)
            if self.draining and is_silent and transport.closing:
                self.drop(transport)  # nothing was sent that a reset could overtake, and the server waits for nobody
        except Exception as error:
            self.failed(transport, error)

    def drop_all(self, now_ns: int) -> None:
        """Close every socket, and end all calls."""
        for transport in list(self._transports.open.values()):
            self.drop(transport)
        behind = self._transports.behind
        while behind:
            transport, _ = behind.popitem(last=False)
            while transport.connection.behind and self.end_some_calls(transport, now_ns):
                pass
