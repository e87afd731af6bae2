"""ModelStreamInfer: messages without end, answers that nobody reads, and streams that are reset in the middle."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import cached_property
from itertools import count
from typing import ClassVar, Final

from fuzz.attacks.attack import Attack
from fuzz.attacks.peer import Peer
from fuzz.attacks.wire import (
    END_HEADERS,
    END_STREAM,
    Code,
    Kind,
    field,
    frame,
    framed,
    greeting,
    infer_message,
    request_block,
    varint,
)

__all__ = ["DroppedStreams", "MessageFlood", "SequenceFlood", "StreamResets", "UnreadAnswers"]

_PATH: Final = "/inference.GRPCInferenceService/ModelStreamInfer"
_BLOCK: Final = request_block(_PATH)
_FRAME: Final = 16_384
#: Of one call: less than the window that a stream has.
_CALL_BYTES: Final = 2_000_000
#: Asks another model than honest clients do.
_MESSAGE: Final = framed(infer_message("shapes", [1, 4], bytes(16), "FP32"))


def _call(stream_id: int, bodies: bytes, *, ends: bool) -> bytes:
    """A call whose messages come in frames of _FRAME bytes."""
    parts = [frame(Kind.HEADERS, END_HEADERS, stream_id, _BLOCK)]
    for at in range(0, len(bodies), _FRAME):
        flags = END_STREAM if ends and at + _FRAME >= len(bodies) else 0
        parts.append(frame(Kind.DATA, flags, stream_id, bodies[at : at + _FRAME]))
    return b"".join(parts)


class _CallFlood(Attack):
    """The same call again and again, each once the last one is answered."""

    stops: ClassVar[Sequence[str]] = ()
    connections = 2

    @cached_property
    def bodies(self) -> bytes:
        """The messages of a call."""
        raise NotImplementedError

    def prepare(self) -> None:
        """See ``Attack``."""
        assert self.bodies

    async def strike(self, peer: Peer) -> None:
        """See ``Attack``."""
        await peer.send(greeting())
        for stream_id in count(1, 2):
            await peer.send(_call(stream_id, self.bodies, ends=True), 1)
            while peer.answered <= stream_id // 2:
                await peer.wait_answer()


class MessageFlood(_CallFlood):
    """Messages of 12 bytes without a break, which ask models that are not there."""

    name = "message-flood"
    summary = "messages of 12 bytes on a stream, 160,000 in a call, each refused"
    limit = "a connection's turn ends after 4 ms; a stream has 1,024 requests under way; such requests are answered"

    @cached_property
    def bodies(self) -> bytes:
        """See ``_CallFlood``."""
        message = framed(infer_message("x", [], b""))
        return message * (_CALL_BYTES // len(message))


class DroppedStreams(Attack):
    """Connections that send one frame of requests and leave, by RST or by FIN."""

    name = "dropped-streams"
    summary = "a stream with 200 requests in a frame on a connection of its own, which is dropped at once"
    limit = (
        "what a peer sent that has left is not read; in crowded times dear connections have 8 ms of a round together"
    )
    stops = ()
    connections = 8
    on_new_connections = True

    async def strike(self, peer: Peer) -> None:
        """See ``Attack``."""
        await peer.send(greeting() + _call(1, (_MESSAGE * 200)[:_FRAME], ends=False), 1)
        if peer.tally.connections % 2:
            peer.end_by_reset()


class UnreadAnswers(Attack):
    """Streams whose answers get no window, and more messages than the server takes."""

    name = "unread-streams"
    summary = "4 streams of 2 MB of messages each, whose answers get no window"
    limit = "a stream begins no request while a MiB of its answers waits, and its window is not given back; "
    limit += "`--limit stall_timeout` (60 s)"
    stops = ()
    connections = 2

    async def strike(self, peer: Peer) -> None:
        """See ``Attack``."""
        await peer.send(greeting(stream_window=0))
        bodies = _MESSAGE * (_CALL_BYTES // len(_MESSAGE))
        for stream_id in (1, 3, 5, 7):
            await peer.send(_call(stream_id, bodies, ends=False), 1)
        await peer.wait_over()


class SequenceFlood(_CallFlood):
    """Sequences without end, each with one request, and most of them never ended."""

    name = "sequence-flood"
    summary = "messages on streams, 13,000 in a call, each of which begins a sequence of another id; one in 16 ends it"
    limit = "sequences that wait count by their requests, `capacity` x `batch_size` of a model; others are refused; "
    limit += "one that rests is given up after `max_idle_us`, 256 at a time"

    @cached_property
    def bodies(self) -> bytes:
        """See ``_CallFlood``."""
        parts: list[bytes] = []
        size = number = 0
        while size < _CALL_BYTES:
            number += 1
            said = _parameter("sequence_id", b"\x10" + varint(number * 0x9E3779B97F4A7C15 % 2**63))
            said += _parameter("sequence_start", b"\x08\x01")
            said += _parameter("sequence_end", b"\x08\x01" if number % 16 == 0 else b"\x08\x00")
            parts.append(framed(infer_message("sums", [1, 4], bytes(16), "FP32", rest=said)))
            size += len(parts[-1])
        return b"".join(parts[:-1])


def _parameter(name: str, value: bytes) -> bytes:
    """An entry of a request's parameters."""
    return field(4, field(1, name.encode()) + field(2, value))


class StreamResets(Attack):
    """Streams that are reset when some of their requests are under way."""

    name = "stream-resets"
    summary = "streams of 20 requests, each reset at once"
    limit = "`--limit resets` (200 beyond one of two calls)"
    stops = ("GOAWAY ENHANCE_YOUR_CALM",)

    async def strike(self, peer: Peer) -> None:
        """See ``Attack``."""
        cancel = struct.pack(">I", Code.CANCEL)
        await peer.send(greeting())
        for begin in count(1, 100):
            streams = range(begin, begin + 100, 2)
            calls = [_call(one, _MESSAGE * 20, ends=False) + frame(Kind.RST_STREAM, 0, one, cancel) for one in streams]
            await peer.send(b"".join(calls), len(streams))
