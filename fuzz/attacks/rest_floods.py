"""HTTP/1.1 on the port of gRPC: bodies that are dear to read, requests without end, and those that never end."""

from __future__ import annotations

import gzip
import json
from typing import ClassVar, Final

from fuzz.attacks.attack import Attack
from fuzz.attacks.peer import Peer

__all__ = [
    "AT_ONCE",
    "HEAD",
    "ChunkFlood",
    "DearHeads",
    "DearJson",
    "DeepJson",
    "Flood",
    "HugeJson",
    "JsonPollution",
    "PipelinedInference",
    "RestBomb",
    "SlowHead",
    "SlowRestBody",
    "Smuggling",
    "infer_json",
    "post",
]

#: Of a request to the model "shapes", without what says how long its body is.
HEAD: Final = b"POST /v2/models/shapes/infer HTTP/1.1\r\nhost: a\r\n"
#: Small requests that are sent together.
AT_ONCE: Final = 100
_PAUSE_S: Final = 0.1


def post(body: bytes, *fields: bytes, model: str = "shapes", way: str = "infer") -> bytes:
    """A request to a model."""
    head = f"POST /v2/models/{model}/{way} HTTP/1.1\r\nhost: a\r\n".encode()
    return b"".join((head, *(field + b"\r\n" for field in fields), b"content-length: %d\r\n\r\n" % len(body), body))


def infer_json(shape: list[int], data: str, **more: object) -> bytes:
    """An inference of one FP32 tensor, whose data are that text."""
    document = {"inputs": [{"name": "INPUT", "shape": shape, "datatype": "FP32", "data": "DATA"}], **more}
    return json.dumps(document).replace('"DATA"', data).encode()


class Flood(Attack):
    """The same bytes over and over."""

    stops: ClassVar[tuple[str, ...]] = ()
    requests: ClassVar[int] = 1
    flood: bytes = b""

    async def strike(self, peer: Peer) -> None:
        while True:
            await peer.send(self.flood, self.requests)


class PipelinedInference(Flood):
    """Small inferences without a pause."""

    name = "rest-pipelining"
    summary = "small inferences over HTTP/1.1 without a pause, pipelined on 4 connections"
    limit = "64 requests of a connection wait for answers; the others are not read"
    requests = AT_ONCE

    def prepare(self) -> None:
        self.flood = post(infer_json([1, 4], "[1,2,3,4]")) * AT_ONCE


class DeepJson(Flood):
    """Brackets alone."""

    name = "rest-deep-json"
    summary = "JSON of 60,000 brackets"
    limit = "depth of JSON (100)"
    stops = ("HTTP/1.1 400", "HTTP/1.1 500")

    def prepare(self) -> None:
        self.flood = post(infer_json([1, 1], "[" * 30_000 + "]" * 30_000))


class HugeJson(Flood):
    """Arrays of a million numbers."""

    name = "rest-huge-json"
    summary = "JSON of 7 MB, pipelined on 4 connections"
    limit = "read in a thread beside the worker, in pieces of a millisecond"

    def prepare(self) -> None:
        self.flood = post(infer_json([1, 1_000_000], "[" + ",".join(["1.2345"] * 1_000_000) + "]"))


class DearJson(Flood):
    """Names that mean nothing."""

    name = "rest-dear-json"
    summary = "JSON of 1 MB: 16,000 names, pipelined on 4 connections"
    limit = "JSON that is no flat data: 16,384 values, 1 MiB; read in a thread beside the worker"
    stops = ()

    def prepare(self) -> None:
        names = {f"k{at}{'b' * 40}": at for at in range(16_000)}
        self.flood = post(infer_json([1, 1], "[1]", **names))


class JsonPollution(Attack):
    """Requests of another kind each time."""

    name = "rest-json-pollution"
    summary = "JSON with another parameter each time, so that nothing of it is known"
    limit = "plans on probation"
    stops = ()

    async def strike(self, peer: Peer) -> None:
        number = 0
        while True:
            number += AT_ONCE
            bodies = [infer_json([1, 1], "[1]", parameters={f"p{number + at}": at}) for at in range(AT_ONCE)]
            await peer.send(b"".join(map(post, bodies)), AT_ONCE)


class DearHeads(Attack):
    """Heads that come once."""

    name = "rest-heads"
    summary = "heads of 16 KB with 128 fields, each another one"
    limit = "fields of a head (128), its size (16 KiB)"
    stops = ()

    async def strike(self, peer: Peer) -> None:
        number = 0
        while True:
            fields = "".join(f"x-{number}-{at}: {'v' * 100}\r\n" for at in range(120))
            await peer.send(f"GET /v2 HTTP/1.1\r\nhost: a\r\n{fields}\r\n".encode(), 1)
            number += 1


class ChunkFlood(Attack):
    """A body of one byte per chunk."""

    name = "rest-chunks"
    summary = "a body in chunks of one byte"
    limit = "chunks of a body (65,536)"
    stops = ("HTTP/1.1 400",)

    async def strike(self, peer: Peer) -> None:
        await peer.send(HEAD + b"transfer-encoding: chunked\r\n\r\n")
        chunks = b"1\r\nx\r\n" * 1_000
        while True:
            await peer.send(chunks, 1_000)


class RestBomb(Flood):
    """A compressed body that becomes a thousand times as large."""

    name = "rest-bomb"
    summary = "70 KB of gzip that become 70 MB"
    limit = "`--limit decompressed_size` (64 MiB)"
    stops = ("HTTP/1.1 413",)

    def prepare(self) -> None:
        self.flood = post(gzip.compress(bytes(70_000_000), 9), b"content-encoding: gzip")


class Smuggling(Flood):
    """Two ways to say how long a body is."""

    name = "rest-smuggling"
    summary = "Content-Length and Transfer-Encoding in one head"
    limit = "one of both"
    stops = ("HTTP/1.1 400",)
    flood = HEAD + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\nGET /v2 HTTP/1.1\r\n\r\n"


class SlowHead(Attack):
    """A head, a byte at a time."""

    name = "rest-slow-head"
    summary = "50 connections that send a head of HTTP/1.1 byte by byte"
    limit = "`--limit stall_timeout` (60 s)"
    stops = ("HTTP/1.1 408",)
    connections = 50

    async def strike(self, peer: Peer) -> None:
        await peer.send(HEAD)
        await peer.dribble(b"x-a: " + b"v" * 10_000, _PAUSE_S)
        await peer.wait_over()


class SlowRestBody(Attack):
    """A body, a byte at a time."""

    name = "rest-slow-body"
    summary = "50 connections that send a body over HTTP/1.1 byte by byte"
    limit = "`--limit stall_timeout` (60 s)"
    stops = ("HTTP/1.1 408",)
    connections = 50

    async def strike(self, peer: Peer) -> None:
        await peer.send(HEAD + b"content-length: 100000\r\n\r\n")
        await peer.dribble(bytes(100_000), _PAUSE_S)
        await peer.wait_over()
