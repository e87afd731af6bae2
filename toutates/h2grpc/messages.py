"""gRPC's length-prefixed messages: assembling them from DATA, compressing and decompressing them.

Source: the gRPC-over-HTTP/2 specification, "Length-Prefixed-Message", and gRPC's ``compression.md``.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from io import BytesIO
from struct import Struct
from typing import Protocol, cast

from toutates.h2grpc.allowances import Allowance, Meter
from toutates.h2grpc.budget import MemoryBudget
from toutates.h2grpc.message_memory import GROWTH, LARGE_MESSAGE_BYTES, LargeMessage, MemoryPool
from toutates.h2grpc.status import GrpcError, LimitExceeded, Status

__all__ = ["ENCODINGS", "PREFIX", "PREFIX_SIZE", "Assembler", "Inflater", "MessageAssembler", "compress", "decompress"]

#: (compressed flag, message length)
PREFIX = Struct(">BI")
PREFIX_SIZE = 5

#: The largest decompressed message that ``inflate_small`` makes, bytes: 0.7 ms.
SMALL_BYTES = 262_144
#: Bytes of compressed and of decompressed data that one step of decompression takes and makes at most.
PIECE_BYTES = 262_144

#: ``deflate`` is the zlib format (RFC 1950), as every gRPC implementation has it. Values are zlib's ``wbits``.
ENCODINGS = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}


def compress(message: bytes, encoding: str) -> bytes:
    """``message`` in the format of ``encoding``, one of ENCODINGS, at zlib's fastest level."""
    compressor = zlib.compressobj(1, zlib.DEFLATED, ENCODINGS[encoding])
    return compressor.compress(message) + compressor.flush()


class Inflater:
    """Decompresses messages on the driver's thread, within the time that all its clients together may take.

    Args:
        allowance: KiB of decompressed messages, of all clients together.
    """

    def __init__(self, allowance: Allowance) -> None:
        self._meter = Meter(allowance, 0, 0)

    def inflate(
        self, data: bytes, encoding: str, max_size: int, now_ns: int, budget: MemoryBudget | None = None
    ) -> bytes:
        """The message inside ``data``; ``budget`` as of ``decompress``.

        Raises:
            LimitExceeded: it is larger than ``max_size`` bytes, there is no memory for it, or the clients have used up
                their allowance.
            GrpcError: INTERNAL for data that is broken.
        """
        allowed = self._allowed(now_ns)
        try:
            message = decompress(data, encoding, min(max_size, allowed), budget)
        except LimitExceeded as error:
            most = min(max_size, allowed)
            if error.limit == "server_buffer" and budget is not None:
                most = min(most, max(budget.room, PIECE_BYTES))  # no more of it was decompressed
            self._charge(now_ns, most)
            if allowed >= max_size or error.limit == "server_buffer":
                raise
            text = "compressed messages of all clients become more than the server has time for; do not compress them"
            raise LimitExceeded("inflation", text) from error
        self._charge(now_ns, len(message))
        return message

    def inflate_small(self, data: bytes, encoding: str, max_size: int, now_ns: int) -> bytes | None:
        """The message inside ``data``, if it has at most SMALL_BYTES and the clients have not used up their allowance.

        Returns:
            None for other messages, and for data that is cut off; the driver decompresses these elsewhere.

        Raises:
            GrpcError: INTERNAL for data that is broken.
        """
        room = min(max_size, SMALL_BYTES, self._allowed(now_ns))
        if room <= 0 or len(data) > SMALL_BYTES:
            return None
        decompressor = zlib.decompressobj(ENCODINGS[encoding])
        try:
            message = decompressor.decompress(data, room)
        except zlib.error as error:
            raise GrpcError(Status.INTERNAL, f"message is not valid {encoding} data: {error}") from error
        self._charge(now_ns, len(message))
        return message if decompressor.eof else None

    def _allowed(self, now_ns: int) -> int:
        self._meter.take(now_ns, 0, 0)
        return max(0, int(self._meter.left * 1_024))

    def _charge(self, now_ns: int, size: int) -> None:
        self._meter.take(now_ns, 0, size / 1_024)


