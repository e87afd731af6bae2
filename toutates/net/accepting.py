"""Accepting connections."""

from __future__ import annotations

import errno
import select
import socket
from collections.abc import Callable
from typing import Final

from toutates.h2grpc.stream import NEVER
from toutates.net.incidents import Incidents
from toutates.net.schedule import Schedule
from toutates.net.transport import EPOLLIN

__all__ = ["Acceptor"]

#: How long accepting pauses when the process is out of file descriptors or memory.
ACCEPT_PAUSE_NS: Final = 100_000_000
ACCEPT_OVERLOAD: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
#: Connections accepted per round, so that a storm of them does not stop requests.
ACCEPTS_PER_ROUND: Final = 32


class Acceptor:
    """Takes connections from a worker's listener.

    Args:
        epoll: watches the listener.
        schedule, incidents: of the worker.
        take: takes a socket that was accepted, its peer's address as text, and the time; raises nothing.
    """

    def __init__(
        self,
        epoll: select.epoll,
        schedule: Schedule,
        incidents: Incidents,
        take: Callable[[socket.socket, str, int], None],
    ) -> None:
        self.epoll = epoll
        self._schedule = schedule
        self._incidents = incidents
        self._take = take
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
                    self._incidents.limit_hits["file_descriptors"] += 1
                    self._incidents.accepting_pauses(str(error.strerror))
                    self.epoll.unregister(self.listener.fileno())
                    self._again_ns = now_ns + ACCEPT_PAUSE_NS
                    self._schedule.plan(self._again_ns)
                    return
                continue  # the peer gave up before we came (ECONNABORTED and the like)
            self._take(sock, f"{address[0]}:{address[1]}" if isinstance(address, tuple) else "unix", now_ns)
