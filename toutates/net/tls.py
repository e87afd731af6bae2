"""TLS under one connection, sans-IO: ciphertext in, plaintext out, and the reverse (RFC 8446, RFC 9113 section 9.2).

    driver                     TlsEngine
      receive(ciphertext) ───▶  handshake, records ──▶ plaintext
      encrypt(plaintext)  ───▶  records
      take_output()       ◀───  ciphertext: the handshake's, alerts, and what was encrypted

OpenSSL does the work, through two buffers in memory (``ssl.MemoryBIO``). What it leaves to us is to refuse clients that
offer other protocols than ours, and to tell clients that speak no TLS what they have come to.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator
from email.utils import formatdate
from typing import Final, cast

from toutates.h2grpc.faults import ConnectionFault
from toutates.h2grpc.frames import ErrorCodes
from toutates.h2grpc.preface import Opening, http1_answer, recognise
from toutates.h2grpc.stream import Buffer
from toutates.net.client_hello import HANDSHAKE, offered_protocols

__all__ = ["RECORD_BYTES", "TlsEngine", "describe_tls_error", "harden_tls"]

#: Protocols of a server, the one that it likes best first. Clients of ours speak the first one.
ALPN: Final = ("h2", "http/1.1")
#: With TLS 1.2, ephemeral keys and authenticated encryption only (RFC 9113 section 9.2.2); TLS 1.3 has nothing else.
CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"
#: The most plaintext in a record (RFC 8446 section 5.1).
RECORD_BYTES: Final = 16_384
#: Ciphertext handed over at a time: OpenSSL's buffer keeps the size that it once had.
FEED_BYTES: Final = 65_536
#: The head of a record: its type, a version, and in the last two bytes the length of what follows.
HEAD_BYTES: Final = 5
#: Records given to OpenSSL before it is looked at what they held.
RECORDS_AT_ONCE: Final = 32
#: Records without data that may come after the handshake, and after how many with data one more may. A change of keys
#: that we answer by our own takes OpenSSL some 50 us for 27 bytes, and a record of data 1 to 3 us. Clients that change
#: keys do so once in some 2^24 records.
MAX_EMPTY_RECORDS: Final = 32
RECORDS_PER_EMPTY: Final = 64

_AROUND_REASON: Final = re.compile(r"^\[[^]]*\] | \(_ssl\.c:\d+\)$")
_NO_APPLICATION_PROTOCOL: Final = b"\x15\x03\x03\0\x02\x02\x78"
_HTTP1_TEXT: Final = "This is a port that speaks TLS: it takes HTTPS, not plain HTTP."


def harden_tls(context: ssl.SSLContext) -> None:
    """Set what HTTP/2 asks of TLS, on a context of either side.

    TLS 1.2 and 1.3, without compression and renegotiation. Of the ciphers, all of them good, the client takes the one
    that is quickest on its processor. There are no session tickets with TLS 1.3: gRPC clients use none, and with one a
    client could come back whose certificate has expired meanwhile. (With TLS 1.2 the alternative to tickets is
    OpenSSL's memory of sessions, which is worse; they end with the context, and two hours after they were made.)
    """
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.maximum_version = ssl.TLSVersion.TLSv1_3
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
    context.set_ciphers(CIPHERS)
    is_server = context.protocol == ssl.PROTOCOL_TLS_SERVER
    context.set_alpn_protocols(ALPN if is_server else ALPN[:1])
    if is_server:
        context.num_tickets = 0


def describe_tls_error(error: ssl.SSLError) -> str:
    """OpenSSL's reason, without the place in its code."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the peer's certificate is refused: {error.verify_message}"
    return _AROUND_REASON.sub("", str(error))


class TlsEngine:
    """The server's side of TLS on one connection. Used by one thread only.

    Args:
        context: the server's.
        max_preface_bytes: looked at to tell HTTP/1 from garbage before giving up.

    Attributes:
        records: how many ended in what was received last, and more than one was looked for in.
        established: the handshake is complete; before, nothing can be encrypted.
        peer_closed: the peer has said that it sends no more (close_notify).
        over: we have said so, or TLS has failed; nothing can be encrypted any more, and nothing is read.
    """

    __slots__ = (
        "_credit",
        "_flowing",
        "_head",
        "_held",
        "_incoming",
        "_max_preface_bytes",
        "_missing",
        "_object",
        "_outgoing",
        "_read",
        "_write",
        "established",
        "over",
        "peer_closed",
        "records",
    )

    def __init__(self, context: ssl.SSLContext, max_preface_bytes: int) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._read = self._object.read
        self._write = self._object.write
        self._max_preface_bytes = max_preface_bytes
        #: what has come of the client's first message; None once it is whole
        self._held: bytes | None = b""
        #: records with data that came, or might have come, and that none without has used up
        self._credit = MAX_EMPTY_RECORDS * RECORDS_PER_EMPTY
        #: of the record that has come in part: the beginning of its head, or how much is missing behind that
        self._head = b""
        self._missing = 0
        #: established, neither side has ended, and the next byte begins a record
        self._flowing = False
        self.records = 0
        self.established = False
        self.peer_closed = False
        self.over = False

    @property
    def version(self) -> str:
        """``TLSv1.2`` or ``TLSv1.3`` once that is agreed, else ""."""
        return self._object.version() or ""

    @property
    def output_bytes(self) -> int:
        """Bytes that ``take_output`` would give."""
        return self._outgoing.pending

    def end(self) -> None:
        """The socket has no more bytes. With or without close_notify: HTTP/2 knows whether its messages are whole.

        Raises:
            ConnectionFault: the client has left a handshake that it had begun, for a reason of its own.
        """
        if self._held is None and not (self.established or self.over):
            text = "TLS handshake failed: the client left without a word; it may not trust the server's certificate"
            raise self._fail(ErrorCodes.PROTOCOL_ERROR, text)

    def take_output(self) -> bytes:
        """Bytes for the peer; they leave the engine."""
        return self._outgoing.read()

    def receive(self, data: bytes) -> bytes:
        """Take received bytes, cut anywhere; returns the plaintext that they complete, b"" for none.

        What nearly every read of an established connection brings, one record, is read here; all else is
        ``_receive_rest``'s: handshakes, parts of records, many records.

        Raises:
            ConnectionFault: TLS cannot go on. What the peer is to be told is in ``take_output``.
        """
        try:
            size = len(data)
            if not self._flowing or size < HEAD_BYTES or size != HEAD_BYTES + (data[3] << 8 | data[4]):
                return self._receive_rest(data)
            self._incoming.write(data)
            plaintext = self._read(RECORD_BYTES)
            if not plaintext:
                self._end_of_peer()
            self._credit += 1
        except ssl.SSLWantReadError:
            self._count(1, 0)
            return b""
        except ssl.SSLError as error:
            what = "TLS" if self.established else "TLS handshake"
            raise self._fail(ErrorCodes.PROTOCOL_ERROR, f"{what} failed: {describe_tls_error(error)}") from error
        return plaintext

    def receive_into(self, data: bytes, views: list[memoryview]) -> tuple[int, bytes]:
        """Take received bytes after the handshake; puts the plaintext that they complete into ``views``.

        Returns:
            How many bytes are there, and those that there was no room for; what room is left stays in ``views``.

        Raises:
            ConnectionFault: as of ``receive``.
        """
        count = 0
        rest: list[bytes] = []
        try:
            for part, records in self._parts(data):
                self._incoming.write(part)
                with_data = 0
                try:
                    # What a view had no room for of a record waits in OpenSSL, which says so by ``pending``.
                    while (self._incoming.pending or self._object.pending()) and not self.peer_closed:
                        if not views:
                            rest.append(self._read(RECORD_BYTES))
                            size = len(rest[-1])
                        else:
                            room = views[0]
                            size = cast(int, self._object.read(len(room), room))
                            count += size
                            views[:1] = [room[size:]] if size < len(room) else []
                        with_data += not self._object.pending()
                        if not size:
                            self._end_of_peer()
                except ssl.SSLWantReadError:
                    pass
                self._count(records, with_data)
        except ssl.SSLError as error:
            raise self._fail(ErrorCodes.PROTOCOL_ERROR, f"TLS failed: {describe_tls_error(error)}") from error
        return count, b"".join(rest)

    def encrypt(self, data: Buffer) -> None:
        """Put plaintext into records for ``take_output``. The handshake has to be complete, and nothing ``over``."""
        written = self._write(data)
        while written < len(data):
            written += self._write(memoryview(data)[written:])

    def close(self) -> None:
        """Say that no more will come (close_notify, RFC 8446 section 6.1), without waiting for the peer to say so."""
        if self.established and not self.over:
            try:
                self._object.unwrap()
            except ssl.SSLError:
                pass  # what it misses is the peer's close_notify
        self.over = True
        self._flowing = False

    def _receive_rest(self, data: bytes) -> bytes:
        if self.over or self.peer_closed:
            return b""
        if self._held is not None:
            data = self._receive_hello(self._held + data)
            if not data:
                return b""
        pieces: list[bytes] = []
        for part, records in self._parts(data):
            was_established = self.established
            came = self._feed(part)
            if was_established:
                self._count(records, len(came))
            pieces += came
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _parts(self, data: bytes) -> Iterator[tuple[memoryview, int]]:
        """Cut received bytes where records end; yields parts, each with the number of records that end in it.

        A part has at most RECORDS_AT_ONCE records, and FEED_BYTES and a record.
        """
        size, begin, records = len(data), 0, 0
        self.records = 0
        view = memoryview(data)
        at = self._missing  # where the record ends that has begun
        if self._head:
            head = self._head + data[: HEAD_BYTES - len(self._head)]
            at = len(head) - len(self._head)
            self._head = head if len(head) < HEAD_BYTES else b""
            if not self._head:
                at += head[3] << 8 | head[4]
        if 0 < at <= size and not self._head:
            records = self.records = 1
        while at + HEAD_BYTES <= size:
            end = at + HEAD_BYTES + (data[at + 3] << 8 | data[at + 4])
            if end > size:
                at = end
                break
            at = end
            records += 1
            self.records += 1
            if records == RECORDS_AT_ONCE or at - begin >= FEED_BYTES:
                yield view[begin:at], records
                begin, records = at, 0
        else:
            if at < size:
                self._head = data[at:]
        self._missing = max(at - size, 0)
        if begin < size:
            yield view[begin:], records
        self._flowing = self.established and not (self._head or self._missing or self.over or self.peer_closed)

    def _feed(self, data: Buffer) -> list[bytes]:
        """Give OpenSSL a part; returns the data of its records, each a piece."""
        incoming = self._incoming
        incoming.write(data)
        pieces: list[bytes] = []
        try:
            if not self.established:
                self._object.do_handshake()
                self.established = True
            while incoming.pending and not self.peer_closed:
                piece = self._read(RECORD_BYTES)
                if piece:
                    pieces.append(piece)
                else:
                    self._end_of_peer()
        except ssl.SSLWantReadError:
            pass
        return pieces

    def _end_of_peer(self) -> None:
        self.peer_closed = True
        self._flowing = False

    def _count(self, records: int, with_data: int) -> None:
        """Have records without data paid for by those that have some."""
        empty = records - with_data
        if empty > 0:
            most = MAX_EMPTY_RECORDS * RECORDS_PER_EMPTY
            self._credit = min(self._credit, most) - empty * RECORDS_PER_EMPTY
            if self._credit < 0 and not self.peer_closed:
                text = "TLS failed: records without data"
                raise self._fail(ErrorCodes.ENHANCE_YOUR_CALM, text, "empty_tls_records")
        self._credit += with_data

    # --- clients in the wrong place ----------------------------------------------------------------------------------

    def _receive_hello(self, data: bytes) -> bytes:
        """What OpenSSL is to see: nothing until the client's first message is whole, and of a kind that we want.

        Raises:
            ConnectionFault: it is not.
        """
        self._held = data
        if not data:
            return b""
        if data[0] != HANDSHAKE:
            self._refuse_plaintext(data)
            return b""
        protocols = offered_protocols(data)
        if protocols is None:
            return b""
        if protocols and not any(ours.encode() in protocols for ours in ALPN):
            self._outgoing.write(_NO_APPLICATION_PROTOCOL)
            text = "TLS handshake failed: the client offers neither h2 nor http/1.1 (ALPN)"
            raise self._fail(ErrorCodes.PROTOCOL_ERROR, text)
        self._held = None
        return data

    def _refuse_plaintext(self, data: bytes) -> None:
        """End it; with an answer, in plaintext as well, where that helps the client to show what is wrong.

        It would not help over HTTP/2: after SETTINGS and GOAWAY, C-core takes the connection for one that worked, and
        makes another, over and over until the call's deadline; after a close it fails the call at once.
        """
        opening = recognise(data, self._max_preface_bytes)
        if opening is Opening.INCOMPLETE:
            return
        if opening is Opening.HTTP1:
            date = formatdate(usegmt=True).encode("ascii")
            self._outgoing.write(http1_answer(_HTTP1_TEXT, b"date: %b\r\n" % date))
            raise self._fail(ErrorCodes.HTTP_1_1_REQUIRED, "plaintext HTTP/1 on a TLS port")
        if opening is Opening.HTTP2:
            raise self._fail(ErrorCodes.INADEQUATE_SECURITY, "plaintext HTTP/2 on a TLS port")
        raise self._fail(ErrorCodes.PROTOCOL_ERROR, "neither TLS nor HTTP on a TLS port")

    def _fail(self, code: ErrorCodes, text: str, limit: str = "") -> ConnectionFault:
        self.over = True
        self._flowing = False
        self._held = b""
        return ConnectionFault(code, text, limit)
