"""The client's connection with ``h2``'s server opposite, bytes alone."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, Event, RequestReceived, StreamEnded, StreamReset
from h2.settings import SettingCodes

from toutates.bench import client_connection
from toutates.bench.answer import LOST, Answer, ConnectionFailed
from toutates.bench.client_connection import ClientConnection, Request

REQUEST = Request("/service/Method", "host:1", b"question", {"x-name": "a" * 300})
OK = [("grpc-status", "0")]


class Server:
    """``h2``'s side."""

    def __init__(self, settings: dict[SettingCodes | int, int] | None = None) -> None:
        self.client = ClientConnection()
        self.h2 = H2Connection(H2Configuration(client_side=False, header_encoding="utf-8"))
        self.h2.initiate_connection()
        if settings:
            self.h2.update_settings(settings)
        self.events: list[Event] = []
        self.begun = 0
        self.exchange()

    def exchange(self) -> list[Answer]:
        """Carry bytes in both directions until there are none."""
        answers: list[Answer] = []
        while True:
            out, back = self.client.data_to_send(), b""
            if out:
                self.events += self.h2.receive_data(out)
            back = self.h2.data_to_send()
            if not out and not back:
                return answers
            answers += self.client.receive(back)

    def body(self, stream_id: int) -> bytes:
        """What has come of a request."""
        return b"".join(
            event.data or b""
            for event in self.events
            if isinstance(event, DataReceived) and event.stream_id == stream_id
        )

    def answer(
        self, stream_id: int, message: bytes, trailers: Sequence[tuple[str, str]] = OK, pad_length: int | None = 9
    ) -> None:
        """Answer a call."""
        self.h2.send_headers(stream_id, [(":status", "200"), ("content-type", "application/grpc")])
        self.h2.send_data(stream_id, message, pad_length=pad_length)
        self.h2.send_headers(stream_id, list(trailers), end_stream=True)


def begin(server: Server, request: Request = REQUEST) -> int:
    """Begin a call, whose number is that of its stream."""
    assert server.client.room
    server.begun += 1
    number = 2 * server.begun - 1
    server.client.begin(request, number)
    return number


def test_a_request_arrives_as_it_is_meant() -> None:
    server = Server()
    stream_id = begin(server)
    server.exchange()
    request = next(event for event in server.events if isinstance(event, RequestReceived))
    fields = {str(name): str(value) for name, value in request.headers or ()}
    assert fields == {
        **{":method": "POST", ":scheme": "http", ":path": "/service/Method", ":authority": "host:1"},
        **{"te": "trailers", "content-type": "application/grpc", "x-name": "a" * 300},
    }
    assert server.body(stream_id) == b"\0\0\0\0\x08question"
    assert any(isinstance(event, StreamEnded) for event in server.events)


def test_answers_are_told_with_their_status_and_message_in_their_order() -> None:
    server = Server()
    first, second, third = (begin(server) for _ in range(3))
    server.exchange()
    server.answer(second, b"two")
    server.answer(first, b"one")
    server.h2.send_headers(third, [(":status", "200"), ("grpc-status", "8"), ("grpc-message", "full")], end_stream=True)
    assert server.exchange() == [(second, 0, b"two"), (first, 0, b"one"), (third, 8, b"")]
    assert server.client.texts[8] == "full"
    assert not server.client.under_way


def test_of_a_status_a_bounded_text_is_kept() -> None:
    server = Server()
    stream_id = begin(server)
    server.exchange()
    fields = [(":status", "200"), ("grpc-status", "8"), ("grpc-message", "x" * 40_000)]
    server.h2.send_headers(stream_id, fields, end_stream=True)
    assert server.exchange() == [(stream_id, 8, b"")]
    assert server.client.texts == {8: "x" * client_connection._MOST_TEXT}