def decompress(data: bytes, encoding: str, max_size: int, budget: MemoryBudget | None = None) -> bytes:
    """The message inside ``data``.

    Args:
        data, encoding: of the message.
        max_size: that it may have, bytes.
        budget: is asked before each piece but the first whether there is memory for it; None for nobody.

    Raises:
        LimitExceeded: it is larger than ``max_size`` bytes, or than there is memory for.
        GrpcError: INTERNAL for data that is broken.
    """
    decompressor = zlib.decompressobj(ENCODINGS[encoding])
    message = BytesIO()
    size = at = 0
    view = memoryview(data)
    # In pieces, because other threads can have the GIL while zlib runs, but not while a large result is copied.
    while not decompressor.eof:
        if size and budget is not None and not budget.has_room(size + PIECE_BYTES):
            text = f"the server holds {budget.used} bytes for slow peers, and {budget.limit} is the most"
            raise LimitExceeded("server_buffer", f"{text}: none are left for what the message becomes")
        source: bytes | memoryview = decompressor.unconsumed_tail
        if not source:
            source = view[at : at + PIECE_BYTES]
            at += PIECE_BYTES
        try:
            piece = decompressor.decompress(source, PIECE_BYTES)
        except zlib.error as error:
            raise GrpcError(Status.INTERNAL, f"message is not valid {encoding} data: {error}") from error
        message.write(piece)
        size += len(piece)
        if size > max_size:
            raise LimitExceeded("decompressed_size", f"message is larger than {max_size} bytes once decompressed")
        if not (piece or source or decompressor.eof):
            raise GrpcError(Status.INTERNAL, f"message is cut-off {encoding} data")
    return message.getvalue()


class Assembler(Protocol):
    """What puts the DATA of a call together: a ``MessageAssembler``, or ``plain.LargeBody``."""

    @property
    def pending_bytes(self) -> int: ...

    @property
    def missing(self) -> int: ...

    def room(self) -> memoryview: ...

    def advance(self, count: int, /) -> None: ...

    def feed(self, payload: memoryview, /) -> list[bytes]: ...

    def take_whole(self) -> bytes: ...

    def drop(self) -> None: ...


