"""Calls that stay open, and what the server keeps for them."""

from __future__ import annotations

from typing import Final

from fuzz.attacks.attack import Attack
from fuzz.attacks.peer import Peer
from fuzz.attacks.wire import (
    END_HEADERS,
    END_STREAM,
    Kind,
    block,
    frame,
    framed,
    greeting,
    infer_message,
    request_block,
    unary,
)

__all__ = ["KeptReads", "WatchFlood", "indexed_block"]

_STATIC_AND_INDEXED: Final = 62


def indexed_block(path: str) -> tuple[bytes, bytes]:
    """A request's header block whose fields go into the dynamic table, and the block of six bytes that refers to it."""
    fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "test"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ]
    newest_last = range(_STATIC_AND_INDEXED + len(fields) - 1, _STATIC_AND_INDEXED - 1, -1)
    return block(fields, 0x40), bytes(0x80 | index for index in newest_last)


class WatchFlood(Attack):
    """As many Watch calls as a connection may have open, each answered once and then held."""

    name = "watch-flood"
    summary = "80,000 open `Health.Watch` calls, 29 bytes each"
    limit = "a watcher is a record of 2 KiB, counted in `--limit server_buffer`; `--limit streams` (100000)"
    stops = ()
    connections = 2

    async def strike(self, peer: Peer) -> None:
        first, again = indexed_block("/grpc.health.v1.Health/Watch")
        body = framed(b"")

        def call(stream_id: int, header_block: bytes) -> bytes:
            head = frame(Kind.HEADERS, END_HEADERS, stream_id, header_block)
            return head + frame(Kind.DATA, END_STREAM, stream_id, body)

        await peer.send(greeting() + call(1, first), 1)
        for begin in range(3, 80_001, 2_000):
            end = min(begin + 2_000, 80_001)
            await peer.send(b"".join([call(stream_id, again) for stream_id in range(begin, end, 2)]), 1_000)
        await peer.wait_over()


class KeptReads(Attack):
    """Small requests whose answers wait for window, each read together with a megabyte of something else."""

    name = "kept-reads"
    summary = "600 small requests whose answers get no window, each amid a MiB that is refused"
    limit = "a call keeps nothing of what was read with it; `--limit stall_timeout` (60 s)"
    stops = ("closed", "reset", "GOAWAY")
    connections = 2

    async def strike(self, peer: Peer) -> None:
        await peer.send(greeting(stream_window=0))
        header_block = request_block()
        small = framed(infer_message("victim", [1, 4], bytes(16)))
        refused = framed(infer_message("nobody", [1, 262_144], bytes(1_048_576)))
        for stream_id in range(1, 1_200, 4):
            await peer.send(unary(stream_id, header_block, small) + unary(stream_id + 2, header_block, refused), 1)
        await peer.wait_over()
