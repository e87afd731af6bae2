"""HTTP/1.1 on the port of gRPC: peers that send a part, do not read, or are gone."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Final

import trio

from fuzz.attacks.attack import Attack
from fuzz.attacks.peer import Peer
from fuzz.attacks.rest_floods import HEAD, infer_json, post

__all__ = [
    "DeafOutputs",
    "DeafPages",
    "DeafStreams",
    "RestAnnouncedLengths",
    "RestLeftBehind",
    "RestPromises",
    "RestRememberedHeads",
    "RestResetUploads",
    "RestUnfinishedGzip",
    "RestUploads",
]

_PAUSE_S: Final = 0.1
#: Of a request with binary data, which is received into memory of its own.
_BINARY_HEAD: Final = HEAD + b"inference-header-content-length: 200\r\n"


class RestPromises(Attack):
    """Bodies that are announced, and nothing of them."""

    name = "rest-promises"
    summary = "300 connections that announce a body of 60 MB each and send nothing of it"
    limit = "memory is taken for what has come; `--limit stall_timeout` (60 s)"
    stops = ("HTTP/1.1 408",)
    connections = 300

    async def strike(self, peer: Peer) -> None:
        await peer.send(HEAD + b"content-length: 60000000\r\n\r\n", 1)
        await peer.wait_over()


class RestRememberedHeads(Attack):
    """Connections that make requests of many small fields, each another one, and are idle then."""

    name = "rest-remembered-heads"
    summary = "100 connections with 40 requests of 120 small fields each, which say nothing then"
    limit = "128 KiB of heads, as objects, per connection; none once there was no request for two seconds"
    stops = ()
    connections = 100

    async def strike(self, peer: Peer) -> None:
        fields = b"".join([b"%x:%d\r\n" % (number, number % 10) for number in range(0x100, 0x100 + 120)])
        for number in range(40):
            await peer.send(b"GET /v2/health/live HTTP/1.1\r\nhost: a\r\nx: %d\r\n%b\r\n" % (number, fields), 1)
        await peer.wait_over()


class RestUnfinishedGzip(Attack):
    """Bodies that become a thousand times their bytes, all but their end."""

    name = "rest-unfinished-gzip"
    summary = "20 connections that send 60 KB of gzip, which become 60 MB, but for their last bytes"
    limit = "`--limit server_buffer`, asked before each 32 KiB that they become; `--limit stall_timeout` (60 s)"
    stops = ("HTTP/1.1 503", "HTTP/1.1 408")
    connections = 20

    def flags(self, folder: Path) -> tuple[str, ...]:
        return ("--limit", "server_buffer=64000000")

    def prepare(self) -> None:
        body = gzip.compress(b" " * 60_000_000, 9)
        self._upload = HEAD + b"content-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(body) + body[:-5]

    async def strike(self, peer: Peer) -> None:
        await peer.send(self._upload, 1)
        await peer.wait_over()


class RestUploads(Attack):
    """Large bodies, all but their last byte."""

    name = "rest-uploads"
    summary = "30 connections that send 4 MB of a body but for its last byte and leave it at that"
    limit = "`--limit server_buffer` (half of the memory); `--limit stall_timeout` (60 s)"
    stops = ("HTTP/1.1 408",)
    connections = 30

    async def strike(self, peer: Peer) -> None:
        await peer.send(HEAD + b"content-length: 4000001\r\n\r\n", 1)
        await peer.send(bytes(4_000_000))
        await peer.wait_over()


class RestAnnouncedLengths(Attack):
    """Large bodies of binary data of which only the beginning comes."""

    name = "rest-announced-lengths"
    summary = "1,000 connections that announce 2 GB of binary data each, of which 20 KB come"
    limit = "memory grows with what has come; `--limit stall_timeout` (60 s)"
    stops = ("HTTP/1.1 408",)
    connections = 1_000

    async def strike(self, peer: Peer) -> None:
        await peer.send(_BINARY_HEAD + b"content-length: 2000000000\r\n\r\n", 1)
        await peer.send(bytes(20_000))
        await peer.wait_over()


class RestResetUploads(Attack):
    """Large bodies whose connection is reset when half of them is there."""

    name = "rest-reset-uploads"
    summary = "bodies of 1 MB, whose connection is reset after 500 KB"
    limit = "memory is given back with the connection"
    stops = ()

    async def strike(self, peer: Peer) -> None:
        await peer.send(_BINARY_HEAD + b"content-length: 1000000\r\n\r\n", 1)
        await peer.send(bytes(500_000))
        peer.end_by_reset()


class _Deaf(Attack):
    """Requests whose answers are never read from the socket."""

    stops = ("closed", "reset")
    receive_buffer = 4_096
    reads = False

    def requests(self) -> bytes:
        """What is sent at first."""
        raise NotImplementedError

    async def strike(self, peer: Peer) -> None:
        await peer.send(self.requests(), 1)
        # Nothing is read, so only a write shows that the connection is over.
        while True:
            await trio.sleep(_PAUSE_S)
            await peer.send(b"GET /v2 HTTP/1.1\r\nhost: a\r\n\r\n")


class DeafStreams(_Deaf):
    """Event streams that nobody reads."""

    name = "rest-deaf-streams"
    summary = "10 event streams of 2 MB each on 4 connections, which are never read"
    limit = "no request is read while 4 MiB wait; `--limit server_buffer`; `--limit stall_timeout` (60 s)"

    def requests(self) -> bytes:
        return post(json.dumps({"INPUT": 500_000}).encode(), model="generator", way="generate_stream") * 10


class DeafOutputs(_Deaf):
    """Large outputs that nobody reads."""

    name = "rest-deaf-outputs"
    summary = "40 outputs of 4 MB each as binary data on 4 connections, which are never read"
    limit = "an output is kept once; no request is read while 4 MiB wait; `--limit stall_timeout` (60 s)"

    def requests(self) -> bytes:
        numbers = {"name": "INPUT", "shape": [1], "datatype": "INT64", "data": [1_000_000]}
        body = json.dumps({"inputs": [numbers], "parameters": {"binary_data_output": True}}).encode()
        return post(body, model="generator") * 40


class DeafPages(_Deaf):
    """Pages that nobody reads."""

    name = "rest-deaf-pages"
    summary = "/metrics 20,000 times on 4 connections, never read"
    limit = "no request is read while 4 MiB wait; `--limit stall_timeout` (60 s)"

    def requests(self) -> bytes:
        return b"GET /metrics HTTP/1.1\r\nhost: a\r\n\r\n" * 20_000


class RestLeftBehind(Attack):
    """Work that is given, and not waited for."""

    name = "rest-left-behind"
    summary = "connections that send JSON of 700 KB four times and are reset at once"
    limit = "what nobody waits for is not read; one job of each connection in turn"
    stops = ()
    _flood = b""

    def prepare(self) -> None:
        self._flood = post(infer_json([1, 100_000], "[" + ",".join(["1.2345"] * 100_000) + "]")) * 4

    async def strike(self, peer: Peer) -> None:
        await peer.send(self._flood, 4)
        peer.end_by_reset()
