"""HTTP/1.1 on the port of gRPC: heads, bodies and answers that are dear for their size."""

from __future__ import annotations

import gzip
import json
from typing import Final

from fuzz.attacks.peer import Peer
from fuzz.attacks.rest_floods import AT_ONCE, Flood, infer_json, post

__all__ = [
    "CodedAnswers",
    "ContinueFlood",
    "EncodedNames",
    "FarExponents",
    "GzipLayers",
    "NewHeads",
    "RestStatistics",
    "RestStrings",
    "TextBodies",
    "TextFlood",
]

_BODY: Final = infer_json([1, 4], "[1,2,3,4]")


class NewHeads(Flood):
    """Heads that are remembered in vain."""

    name = "rest-new-heads"
    summary = "inferences with a small head that is another one each time, so that all that are remembered are in vain"
    limit = "32 heads of 2 KiB per connection; a turn ends after 4 ms"

    async def strike(self, peer: Peer) -> None:
        number = 0
        while True:
            heads = range(number, number + AT_ONCE)
            await peer.send(b"".join(post(_BODY, b"x-number: %d" % at) for at in heads), AT_ONCE)
            number += AT_ONCE


class EncodedNames(Flood):
    """Names in which every byte is encoded."""

    name = "rest-encoded-names"
    summary = "16 KB of percent-encoded name per request"
    limit = "size of a head (16 KiB); a turn ends after 4 ms"
    stops = ("HTTP/1.1 404", "HTTP/1.1 400")

    def prepare(self) -> None:
        self.flood = b"GET /v2/models/" + b"%C3%A9" * 2_700 + b"/ready HTTP/1.1\r\nhost: a\r\n\r\n"


class ContinueFlood(Flood):
    """Requests that want to be told to go on."""

    name = "rest-continue"
    summary = "inferences with `expect: 100-continue` and their body at once, pipelined"
    limit = "such a request waits until those before it are answered; a turn ends after 4 ms"
    requests = AT_ONCE

    def prepare(self) -> None:
        self.flood = post(_BODY, b"expect: 100-continue") * AT_ONCE


class RestStrings(Flood):
    """Strings of no characters."""

    name = "rest-strings"
    summary = "JSON of a million empty strings"
    limit = "read in a thread beside the worker; 1,048,576 elements of a BYTES input"

    def prepare(self) -> None:
        body = infer_json([1, 1_000_000], "[" + ",".join(['""'] * 1_000_000) + "]")
        self.flood = post(body.replace(b"FP32", b"BYTES"), model="strings")


class FarExponents(Flood):
    """Numbers that are dear to read."""

    name = "rest-far-exponents"
    summary = "JSON of 9,000 numbers near the smallest that there is, 60 KB, which a worker reads itself"
    limit = "such numbers are read by a parser that takes 1 us for any"

    def prepare(self) -> None:
        self.flood = post(infer_json([1, 9_000], "[" + ",".join(["5e-324"] * 9_000) + "]"))


def _embeddings(body: bytes) -> bytes:
    return b"POST /v1/embeddings HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % len(body) + body


class TextBodies(Flood):
    """Bodies of the APIs for text that are dear for their size."""

    name = "text-bodies"
    summary = "to /v1/embeddings, JSON of 12 MB: four million empty strings, then a string of six million escapes"
    limit = "read in a thread beside the worker, in steps of a millisecond; 8,192 values, 16 MiB"
    stops = ("HTTP/1.1 400",)
    requests = 2

    def prepare(self) -> None:
        empty = b'{"model":"m","input":["' + b'","' * 4_000_000 + b'"]}'
        escapes = b'{"model":"m","input":"' + b"\\n" * 6_000_000 + b'"}'
        self.flood = _embeddings(empty) + _embeddings(escapes)


class TextFlood(Flood):
    """More texts than a text model computes in a second, for which nobody else is to wait."""

    name = "text-flood"
    summary = "to /v1/embeddings, 2,000 texts of 7 KB in a request, by two connections"
    limit = "callers take turns: a text waits for no more than one batch of any other caller's"
    connections = 2
    honest_model = "texts"

    def prepare(self) -> None:
        body = json.dumps({"model": "texts", "input": ["one two three four five six " * 250] * 2_000}).encode()
        self.flood = _embeddings(body)


class GzipLayers(Flood):
    """Small bodies that become large ones, all the time."""

    name = "rest-gzip"
    summary = "JSON of 4 MB of blanks in 4 KB of gzip, pipelined"
    limit = "32 KiB are decompressed at a time; a turn ends after 4 ms"
    stops = ("HTTP/1.1 400", "HTTP/1.1 500")
    requests = 16

    def prepare(self) -> None:
        self.flood = post(gzip.compress(b" " * 4_000_000, 9), b"content-encoding: gzip") * 16


class CodedAnswers(Flood):
    """Answers that are dear to write."""

    name = "rest-coded-answers"
    summary = "requests of 180 bytes, whose answers are 30 KB of JSON to be compressed, pipelined"
    limit = "64 requests of a connection wait for answers; contents above 32 KiB are written in another thread"
    requests = AT_ONCE

    def prepare(self) -> None:
        tensor = {"name": "INPUT", "shape": [1], "datatype": "INT64", "data": [8_000]}
        body = json.dumps({"inputs": [tensor]}).encode()
        self.flood = post(body, b"accept-encoding: gzip", model="generator") * AT_ONCE


class RestStatistics(Flood):
    """Pages whose answers are long."""

    name = "rest-pages"
    summary = "/metrics, /v2/models/stats and the repository's index without a pause, pipelined on 4 connections"
    limit = "what is kept is sent again; 64 requests of a connection wait for answers; a turn ends after 4 ms"
    requests = 3 * AT_ONCE

    def prepare(self) -> None:
        pages = b"".join(b"GET %b HTTP/1.1\r\nhost: a\r\n\r\n" % path for path in (b"/metrics", b"/v2/models/stats"))
        index = b"POST /v2/repository/index HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n"
        self.flood = (pages + index) * AT_ONCE
