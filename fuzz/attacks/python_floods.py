"""Models in Python that send or print without a pause, and callers who make them."""

from __future__ import annotations

import struct
from itertools import count
from typing import ClassVar, Final

from fuzz.attacks.attack import Attack
from fuzz.attacks.peer import Peer
from fuzz.attacks.wire import framed, greeting, infer_message, request_block, unary

__all__ = ["PrintFlood", "UnreadResponses"]

_STREAM_BLOCK: Final = request_block("/inference.GRPCInferenceService/ModelStreamInfer")
_BLOCK: Final = request_block()
#: FP32 elements of a response.
_ELEMENTS: Final = 262_144
#: How long a model prints for a request.
_PRINTS_MS: Final = 1_000


class UnreadResponses(Attack):
    """Calls to a decoupled model that sends without end, and nobody reads."""

    name = "unread-responses"
    summary = "2 calls on each of 2 connections to a decoupled model that sends 1 MiB without end, never read"
    limit = "64 MiB of a caller's responses wait; beyond, `send` waits a second at most, and the request ends; "
    limit += "`--limit stall_timeout` (60 s)"
    stops = ("closed", "reset", "GOAWAY")
    connections: ClassVar = 2

    async def strike(self, peer: Peer) -> None:
        """See ``Attack``."""
        await peer.send(greeting(stream_window=0))
        body = framed(infer_message("endless", [1], struct.pack("<q", _ELEMENTS), "INT64"))
        await peer.send(unary(1, _STREAM_BLOCK, body) + unary(3, _STREAM_BLOCK, body), 2)
        await peer.wait_over()


class PrintFlood(Attack):
    """Requests to a model that prints for seconds."""

    name = "print-flood"
    summary = "requests to a Python model that prints short lines for a second each, two at a time"
    limit = "what a model prints is read 100 times a second at most; lines that are left out are counted"
    stops = ()
    connections: ClassVar = 2

    async def strike(self, peer: Peer) -> None:
        """See ``Attack``."""
        await peer.send(greeting())
        body = framed(infer_message("chatty", [1], struct.pack("<q", _PRINTS_MS), "INT64"))
        for number in count():
            await peer.send(unary(2 * number + 1, _BLOCK, body), 1)
            while peer.answered <= number:
                await peer.wait_answer()
