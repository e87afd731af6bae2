"""The socket under one connection: what the kernel has not taken yet, and when it is asked again.

``tls_transport.TlsTransport`` does the same with TLS in between, in methods of its own, so that plaintext pays nothing
for TLS.
"""

from __future__ import annotations

import ctypes
import os
import select
import socket
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any, ClassVar, Final

from toutates.h2grpc.budget import MemoryBudget
from toutates.h2grpc.output import part_of_its_own
from toutates.h2grpc.stream import Buffer
from toutates.h2grpc.vector import Vector
from toutates.net.connection import Connection, Service

__all__ = [
    "AWAIT_NS",
    "EPOLLERR",
    "EPOLLIN",
    "EPOLLOUT",
    "EPOLLRDHUP",
    "LARGE_READ_BYTES",
    "LEAST_AWAITED_BYTES",
    "MOST_AWAITED_BYTES",
    "PACE_NS",
    "READ_BYTES",
    "READ_NS",
    "Transport",
]

#: First size of a read. A connection that fills its reads gets larger ones, up to the second, while their frames are
#: handled fast, which those of large tensors are; and smaller ones, down to the third, where they are not: small frames
#: by the thousand, or headers and messages that mean far more than their bytes, would hold up all other connections. So
#: would many connections that are new, or fill their reads: theirs become smaller while rounds take long.
READ_BYTES: Final = 16_384
LARGE_READ_BYTES: Final = 1_048_576
SMALL_READ_BYTES: Final = 4_096
#: What handling a read may take.
READ_NS: Final = 4_000_000
#: Of a large message, so much is read at once as comes in this time: each read costs some 30 us. So that nothing else
#: on the connection is held up, this is short, and none is waited for longer than AWAIT_NS.
PACE_NS: Final = 1_000_000
AWAIT_NS: Final = 5_000_000
#: It is not waited for fewer bytes than this, and not for more: a tensor of a MiB and what is around it.
LEAST_AWAITED_BYTES: Final = 65_536
MOST_AWAITED_BYTES: Final = 1_048_576 + 4_096
#: Buffers per sendmsg call; Linux takes 1,024.
MAX_BUFFERS: Final = 512
#: Bytes that a connection sends in its turn, at most. The kernel takes several times as many, and no end of them where
#: the peer reads as fast as we send. The rest waits for EPOLLOUT, which comes in the next round. It is a MiB, and room
#: for what is around an answer of a MiB, which would else take two turns.
MOST_SENT_BYTES: Final = 1_048_576 + 65_536

EPOLLERR: Final = select.EPOLLERR
EPOLLIN: Final = select.EPOLLIN
EPOLLOUT: Final = select.EPOLLOUT
EPOLLRDHUP: Final = select.EPOLLRDHUP


_readv: Final = ctypes.CDLL(None, use_errno=True).readv
_readv.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_int)
_readv.restype = ctypes.c_ssize_t


