"""Accepting connections."""

from __future__ import annotations

import errno
import random
import select
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from typing import Final

from toutates.h2grpc.limits import Limits
from toutates.h2grpc.stream import NEVER
from toutates.net.closing import Closing
from toutates.net.connection import Connection
from toutates.net.housekeeping import Housekeeper
from toutates.net.incidents import Incidents
from toutates.net.schedule import Schedule
from toutates.net.tls import TlsEngine
from toutates.net.tls_transport import TlsTransport
from toutates.net.transport import EPOLLIN, Transport
from toutates.net.transports import Transports

__all__ = ["Acceptor"]

#: How long accepting pauses when the process is out of file descriptors or memory.
ACCEPT_PAUSE_NS: Final = 100_000_000
ACCEPT_OVERLOAD: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
#: Connections accepted per round, so that a storm of them does not stop requests.
ACCEPTS_PER_ROUND: Final = 32
#: The ages of connections vary by so much, so that those made together do not all come back together.
AGE_FACTORS: Final = (0.9, 1.1)


class Acceptor:
    """Takes connections from a worker's listener.

    Args:
        connect: makes a connection for a socket.
        tls: what it shakes hands with at the moment; None for plaintext.
        limits: bounds of every connection.
        max_connections: those above it are turned away.
        epoll: watches the listener and the sockets.
        transports, schedule, closing, incidents, housekeeper: of the worker.
        limit_hits: how often each limit was met.
    """

    def __init__(
        self,
        connect: Callable[[], Connection],
        tls: Callable[[], ssl.SSLContext | None],
        limits: Limits,
        max_connections: int,
        epoll: select.epoll,
        transports: Transports,
        schedule: Schedule,
        closing: Closing,
        incidents: Incidents,
        housekeeper: Housekeeper,
        limit_hits: Counter[str],
    ) -> None:
        self._connect = connect
        self._tls = tls
        self._limits = limits
        self._max_connections = max_connections
        self.epoll = epoll
        self._transports = transports
        self._schedule = schedule
        self._closing = closing
        self._incidents = incidents
        self._housekeeper = housekeeper
        self._limit_hits = limit_hits
        self.listener: socket.socket | None = None
        self._again_ns = NEVER

    def listen(self, listener: socket.socket) -> None:
        """Accept from a bound and listening non-blocking socket."""
        self.listener = listener
        self._again_ns = NEVER
        self.epoll.register(listener.fileno(), EPOLLIN)

    def stop(self) -> None:
        """Close the listener."""
        if self.listener is not None:
            self.listener.close()  # which takes it out of the epoll too
            self.listener = None
            self._again_ns = NEVER

    def listens_on(self, fd: int) -> bool:
        """Whether ``fd`` is the listener's."""
        return self.listener is not None and fd == self.listener.fileno()

    def tick(self, now_ns: int) -> None:
        """Do what is due by time."""
        if now_ns >= self._again_ns and self.listener is not None:
            self.listen(self.listener)
        self._schedule.plan(self._again_ns)

    def accept(self, now_ns: int) -> None:
        """Take the connections that are there, ACCEPTS_PER_ROUND of them."""
        assert self.listener is not None
        for _ in range(ACCEPTS_PER_ROUND):
            try:
                sock, address = self.listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in ACCEPT_OVERLOAD:
                    self._limit_hits["file_descriptors"] += 1
                    self._incidents.accepting_pauses(str(error.strerror))
                    self.epoll.unregister(self.listener.fileno())
                    self._again_ns = now_ns + ACCEPT_PAUSE_NS
                    self._schedule.plan(self._again_ns)
                    return
                continue  # the peer gave up before we came (ECONNABORTED and the like)
            try:
                self._add(sock, address, now_ns)
            except Exception as error:
                transport = self._transports.open.get(sock.fileno())
                if transport is not None:
                    self._closing.failed(transport, error)
                else:
                    sock.close()
                    self._incidents.bug("connection that was to be taken", error)

    def _add(self, sock: socket.socket, address: tuple[object, ...] | str, now_ns: int) -> None:
        connection = self._connect()
        peer = f"{address[0]}:{address[1]}" if isinstance(address, tuple) else "unix"
        try:
            transport = self._make_transport(sock, connection, peer, now_ns)
        except OSError as error:
            self._incidents.not_taken(peer, str(error.strerror))
            sock.close()
            return
        transports = self._transports
        transports.open[transport.fd] = transport
        connection.bind(transport)
        self._housekeeper.add(transport, now_ns, random.uniform(*AGE_FACTORS))
        if len(transports.open) - len(transports.closing) > self._max_connections:
            connection.refuse("too many connections")
            self._closing.close_gently(transport)

    def _make_transport(self, sock: socket.socket, connection: Connection, peer: str, now_ns: int) -> Transport:
        limits = self._limits
        tls = self._tls()
        if tls is None:
            return Transport(sock, connection, peer, self.epoll, limits.max_unsent_bytes, now_ns)
        engine = TlsEngine(tls, limits.max_preface_bytes)
        return TlsTransport(sock, connection, peer, self.epoll, limits.max_unsent_bytes, now_ns, engine)
