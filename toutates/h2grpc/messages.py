"""gRPC's length-prefixed messages: putting them together from DATA, and compressing them.

Source: the gRPC-over-HTTP/2 specification, "Length-Prefixed-Message", and gRPC's ``compression.md``.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from struct import Struct

from toutates.h2grpc.allowances import Allowance, Meter
from toutates.h2grpc.limits import MODEST_RATIO
from toutates.h2grpc.status import GrpcError, LimitExceeded, Status

__all__ = ["ENCODINGS", "PREFIX", "PREFIX_SIZE", "Inflater", "MessageAssembler", "compress", "decompress"]

#: (compressed flag, message length)
PREFIX = Struct(">BI")
PREFIX_SIZE = 5

#: ``deflate`` is the zlib format (RFC 1950), as every gRPC implementation has it. Values are zlib's ``wbits``.
ENCODINGS = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}


def compress(message: bytes, encoding: str) -> bytes:
    """``message`` in the format of ``encoding``, one of ENCODINGS, at zlib's fastest level."""
    compressor = zlib.compressobj(1, zlib.DEFLATED, ENCODINGS[encoding])
    return compressor.compress(message) + compressor.flush()


class Inflater:
    """Decompresses the messages of all a worker's clients, as far as they may make it work.

    Args:
        allowance: KiB that messages may become beyond MODEST_RATIO times what was sent.
    """

    def __init__(self, allowance: Allowance) -> None:
        self._meter = Meter(allowance, 0, 0)

    def inflate(self, data: bytes, encoding: str, max_size: int, now_ns: int) -> bytes:
        """The message inside ``data``.

        Raises:
            LimitExceeded: it is larger than ``max_size`` bytes, or clients have used up what they may have inflated.
            GrpcError: INTERNAL for data that is broken.
        """
        modest = MODEST_RATIO * len(data)
        self._meter.take(now_ns, 0, 0)
        allowed = modest + max(0, int(self._meter.left * 1_024))
        try:
            message = decompress(data, encoding, min(max_size, allowed))
        except LimitExceeded as error:
            self._meter.take(now_ns, 0, max(0, min(max_size, allowed) - modest) / 1_024)
            if allowed >= max_size:
                raise
            text = f"messages that become more than {MODEST_RATIO} times as large come too often; do not compress them"
            raise LimitExceeded("inflation", text) from error
        self._meter.take(now_ns, 0, max(0, len(message) - modest) / 1_024)
        return message


def decompress(data: bytes, encoding: str, max_size: int) -> bytes:
    """The message inside ``data``.

    Raises:
        LimitExceeded: it is larger than ``max_size`` bytes.
        GrpcError: INTERNAL for data that is broken.
    """
    decompressor = zlib.decompressobj(ENCODINGS[encoding])
    try:
        message = decompressor.decompress(data, max_size)
        if not decompressor.eof and decompressor.decompress(decompressor.unconsumed_tail, 1):
            text = f"message is larger than {max_size} bytes once decompressed"
            raise LimitExceeded("decompressed_size", text)
    except zlib.error as error:
        raise GrpcError(Status.INTERNAL, f"message is not valid {encoding} data: {error}") from error
    if not decompressor.eof:
        raise GrpcError(Status.INTERNAL, f"message is cut-off {encoding} data")
    return message


class MessageAssembler:
    """Messages of one call, put together from DATA payloads cut anywhere.

    Args:
        encoding: the call's ``grpc-encoding``; ``identity`` when it has none.
        max_size: largest message, bytes, as sent.
        inflate: what a compressed message is, given its bytes.
    """

    __slots__ = ("_buffer", "_encoding", "_inflate", "_max_size", "_needed")

    def __init__(self, encoding: str, max_size: int, inflate: Callable[[bytes], bytes]) -> None:
        self._encoding = encoding
        self._max_size = max_size
        self._inflate = inflate
        self._buffer = bytearray()
        self._needed = PREFIX_SIZE

    @property
    def pending_bytes(self) -> int:
        """Bytes held of a message that is not complete yet."""
        return len(self._buffer)

    def feed(self, payload: memoryview) -> list[bytes]:
        """The messages that ``payload`` completes.

        Raises:
            GrpcError: the caller's fault; the call cannot go on.
        """
        self._buffer += payload
        messages: list[bytes] = []
        while len(self._buffer) >= self._needed:
            message = self._next()
            if message is not None:
                messages.append(message)
        return messages

    def _next(self) -> bytes | None:
        flag, length = PREFIX.unpack_from(self._buffer)
        if flag > 1:
            raise GrpcError(Status.INTERNAL, f"message prefix has flag {flag}, expected 0 or 1")
        if length > self._max_size:
            raise LimitExceeded("message_size", f"Received message larger than max ({length} vs. {self._max_size})")
        if flag and self._encoding == "identity":
            raise GrpcError(Status.INTERNAL, "message is marked compressed, but the call names no grpc-encoding")
        total = PREFIX_SIZE + length
        if len(self._buffer) < total:
            self._needed = total
            return None
        # A view is released before the buffer shrinks: a bytearray with a live view cannot be resized.
        with memoryview(self._buffer) as view:
            message = bytes(view[PREFIX_SIZE:total])
        del self._buffer[:total]
        self._needed = PREFIX_SIZE
        return self._inflate(message) if flag else message
