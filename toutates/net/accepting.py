"""Accepting connections, from one listener or several."""

from __future__ import annotations

import ctypes
import errno
import select
import socket
import struct
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
#: How long handshakes that have begun may take to become connections before a port that others share is left.
HANDSHAKES_NS: Final = 200_000_000
#: Connections that are taken at the very end, at most: as many as wait in the kernel.
MOST_LAST: Final = 4_096

_SO_ATTACH_FILTER: Final = 26
#: A classic BPF program for the packets of a listener: those with SYN and without ACK are dropped, all others pass.
#: Load the flags (byte 13 of the TCP header); keep SYN and ACK; SYN alone? then drop, else pass whole.
_NO_NEW_HANDSHAKES: Final = b"".join(
    struct.pack("=HBBI", *one)
    for one in ((0x30, 0, 0, 13), (0x54, 0, 0, 0x12), (0x15, 0, 1, 0x02), (0x06, 0, 0, 0), (0x06, 0, 0, 0xFFFFFFFF))
)


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
        most_fd: the first descriptor that no connection may have; those from it on are kept back for others.
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
        self.most_fd: int = NEVER
        self._again_ns = NEVER
        self._end_ns = NEVER

    def listen(self, listening: Listening) -> None:
        """Accept connections from now on; from a socket that is known, for another service."""
        fd = listening.socket.fileno()
        if fd not in self.listeners and self._again_ns == NEVER:
            self.epoll.register(fd, EPOLLIN)
        self.listeners[fd] = listening

    def stop(self) -> None:
        """Close the listeners. Connections that wait in the kernel are reset by it."""
        while self.listeners:
            _, listening = self.listeners.popitem()
            listening.socket.close()  # which takes it out of the epoll too
        self._again_ns = self._end_ns = NEVER

    def leave(self, now_ns: int, *, shared: bool, within_ns: int) -> None:
        """Take the connections that have been made, and close the listeners.

        Args:
            now_ns: the time.
            shared: whether others listen on the same ports. Then no handshake begins any more, those that have begun
                are waited for, and clients whose handshake was not let begin repeat it a second later, with one of
                the others. The kernel would reset all connections that it has made for this listener and nobody has
                accepted, and whose handshakes are under way.
            within_ns: how long that may take.
        """
        if not self.listeners:
            return
        if shared and all(map(_refuse_handshakes, (one.socket for one in self.listeners.values()))):
            self._end_ns = min(self._end_ns, now_ns + min(HANDSHAKES_NS, within_ns))
        else:
            self._end_ns = now_ns
        self.tick(now_ns)

    def tick(self, now_ns: int) -> None:
        """Do what is due by time."""
        if now_ns >= self._end_ns:
            for fd in self.listeners:
                self.accept(fd, now_ns, MOST_LAST)
            self.stop()
            return
        if now_ns >= self._again_ns:
            self._again_ns = NEVER
            for fd in self.listeners:
                self.epoll.register(fd, EPOLLIN)
        self._schedule.plan(min(self._again_ns, self._end_ns))

    def accept(self, fd: int, now_ns: int, most: int = ACCEPTS_PER_ROUND) -> None:
        """Take the connections of a listener that are there, ``most`` of them."""
        listening = self.listeners[fd]
        turned_away = False
        for _ in range(most):
            try:
                sock, address = listening.socket.accept()
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno in ACCEPT_OVERLOAD:
                    self._pause(now_ns, str(error.strerror))
                    return
                continue  # the peer gave up before we came (ECONNABORTED and the like)
            if sock.fileno() >= self.most_fd:
                sock.close()
                turned_away = True
                continue
            self._take(sock, f"{address[0]}:{address[1]}" if isinstance(address, tuple) else "unix", now_ns, listening)
        if turned_away:
            self._pause(now_ns, "the file descriptors that are left are kept back")

    def _pause(self, now_ns: int, why: str) -> None:
        """Accept nothing for a while."""
        self._incidents.limit_hits["file_descriptors"] += 1
        self._incidents.accepting_pauses(why)
        if self._again_ns == NEVER:
            for fd in self.listeners:
                self.epoll.unregister(fd)
        self._again_ns = now_ns + ACCEPT_PAUSE_NS
        self._schedule.plan(self._again_ns)


def _refuse_handshakes(listener: socket.socket) -> bool:
    """Have the kernel ignore requests for new connections, as if they were lost; whether it does."""
    program = ctypes.create_string_buffer(_NO_NEW_HANDSHAKES, len(_NO_NEW_HANDSHAKES))
    # struct sock_fprog: the number of instructions and where they are
    fields = struct.pack("@HP", len(_NO_NEW_HANDSHAKES) // 8, ctypes.addressof(program))
    try:
        listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, fields)
    except OSError:
        return False
    return True
