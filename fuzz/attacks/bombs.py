"""Requests that are small on the wire and large, or dear, for the server."""

from __future__ import annotations

import gzip
import random
import zlib
from collections.abc import Sequence
from functools import cached_property
from itertools import count
from typing import ClassVar, Final

from fuzz.attacks.attack import Attack
from fuzz.attacks.peer import Peer
from fuzz.attacks.wire import field, framed, greeting, infer_message, request_block, unary, varint

__all__ = [
    "Bomb",
    "DeflateBomb",
    "EmptyContents",
    "GzipBomb",
    "GzipFlood",
    "ManyDimensions",
    "NestedGroups",
    "PlanPollution",
    "RefusedIds",
    "ShapePollution",
]

_BLOCK: Final = request_block()
_GZIP: Final = request_block("/inference.GRPCInferenceService/ModelInfer", ("grpc-encoding", "gzip"))


class _Requests(Attack):
    """One request after the other.

    Attributes:
        ahead: how many may wait for their answers: an attacker who is ahead by more gains nothing.
    """

    connections = 2
    ahead: ClassVar[int]

    def request(self, stream_id: int, peer: Peer) -> bytes:
        """What is sent on a stream."""
        raise NotImplementedError

    async def strike(self, peer: Peer) -> None:
        await peer.send(greeting())
        for stream_id in count(1, 2):
            while stream_id // 2 - peer.answered >= self.ahead:
                await peer.wait_answer()
            await peer.send(self.request(stream_id, peer), 1)


class Bomb(_Requests):
    """The same request, over and over."""

    stops: ClassVar[Sequence[str]] = ("grpc-status 3", "grpc-status 8", "grpc-status 13")
    ahead = 8
    block: ClassVar[bytes] = _BLOCK

    @cached_property
    def body(self) -> bytes:
        """The length-prefixed message."""
        raise NotImplementedError

    def prepare(self) -> None:
        assert self.body

    def request(self, stream_id: int, peer: Peer) -> bytes:
        return unary(stream_id, self.block, self.body_for(stream_id))

    def body_for(self, stream_id: int) -> bytes:
        """What is sent on a stream, where it is not always the same."""
        return self.body


class GzipBomb(Bomb):
    """A message of 100 MB of zeros in 100 KB of gzip."""

    name = "gzip-bomb"
    summary = "messages that decompress (gzip) to a thousand times their size, 100 MB"
    limit = "`--limit decompressed_size` (64 MiB): RESOURCE_EXHAUSTED"
    stops = ("grpc-status 8",)
    block = _GZIP

    @cached_property
    def body(self) -> bytes:
        return framed(gzip.compress(bytes(100_000_000), 6), 1)


class GzipFlood(Bomb):
    """60 MB in 650 KB of gzip, like data that compresses well, as fast as it goes."""

    name = "gzip-flood"
    summary = "messages that decompress (gzip) to 93 times their size, 60 MB"
    limit = "what a message becomes is charged to the worker's time; large ones are decompressed in a thread beside it"
    stops = ("grpc-status 3", "grpc-status 8", "grpc-status 13")
    block = _GZIP

    @cached_property
    def body(self) -> bytes:
        noise = random.Random(1)
        return framed(gzip.compress(b"".join(bytes(9_902) + noise.randbytes(98) for _ in range(6_000)), 1), 1)


class RefusedIds(Bomb):
    """Requests that are refused when all of them was read and unpacked."""

    name = "refused-ids"
    summary = "requests with an `id` of 60 MB, in 60 KB of gzip"
    limit = "65,536 bytes of an id; nothing of a request is kept with its refusal"
    stops = ("grpc-status 3",)
    block = _GZIP

    @cached_property
    def body(self) -> bytes:
        message = infer_message("victim", [1, 4], bytes(16)) + field(3, b"x" * 60_000_000)
        return framed(gzip.compress(message, 6), 1)


class DeflateBomb(Bomb):
    """The same in zlib's format."""

    name = "deflate-bomb"
    summary = "the same with deflate"
    limit = "`--limit decompressed_size` (64 MiB): RESOURCE_EXHAUSTED"
    stops = ("grpc-status 8",)
    block = request_block("/inference.GRPCInferenceService/ModelInfer", ("grpc-encoding", "deflate"))

    @cached_property
    def body(self) -> bytes:
        return framed(zlib.compress(bytes(100_000_000), 6), 1)


class NestedGroups(Bomb):
    """Groups in groups, as deep as a message takes them, which a recursive parser falls over."""

    name = "nested-protobuf"
    summary = "protobuf groups nested 200,000 deep"
    limit = "protobuf's own limit of depth: the request is INVALID_ARGUMENT or INTERNAL"

    @cached_property
    def body(self) -> bytes:
        start, end = varint(15 << 3 | 3), varint(15 << 3 | 4)
        return framed(infer_message("victim", [1, 4], bytes(16)) + start * 200_000 + end * 200_000)


class EmptyContents(Bomb):
    """A million raw contents of no bytes: two bytes on the wire, an object each for the server."""

    name = "repeated-protobuf"
    summary = "a million empty `raw_input_contents`, two bytes each"
    limit = "a request's fields are counted before it is parsed: INVALID_ARGUMENT"

    @cached_property
    def body(self) -> bytes:
        return framed(infer_message("victim", [1, 4], bytes(16)) + field(7, b"") * 1_000_000)


class ManyDimensions(Bomb):
    """A shape of a million dimensions."""

    name = "many-dimensions"
    summary = "an input of a million dimensions"
    limit = "a request's fields are counted before it is parsed: INVALID_ARGUMENT"

    @cached_property
    def body(self) -> bytes:
        return framed(infer_message("victim", [1] * 1_000_000, bytes(16)))


class PlanPollution(_Requests):
    """Requests no two of which are alike in names and parameters, so that nothing the server remembers is of use."""

    name = "plan-pollution"
    summary = "valid requests, each with another parameter, so that none is like one seen before"
    limit = "plans are kept within bounds, those in use longest; such requests are answered"
    stops = ()
    ahead = 64

    def request(self, stream_id: int, peer: Peer) -> bytes:
        key = b"p%d" % (stream_id // 2 + 1_000_000 * peer.tally.connections)
        parameter = field(4, field(1, key) + field(2, b"\x10\x01"))
        return unary(stream_id, _BLOCK, framed(infer_message("victim", [1, 4], bytes(16), rest=parameter)))


class ShapePollution(_Requests):
    """Requests no two of which are of the same shape, each of which has batches of its own."""

    name = "shape-pollution"
    summary = "valid requests of ever other shapes, up to 128 KB a row, for a model of open shape"
    limit = "shapes and spare batches are kept within bounds; the oldest go; such requests are answered"
    stops = ()
    ahead = 4

    def request(self, stream_id: int, peer: Peer) -> bytes:
        columns = 1 + stream_id * 7919 % 32_768
        return unary(stream_id, _BLOCK, framed(infer_message("shapes", [1, columns], bytes(4 * columns), "FP32")))
