from __future__ import annotations

import pytest

from tests.h2grpc.frames import PREFACE
from tests.h2grpc.support import Server
from toutates.h2grpc import ConnectionTerminated, Limits
from toutates.h2grpc.frames import ErrorCodes
from toutates.h2grpc.preface import Opening, recognise


@pytest.mark.parametrize(
    ("octets", "opening"),
    [
        (b"", Opening.INCOMPLETE),
        (b"P", Opening.INCOMPLETE),
        (PREFACE[:-1], Opening.INCOMPLETE),
        (PREFACE, Opening.HTTP2),
        (PREFACE + b"more", Opening.HTTP2),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\r", Opening.GARBAGE),
        (b"POST", Opening.INCOMPLETE),
        (b"POST /path", Opening.INCOMPLETE),
        (b"POST /path HTTP/1.1", Opening.INCOMPLETE),
        (b"POST /path HTTP/1.1\r", Opening.INCOMPLETE),
        (b"POST /path HTTP/1.1\r\n", Opening.HTTP1),
        (b"GET / HTTP/1.0\nhost: a\n\n", Opening.HTTP1),
        (b"GET / HTTP/3.0\r\n", Opening.GARBAGE),
        (b"get / HTTP/1.1\r\n", Opening.GARBAGE),
        (b"\x16", Opening.INCOMPLETE),
        (b"\x16\x03", Opening.INCOMPLETE),
        (b"\x16\x03\x01", Opening.TLS),
        (b"\x16\x03\x03\x02\0\1", Opening.TLS),
        (b"\x16\x03\x05", Opening.GARBAGE),
        (b"\x16\x02", Opening.GARBAGE),
        (b"SSH-2.0", Opening.GARBAGE),
        (b"G" * 21, Opening.GARBAGE),
        (b"GET /" + b"a" * 100, Opening.GARBAGE),
    ],
)
def test_opening_is_recognised(octets: bytes, opening: Opening) -> None:
    assert recognise(octets, 100) is opening


def test_server_answers_http1_in_plain_text_and_sends_no_frames() -> None:
    server = Server()
    assert server.receive(b"GET / HTTP/1.1\r\n") == [
        ConnectionTerminated(ErrorCodes.HTTP_1_1_REQUIRED, "HTTP/1 request on a gRPC port")
    ]
    answer = server.sent()
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert b"content-length: %d\r\n" % len(body) in head + b"\r\n"
    assert b"gRPC" in body
    assert server.receive(b"host: a\r\n\r\n") == []


def test_server_answers_a_tls_client_with_an_alert_and_closes() -> None:
    server = Server()
    assert server.receive(b"\x16\x03\x01") == [
        ConnectionTerminated(ErrorCodes.PROTOCOL_ERROR, "TLS handshake on a plaintext port")
    ]
    assert server.sent() == bytes([21, 3, 1, 0, 2, 2, 40])  # alert, TLS 1.0, two bytes: fatal, handshake_failure
    assert server.receive(b"\2\0\1\0") == []


def test_server_gives_up_on_a_request_line_without_end() -> None:
    server = Server(Limits(max_preface_bytes=50))
    server.receive(b"GET /" + b"a" * 44)
    assert not server.connection.closed
    server.receive(b"a")
    assert server.connection.closed


def test_server_says_nothing_before_it_knows_whom_it_talks_to() -> None:
    server = Server()
    server.receive(PREFACE[:5])
    assert server.sent() == b""
