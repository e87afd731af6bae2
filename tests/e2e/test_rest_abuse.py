"""Bad input over HTTP from outside: each is answered with a status and a sentence, or its connection ends.

A neighbour with a connection of its own gets its right answer after each of them.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import re
import socket
import ssl
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.certificates import SERVER_NAME, client_context, issue
from tests.e2e.free_threading import assert_ran_without_gil
from tests.e2e.http import Peer, get, peer_of, post
from tests.e2e.process import ServerProcess, running
from tests.waiting import PATIENCE_S

DYNAMIC: Final = "/v2/models/dynamic/infer"
POST: Final = b"POST /v2/models/dynamic/infer HTTP/1.1\r\nHost: here\r\n"
GET: Final = b"GET /v2 HTTP/1.1\r\nHost: here\r\n"
CHUNKED: Final = POST + b"Transfer-Encoding: chunked\r\n\r\n"
SMUGGLED: Final = get("/v2/health/live")
STALL_S: Final = 1.0
IMPATIENT: Final = ("--limit", f"stall_timeout={STALL_S}")


class Case(NamedTuple):
    """What is sent, and what comes back.

    Attributes:
        octets: sent at once.
        status: of the only answer; 0 where the connection just ends.
        text: a part of the answer's body.
        ends: whether the connection ends with it; otherwise the next request is answered.
    """

    octets: bytes
    status: int
    text: str = ""
    ends: bool = True


def infer(data: str = "[1,2]", *fields: str, shape: str = "[1,2]", datatype: str = "FP32", more: str = "") -> bytes:
    tensor = f'{{"name":"INPUT","shape":{shape},"datatype":"{datatype}","data":{data}}}'
    return post(DYNAMIC, f'{{{more}"inputs":[{tensor}]}}', *fields)


def binary(size: str, given: int, length: int | str | None = None, shape: str = "[1,2]") -> bytes:
    parameters = f'"parameters":{{"binary_data_size":{size}}}'
    text = f'{{"inputs":[{{"name":"INPUT","shape":{shape},"datatype":"FP32",{parameters}}}]}}'
    length = len(text) if length is None else length
    return post(DYNAMIC, text.encode() + bytes(given), f"Inference-Header-Content-Length: {length}")


LINE: Final = "a line of the request's head does not end with CR LF"
HEAD: Final = "the request's head is refused"

FRAMING: Final = {
    "length and chunks": Case(POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400, HEAD),
    "chunks and length": Case(POST + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n", 400, HEAD),
    "two lengths": Case(POST + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}", 400, HEAD),
    "the same length twice": Case(POST + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}", 400, HEAD),
    "lengths in a list": Case(POST + b"Content-Length: 2, 2\r\n\r\n{}", 400, HEAD),
    "a length with a sign": Case(POST + b"Content-Length: +2\r\n\r\n{}", 400, HEAD),
    "a length beyond 64 bits": Case(POST + b"Content-Length: 36893488147419103234\r\n\r\n{}", 400, HEAD),
    "a length of gigabytes": Case(POST + b"Content-Length: 9223372036854775807\r\n\r\n{}", 400, "exceeds the maximum"),
    "obs-fold": Case(GET + b"X: a\r\n b\r\n\r\n", 400, HEAD),
    "obs-fold of a length": Case(POST + b"Content-Length:\r\n 2\r\n\r\n{}", 400, HEAD),
    "bare LF": Case(b"GET /v2 HTTP/1.1\nHost: here\n\n", 400, LINE),
    "one bare LF": Case(GET + b"X: a\nY: b\r\n\r\n", 400, LINE),
    "bare CR": Case(GET + b"X: a\rY: b\r\n\r\n", 400, HEAD),
    "a space before the colon": Case(POST + b"Content-Length : 2\r\n\r\n{}", 400, HEAD),
    "a tab before the colon": Case(POST + b"Transfer-Encoding\t: chunked\r\n\r\n0\r\n\r\n", 400, HEAD),
    "another coding": Case(POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501, "only transfer-encoding"),
    "chunks twice": Case(POST + b"Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n", 400, HEAD),
    "nearly chunks": Case(POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 400, HEAD),
    "a chunk's size with a sign": Case(CHUNKED + b"+2\r\n{}\r\n0\r\n\r\n", 400, "begins with no size"),
    "a chunk's size with an underscore": Case(CHUNKED + b"1_0\r\n{}\r\n0\r\n\r\n", 400, "begins with no size"),
    "a chunk's size in other digits": Case(CHUNKED + "٢\r\n{}\r\n0\r\n\r\n".encode(), 400, "begins with no size"),
    "a chunk's size ends with LF": Case(CHUNKED + b"2\n{}\r\n0\r\n\r\n", 400, "begins with no size"),
    "a chunk without its end": Case(CHUNKED + b"2\r\n{}0\r\n\r\n", 400, "longer than it says"),
    "a chunk's size beyond 64 bits": Case(CHUNKED + b"fffffffffffffffff\r\n{}", 400, "begins with no size"),
    "a chunk of exabytes": Case(CHUNKED + b"7fffffffffffffff\r\n{}", 413, "bytes"),
    "a trailer that is none": Case(CHUNKED + b"2\r\n{}\r\n0\r\nx y\r\n\r\n", 400, "trailers are refused"),
    "chunks of HTTP/1.0": Case(
        b"POST /v2 HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400, "do not go together"
    ),
    "a length in the trailers": Case(CHUNKED + b"2\r\n{}\r\n0\r\nContent-Length: 9\r\n\r\n", 400, "trailers"),
    "a method in lower case": Case(b"get /v2 HTTP/1.1\r\nHost: here\r\n\r\n", 405, "Method Not Allowed", ends=False),
    "no Host": Case(b"GET /v2 HTTP/1.1\r\n\r\n", 400, "names its host once"),
    "two Hosts": Case(GET + b"Host: there\r\n\r\n", 400, "names its host once"),
    "HTTP/1.0 without Host": Case(b"GET /v2 HTTP/1.0\r\n\r\n", 200, "triton"),
    "HTTP/0.9": Case(b"GET /v2\r\n\r\n", 400, "request line"),
    "HTTP/1.2": Case(b"GET /v2 HTTP/1.2\r\nHost: here\r\n\r\n", 505, "only versions"),
    "HTTP/3.0": Case(b"GET /v2 HTTP/3.0\r\nHost: here\r\n\r\n", 505, "only versions"),
    "CONNECT": Case(b"CONNECT here:443 HTTP/1.1\r\nHost: here\r\n\r\n", 400, HEAD),
    "an asterisk": Case(b"OPTIONS * HTTP/1.1\r\nHost: here\r\n\r\n", 404, "Not Found", ends=False),
    "a relative target": Case(b"GET v2 HTTP/1.1\r\nHost: here\r\n\r\n", 400, HEAD),
    "an absolute target": Case(b"GET http://there/v2 HTTP/1.1\r\nHost: here\r\n\r\n", 200, "triton", ends=False),
    "a space in the target": Case(b"GET /v2 /x HTTP/1.1\r\nHost: here\r\n\r\n", 400, "request line"),
    "a NUL in the target": Case(b"GET /v2\0 HTTP/1.1\r\nHost: here\r\n\r\n", 400, "request line"),
    "a NUL in a field": Case(GET + b"X: a\0b\r\n\r\n", 400, HEAD),
    "an Upgrade": Case(GET + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n", 200, "triton", ends=False),
    "an Upgrade to h2c": Case(GET + b"Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n", 200, "triton", ends=False),
    "an expectation": Case(GET + b"Expect: miracles\r\n\r\n", 417, "only expectation"),
    "a long head": Case(GET + b"X: " + b"x" * 20_000 + b"\r\n\r\n", 431, "more than 16384 bytes"),
    "a head without an end": Case(GET + b"X: y\r\n" * 4_000, 431, "more than 16384 bytes"),
    "a long target": Case(b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\nHost: here\r\n\r\n", 431, "more than 16384"),
    "many fields": Case(GET + b"X: y\r\n" * 200 + b"\r\n", 431, "more than 128 header fields"),
    "a large body for a small endpoint": Case(post("/v2/repository/index", b" " * 70_000), 413, "65536 bytes"),
    "a large body for nothing": Case(post("/nothing", b" " * 70_000), 404, "Not Found"),
    "gzip that is none": Case(post(DYNAMIC, b"hello", "Content-Encoding: gzip"), 400, "content-encoding says"),
    "gzip that is cut off": Case(post(DYNAMIC, gzip.compress(b"{}")[:-1], "Content-Encoding: gzip"), 400, "too early"),
    "gzip and more": Case(post(DYNAMIC, gzip.compress(b"{}") + b"x", "Content-Encoding: gzip"), 400, "goes on"),
    "a bomb": Case(post(DYNAMIC, gzip.compress(bytes(70_000_000), 9), "Content-Encoding: gzip"), 413, "67108864"),
    "bytes that are no request": Case(b"\x00\x01\x02\x03 nonsense\r\n\r\n", 400, "no HTTP/1.1 request"),
    "a line of SMTP": Case(b"HELO here\r\n\r\n", 400, "request line"),
}

PATHS: Final = {
    "a name that is encoded": (get("/v2/models/d%79namic"), 200, "dynamic"),
    "a name that is encoded twice": (get("/v2/models/d%2579namic"), 404, "unknown model: 'd%79namic'"),
    "a slash in a name": (get("/v2/models/dynamic%2Fversions%2F1"), 404, "unknown model: 'dynamic/versions/1'"),
    "a way up": (get("/v2/models/../../etc/passwd"), 404, "Not Found"),
    "an encoded way up": (get("/v2/models/%2e%2e%2f%2e%2e%2fetc%2fpasswd"), 404, "unknown model"),
    "a way up with a version": (get("/v2/models/../versions/1"), 404, "unknown model: '..'"),
    "a NUL": (get("/v2/models/dynamic%00"), 404, "unknown model"),
    "no UTF-8": (get("/v2/models/%ff"), 404, "Not Found"),
    "half an escape": (get("/v2/models/%f"), 404, "unknown model: '%f'"),
    "a long version": (get("/v2/models/dynamic/versions/" + "9" * 40), 400, "version"),
    "a version that is no number": (get("/v2/models/dynamic/versions/x"), 404, "Not Found"),
    "a slash too many": (get("/v2/models/"), 404, "Not Found"),
    "two slashes": (get("//v2"), 404, "Not Found"),
    "a fragment": (get("/v2#x"), 404, "Not Found"),
    "a query": (get("/v2?a=b&c=%00#"), 200, "triton"),
    "a load by a way up": (post("/v2/repository/models/..%2f..%2fetc/load", "{}"), 503, "not allowed"),
}

SYNTAX: Final = "failed to parse the request JSON buffer"
BODIES: Final = {
    "brackets": (infer("[" * 20_000 + "]" * 20_000), 400, "nesting depth|more than 16384 values"),
    "brackets without an end": (post(DYNAMIC, "[" * 30_000), 400, "nesting depth|more than 16384 values"),
    "objects in objects": (post(DYNAMIC, '{"a":' * 17_000), 400, "more than 16384 values"),
    "many values": (post(DYNAMIC, f'{{"x":[{"1," * 20_000}1]}}'), 400, "more than 16384 values"),
    "a number that becomes infinite": (
        infer("[1,1e39]"),
        400,
        "element 1 of the data, 1e",
    ),
    "one of generate": (post("/v2/models/dynamic/generate", '{"INPUT":[1,2,-1e39,4]}'), 400, "element 2 of the data"),
    "a number that is too big": (infer("[1e999,2]"), 500, "Number too big to be stored in double"),
    "a number of many digits": (infer(f"[{'1' * 5_000},2]"), 500, "Number too big|non-number"),
    "a lone surrogate": (infer(more='"id":"\\ud800",'), 500, "surrogate"),
    "surrogates the wrong way round": (infer(more='"id":"\\udc00\\ud800",'), 500, "surrogate"),
    "no UTF-8": (post(DYNAMIC, b'{"id":"\xff","inputs":[]}'), 500, "Invalid encoding in string"),
    "an overlong letter": (post(DYNAMIC, b'{"id":"\xc0\x80","inputs":[]}'), 500, "Invalid encoding in string"),
    "a control character": (post(DYNAMIC, b'{"id":"\x01","inputs":[]}'), 500, "Invalid encoding in string"),
    "a byte order mark": (post(DYNAMIC, b"\xef\xbb\xbf{}"), 500, SYNTAX),
    "UTF-16": (post(DYNAMIC, "{}".encode("utf-16")), 500, SYNTAX),
    "an array": (post(DYNAMIC, "[]"), 500, "Unable to parse 'inputs'"),
    "a document and more": (post(DYNAMIC, '{"inputs":[]} {}'), 500, "must not be followed by other values"),
    "a comment": (post(DYNAMIC, '{"inputs":[]/**/}'), 500, SYNTAX),
    "no inputs": (post(DYNAMIC, "{}"), 500, "non-existing object member 'inputs'"),
    "inputs that are no array": (post(DYNAMIC, '{"inputs":{}}'), 500, "non-array as array"),
    "an input that is no object": (post(DYNAMIC, '{"inputs":[1]}'), 500, "Unable to parse 'name'"),
    "null as data": (infer("null"), 500, "non-array as array"),
    "null in data": (infer("[null,1]"), 500, "non-number as double"),
    "strings as numbers": (infer('["1","2"]'), 500, "non-number as double"),
    "too few elements": (infer("[1]"), 500, "does not match true shape"),
    "too many elements": (infer("[1,2,3]"), 500, "does not match true shape"),
    "a negative size": (infer(shape="[1,-2]"), 500, "non-unsigned-integer"),
    "a size that is no integer": (infer(shape="[1,2.0]"), 500, "non-unsigned-integer"),
    "a size beyond 64 bits": (infer(shape="[1,18446744073709551616]"), 500, "non-unsigned-integer"),
    "a size beyond 63 bits": (infer(shape="[1,18446744073709551615]"), 400, "invalid dimensions"),
    "sizes whose product wraps": (infer(shape="[4294967296,4294967296]"), 400, "exceed maximum size"),
    "sizes whose product wraps to 2": (infer(shape="[2,9223372036854775809]"), 400, "invalid|exceed"),
    "sizes whose bytes wrap": (infer(shape="[4,1152921504606846978]"), 400, "byte size overflow"),
    "ten thousand sizes": (infer(shape=json.dumps([1] * 10_000)), 500, "does not match true shape"),
    "an unknown datatype": (infer(datatype="FP8"), 400, "invalid datatype"),
    "an input twice": (
        post(
            DYNAMIC,
            '{"inputs":[%s,%s]}' % ((b'{"name":"INPUT","shape":[1,1],"datatype":"FP32","data":[1]}'.decode(),) * 2),
        ),
        400,
        "already exists",
    ),
    "a reserved key": (infer(more='"parameters":{"triton_x":1},'), 400, "reserved for Triton usage"),
    "another reserved key": (
        infer(more='"parameters":{"triton_enable_empty_final_response":true},'),
        400,
        "reserved for Triton usage",
    ),
    "an object as a parameter": (infer(more='"parameters":{"x":{}},'), 400, "invalid type"),
    "parameters that are no object": (infer(more='"parameters":[],'), 500, "non-object"),
    "a long id": (infer(more=f'"id":"{"x" * 70_000}",'), 400, "id"),
    "an id that is no string": (infer(more='"id":1,'), 500, "non-string"),
    "an output that is not there": (infer(more='"outputs":[{"name":"x"}],'), 400, "unexpected inference output"),
    "an output twice": (infer(more='"outputs":[{"name":"OUTPUT"},{"name":"OUTPUT"}],'), 400, "already exists"),
    "a negative classification": (
        infer(more='"outputs":[{"name":"OUTPUT","parameters":{"classification":-1}}],'),
        500,
        "classification",
    ),
    "shared memory": (
        post(
            DYNAMIC,
            '{"inputs":[{"name":"INPUT","shape":[1,2],"datatype":"FP32","parameters":{"shared_memory_region":"r",'
            '"shared_memory_byte_size":18446744073709551615,"shared_memory_offset":18446744073709551615}}]}',
        ),
        404,
        "Unable to find shared memory region",
    ),
    "more binary data than there is": (binary("80", 8), 400, "expecting 72 additional bytes"),
    "binary data beyond 64 bits": (binary("18446744073709551615", 8), 400, "additional bytes"),
    "a size of binary data beyond that": (binary("18446744073709551616", 8), 500, "binary_data_size"),
    "a negative size of binary data": (binary("-8", 8), 500, "binary_data_size"),
    "a size of binary data in text": (binary('"8"', 8), 500, "binary_data_size"),
    "less binary data than there is": (binary("8", 9), 400, "unexpected additional input data"),
    "binary data of another size than the shape's": (binary("4", 4), 400, "byte size|expected"),
    "binary data for a shape that wraps": (
        binary("8", 8, shape="[1,4611686018427387906]"),
        400,
        "exceed|overflow|size",
    ),
    "a length beyond the body": (binary("8", 8, 9_999), 400, "should be in range"),
    "a negative length": (binary("8", 8, -1), 400, "should be in range"),
    "a length that is no number": (binary("8", 8, "x"), 400, "Unable to parse Inference-Header-Content-Length"),
    "a length with blanks": (binary("8", 8, "1 2"), 400, "Unable to parse Inference-Header-Content-Length"),
    "a length beyond 32 bits": (binary("8", 8, 2**31), 400, "out of range"),
    "a length of many digits": (binary("8", 8, "9" * 5_000), 400, "out of range"),
    "a length within the JSON": (binary("8", 8, 20), 500, SYNTAX),
    "bytes that are no whole tensor": (
        post(DYNAMIC, b"12345", "Inference-Header-Content-Length: 0"),
        400,
        "Expected 4, got 5",
    ),
    "generate without inputs": (post("/v2/models/dynamic/generate", "{}"), 400, "expected"),
    "generate with a tensor twice": (
        post("/v2/models/dynamic/generate", '{"INPUT":1,"INPUT":2}'),
        400,
        "already exists",
    ),
    "generate with an object": (post("/v2/models/dynamic/generate", '{"INPUT":{}}'), 500, "attempt to access JSON"),
    "settings that are no object": (post("/v2/logging", "[]"), 500, "non-object"),
    "a level below zero": (post("/v2/logging", '{"log_verbose_level":-1}'), 500, "unsigned"),
    "an index that is none": (post("/v2/repository/index", '{"ready":1}'), 400, "expected a boolean"),
    "an index of brackets": (post("/v2/repository/index", '{"ready":' + "[" * 20_000), 400, "nesting|more than"),
}

#: Odd, and right all the same.
TAKEN: Final = {
    "a name twice": (infer(more='"id":"first","id":"second",'), '"id":"first"'),
    "unknown members": (infer(more='"x":[{}],'), '"data":[-1.0,-2.0]'),
    "nothing": (post(DYNAMIC, ""), '"shape":[1,0]'),
    "NaN": (infer("[NaN,-Infinity]"), '"data":[NaN,Infinity]'),
    "Inf": (infer("[Inf,-Inf]"), '"data":[-Infinity,Infinity]'),
    "blanks": (infer("[ 1 ,\t2 ]"), '"data":[-1.0,-2.0]'),
    "nested data": (infer("[[[1]],[2]]"), '"data":[-1.0,-2.0]'),
    "an escaped name": (infer(more='"\\u0069d":"x",'), '"id":"x"'),
    "a pair of surrogates": (infer(more='"id":"\\ud83d\\ude00",'), '"id":"😀"'),
}

CASES: Final = {
    **FRAMING,
    **{f"path: {name}": Case(*row, ends=False) for name, row in PATHS.items()},
    **{f"body: {name}": Case(*row, ends=False) for name, row in BODIES.items()},
    **{f"taken: {name}": Case(octets, 200, text, ends=False) for name, (octets, text) in TAKEN.items()},
}


class Plain:
    """Connections without TLS."""

    flags: tuple[str, ...] = ()

    def __init__(self, server: ServerProcess) -> None:
        self.server = server

    @contextlib.contextmanager
    def peer(self) -> Iterator[Peer]:
        with peer_of(self.server.rest_port) as peer:
            yield peer


class Encrypted(Plain):
    """Connections with TLS."""

    @contextlib.contextmanager
    def peer(self) -> Iterator[Peer]:
        context = client_context(alpn=("http/1.1",))
        with (
            socket.create_connection(("127.0.0.1", self.server.rest_port), 30) as sock,
            context.wrap_socket(sock, server_hostname=SERVER_NAME) as wrapped,
        ):
            yield Peer(wrapped)


class Impatient(Plain):
    """A server of its own, so that no other test has to be quick."""

    flags = IMPATIENT


class EncryptedImpatient(Encrypted):
    """The same with TLS."""

    flags = IMPATIENT


@pytest.fixture(scope="module")
def way(request: pytest.FixtureRequest, repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plain]:
    """A server that bad input must not impress."""
    flags = ["--http-addr", "127.0.0.1:0", "--load-models", "dynamic", *request.param.flags]
    if issubclass(request.param, Encrypted):
        files = issue(tmp_path_factory.mktemp("certificates"))
        flags += ["--tls-cert", str(files.cert), "--tls-key", str(files.key)]
    with running(repository, tmp_path_factory.mktemp("abused"), flags) as server:
        yield request.param(server)
        assert server.stop() == 0
        assert "Traceback" not in server.log
        assert_ran_without_gil(server)


@pytest.fixture(scope="module")
def neighbour(way: Plain) -> Iterator[Peer]:
    """An honest client, on one connection all the time."""
    with way.peer() as peer:
        yield peer


def ask_honestly(peer: Peer) -> None:
    answer = peer.ask(infer("[1.5,-2]"))
    assert (answer.status, answer.document["outputs"][0]["data"]) == (200, [-1.5, 2])


def over(peer: Peer) -> bool:
    """Whether the server ends the connection with nothing more to say."""
    try:
        return peer.ended()
    except (ConnectionResetError, ssl.SSLError):
        return True


#: TLS changes nothing of how bytes are read, but how a connection ends.
OVER_TLS: Final = ("length and chunks", "a large body for nothing", "a bomb", "a long head", "HTTP/1.0 without Host")
both: Final = pytest.mark.parametrize("way", [Plain, Encrypted], indirect=True, scope="module")


@pytest.mark.parametrize(
    ("way", "name"),
    [*((Plain, name) for name in CASES), *((Encrypted, name) for name in OVER_TLS)],
    indirect=["way"],
    scope="module",
)
def test_it_is_answered_and_costs_no_neighbour(name: str, way: Plain, neighbour: Peer) -> None:
    case = CASES[name]
    with way.peer() as peer:
        # What was smuggled behind a request that ends the connection must not be answered.
        answer = peer.ask(case.octets + (SMUGGLED if case.ends else b""))
        text = answer.body.decode()
        assert answer.status == case.status, text
        assert any(part in text for part in case.text.split("|")), text
        if answer.status >= 400:
            assert list(json.loads(text)) == ["error"]
        if case.ends:
            assert answer.fields["connection"] == "close"
            assert over(peer)
        else:
            assert peer.ask(SMUGGLED).document == {"live": True}
    ask_honestly(neighbour)


SLOW: Final = (
    GET,
    b"GET /v2 HT",
    POST + b"Content-Length: 100\r\n\r\n{",
    CHUNKED + b"5\r\n{",
    CHUNKED + b"5\r\n{    \r\n0\r\nX: ",
)


@pytest.mark.parametrize("way", [Impatient, EncryptedImpatient], indirect=True, scope="module")
def test_what_is_slow_is_given_up(way: Plain, neighbour: Peer) -> None:
    """Some send a byte now and then, others nothing any more."""
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(way.peer()) for _ in SLOW]
        dribbling = [stack.enter_context(way.peer()) for _ in SLOW]
        for start, *peers in zip(SLOW, silent, dribbling, strict=True):
            for peer in peers:
                peer.sock.sendall(start)
        began = time.monotonic()
        while dribbling:
            assert time.monotonic() - began < PATIENCE_S
            for peer in list(dribbling):
                try:
                    peer.sock.sendall(b"x")
                except (ConnectionError, ssl.SSLError):
                    dribbling.remove(peer)
            ask_honestly(neighbour)
            time.sleep(STALL_S / 20)
        for peer in silent:
            answer = peer.read()
            assert (answer.status, answer.document) == (408, {"error": "the request took too long"})
            assert over(peer)


@both
def test_a_flood_of_pipelined_requests_is_answered_one_by_one(way: Plain, neighbour: Peer) -> None:
    count = 2_000
    with way.peer() as peer:
        peer.sock.sendall(b"".join(infer(f"[{at},1]", more=f'"id":"{at}",') for at in range(count)))
        # Beside the reading: on a slow machine the peer would be one that reads too slowly.
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(ask_honestly, neighbour)
            for at in range(count):
                assert peer.read().document["id"] == str(at)
            asked.result()


@pytest.mark.parametrize("way", [Plain], indirect=True, scope="module")
@pytest.mark.parametrize(("chunks", "status"), [(65_536, 200), (65_537, 400)])
def test_a_flood_of_chunks_has_a_limit(chunks: int, status: int, way: Plain, neighbour: Peer) -> None:
    body = infer().partition(b"\r\n\r\n")[2]
    body += b" " * (chunks - len(body))
    with way.peer() as peer:
        answer = peer.ask(CHUNKED + b"".join(b"1\r\n%c\r\n" % octet for octet in body) + b"0\r\n\r\n")
        assert answer.status == status
        if status == 400:
            assert "exceeds maximum of 65536 non-empty chunks" in answer.document["error"]
            assert over(peer)
    ask_honestly(neighbour)


@pytest.mark.parametrize("way", [Plain], indirect=True, scope="module")
def test_a_huge_document_is_refused_and_a_huge_array_is_read(way: Plain, neighbour: Peer) -> None:
    with way.peer() as peer:
        answer = peer.ask(infer(more=f'"x":"{"x" * 3_000_000}",'))
        assert answer.status == 400
        assert "send the others as binary data" in answer.document["error"]
        count = 400_000
        text = "[" + ",".join(["1.5"] * count) + "]"
        outputs = '"outputs":[{"name":"OUTPUT","parameters":{"classification":1}}],'
        peer.sock.sendall(infer(text, shape=f"[1,{count}]", more=outputs))
        ask_honestly(neighbour)
        assert peer.read().document["outputs"][0]["data"] == ["-1.500000:0"]


@both
def test_many_connections_that_leave_in_the_middle_leave_nothing(way: Plain, neighbour: Peer) -> None:
    ask_honestly(neighbour)
    open_files = way.server.open_files()
    for start in (b"", b"GE", GET, infer()[:-3], CHUNKED + b"5\r\n{", infer(), infer() * 3):
        for _ in range(3):
            with way.peer() as peer:
                peer.sock.sendall(start)
    began = time.monotonic()
    while way.server.open_files() > open_files:
        assert time.monotonic() - began < PATIENCE_S
        ask_honestly(neighbour)


@both
def test_a_client_that_ends_its_side_is_let_go(way: Plain, neighbour: Peer) -> None:
    with way.peer() as peer:
        peer.sock.sendall(infer() + get("/v2"))
        socket.socket.shutdown(peer.sock, socket.SHUT_WR)
        octets = b"".join(iter(lambda: peer.sock.recv(65_536), b""))
    while octets:  # what was answered before its end was seen, and no piece of an answer
        head, _, octets = octets.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        length = re.search(rb"\r\ncontent-length: (\d+)", head)
        assert length is not None
        assert len(octets) >= int(length[1])
        octets = octets[int(length[1]) :]
    ask_honestly(neighbour)