def test_answers_are_the_same_however_their_bytes_are_cut() -> None:
    server = Server()
    calls = [begin(server) for _ in range(3)]
    server.exchange()
    for number, stream_id in enumerate(calls):
        server.answer(stream_id, bytes([number]) * 9, [("grpc-status", str(number))])
    whole = server.h2.data_to_send()
    found: list[Answer] = []
    for at in range(len(whole)):
        found += server.client.receive(whole[at : at + 1])
    assert found == [(stream_id, at, bytes([at]) * 9) for at, stream_id in enumerate(calls)]


@pytest.mark.parametrize("size", [1, 7, 40, 90, 1_000, 100_000])
def test_answers_of_one_form_are_read_like_others_between_them(size: int) -> None:
    server = Server()
    calls = [begin(server) for _ in range(40)]
    server.exchange()
    expected: list[Answer] = []
    for place, stream_id in enumerate(reversed(calls)):
        message, status = bytes([place]) * (30 if place % 7 else 20), 0 if place % 11 else 8
        server.answer(stream_id, message, [("grpc-status", str(status))], pad_length=None)
        expected.append((stream_id, status, message))
        if place % 13 == 0:
            server.h2.ping(bytes(8))
    whole = server.h2.data_to_send()
    found: list[Answer] = []
    for at in range(0, len(whole), size):
        found += server.client.receive(whole[at : at + size])
    assert found == expected
    assert not server.client.under_way
    assert server.client.data_to_send().count(b"\0\0\x08\x06\x01") == 4


def test_an_answer_of_a_known_form_to_a_call_that_has_one_fails_the_connection() -> None:
    server = Server()
    calls = [begin(server) for _ in range(3)]
    server.exchange()
    found: list[Answer] = []
    for stream_id in calls[:2]:
        server.answer(stream_id, b"answer", pad_length=None)
        again = server.h2.data_to_send()
        found += server.client.receive(again)
    assert [number for number, _, _ in found] == calls[:2]
    with pytest.raises(ConnectionFailed, match="stream 3, where nothing is asked"):
        server.client.receive(again)


def test_large_answers_are_put_together_and_their_window_is_given_back() -> None:
    server = Server()
    message = bytes(range(256)) * 4_096
    for _ in range(3):
        stream_id = begin(server)
        server.exchange()
        server.h2.send_headers(stream_id, [(":status", "200")])
        for at in range(0, len(message), 16_384):
            server.h2.send_data(stream_id, message[at : at + 16_384])
        server.h2.send_headers(stream_id, OK, end_stream=True)
        assert server.exchange() == [(stream_id, 0, message)]


def test_an_answer_without_an_end_fails_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_connection, "_MOST_HELD", 100_000)
    server = Server()
    stream_id = begin(server)
    server.exchange()
    server.h2.send_headers(stream_id, [(":status", "200")])
    for _ in range(7):
        server.h2.send_data(stream_id, bytes(16_384))
    with pytest.raises(ConnectionFailed, match="under way have more than"):
        server.exchange()


def test_large_requests_wait_for_windows() -> None:
    server = Server()
    body = bytes(range(256)) * 1_000
    calls = [begin(server, Request("/m", "a", body)) for _ in range(2)]
    server.exchange()
    assert sum(len(server.body(stream_id)) for stream_id in calls) == 65_535
    while not all(len(server.body(stream_id)) == len(body) + 5 for stream_id in calls):
        server.h2.increment_flow_control_window(30_000)
        for stream_id in calls:
            server.h2.increment_flow_control_window(30_000, stream_id)
        server.exchange()
    assert all(server.body(stream_id)[5:] == body for stream_id in calls)


def test_a_smaller_initial_window_counts_for_calls_that_wait() -> None:
    server = Server({SettingCodes.INITIAL_WINDOW_SIZE: 100})
    stream_id = begin(server, Request("/m", "a", bytes(500)))
    server.exchange()
    assert len(server.body(stream_id)) == 100
    server.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 300})
    server.exchange()
    assert len(server.body(stream_id)) == 300
    server.h2.increment_flow_control_window(205, stream_id)
    server.exchange()
    assert len(server.body(stream_id)) == 505


