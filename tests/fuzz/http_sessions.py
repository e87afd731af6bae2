"""One HTTP/1.1 connection's bytes.

Invariant: whatever comes, nothing is raised; the same requests come out and the same answers go out however the bytes
are cut, and whether or not large bodies are received into memory of their own, and foreseen; in the end nothing is
kept; and the bodies are those that llhttp finds in the same bytes, up to where one of the two refuses to go on.

A case is the bytes, behind one byte that seeds where they are cut.
"""

from __future__ import annotations

import gzip
import random
import zlib
from collections.abc import Callable

from httptools import HttpParserError, HttpParserInvalidMethodError, HttpParserUpgrade, HttpRequestParser

from tests.fuzz.sessions import mutate
from tests.http1.support import Driven, conversation, in_memory
from toutates.h2grpc.message_memory import MemoryPool
from toutates.http1 import Connection, Limits

__all__ = ["check", "make_case"]

LIMITS = Limits(
    max_head_size=600,
    max_fields=10,
    max_body_size=2_000,
    max_chunk_line=60,
    max_pipelined=3,
    remembered_heads=2,
    large_body_size=40,
)

METHODS = ("GET", "POST", "POST", "HEAD", "OPTIONS", "BREW", "get", "")
TARGETS = ("/", "/a?b", "*", "http://h/p", "/%00", "a", "/ x", "")
VERSIONS = ("HTTP/1.1",) * 6 + ("HTTP/1.0", "HTTP/1.2", "HTTP/2.0", "")
FIELDS = (
    b"accept-encoding: gzip",
    b"connection: close",
    b"connection: keep-alive",
    b"connection: upgrade\r\nupgrade: h2c",
    b"content-length: 3",
    b"content-length: 0",
    b"content-length: 5000",
    b"content-length : 3",
    b"transfer-encoding: gzip, chunked",
    b"expect: 100-continue",
    b"expect: x",
    b"host: y",
    b"a: b\r\n c: d",
    b"a: b\nc: d",
    b"a",
    b"a: " + b"v" * 300,
    b"a: \x00",
)


def make_case(rng: random.Random) -> bytes:
    """Requests one behind the other, some broken, many again."""
    requests: list[bytes] = []
    for _ in range(rng.randint(1, 8)):
        requests.append(rng.choice(requests) if requests and rng.random() < 0.4 else _request(rng))
    data = b"".join(requests)
    if rng.random() < 0.2:
        data = mutate(data, rng)
    if rng.random() < 0.2:
        data = data[: rng.randrange(len(data) + 1)]
    return rng.randbytes(1) + data


def _request(rng: random.Random) -> bytes:
    def mostly(usual: str, others: tuple[str, ...]) -> str:
        return usual if rng.random() < 0.7 else rng.choice(others)

    method = mostly("POST", METHODS)
    lines = [f"{method} {mostly('/', TARGETS)} {mostly('HTTP/1.1', VERSIONS)}".encode(), b"host: x"]
    body = rng.choice(
        (b"", b"abc", b"\r\n\r\n", rng.randbytes(rng.randrange(50)), b"x" * rng.choice((500, 1_900, 2_100)))
    )
    if rng.random() < 0.2:
        coding = rng.choice(("gzip", "deflate", "br", "identity"))
        body = gzip.compress(body, mtime=0) if coding == "gzip" else zlib.compress(body)
        lines.append(b"content-encoding: " + coding.encode())
    if rng.random() < 0.4:
        lines.append(b"transfer-encoding: chunked")
        body = _chunks(body, rng)
    elif body:
        lines.append(b"content-length: %d" % len(body))
    lines += [rng.choice(FIELDS) for _ in range(rng.choice((0, 0, 0, 1, 2)))]
    return rng.choice((b"", b"", b"\r\n")) + b"\r\n".join([*lines, b"", b""]) + body


def _chunks(body: bytes, rng: random.Random) -> bytes:
    out = b""
    while body:
        size = rng.randint(1, len(body))
        extension = rng.choice((b"",) * 8 + (b";a=b", b" ", b";", b";" + b"x" * 70))
        out += b"%x%b\r\n%b%b" % (size, extension, body[:size], rng.choice((b"\r\n",) * 20 + (b"\n", b"")))
        body = body[size:]
    return out + b"0\r\n" + rng.choice((b"", b"", b"a: b\r\n", b"a b\r\n", b"content-length: 1\r\n")) + b"\r\n"


def check(case: bytes) -> None:
    """Raise AssertionError, or whatever leaks, if the invariant breaks."""
    rng = random.Random(case[:1])
    data = case[1:]
    whole = conversation([data], Connection(LIMITS), end=True)
    ways: tuple[tuple[int, bool, Callable[[MemoryPool], Connection | Driven]], ...] = (
        (1, True, lambda pool: in_memory(pool, LIMITS)),
        (7, False, lambda pool: Connection(LIMITS)),
        (200, True, lambda pool: in_memory(pool, LIMITS)),
        (300, True, lambda pool: Driven(pool, LIMITS)),
        (3_000, True, lambda pool: Driven(pool, LIMITS)),
    )
    for longest, direct, make in ways:
        pool = MemoryPool()
        connection = make(pool)
        assert conversation(_cut(data, longest, rng), connection, end=True, direct=direct) == whole, (
            "cut otherwise, it is read otherwise"
        )
        assert not pool.lent, "memory is kept for a body that is over"
        assert connection.finished, "it goes on behind the peer's last byte"
        assert not connection.held_bytes, "something is kept"
    _compare([body for _, _, body in whole[0]], data)


def _cut(data: bytes, longest: int, rng: random.Random) -> list[bytes]:
    pieces = []
    while data:
        size = rng.randint(1, longest)
        pieces.append(data[:size])
        data = data[size:]
    return pieces


def _compare(ours: list[bytes], data: bytes) -> None:
    """Hold the bodies of requests against those that llhttp finds; what is compressed against its size alone."""
    judge = _Judge()
    knows_less = False
    try:
        HttpRequestParser(judge).feed_data(data)
    except HttpParserInvalidMethodError:
        knows_less = True  # the others are methods as well
    except HttpParserUpgrade:
        knows_less = True
        del judge.bodies[-1]  # it takes the body of a request that proposes another protocol for that protocol
    except HttpParserError:
        pass
    for number, (mine, (body, compressed)) in enumerate(zip(ours, judge.bodies, strict=False)):
        assert compressed or mine == body, f"llhttp reads another body of request {number}: {body!r}, not {mine!r}"
    if not knows_less:
        assert len(ours) <= len(judge.bodies), "we read requests that llhttp does not"


class _Judge:
    """The bodies that llhttp finds, and whether they are compressed."""

    def __init__(self) -> None:
        self.bodies: list[tuple[bytes, bool]] = []
        self._body = b""
        self._compressed = False

    def on_message_begin(self) -> None:
        self._body, self._compressed = b"", False

    def on_header(self, name: bytes, value: bytes) -> None:
        self._compressed = self._compressed or name.lower() == b"content-encoding"

    def on_body(self, piece: bytes) -> None:
        self._body += piece

    def on_message_complete(self) -> None:
        self.bodies.append((self._body, self._compressed))
