"""gRPC's length-prefixed messages: putting them together from DATA, and compressing them.

Source: the gRPC-over-HTTP/2 specification, "Length-Prefixed-Message", and gRPC's ``compression.md``.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from io import BytesIO
from struct import Struct

from toutates.h2grpc.allowances import Allowance, Meter
from toutates.h2grpc.status import GrpcError, LimitExceeded, Status

__all__ = ["ENCODINGS", "PREFIX", "PREFIX_SIZE", "Inflater", "MessageAssembler", "compress", "decompress"]

#: (compressed flag, message length)
PREFIX = Struct(">BI")
PREFIX_SIZE = 5

#: What a message may become on the worker's thread, which takes it 0.7 ms.
SMALL_BYTES = 262_144
#: Compressed messages are read, and written, so many bytes at a time.
PIECE_BYTES = 262_144
#: How much larger the memory of a message in pieces may be than what is here of it.
GROWTH = 4

#: ``deflate`` is the zlib format (RFC 1950), as every gRPC implementation has it. Values are zlib's ``wbits``.
ENCODINGS = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}


def compress(message: bytes, encoding: str) -> bytes:
    """``message`` in the format of ``encoding``, one of ENCODINGS, at zlib's fastest level."""
    compressor = zlib.compressobj(1, zlib.DEFLATED, ENCODINGS[encoding])
    return compressor.compress(message) + compressor.flush()


class Inflater:
    """Decompresses the messages of all a worker's clients on its thread, as far as they may make it work.

    Args:
        allowance: KiB that messages may become.
    """

    def __init__(self, allowance: Allowance) -> None:
        self._meter = Meter(allowance, 0, 0)

    def inflate(self, data: bytes, encoding: str, max_size: int, now_ns: int) -> bytes:
        """The message inside ``data``.

        Raises:
            LimitExceeded: it is larger than ``max_size`` bytes, or clients have used up what they may have inflated.
            GrpcError: INTERNAL for data that is broken.
        """
        allowed = self._allowed(now_ns)
        try:
            message = decompress(data, encoding, min(max_size, allowed))
        except LimitExceeded as error:
            self._charge(now_ns, min(max_size, allowed))
            if allowed >= max_size:
                raise
            text = "compressed messages of all clients become more than the server has time for; do not compress them"
            raise LimitExceeded("inflation", text) from error
        self._charge(now_ns, len(message))
        return message

    def inflate_small(self, data: bytes, encoding: str, max_size: int, now_ns: int) -> bytes | None:
        """The message inside ``data``, if it has SMALL_BYTES at most and clients have not used up what they may have.

        Returns:
            None for others, which are for ``inflation.Inflation``, and for data that is broken.

        Raises:
            GrpcError: INTERNAL for data that is broken from the start.
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


def decompress(data: bytes, encoding: str, max_size: int) -> bytes:
    """The message inside ``data``.

    Raises:
        LimitExceeded: it is larger than ``max_size`` bytes.
        GrpcError: INTERNAL for data that is broken.
    """
    decompressor = zlib.decompressobj(ENCODINGS[encoding])
    message = BytesIO()
    size = at = 0
    view = memoryview(data)
    # In pieces, between which other threads get the GIL: zlib lets go of it, joining what it made would not.
    while not decompressor.eof:
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


class MessageAssembler:
    """Messages of one call, put together from DATA payloads cut anywhere.

    A message that comes in pieces is written to its place in the bytes that are handed out in the end, so that it is
    held once. Memory for it is taken as it comes, up to GROWTH times what is there: a length alone costs its sender
    nothing.

    Args:
        encoding: the call's ``grpc-encoding``; ``identity`` when it has none.
        max_size: largest message, bytes, as sent.
        inflate: what a compressed message is, given its bytes.
    """

    __slots__ = ("_capacity", "_encoding", "_inflate", "_max_size", "_message", "_prefix", "_received", "_size")

    def __init__(self, encoding: str, max_size: int, inflate: Callable[[bytes], bytes]) -> None:
        self._encoding = encoding
        self._max_size = max_size
        self._inflate = inflate
        #: the prefix of the message that is not complete yet, as far as it is here
        self._prefix = b""
        #: the length that the prefix names
        self._size = 0
        #: the message's bytes: how many are here, and there is room for
        self._received = 0
        self._capacity = 0
        self._message: BytesIO | None = None

    @property
    def pending_bytes(self) -> int:
        """Bytes that a message takes which is not complete yet; 0 where none has begun."""
        return len(self._prefix) + self._capacity

    def feed(self, payload: memoryview) -> list[bytes]:
        """The messages that ``payload`` completes.

        Raises:
            GrpcError: the caller's fault; the call cannot go on.
        """
        messages: list[bytes] = []
        at = 0
        while at < len(payload):
            if len(self._prefix) < PREFIX_SIZE:
                missing = payload[at : at + PREFIX_SIZE - len(self._prefix)]
                at += len(missing)
                self._prefix += missing
                if len(self._prefix) < PREFIX_SIZE:
                    break
                self._size = self._read_prefix()
            part = payload[at : at + self._size - self._received]
            at += len(part)
            if self._received + len(part) == self._size:
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
        received = self._received + len(part)
        if received > self._capacity:
            capacity = min(self._size, GROWTH * received)
            # Zeros that nobody has touched take no memory, if they are many. Nobody else refers to them, so that they
            # are written in place, and ``getvalue`` hands them out as they are.
            message = BytesIO(bytes(capacity))
            if self._message is not None:
                with self._message.getbuffer() as old:
                    message.write(old[: self._received])
            self._message, self._capacity = message, capacity
        assert self._message is not None
        self._message.write(part)
        self._received = received

    def _complete(self, part: memoryview) -> bytes:
        if self._message is None:
            message = bytes(part)
        else:
            self._add(part)
            message = self._message.getvalue()
            self._message = None
        compressed = self._prefix[0]
        self._prefix = b""
        self._received = self._capacity = 0
        return self._inflate(message) if compressed else message
