"""What a connection refuses: each case with the status that says why, however its bytes are cut.

Request smuggling needs two readers that see different requests in the same bytes. So whatever could be read in two ways
is refused, and nothing behind it is read.
"""

from __future__ import annotations

import gzip
import zlib

import pytest

from tests.http1.support import conversation, cuts, request, statuses
from toutates.http1 import Connection, Limits

GET = b"GET / HTTP/1.1\r\nhost: x\r\n"
POST = b"POST / HTTP/1.1\r\nhost: x\r\n"
CHUNKED = POST + b"transfer-encoding: chunked\r\n\r\n"
SMUGGLED = b"GET /smuggled HTTP/1.1\r\nhost: x\r\n\r\n"
LIMITS = Limits(max_head_size=512, max_fields=8, max_body_size=100, max_chunk_line=40, max_chunks=9)

CASES = {
    # the request line
    "nonsense": (b"nonsense\r\n\r\n", 400),
    "HTTP/0.9": (b"GET /\r\n\r\n", 400),
    "no version": (b"GET / \r\n\r\n", 400),
    "two spaces": (b"GET  / HTTP/1.1\r\nhost: x\r\n\r\n", 400),
    "two more spaces": (b"GET /  HTTP/1.1\r\nhost: x\r\n\r\n", 400),
    "a space at the end": (b"GET / HTTP/1.1 \r\nhost: x\r\n\r\n", 400),
    "a space at the beginning": (b" GET / HTTP/1.1\r\nhost: x\r\n\r\n", 400),
    "a tab": (b"GET\t/ HTTP/1.1\r\nhost: x\r\n\r\n", 400),
    "a space in the target": (b"GET /a b HTTP/1.1\r\nhost: x\r\n\r\n", 400),
    "a NUL in the target": (b"GET /\0 HTTP/1.1\r\nhost: x\r\n\r\n", 400),
    "8 bits in the target": (b"GET /\xff HTTP/1.1\r\nhost: x\r\n\r\n", 400),
    "a relative target": (b"GET a HTTP/1.1\r\nhost: x\r\n\r\n", 400),
    "a tunnel": (b"CONNECT a:1 HTTP/1.1\r\nhost: x\r\n\r\n", 400),
    "lower case": (b"GET / http/1.1\r\nhost: x\r\n\r\n", 400),
    "HTTP/1.2": (b"GET / HTTP/1.2\r\nhost: x\r\n\r\n", 505),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
    "a bare CR before": (b"\rGET / HTTP/1.1\r\nhost: x\r\n\r\n", 400),
    # fields
    "no host": (b"GET / HTTP/1.1\r\n\r\n", 400),
    "two hosts": (GET + b"Host: y\r\n\r\n", 400),
    "bare LFs": (b"GET / HTTP/1.1\nhost: x\n\n", 400),
    "a bare LF": (GET + b"a: b\nc: d\r\n\r\n", 400),
    "a bare LF at the end": (GET + b"\n", 400),
    "a bare CR": (GET + b"a: b\rc: d\r\n\r\n", 400),
    "CR CR LF": (GET + b"a: b\r\r\n\r\n", 400),
    "a folded line": (GET + b"a: b\r\n c\r\n\r\n", 400),
    "a folded line by a tab": (GET + b"a:\r\n\tc\r\n\r\n", 400),
    "a folded first line": (b"GET / HTTP/1.1\r\n host: x\r\n\r\n", 400),
    "a space before the colon": (GET + b"content-length : 3\r\n\r\n", 400),
    "no colon": (GET + b"a\r\n\r\n", 400),
    "no name": (GET + b": a\r\n\r\n", 400),
    "a NUL": (GET + b"a: \0\r\n\r\n", 400),
    "a control character": (GET + b"a: \x0b\r\n\r\n", 400),
    "8 bits in a name": (GET + b"\xe4: a\r\n\r\n", 400),
    "too many fields": (GET + b"a: b\r\n" * 8 + b"\r\n", 431),
    "a long field": (GET + b"a: " + b"b" * 600 + b"\r\n\r\n", 431),
    "a long head without an end": (GET + b"a: b\r\n" * 200, 431),
    "another expectation": (GET + b"expect: miracles\r\n\r\n", 417),
    "another coding": (POST + b"content-encoding: br\r\ncontent-length: 1\r\n\r\nx", 415),
    "two codings": (POST + b"content-encoding: gzip, gzip\r\ncontent-length: 1\r\n\r\nx", 415),
    # where the body ends
    "two lengths": (POST + b"content-length: 1\r\ncontent-length: 1\r\n\r\nx", 400),
    "a list of lengths": (POST + b"content-length: 1, 1\r\n\r\nx", 400),
    "a length with a sign": (POST + b"content-length: +1\r\n\r\nx", 400),
    "a negative length": (POST + b"content-length: -1\r\n\r\nx", 400),
    "a hexadecimal length": (POST + b"content-length: 0x1\r\n\r\nx", 400),
    "a length with an underscore": (POST + b"content-length: 1_0\r\n\r\nx", 400),
    "no length": (POST + b"content-length:\r\n\r\nx", 400),
    "a length beyond 64 bits": (POST + b"content-length: 99999999999999999999999\r\n\r\nx", 400),
    "length and chunks": (POST + b"content-length: 1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    "chunks and length": (POST + b"transfer-encoding: chunked\r\ncontent-length: 1\r\n\r\n0\r\n\r\n", 400),
    "chunks of HTTP/1.0": (b"POST / HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    "chunks twice": (POST + b"transfer-encoding: chunked, chunked\r\n\r\n0\r\n\r\n", 400),
    "chunks twice in two fields": (POST + b"transfer-encoding: chunked\r\n" * 2 + b"\r\n0\r\n\r\n", 400),
    "chunks inside": (POST + b"transfer-encoding: chunked, gzip\r\n\r\n0\r\n\r\n", 400),
    "chunks outside": (POST + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
    "nearly chunks": (POST + b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n", 400),
    "hardly chunks": (POST + b"transfer-encoding:\x0bchunked\r\n\r\n0\r\n\r\n", 400),
    "identity": (POST + b"transfer-encoding: identity\r\n\r\n0\r\n\r\n", 400),
    "too large": (POST + b"content-length: 101\r\n\r\n", 413),
    # chunks
    "no size": (CHUNKED + b"\r\n", 400),
    "a size with a space": (CHUNKED + b"5 \r\nhello\r\n0\r\n\r\n", 400),
    "a size after a space": (CHUNKED + b" 5\r\nhello\r\n0\r\n\r\n", 400),
    "a size with a prefix": (CHUNKED + b"0x5\r\nhello\r\n0\r\n\r\n", 400),
    "a size with a sign": (CHUNKED + b"+5\r\nhello\r\n0\r\n\r\n", 400),
    "a size beyond 64 bits": (CHUNKED + b"10000000000000005\r\nhello\r\n0\r\n\r\n", 400),
    "a size that ends with LF": (CHUNKED + b"5\nhello\r\n0\r\n\r\n", 400),
    "an extension with LF": (CHUNKED + b"5;a\nb\r\nhello\r\n0\r\n\r\n", 400),
    "an extension without a name": (CHUNKED + b"5;\r\nhello\r\n0\r\n\r\n", 400),
    "an extension after a space": (CHUNKED + b"5 ;a\r\nhello\r\n0\r\n\r\n", 400),
    "a long extension": (CHUNKED + b"5;" + b"a" * 50 + b"\r\nhello\r\n0\r\n\r\n", 400),
    "data that end with LF": (CHUNKED + b"5\r\nhello\n0\r\n\r\n", 400),
    "data without an end": (CHUNKED + b"5\r\nhello0\r\n\r\n", 400),
    "a large chunk": (CHUNKED + b"65\r\n", 413),
    "many chunks": (CHUNKED + b"40\r\n" + b"x" * 64 + b"\r\n25\r\n", 413),
    "too many chunks": (CHUNKED + b"1\r\nx\r\n" * 10 + b"0\r\n\r\n", 400),
    "a trailer that is none": (CHUNKED + b"0\r\na b\r\n\r\n", 400),
    "a folded trailer": (CHUNKED + b"0\r\na: b\r\n c\r\n\r\n", 400),
    "a length in the trailers": (CHUNKED + b"0\r\ncontent-length: 3\r\n\r\n", 400),
    "long trailers": (CHUNKED + b"0\r\n" + b"a: b\r\n" * 100 + b"\r\n", 431),
    # what is compressed
    "not compressed": (request("POST", body=b"hello", content_encoding="gzip"), 400),
    "cut off": (request("POST", body=gzip.compress(b"hello")[:-1], content_encoding="gzip"), 400),
    "more than compressed": (request("POST", body=gzip.compress(b"hello") + b"x", content_encoding="gzip"), 400),
    "compressed in another way": (request("POST", body=zlib.compress(b"hello"), content_encoding="gzip"), 400),
    "a bomb": (request("POST", body=zlib.compress(bytes(10_000)), content_encoding="deflate"), 413),
}


@pytest.mark.parametrize(("octets", "status"), CASES.values(), ids=CASES.keys())
def test_it_is_refused_and_nothing_behind_it_is_read(octets: bytes, status: int) -> None:
    data = octets + SMUGGLED
    whole = conversation([data], Connection(LIMITS))
    for pieces in cuts(data):
        connection = Connection(LIMITS)
        assert conversation(pieces, connection) == whole
        assert connection.finished
        assert connection.held_bytes == 0
    found, sent = whole
    assert found == []
    assert statuses(sent) == [status]
    assert b"connection: close" in sent
    assert sent.endswith(b"\n")


@pytest.mark.parametrize("octets", [b"\x16", b"\r\n\x16", b"\rG", b"GET / HTTP/1.1\n"])
def test_what_can_be_no_request_is_refused_at_once(octets: bytes) -> None:
    connection = Connection(Limits())
    assert connection.receive(octets) == []
    assert statuses(b"".join(connection.take_output())) == [400]
    assert connection.finished


def test_a_request_before_it_is_answered_first() -> None:
    found, sent = conversation([request(target="/first") + b"nonsense\r\n\r\n"])
    assert [target for _, target, _ in found] == ["/first"]
    assert statuses(sent) == [200, 400]


@pytest.mark.parametrize("upgrade", ["websocket", "h2c"])
def test_an_upgrade_is_not_taken_and_hides_no_body(upgrade: str) -> None:
    data = POST + f"connection: upgrade\r\nupgrade: {upgrade}\r\ncontent-length: {len(SMUGGLED)}\r\n\r\n".encode()
    found, _ = conversation([data + SMUGGLED])
    assert found == [("POST", "/", SMUGGLED)]
    data = POST + f"connection: upgrade\r\nupgrade: {upgrade}\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n".encode()
    found, _ = conversation([data + SMUGGLED])
    assert found == [("POST", "/", b""), ("GET", "/smuggled", b"")]


def test_a_bomb_is_found_out_step_by_step() -> None:
    bomb = zlib.compress(bytes(50_000_000), 9)
    connection = Connection(Limits(max_body_size=60_000_000))
    assert connection.receive(request("POST", body=bomb, content_encoding="deflate")) == []
    assert connection.behind
    assert len(bomb) / 2 < connection.held_bytes < 1_000_000
    connection = Connection(Limits(max_body_size=1_000_000))
    _, sent = conversation([request("POST", body=bomb, content_encoding="deflate")], connection)
    assert statuses(sent) == [413]
