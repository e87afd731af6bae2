"""Accepting connections, from one listener or several."""

from __future__ import annotations

import errno
import select
import socket
from collections.abc import Callable
from typing import Final, NamedTuple

from toutates.h2grpc.stream import NEVER
from toutates.net.connection import Service
from toutates.net.incidents import Incidents
from toutates.net.schedule import Schedule
from toutates.net.transport import EPOLLIN

__all__ = ["Acceptor", "Listening"]

#: How long accepting pauses when the process is out of file descriptors or memory.
ACCEPT_PAUSE_NS: Final = 100_000_000
ACCEPT_OVERLOAD: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
#: Connections accepted per round, so that a storm of them does not stop requests.
ACCEPTS_PER_ROUND: Final = 32


class Listening(NamedTuple):
    """A socket to accept connections from.

    Attributes:
        socket: bound, listening and non-blocking.
        service: of its connections.
        encrypted: whether they speak TLS, where the worker has a certificate.
    """

    socket: socket.socket
    service: Service
    encrypted: bool = True


class Acceptor:
    """Takes connections from a worker's listeners.

    Args:
        epoll: watches the listeners.
        schedule, incidents: of the worker.
        take: takes a socket that was accepted, its peer's address as text, the time, and where it comes from; raises
            nothing.

    Attributes:
        listeners: by file descriptor.
    """

    def __init__(
        self,
        epoll: select.epoll,
        schedule: Schedule,
        incidents: Incidents,
        take: Callable[[socket.socket, str, int, Listening], None],
    ) -> None:
        self.epoll = epoll
        self._schedule = schedule
        self._incidents = incidents
        self._take = take
        self.listeners: dict[int, Listening] = {}
        self._again_ns = NEVER

    def listen(self, listening: Listening) -> None:
        """Accept connections from now on; from a socket that is known, for another service."""
        fd = listening.socket.fileno()
        if fd not in self.listeners and self._again_ns == NEVER:
            self.epoll.register(fd, EPOLLIN)
        self.listeners[fd] = listening

    def stop(self) -> None:
        """Close the listeners."""
        while self.listeners:
            _, listening = self.listeners.popitem()
            listening.socket.close()  # which takes it out of the epoll too
        self._again_ns = NEVER

    def tick(self, now_ns: int) -> None:
        """Do what is due by time."""
        if now_ns >= self._again_ns:
            self._again_ns = NEVER
            for fd in self.listeners:
                self.epoll.register(fd, EPOLLIN)
        self._schedule.plan(self._again_ns)

    def accept(self, fd: int, now_ns: int) -> None:
        """Take the connections of a listener that are there, ACCEPTS_PER_ROUND of them."""
        listening = self.listeners[fd]
        for _ in range(ACCEPTS_PER_ROUND):
            try:
                sock, address = listening.socket.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in ACCEPT_OVERLOAD:
                    self._incidents.limit_hits["file_descriptors"] += 1
                    self._incidents.accepting_pauses(str(error.strerror))
                    self._pause(now_ns)
                    return
                continue  # the peer gave up before we came (ECONNABORTED and the like)
            self._take(sock, f"{address[0]}:{address[1]}" if isinstance(address, tuple) else "unix", now_ns, listening)

    def _pause(self, now_ns: int) -> None:
        """Accept nothing for a while."""
        if self._again_ns == NEVER:
            for fd in self.listeners:
                self.epoll.unregister(fd)
        self._again_ns = now_ns + ACCEPT_PAUSE_NS
        self._schedule.plan(self._again_ns)