def test_a_call_that_is_answered_before_it_is_sent_is_reset() -> None:
    server = Server({SettingCodes.INITIAL_WINDOW_SIZE: 100})
    stream_id = begin(server, Request("/m", "a", bytes(500)))
    server.exchange()
    server.h2.send_headers(stream_id, [(":status", "200"), ("grpc-status", "3")], end_stream=True)
    assert server.exchange() == [(stream_id, 3, b"")]
    assert any(isinstance(event, StreamReset) for event in server.events)


def test_no_more_calls_are_under_way_than_the_server_allows() -> None:
    server = Server({SettingCodes.MAX_CONCURRENT_STREAMS: 2})
    first = begin(server)
    begin(server)
    assert not server.client.room
    server.exchange()
    server.answer(first, b"")
    server.exchange()
    assert server.client.room


def test_resets_and_goaway_are_told() -> None:
    server = Server()
    stream_id = begin(server)
    server.exchange()
    server.h2.reset_stream(stream_id, 7)
    assert server.exchange() == [(stream_id, LOST, b"")]
    assert server.client.texts[LOST] == "the server reset a call with HTTP/2 error 7"
    server.h2.close_connection(11, b"too many")
    server.exchange()
    assert server.client.ended == "the server sent GOAWAY 11 too many"
    assert not server.client.room


def test_calls_that_a_goaway_leaves_out_are_lost_at_once() -> None:
    server = Server()
    first, second = (begin(server) for _ in range(2))
    server.exchange()
    server.h2.close_connection(0, last_stream_id=first)
    assert server.exchange() == [(second, LOST, b"")]
    assert list(server.client.under_way) == [first]


def test_a_message_of_an_error_is_decoded() -> None:
    server = Server()
    stream_id = begin(server)
    server.exchange()
    fields = [(":status", "200"), ("grpc-status", "5"), ("grpc-message", "50%25 of caf%C3%A9")]
    server.h2.send_headers(stream_id, fields, end_stream=True)
    server.exchange()
    assert server.client.texts == {5: "50% of café"}


def test_headers_in_pieces_are_put_together() -> None:
    server = Server()
    stream_id = begin(server)
    server.exchange()
    server.h2.send_headers(stream_id, [(":status", "200"), ("x-long", "b" * 40_000)])
    server.h2.send_headers(stream_id, [("grpc-status", "5"), ("x-long", "c" * 40_000)], end_stream=True)
    assert server.exchange() == [(stream_id, 5, b"")]


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n",
        b"\0\0\0\x01\x05\0\0\0\x09",  # an answer where nothing was asked
        b"\0\0\x01\x01\x05\0\0\0\x01\xff",  # a header block that breaks off
        b"\0\0\0\x09\x04\0\0\0\x01",  # CONTINUATION of nothing
        b"\0\0\x01\0\0\0\0\0\x07\0",  # DATA where nothing was asked
        b"\0\0\0\0\x08\0\0\0\x01",  # DATA with padding, and no length of it
        b"\0\0\x02\x01\x0c\0\0\0\x01\x02\0",  # HEADERS with more padding than there is
        b"\0\0\x06\x04\0\0\0\0\0\0\x05\0\0\0\0",  # frames of no octets
        b"\0\0\x06\x04\0\0\0\0\0\0\x04\xff\xff\xff\xff",  # a window of 2^32 - 1
        b"\x01\0\0\0\0\0\0\0\x01",  # a frame of 64 KiB
        b"\0\0\x08\x06\0\0\0\0\0pingping" * 10_001,
        b"\0\0\0\x01\0\0\0\0\x01" + (b"\0\x40\0\x09\0\0\0\0\x01" + bytes(16_384)) * 65,
    ],
    ids=[
        *("http1", "unasked", "hpack", "continuation", "data", "padding", "more padding", "frame", "window", "long"),
        *("pings", "block"),
    ],
)
def test_what_is_no_grpc_server_fails_the_connection(data: bytes) -> None:
    server = Server()
    if not data.startswith(b"HTTP"):
        begin(server)
        server.exchange()
    else:
        server.client = ClientConnection()
    with pytest.raises(ConnectionFailed):
        server.client.receive(data)
