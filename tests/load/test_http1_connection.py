"""The client's side of HTTP/1.1 with ``h11``'s server opposite, bytes alone."""

from __future__ import annotations

from collections import deque

import h11
import pytest

from toutates.bench import http1_connection
from toutates.bench.answer import ConnectionFailed
from toutates.bench.http1_connection import HttpConnection, HttpRequest

REQUEST = HttpRequest("POST", "/v2/models/m/infer", "host:1", b"question", {"X-Name": "value"})
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nanswer"


def begun() -> HttpConnection:
    connection = HttpConnection()
    assert connection.room == 1
    connection.begin(REQUEST, 7)
    connection.data_to_send()
    return connection


def test_a_request_arrives_as_it_is_meant() -> None:
    client, server = HttpConnection(), h11.Connection(h11.SERVER)
    client.begin(REQUEST, 7)
    server.receive_data(client.data_to_send())
    request = server.next_event()
    assert isinstance(request, h11.Request)
    assert (request.method, request.target) == (b"POST", b"/v2/models/m/infer")
    assert dict(request.headers) == {b"host": b"host:1", b"content-length": b"8", b"x-name": b"value"}
    body = server.next_event()
    assert isinstance(body, h11.Data)
    assert bytes(body.data) == b"question"


@pytest.mark.parametrize("chunked", [False, True])
def test_answers_of_h11_are_read_however_they_are_split(chunked: bool) -> None:
    fields = [("Transfer-Encoding", "chunked")] if chunked else [("Content-Length", "6")]
    server = h11.Connection(h11.SERVER)
    client = HttpConnection()
    client.begin(REQUEST, 7)
    server.receive_data(client.data_to_send())
    while not isinstance(server.next_event(), h11.EndOfMessage):
        pass
    octets = b"".join(
        server.send(event) or b""
        for event in (
            h11.Response(status_code=200, headers=fields),
            h11.Data(data=b"ans"),
            h11.Data(data=b"wer"),
            h11.EndOfMessage(),
        )
    )
    assert client.receive(octets) == [(7, 0, b"answer")]
    slow = begun()
    answers = [answer for at in range(len(octets)) for answer in slow.receive(octets[at : at + 1])]
    assert answers == [(7, 0, b"answer")]
    assert slow.room


def test_one_request_is_under_way_and_has_its_number() -> None:
    connection = begun()
    assert [connection.room, list(connection.under_way)] == [0, [7]]
    connection.receive(OK)
    assert [connection.room, list(connection.under_way)] == [1, []]
    connection.begin(REQUEST, 8)
    assert connection.receive(b"HTTP/1.1 100 Continue\r\n\r\n" + OK) == [(8, 0, b"answer")]


def test_an_error_is_told_with_its_text() -> None:
    connection = begun()
    assert connection.receive(b"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\ngone") == [(7, 404, b"gone")]
    assert connection.texts == {404: "gone"}


def test_an_answer_of_no_octets_and_one_until_the_end_are_read() -> None:
    connection = begun()
    assert connection.receive(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n") == [(7, 0, b"")]
    connection.begin(REQUEST, 8)
    assert connection.receive(b"HTTP/1.1 200 OK\r\n\r\nall") == []
    assert connection.receive_end() == [(8, 0, b"all")]


@pytest.mark.parametrize("octets", [b"HTTP/1.1 200 OK\r\nConnection: close\r\n", b"HTTP/1.0 200 OK\r\n"])
def test_a_connection_that_the_server_closes_has_no_room(octets: bytes) -> None:
    connection = begun()
    assert connection.receive(octets + b"Content-Length: 0\r\n\r\n") == [(7, 0, b"")]
    assert connection.ended
    assert not connection.room


@pytest.mark.parametrize(
    ("octets", "why"),
    [
        (b"\0\0\x0c\x04\0\0\0\0\0", "speaks HTTP/2"),
        (b"SSH-2.0-OpenSSH", "does not speak HTTP/1.1"),
        (b"HTTP/1.1 abc\r\n\r\n", "does not speak HTTP/1.1"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "content-length"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", "in chunks"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"a" * 70_000, "longer than 65536"),
    ],
)
def test_what_is_no_answer_fails_the_connection(octets: bytes, why: str) -> None:
    with pytest.raises(ConnectionFailed, match=why):
        begun().receive(octets)


def test_interim_answers_on_and_on_are_passed_over() -> None:
    connection = begun()
    assert connection.receive(b"HTTP/1.1 102 Processing\r\n\r\n" * 5_000 + OK) == [(7, 0, b"answer")]


@pytest.mark.parametrize(
    ("head", "piece"),
    [
        (b"Content-Length: 999999999999\r\n\r\n", b""),
        (b"\r\n", bytes(1 << 16)),
        (b"Transfer-Encoding: chunked\r\n\r\n", b"10000\r\n" + bytes(1 << 16) + b"\r\n"),
    ],
    ids=["length", "until the end", "chunks"],
)
def test_an_answer_without_an_end_fails_the_connection(
    monkeypatch: pytest.MonkeyPatch, head: bytes, piece: bytes
) -> None:
    monkeypatch.setattr(http1_connection, "_MOST_BODY", 1 << 20)
    connection = begun()
    pieces = [b"HTTP/1.1 200 OK\r\n" + head, *[piece] * 20]
    with pytest.raises(ConnectionFailed, match="has more than"):
        deque(map(connection.receive, pieces), maxlen=0)


def test_an_answer_to_nothing_fails_the_connection() -> None:
    with pytest.raises(ConnectionFailed, match="nothing was asked"):
        HttpConnection().receive(OK)


def test_a_field_with_a_line_break_is_refused() -> None:
    with pytest.raises(ValueError, match="line break"):
        HttpRequest("GET", "/", "host", b"", {"x": "a\r\nb: c"})