class MessageAssembler:
    """Assembles the messages of one call from DATA payloads, which may be cut anywhere.

    The pieces of a message are written to one buffer, which is returned without a copy. The buffer grows with the bytes
    received, to at most GROWTH times as many: the length in a prefix alone reserves no memory. A large message is a
    LargeMessage, into which ``DirectReceive`` receives without this class: ``room``, ``advance``, ``take_whole``.

    Args:
        encoding: the call's ``grpc-encoding``; ``identity`` when it has none.
        max_size: largest message, bytes, as sent.
        inflate: decompresses a message.
        max_messages: most messages of one payload.
        pool: where large messages get their memory; None if all messages are to be ``bytes``.
    """

    __slots__ = (
        "_capacity",
        "_encoding",
        "_inflate",
        "_large",
        "_max_messages",
        "_max_size",
        "_message",
        "_pool",
        "_prefix",
        "_received",
        "_size",
    )

    def __init__(
        self,
        encoding: str,
        max_size: int,
        inflate: Callable[[bytes], bytes],
        max_messages: int,
        pool: MemoryPool | None = None,
    ) -> None:
        self._encoding = encoding
        self._max_size = max_size
        self._max_messages = max_messages
        self._inflate = inflate
        self._pool = pool
        #: bytes received of the current message's prefix
        self._prefix = b""
        #: length of the current message, by its prefix
        self._size = 0
        #: bytes of the current message that were received, and that its buffer has room for
        self._received = 0
        self._capacity = 0
        self._message: BytesIO | None = None
        #: in place of these three, where the message is large
        self._large: LargeMessage | None = None

    @property
    def pending_bytes(self) -> int:
        """Bytes that the current, incomplete message takes; 0 if none has begun."""
        return len(self._prefix) + (self._capacity if self._large is None else self._large.held_bytes)

    @property
    def missing(self) -> int:
        """Bytes until the current message is whole; 0 if it is not in memory of its own."""
        return 0 if self._large is None else self._large.missing

    def room(self) -> memoryview:
        """Where the next bytes of the current message belong, in memory of its own; not empty while some are missing.

        Raises:
            MemoryError: there is none.
        """
        assert self._large is not None
        return self._large.room()

    def begin_large(self, payload: memoryview, size: int) -> None:
        """Begin a message of ``size`` bytes, which is not compressed, in memory of its own: ``feed`` for a large one.

        Args:
            payload: its prefix and what has come of it, less than all.
            size: by the prefix; within the limit.
        """
        pool = self._pool
        large = None if pool is None else LargeMessage.begin_aligned(pool, size, len(payload) - PREFIX_SIZE)
        if large is None:
            self.feed(payload)
            return
        self._prefix = bytes(payload[:PREFIX_SIZE])
        self._size = size
        self._large = large
        large.add(payload[PREFIX_SIZE:])

    def advance(self, count: int) -> None:
        """Note that ``count`` bytes are in ``room``."""
        assert self._large is not None
        self._large.advance(count)

    def take_whole(self) -> bytes:
        """The current message, if it is whole and in memory of its own; b"" otherwise."""
        if self._large is None or self._large.missing:
            return b""
        return self._begin_next(self._take_message())

    def drop(self) -> None:
        """Free the memory of the current message, which will never be whole."""
        if self._large is not None:
            self._large.drop()
            self._large = None

    def feed(self, payload: memoryview) -> list[bytes]:
        """The messages that ``payload`` completes.

        Raises:
            GrpcError: the caller's fault; the call cannot go on.
        """
        messages: list[bytes] = []
        at = 0
        while at < len(payload):
            if len(self._prefix) < PREFIX_SIZE:
                prefix = payload[at : at + PREFIX_SIZE - len(self._prefix)]
                at += len(prefix)
                self._prefix += prefix
                if len(self._prefix) < PREFIX_SIZE:
                    break
                self._size = self._read_prefix()
            missing = self._size - self._received if self._large is None else self._large.missing
            part = payload[at : at + missing]
            at += len(part)
            if len(part) == missing:
                if len(messages) == self._max_messages:
                    text = f"one DATA frame has more than {self._max_messages} messages; send them in several"
                    raise LimitExceeded("messages", text)
                messages.append(self._complete(part))
            elif part:
                self._add(part)
        return messages

    def _read_prefix(self) -> int:
        """The length of the message."""
        flag, length = PREFIX.unpack(self._prefix)
        if flag > 1:
            raise GrpcError(Status.INTERNAL, f"message prefix has flag {flag}, expected 0 or 1")
        if length > self._max_size:
            raise LimitExceeded("message_size", f"Received message larger than max ({length} vs. {self._max_size})")
        if flag and self._encoding == "identity":
            raise GrpcError(Status.INTERNAL, "message is marked compressed, but the call names no grpc-encoding")
        assert isinstance(length, int)
        return length

    def _add(self, part: memoryview) -> None:
        if self._large is None and self._received + len(part) > self._capacity:
            self._reserve(self._received + len(part))
        if self._large is not None:
            self._large.add(part)
            return
        assert self._message is not None
        self._message.write(part)
        self._received += len(part)

    def _reserve(self, least: int) -> None:
        """Have memory for ``least`` bytes of the message, and up to GROWTH times as many."""
        pool = self._pool
        if self._message is None and pool is not None and self._size >= LARGE_MESSAGE_BYTES and not self._prefix[0]:
            self._large = LargeMessage.begin_aligned(pool, self._size, least)
            if self._large is not None:
                return
        self._capacity = min(self._size, GROWTH * least)
        # Many zeros take no memory until they are overwritten. BytesIO has the only reference to them, so it overwrites
        # them in place, and ``getvalue`` returns them without a copy.
        message = BytesIO(bytes(self._capacity))
        if self._message is not None:
            with self._message.getbuffer() as old:
                message.write(old[: self._received])
        self._message = message

    def _complete(self, part: memoryview) -> bytes:
        if self._received or self._large is not None:
            self._add(part)
            message = self._take_message()
        else:
            message = bytes(part)
        return self._begin_next(message)

    def _take_message(self) -> bytes:
        if self._large is not None:
            large, self._large = self._large, None
            return cast(bytes, large.take())  # it is read like bytes
        assert self._message is not None
        message = self._message.getvalue()
        self._message = None
        return message

    def _begin_next(self, message: bytes) -> bytes:
        compressed = self._prefix[0]
        self._prefix = b""
        self._received = self._capacity = 0
        return self._inflate(message) if compressed else message
