"""The socket under a connection with TLS in between."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator
from itertools import islice
from typing import Final

from toutates.h2grpc.budget import MemoryBudget
from toutates.h2grpc.faults import ConnectionFault
from toutates.h2grpc.stream import Buffer
from toutates.net.connection import Service
from toutates.net.tls import RECORD_BYTES, TlsEngine
from toutates.net.transport import MAX_BUFFERS, Transport

__all__ = ["TlsTransport"]

#: Plaintext encrypted at a time; the kernel has to take its ciphertext before there is more. So a large response costs
#: no second copy of itself, and no other connection waits until all of it is encrypted.
CHUNK_BYTES: Final = 65_536
#: Chunks in one turn to send, see ``transport.MOST_SENT_BYTES``. Each takes some 50 us.
MOST_CHUNKS: Final = 17
#: Ciphertext per read from peers that fill the first size. Less than without TLS, because decrypting costs more than
#: copying, and the other connections wait meanwhile.
LARGE_TLS_READ_BYTES: Final = 262_144
#: Ciphertext decrypted at a time. A record takes 1 to 2 us however little is in it, and 32 KiB may be 1,400 records.
#: Once a piece had MANY_RECORDS, the turn is over, and until records are longer than SHORT_RECORD_BYTES, pieces are
#: small.
PIECE_BYTES: Final = 32_768
SMALL_PIECE_BYTES: Final = 4_096
MANY_RECORDS: Final = 256
SHORT_RECORD_BYTES: Final = 128
#: A record as it is received, at most (RFC 8446 section 5.2).
LARGEST_RECORD_BYTES: Final = RECORD_BYTES + 256 + 5


class TlsTransport(Transport):
    """A connection's socket and its TLS. ``unsent`` is plaintext, and holds what the kernel has not taken encrypted.

    Before the handshake is complete, output waits there too. Handshake messages and alerts, a few KiB at most, wait in
    the engine and in ``ciphertext``.

    Args:
        sock, service, peer, epoll, max_unsent_bytes, budget, now_ns: as of ``Transport``.
        engine: this connection's.

    Raises:
        OSError: the socket or the epoll refused.
    """

    __slots__ = ("_encrypted_bytes", "_end_waits", "_engine", "_piece_bytes", "ciphertext")

    def __init__(
        self,
        sock: socket.socket,
        service: Service,
        peer: str,
        epoll: select.epoll,
        max_unsent_bytes: int,
        budget: MemoryBudget,
        now_ns: int,
        engine: TlsEngine,
    ) -> None:
        super().__init__(sock, service, peer, epoll, max_unsent_bytes, budget, now_ns)
        self._engine = engine
        #: what the kernel has not taken of the engine's output so far
        self.ciphertext: Buffer = b""
        #: how much of the head of ``unsent`` is in it
        self._encrypted_bytes = 0
        self._end_waits = False
        self._piece_bytes = PIECE_BYTES
        self.receive = self._receive

    #: what a client says before it leaves may tell why
    _hears_of_end = False

    @property
    def established(self) -> bool:
        """Whether the handshake is complete."""
        return self._engine.established

    @property
    def congested(self) -> bool:
        """See ``Transport``. Answers to changes of keys come from no plaintext, and wait as ciphertext alone."""
        return max(self.unsent_bytes, len(self.ciphertext) + self._engine.output_bytes) > self._max_unsent_bytes

    @property
    def waiting_bytes(self) -> int:
        """See ``Transport``; with what OpenSSL holds."""
        return self.unsent_bytes + len(self.ciphertext) + self._engine.output_bytes

    @property
    def _largest_read_bytes(self) -> int:
        return LARGE_TLS_READ_BYTES

    def _bytes_of_full_read(self) -> int:
        return self.read_bytes >> 1  # a record that is not whole brings nothing, and may be 16 KiB long

    @property
    def end_waits(self) -> bool:
        """See ``Transport``."""
        return self._end_waits

    def end_reading(self) -> None:
        """See ``Transport``."""
        self._end_waits = False
        self.peer_ended = True
        self._watch(sending=bool(self.unsent or self.ciphertext))

    # --- reading -----------------------------------------------------------------------------------------------------

    def _receive(self, size: int) -> bytes:
        """Read ``size`` bytes of ciphertext at most; returns the plaintext, b"" once the peer has ended its side.

        Raises:
            BlockingIOError: there is no plaintext yet.
            ConnectionFault: TLS cannot go on; ``close_gently`` sends the peer what it is to be told.
            OSError: the socket is broken.
        """
        piece = self._piece_bytes
        data = self.sock.recv(min(size, piece))
        if not data:
            self._engine.end()
            return data
        engine = self._engine
        was_established = engine.established
        try:
            plaintext = engine.receive(data)
            if size > piece and self._goes_on(data):
                plaintext = b"".join([plaintext, *self._receive_more(size - piece)])
        except ConnectionFault:
            self._forget_unsent()
            raise
        if plaintext and was_established and not (engine.peer_closed or engine.output_bytes):
            return plaintext
        if (engine.output_bytes or engine.established is not was_established) and not self.send_unsent():
            raise BrokenPipeError
        if engine.peer_closed and plaintext:
            # The end comes after this data, as it does without TLS: the socket is writable, so there is a next round.
            self._end_waits = True
            self._watch(sending=True)
        elif not plaintext and not engine.peer_closed:
            raise BlockingIOError
        return plaintext

    def _receive_more(self, size: int) -> Iterator[bytes]:
        """Plaintext of the pieces that come after the first one of a read. Raises ConnectionFault."""
        goes_on = True
        while goes_on and (data := self._next_piece(size)):
            size -= len(data)
            yield self._engine.receive(data)
            goes_on = self._goes_on(data)

    def _next_piece(self, size: int) -> bytes:
        """Ciphertext in the middle of a read; b"" where there is none, which the next read tells why."""
        try:
            return self.sock.recv(min(size, self._piece_bytes))
        except OSError:
            return b""

    def _goes_on(self, data: bytes) -> bool:
        """Whether a read goes on after a piece."""
        engine = self._engine
        whole = len(data) >= self._piece_bytes
        if engine.records > MANY_RECORDS:
            self._piece_bytes = SMALL_PIECE_BYTES
        elif whole and engine.records * SHORT_RECORD_BYTES < len(data):
            self._piece_bytes = PIECE_BYTES
        return whole and self._piece_bytes == PIECE_BYTES and not (engine.peer_closed or engine.output_bytes)

    def receive_into(self, views: list[memoryview]) -> int:
        """Read plaintext into views; see ``Transport``. What they have no room for is in ``overflow``.

        Raises:
            BlockingIOError, ConnectionFault, OSError: as ``receive``.
        """
        size = min(max(sum(map(len, views)), RECORD_BYTES), LARGE_TLS_READ_BYTES)
        data = self.sock.recv(min(size, self._piece_bytes))
        engine = self._engine
        if not data:
            engine.end()
            return 0
        count = 0
        try:
            while data:
                size -= len(data)
                put, self.overflow = engine.receive_into(data, views)
                count += put
                data = self._next_piece(size) if self._goes_on(data) and views and size else b""
        except ConnectionFault:
            self._forget_unsent()
            raise
        if engine.output_bytes and not self.send_unsent():
            raise BrokenPipeError
        if engine.peer_closed and count:
            self._end_waits = True  # as in ``_receive``
            self._watch(sending=True)
        elif not count and not engine.peer_closed:
            raise BlockingIOError
        return count

    def peek(self, count: int) -> bytes:
        """See ``Transport``. What is there is encrypted."""
        return b""

    def await_bytes(self, count: int) -> None:
        """See ``Transport``. Up to a record of what is awaited has come already, and is in OpenSSL."""
        super().await_bytes(max(1, count - LARGEST_RECORD_BYTES))

    # --- writing -----------------------------------------------------------------------------------------------------

    def flush(self) -> bool:
        """Send the connection's output, joined to one buffer where it is small."""
        connection = self.connection
        bulky = connection.bulky
        out = connection.take_output()
        engine = self._engine
        if engine.over:
            return True
        if bulky or self.unsent or self.ciphertext or not engine.established:
            self._queue(out if bulky else (b"".join(out),))
            working = self.send_unsent()
            if bulky and self.unsent:
                self._let_go_of_batches(len(out))
            return working
        data = b"".join(out)
        if len(data) > CHUNK_BYTES:
            self._queue((data,))
            return self.send_unsent()
        if not data:
            return True
        try:
            engine.encrypt(data)
            ciphertext = engine.take_output()
            sent = self.sock.send(ciphertext)
        except BlockingIOError:
            sent = 0
        except OSError:
            return False
        if sent < len(ciphertext):
            self.ciphertext = memoryview(ciphertext)[sent:]
            self._queue((data,))
            self._encrypted_bytes = len(data)
            self._watch(sending=True)
        else:
            self.sent_bytes += len(data)
        return True

    def send_unsent(self) -> bool:
        """Encrypt and send what the kernel takes; the rest waits for EPOLLOUT, for this connection only."""
        was_congested = self.congested
        engine = self._engine
        try:
            all_sent = self._push_unsent()
            if all_sent and self.closing and not self.unsent:
                engine.close()
                all_sent = self._push()
        except OSError:
            return False
        if was_congested and not self.congested:
            self.connection.wake_senders()
        self._watch(sending=not all_sent or self._end_waits)
        return not (all_sent and self.closing and engine.over) or self._shut_writing()

    def _push_unsent(self) -> bool:
        """Whether the kernel took everything that can be encrypted now.

        Raises:
            OSError: the socket is broken.
        """
        engine = self._engine
        for _ in range(MOST_CHUNKS):
            if not self._push():
                return False
            if self._encrypted_bytes:
                self._forget_sent(self._encrypted_bytes)
                self._encrypted_bytes = 0
            if not self.unsent or not engine.established or engine.over:
                return True
            chunk = self._next_chunk()
            engine.encrypt(chunk)
            self._encrypted_bytes = len(chunk)
        return False

    def _push(self) -> bool:
        """Whether the kernel took all of the engine's output.

        Raises:
            OSError: the socket is broken.
        """
        while data := self.ciphertext or self._engine.take_output():
            try:
                sent = self.sock.send(data)
            except BlockingIOError:
                sent = 0
            self.ciphertext = memoryview(data)[sent:] if sent < len(data) else b""
            if self.ciphertext:
                return False
        return True

    def _next_chunk(self) -> Buffer:
        """The head of ``unsent``, joined so that frames share records."""
        first = self.unsent[0]
        if len(first) >= CHUNK_BYTES:
            return first[:CHUNK_BYTES]
        pieces = []
        room = CHUNK_BYTES
        for piece in islice(self.unsent, MAX_BUFFERS):
            pieces.append(piece[:room])
            room -= len(pieces[-1])
            if not room:
                break
        return b"".join(pieces)

    def _forget_unsent(self) -> None:
        """Nothing can be encrypted any more; a record that is half sent still has to be completed."""
        super()._forget_unsent()
        self._encrypted_bytes = 0

    # --- the end -----------------------------------------------------------------------------------------------------

    def close_gently(self, at_ns: int) -> bool:
        """Send what is left, then close_notify, then end our side; see ``Transport.close_gently``."""
        if not self._engine.over:
            return super().close_gently(at_ns)
        self.closing = True
        self.close_at_ns = at_ns
        return self.send_unsent()

    def close(self) -> None:
        """Close the socket, with close_notify if the kernel takes it."""
        try:
            self._engine.close()
            self._push()
        except OSError:
            pass
        self.receive = self.sock.recv  # it referred to this object, which would outlive its use until collected
        super().close()