class Transport:
    """A connection's socket. Methods that send return False when the socket turns out to be broken.

    Args:
        sock: accepted.
        service: what the peer's bytes are for.
        peer: for logs.
        epoll: watches the socket; registered here.
        max_unsent_bytes: above it the peer's requests are not read until it has read what they were answered.
        budget: counts what waits for the kernel, with all else that the worker holds for slow peers.
        now_ns: monotonic.

    Raises:
        OSError: the socket or the epoll refused.

    Attributes:
        connection: the service's: what the bytes are handed to, and where they come from.
    """

    __slots__ = (
        "_budget",
        "_epoll",
        "_mask",
        "_max_unsent_bytes",
        "alike",
        "awaited_bytes",
        "close_at_ns",
        "closing",
        "connection",
        "dropped",
        "fd",
        "last_read_ns",
        "opened_ns",
        "overflow",
        "owed_ns",
        "pace",
        "paused",
        "peer",
        "peer_ended",
        "read_bytes",
        "receive",
        "received_bytes",
        "sent_bytes",
        "service",
        "sock",
        "timed_bytes",
        "unsent",
        "unsent_bytes",
    )

    def __init__(
        self,
        sock: socket.socket,
        service: Service,
        peer: str,
        epoll: select.epoll,
        max_unsent_bytes: int,
        budget: MemoryBudget,
        now_ns: int,
    ) -> None:
        self.sock = sock
        self.fd = sock.fileno()
        self.peer = peer
        #: reads at most as many bytes as it is told, and raises what the socket's ``recv`` does; with TLS also
        #: ConnectionFault
        self.receive: Callable[[int], bytes] = sock.recv
        self.read_bytes = READ_BYTES
        #: reads that bring so much are timed for ``fit_reads``
        self.timed_bytes = self._bytes_of_full_read()
        # Written by the driver where it reads, because a call for them would cost more than they do.
        self.opened_ns = self.last_read_ns = now_ns
        self.received_bytes = 0
        self.sent_bytes = 0
        #: how many bytes have to be there for the epoll to tell of them
        self.awaited_bytes = 1
        #: bytes of large messages that lately came within PACE_NS
        self.pace = 0
        #: how many large messages that were foreseen came one soon after the other, and nothing in between; less than
        #: none once that was relied on in vain
        self.alike = 0
        #: bytes that came with those of the last ``receive_into``, and follow them
        self.overflow = b""
        #: what its last turn took, where others are to have as much time before the next one
        self.owed_ns = 0
        self.unsent: deque[memoryview] = deque()
        self.unsent_bytes = 0
        #: our side is ending; what the peer still sends is read and dropped, so that it gets our last bytes
        self.closing = False
        self.close_at_ns = 0
        #: the socket is closed
        self.dropped = False
        #: whether reading pauses, because the driver has not handled yet what was read
        self.paused = False
        #: the peer sends no more, and something is still sent to it: nothing is read
        self.peer_ended = False
        self._budget = budget
        self._epoll = epoll
        self._max_unsent_bytes = max_unsent_bytes
        self._mask = EPOLLIN | EPOLLRDHUP if self._hears_of_end else EPOLLIN
        sock.setblocking(False)
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        epoll.register(self.fd, self._mask)
        self.service: Service
        self.connection: Connection
        self.speak(service)

    #: whether the epoll tells of the peer's end before everything has been read that it sent before
    _hears_of_end: ClassVar[bool] = True

    def receive_into(self, views: list[memoryview]) -> int:
        """Read into views; returns how many bytes came, 0 once the peer has ended its side. Raises as ``receive``."""
        return os.readv(self.fd, views)  # for 130 views a fifth less than ``recvmsg_into``

    def receive_vector(self, vector: Vector) -> int:
        """The same for a vector. Never called with TLS, where nothing is foreseen."""
        count: int = _readv(self.fd, vector.address, vector.count)
        if count < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))  # BlockingIOError where nothing has come
        return count

    def peek(self, count: int) -> bytes:
        """Up to ``count`` bytes that are there, and stay there; b"" where that cannot be told."""
        try:
            return self.sock.recv(count, socket.MSG_PEEK)
        except OSError:
            return b""  # told by the read that comes next

    def await_bytes(self, count: int) -> None:
        """Have the epoll tell of received bytes once there are ``count``, or the peer has ended its side."""
        if count != self.awaited_bytes:
            self.awaited_bytes = count
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)

    def speak(self, service: Service) -> None:
        """From here on the peer's bytes are for ``service``, which gives it a new connection.

        A connection that was made to find out which protocol its peer speaks calls this when it knows, and returns what
        the new connection has made of the bytes.
        """
        self.service = service
        self.connection = service.connect()
        self.connection.bind(self)

    def handle_all(self, events: list[Any]) -> None:
        """Hand a few events of the connection to its service."""
        for event in events:
            self.service.handle(self, event)

    @property
    def established(self) -> bool:
        """Whether output reaches the peer; before, it waits for a handshake."""
        return True

    @property
    def congested(self) -> bool:
        """Whether the peer leaves too many bytes unread for its requests to be read."""
        return self.unsent_bytes > self._max_unsent_bytes

    @property
    def waiting_bytes(self) -> int:
        """Bytes that wait for the peer to read."""
        return self.unsent_bytes

    @property
    def end_waits(self) -> bool:
        """Whether the peer's end has been read together with its last data, and is to be dealt with now."""
        return False

    def end_reading(self) -> None:
        """The peer sends no more: the socket, which would be ready to be read from now on, is not watched for that."""
        self.peer_ended = True
        self._watch(sending=bool(self._mask & EPOLLOUT))

    def fit_reads(self, took_ns: int) -> None:
        """Choose the size of the next read by how long it took to handle one that was filled."""
        if took_ns > READ_NS:
            self.read_bytes = max(self.read_bytes >> 1, SMALL_READ_BYTES)
        else:
            self.read_bytes = min(self.read_bytes << 1, self._largest_read_bytes)
        self.timed_bytes = self._bytes_of_full_read()

    def begin_small(self) -> None:
        """Make reads small again: the next one may begin another large message, which is then received directly."""
        self.read_bytes = READ_BYTES
        self.timed_bytes = self._bytes_of_full_read()

    @property
    def _largest_read_bytes(self) -> int:
        return LARGE_READ_BYTES

    def _bytes_of_full_read(self) -> int:
        return self.read_bytes

    def flush(self) -> bool:
        """Send the connection's output, joined to one buffer where it is small."""
        connection = self.connection
        bulky = connection.bulky
        out = connection.take_output()
        if bulky:
            return self._flush_pieces(out)
        if self.unsent:
            self._queue([b"".join(out)])
            return self.send_unsent()
        data = b"".join(out)
        if not data:
            return True  # a send of nothing is an error once our side is shut
        try:
            sent = self.sock.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            return False
        self.sent_bytes += sent
        if sent < len(data):
            self._queue([memoryview(data)[sent:]])
            self._watch(sending=True)
        return True

    def _flush_pieces(self, out: Sequence[Buffer]) -> bool:
        """Send large output from where it lies. Nearly always the kernel takes all of it, by one call."""
        sent = 0
        if not self.unsent and len(out) <= MAX_BUFFERS and sum(map(len, out)) <= MOST_SENT_BYTES:
            try:
                sent = self.sock.sendmsg(out)
            except BlockingIOError:
                pass
            except OSError:
                return False
            if sent == sum(map(len, out)):
                self.sent_bytes += sent
                return True
        self._queue(out)
        self._forget_sent(sent)
        working = self.send_unsent()
        if self.unsent:
            self._let_go_of_batches(len(out))
        return working

    def _let_go_of_batches(self, count: int) -> None:
        """Of the last ``count`` buffers that wait, copy those that are small parts of a large one."""
        unsent = self.unsent
        views = [unsent.pop() for _ in range(min(count, len(unsent)))]
        together: Counter[int] = Counter()
        for view in views:
            together[id(view.obj)] += len(view)
        unsent.extend([part_of_its_own(view, together[id(view.obj)]) for view in reversed(views)])

    def _queue(self, buffers: Iterable[Buffer]) -> None:
        views = [memoryview(buffer) for buffer in buffers if buffer]
        self.unsent += views
        size = sum(map(len, views))
        self.unsent_bytes += size
        self._budget.used += size

    def send_unsent(self) -> bool:
        """Give the kernel what it takes; the rest waits for EPOLLOUT, for this connection only."""
        unsent = self.unsent
        was_congested = self.congested
        room = MOST_SENT_BYTES
        while unsent and room > 0:
            try:
                sent = self.sock.sendmsg(self._head(room))
            except BlockingIOError:
                break
            except OSError:
                return False
            self._forget_sent(sent)
            room -= sent
        if was_congested and not self.congested:
            self.connection.wake_senders()
        self._watch(sending=bool(unsent))
        return bool(unsent) or not self.closing or self._shut_writing()

    def _head(self, room: int) -> list[memoryview]:
        """The head of ``unsent``, of ``room`` bytes at most."""
        if self.unsent_bytes <= room:
            return list(islice(self.unsent, MAX_BUFFERS))
        head: list[memoryview] = []
        for buffer in islice(self.unsent, MAX_BUFFERS):
            head.append(buffer[:room])
            room -= len(head[-1])
            if not room:
                break
        return head

    def _forget_sent(self, count: int) -> None:
        """The first ``count`` bytes are the kernel's now."""
        unsent = self.unsent
        self.sent_bytes += count
        self.unsent_bytes -= count
        self._budget.used -= count
        if not self.unsent_bytes:
            unsent.clear()
            return
        while unsent and count >= len(unsent[0]):
            count -= len(unsent.popleft())
        if count:
            unsent[0] = unsent[0][count:]

    def _forget_unsent(self) -> None:
        """Nothing can be sent any more."""
        self.unsent.clear()
        self._budget.used -= self.unsent_bytes
        self.unsent_bytes = 0

    def _watch(self, *, sending: bool) -> None:
        """Watch for what the transport can use: room while it is ``sending``, requests unless too many bytes wait.

        It is watched for the peer's end where that ends requests.
        """
        mask = EPOLLOUT if sending else 0
        reads = self.closing or not (self.congested or self.paused or self.peer_ended)
        if reads:
            mask |= EPOLLIN
        if not (
            self.closing or self.peer_ended or self.service.answers_half_closed or (reads and not self._hears_of_end)
        ):
            mask |= EPOLLRDHUP
        if mask != self._mask:
            self._mask = mask
            self._epoll.modify(self.fd, mask)

    def pause(self, paused: bool) -> None:
        """Read no more of the peer's requests for now, or read them again."""
        if paused is not self.paused:
            self.paused = paused
            self._watch(sending=bool(self._mask & EPOLLOUT))

    def close_gently(self, at_ns: int) -> bool:
        """Send what is left, then end our side; the driver reads on until the peer ends its own, or until ``at_ns``.

        Closing with unread bytes would make the kernel send a reset, which can overtake our last bytes at the peer's
        (RFC 9112 section 9.6).
        """
        self.closing = True
        self.close_at_ns = at_ns
        self._queue(self.connection.take_output())
        return self.send_unsent()

    def _shut_writing(self) -> bool:
        try:
            self.sock.shutdown(socket.SHUT_WR)
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Close the socket, which takes it out of the epoll too."""
        self._forget_unsent()
        self.sock.close()
