"""gRPC calls over a connection: an h2 client, or packed frames, against ``ServerConnection``."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from tests.h2grpc.frames import (
    CANCEL,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    NO_ERROR,
    REQUEST_BLOCK,
    RST_STREAM,
    STREAM,
    STREAM_BLOCK,
    UNARY,
    WINDOW_UPDATE,
    block,
    data,
    headers,
    message,
    request,
    rst_stream,
    unary,
    window_update,
)
from tests.h2grpc.support import COMPRESSIBLE, Client, Response, Server, connected, describe, exchange, split_messages
from toutates.h2grpc import (
    Buffer,
    Call,
    CallCancelled,
    GrpcError,
    Limits,
    MessageReceived,
    RequestEnded,
    Status,
    StreamOpened,
)
from toutates.h2grpc.streams import State

SECOND = 10**9


def call_of(client: Client, server: Server) -> Call:
    """The unary call that the client's bytes complete."""
    (event,) = server.receive(client.h2.data_to_send())
    assert isinstance(event, Call)
    return event


def ask(path: str, *fields: tuple[str, str], body: bytes | None = b"", limits: Limits | None = None) -> Response:
    """What an h2 client sees of a unary call that the service echoes."""
    client, server = connected(limits)
    stream_id = client.open(path, *fields)
    client.h2.send_data(stream_id, b"" if body is None else message(body), end_stream=True)
    exchange(client, server)
    assert server.alive
    return client.responses[stream_id]


# --- unary -----------------------------------------------------------------------------------------------------------


def test_unary_call_is_answered_with_headers_message_and_trailers() -> None:
    client, server = connected()
    stream_id = client.unary(b"hello")
    call = call_of(client, server)
    assert (call.message, call.buffer[call.start : call.end]) == (b"hello", b"hello")
    assert call.head.method is not None
    assert call.head.method.path == UNARY
    call.reply(b"answer")
    exchange(client, server)
    response = client.responses[stream_id]
    assert response.headers == {b":status": b"200", b"content-type": b"application/grpc"}
    assert response.trailers == {b"grpc-status": b"0"}
    assert (response.messages, response.ended, response.reset) == ([b"answer"], True, None)
    assert server.connection.open_calls == 0


def test_answer_in_parts_is_one_message() -> None:
    client, server = connected()
    stream_id = client.unary(b"")
    call = call_of(client, server)
    call.responder.reply(call, [b"an", memoryview(b"swer"), bytearray(b"!")], 7)
    exchange(client, server)
    assert client.responses[stream_id].messages == [b"answer!"]


def test_answer_in_parts_above_the_frame_size_is_one_message() -> None:
    client, server = connected()
    stream_id = client.unary(b"")
    parts: list[Buffer] = [b"a" * 10_000, memoryview(b"b" * 70_000), b"", b"c" * 5]
    call = call_of(client, server)
    call.responder.reply(call, parts, 80_005)
    exchange(client, server)
    assert client.responses[stream_id].messages == [b"".join(parts)]


def test_call_is_answered_once() -> None:
    client, server = connected()
    stream_id = client.unary(b"")
    call = call_of(client, server)
    call.reply(b"first")
    call.reply(b"second")
    call.reply(b"third", [("x-a", "b")])
    call.fail(Status.INTERNAL, "fourth")
    exchange(client, server)
    assert client.responses[stream_id].messages == [b"first"]


def test_answer_to_a_request_that_has_not_ended_tells_the_peer_to_stop() -> None:
    """A streaming handler may answer through its call as a unary one does."""
    server = Server.opened()
    server.call(headers(1, STREAM_BLOCK)).reply(b"m")
    assert [f.type for f in server.frames()] == [HEADERS, DATA, HEADERS, RST_STREAM]
    assert server.connection.table.state(1) == State.WE_RESET


def test_calls_are_answered_in_any_order() -> None:
    client, server = connected()
    streams = [client.unary(bytes([n])) for n in range(20)]
    calls = server.receive(client.h2.data_to_send())
    for call in reversed(calls):
        assert isinstance(call, Call)
        call.reply(call.message * 3)
    exchange(client, server)
    assert [client.responses[s].messages for s in streams] == [[bytes([n]) * 3] for n in range(20)]


def test_metadata_and_deadlines_that_change_with_each_call_are_each_calls_own() -> None:
    """As grpc-go sends them: inserted into the dynamic table, which is full and evicts by the end."""
    client, server = connected()
    for number in range(200):
        trace = f"00-{number * 0x9E3779B97F4A7C15:032x}-01"
        stream_id = client.open(UNARY, ("grpc-timeout", f"{1000 + number}m"), ("traceparent", trace))
        client.h2.send_data(stream_id, message(b""), end_stream=True)
        call = call_of(client, server)
        assert call.metadata() == [("traceparent", trace)]
        assert call.deadline_ns == server.now_ns + (1000 + number) * SECOND // 1000
        call.reply(b"")
        exchange(client, server)
        assert client.responses[stream_id].status == Status.OK


def test_metadata_goes_both_ways() -> None:
    client, server = connected()
    stream_id = client.open(UNARY, ("x-text", "one"), ("x-bin", "AAEC"))
    client.h2.send_data(stream_id, message(b""), end_stream=True)
    call = call_of(client, server)
    assert call.metadata() == [("x-text", "one"), ("x-bin", b"\0\1\2")]
    call.reply(b"", [("x-initial", "i"), ("i-bin", b"\xff")], [("x-trailing", "t"), ("t-bin", b"")])
    exchange(client, server)
    response = client.responses[stream_id]
    assert (response.headers[b"x-initial"], response.headers[b"i-bin"]) == (b"i", b"/w")
    assert (response.trailers[b"x-trailing"], response.trailers[b"t-bin"]) == (b"t", b"")
    assert response.status == 0


@pytest.mark.parametrize("initial", [[("x-initial", "i")], []])
@pytest.mark.parametrize("trailing", [[("x-trailing", "t")], []])
def test_an_answer_may_have_metadata_of_either_kind(
    initial: list[tuple[str, str]], trailing: list[tuple[str, str]]
) -> None:
    client, server = connected()
    stream_id = client.unary(b"")
    call_of(client, server).reply(b"body", initial, trailing)
    exchange(client, server)
    response = client.responses[stream_id]
    assert (b"x-initial" in response.headers, b"x-trailing" in response.trailers) == (bool(initial), bool(trailing))
    assert (response.status, bytes(response.data)) == (0, message(b"body"))


@pytest.mark.parametrize("text", ["plain", "Zürich\n100%", "", " spaces "])
def test_error_is_one_header_block_with_status_and_text(text: str) -> None:
    client, server = connected()
    stream_id = client.unary(b"")
    call_of(client, server).fail(Status.NOT_FOUND, text, [("x-more", "m")])
    exchange(client, server)
    response = client.responses[stream_id]
    assert (response.status, response.text) == (5, text)
    assert response.headers[b":status"] == b"200"
    assert response.headers[b"x-more"] == b"m"
    assert (response.trailers, bytes(response.data), response.ended) == ({}, b"", True)


def test_mistaken_metadata_leaves_the_call_open_for_another_answer() -> None:
    client, server = connected()
    stream_id = client.unary(b"")
    call = call_of(client, server)
    with pytest.raises(ValueError, match="metadata"):
        call.fail(Status.NOT_FOUND, "text", [("Bad Name", "m")])
    assert call.open
    call.fail(Status.INTERNAL, "instead")
    exchange(client, server)
    assert client.responses[stream_id].text == "instead"


@given(st.binary(max_size=40), st.lists(st.integers(0, 45), max_size=6))
@hypothesis_settings(max_examples=100, deadline=None)
def test_message_may_be_split_over_any_data_frames(body: bytes, cuts: list[int]) -> None:
    octets = message(body)
    ends = [*sorted(min(cut, len(octets)) for cut in cuts), len(octets)]
    server = Server.opened()
    sent = headers(1, REQUEST_BLOCK)
    for start, end in zip([0, *ends], ends, strict=False):
        sent += data(1, octets[start:end])
    (call,) = server.receive(sent + data(1, b"", END_STREAM))
    assert isinstance(call, Call)
    assert call.message == body


def test_request_may_end_with_trailers() -> None:
    trailers = headers(1, block([("x-checksum", "1")]), END_HEADERS | END_STREAM)
    call = Server.opened().call(headers(1, REQUEST_BLOCK) + data(1, message(b"m")) + trailers)
    assert call.message == b"m"


def test_content_length_that_is_right_is_accepted() -> None:
    for cut in (6, 2):
        octets = message(b"m")
        fields = block([*request(), ("content-length", "6")])
        server = Server.opened()
        call = server.call(
            headers(1, fields) + (data(1, octets[:cut]) if cut < 6 else b"") + data(1, octets[cut % 6 :], END_STREAM)
        )
        assert call.message == b"m"


@pytest.mark.parametrize(
    ("sent", "status", "text"),
    [
        (data(1, b"", END_STREAM), Status.INTERNAL, "got none"),
        (data(1, message(b"m")[:3], END_STREAM), Status.INTERNAL, "middle of a message"),
        (data(1, message(b"m")[:5], END_STREAM), Status.INTERNAL, "middle of a message"),
        (data(1, message(b"m") + b"\0", END_STREAM), Status.INTERNAL, "middle of a message"),
        (data(1, message(b"m") * 2, END_STREAM), Status.INTERNAL, "got more"),
        (data(1, message(b"m")) + data(1, message(b"m")), Status.INTERNAL, "got more"),
        (data(1, message(b"m", 1), END_STREAM), Status.INTERNAL, "no grpc-encoding"),
        (data(1, message(b"m", 7), END_STREAM), Status.INTERNAL, "flag 7"),
        (data(1, message(b"m" * 101), END_STREAM), Status.RESOURCE_EXHAUSTED, "101 vs. 100"),
        (data(1, message(b"m" * 101)[:5]), Status.RESOURCE_EXHAUSTED, "101 vs. 100"),
    ],
)
def test_unary_request_that_is_no_single_message_fails(sent: bytes, status: Status, text: str) -> None:
    server = Server.opened(Limits(max_message_size=100))
    assert server.receive(headers(1, REQUEST_BLOCK) + sent) == []
    frames = server.frames()
    assert b"%d" % status in frames[0].payload
    assert text.encode() in frames[0].payload
    assert server.connection.open_calls == 0
    assert server.alive


def test_request_without_any_data_fails() -> None:
    server = Server.opened()
    server.receive(headers(1, REQUEST_BLOCK, END_HEADERS | END_STREAM))
    (answer,) = server.frames()
    assert b"got none" in answer.payload


def test_oversized_message_is_refused_at_its_prefix_and_its_data_ignored() -> None:
    server = Server.opened(Limits(max_message_size=1_000, stream_window=65_535, connection_window=65_535))
    octets = message(bytes(10**6))
    server.receive(headers(1, REQUEST_BLOCK) + data(1, octets[:10]))
    answer, reset = server.frames()
    assert (answer.type, reset.type, reset.code) == (HEADERS, RST_STREAM, NO_ERROR)
    for at in range(10, 10**6, 10_000):
        assert server.receive(data(1, octets[at : at + 10_000])) == []
    assert {(f.type, f.stream_id) for f in server.frames()} == {(WINDOW_UPDATE, 0)}
    assert server.call(unary(3)).message == b"hello"


def test_unknown_method_is_refused_before_its_message_and_with_a_reset() -> None:
    server = Server.opened()
    server.receive(headers(1, block(request("/test.Echo/Nothing"))))
    answer, reset = server.frames()
    assert b"12" in answer.payload
    assert answer.flags == END_HEADERS | END_STREAM
    assert (reset.type, reset.code) == (RST_STREAM, NO_ERROR)
    server.receive(data(1, message(b"late"), END_STREAM))
    assert server.sent() == b""


def test_h2_client_sees_unimplemented() -> None:
    response = ask("/test.Echo/Nothing")
    assert (response.status, response.text) == (12, "Method not found: /test.Echo/Nothing")


# --- compression -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("encoding", "wbits"), [("gzip", 31), ("deflate", 15)])
def test_compressed_request_is_decompressed(encoding: str, wbits: int) -> None:
    server = Server.opened()
    packed = zlib.compress(b"x" * 1_000, wbits=wbits)
    block_ = block(request(UNARY, ("grpc-encoding", encoding)))
    assert server.call(headers(1, block_) + data(1, message(packed, 1), END_STREAM)).message == b"x" * 1_000
    assert server.call(headers(3, block_) + data(3, message(b"plain"), END_STREAM)).message == b"plain"
    block_ = block(request(UNARY, ("grpc-encoding", "identity")))
    assert server.call(headers(5, block_) + data(5, message(b"plain"), END_STREAM)).message == b"plain"


@pytest.mark.parametrize(("encoding", "wbits"), [("gzip", 31), ("deflate", 15)])
def test_response_is_compressed_where_all_agree(encoding: str, wbits: int) -> None:
    client, server = connected(encoding=encoding)
    streams = [
        client.unary(b"", COMPRESSIBLE, ("grpc-accept-encoding", "identity,deflate,gzip")),
        client.unary(b"", COMPRESSIBLE, ("grpc-accept-encoding", "identity")),
        client.unary(b"", UNARY, ("grpc-accept-encoding", "identity,deflate,gzip")),
    ]
    for call in server.receive(client.h2.data_to_send()):
        assert isinstance(call, Call)
        call.responder.reply(call, [b"x" * 500, b"y" * 500], 1_000)
    exchange(client, server)
    compressed, *plain = (client.responses[stream_id] for stream_id in streams)
    assert compressed.headers[b"grpc-encoding"] == encoding.encode()
    ((flag, packed),) = split_messages(bytes(compressed.data))
    assert (flag, zlib.decompress(packed, wbits=wbits)) == (1, b"x" * 500 + b"y" * 500)
    for response in plain:
        assert b"grpc-encoding" not in response.headers
        assert list(split_messages(bytes(response.data))) == [(0, b"x" * 500 + b"y" * 500)]


def test_decompression_bomb_fails_its_call_only() -> None:
    server = Server.opened(Limits(max_message_size=10_000))
    bomb = message(zlib.compress(bytes(1_000_000), wbits=31), 1)
    server.receive(headers(1, block(request(UNARY, ("grpc-encoding", "gzip")))) + data(1, bomb, END_STREAM))
    (answer,) = server.frames()
    assert b"larger than 10000 bytes once decompressed" in answer.payload
    assert server.alive


# --- deadlines and cancellation --------------------------------------------------------------------------------------


def timed(stream_id: int, timeout: str, path: str = UNARY) -> bytes:
    return headers(stream_id, block(request(path, ("grpc-timeout", timeout))))


def test_call_expires_at_its_deadline_and_not_before() -> None:
    server = Server(now_ns=100 * SECOND)
    from tests.h2grpc.frames import OPENING

    server.receive(OPENING)
    server.receive(timed(1, "2S") + timed(3, "1S") + data(3, message(b"m"), END_STREAM) + unary(5))
    server.sent()
    connection = server.connection
    assert connection.deadlines.next_ns == 101 * SECOND
    assert connection.expire(101 * SECOND - 1) == []
    assert server.sent() == b""
    assert connection.deadlines.next_ns == 101 * SECOND
    assert connection.expire(101 * SECOND) == []
    (answer,) = server.frames()
    assert answer.stream_id == 3
    assert b"Deadline Exceeded" in answer.payload
    assert connection.deadlines.next_ns == 102 * SECOND
    connection.expire(103 * SECOND)
    answer, reset = server.frames()
    assert (answer.stream_id, reset.stream_id, reset.type) == (1, 1, RST_STREAM)
    assert connection.open_calls == 1
    assert connection.deadlines.next_ns == 2**63 - 1
    for event in server.events:
        assert isinstance(event, Call)
        event.reply(b"late")
    assert {f.stream_id for f in server.frames()} == {5}


def test_deadline_counts_on_the_remembered_block_too() -> None:
    server = Server.opened()
    for stream_id in (1, 3, 5):
        server.now_ns = stream_id * SECOND
        server.receive(timed(stream_id, "10S"))
    assert [call.deadline_ns for call in server.connection.streams.values()] == [11 * SECOND, 13 * SECOND, 15 * SECOND]


def test_answered_call_whose_peer_takes_no_data_is_reset_at_its_deadline() -> None:
    server = Server.opened(None, (4, 10))
    server.call(timed(1, "1S") + data(1, message(b""), END_STREAM)).reply(bytes(100))
    server.sent()
    assert server.connection.expire(2 * SECOND) == []
    assert [(f.type, f.code) for f in server.frames()] == [(RST_STREAM, CANCEL)]
    assert server.connection.open_calls == 0
    assert server.connection.awaits_window == 0


def test_expired_stream_is_cancelled() -> None:
    server = Server.opened()
    call = server.call(timed(1, "1S", STREAM))
    server.connection.responder.send_headers(call)
    server.sent()
    assert server.connection.expire(2 * SECOND) == [CallCancelled(call)]
    trailers, reset = server.frames()
    assert b"Deadline Exceeded" in trailers.payload
    assert b"content-type" not in trailers.payload
    assert reset.type == RST_STREAM


def test_enormous_and_zero_timeouts_are_taken_as_they_are() -> None:
    server = Server.opened()
    server.receive(timed(1, "99999999H") + timed(3, "0n"))
    server.sent()
    assert server.connection.expire(0) == []
    assert server.connection.open_calls == 1


def test_cancelled_stream_is_an_event_and_a_cancelled_unary_call_is_not() -> None:
    server = Server.opened()
    call = server.call(headers(1, STREAM_BLOCK))
    server.receive(unary(3))
    assert server.receive(rst_stream(1) + rst_stream(3)) == [CallCancelled(call)]
    assert server.connection.open_calls == 0
    assert not call.open


def test_lost_connection_cancels_its_streams() -> None:
    server = Server.opened()
    call = server.call(headers(1, STREAM_BLOCK))
    server.receive(timed(3, "1S"))
    assert server.connection.connection_lost() == [CallCancelled(call)]
    assert server.connection.open_calls == 0
    assert server.connection.deadlines.next_ns == 2**63 - 1


# --- streams ---------------------------------------------------------------------------------------------------------


def test_stream_gives_messages_as_they_come_and_its_end() -> None:
    server = Server.opened()
    octets = message(b"one") + message(b"") + message(b"three")
    events = server.receive(headers(1, STREAM_BLOCK) + data(1, octets[:10]))
    events += server.receive(data(1, octets[10:]) + data(1, b"", END_STREAM))
    assert describe(events) == [
        ("StreamOpened", 1),
        ("message", 1, b"one"),
        ("message", 1, b""),
        ("message", 1, b"three"),
        ("RequestEnded", 1),
    ]


def test_stream_may_end_with_its_headers() -> None:
    server = Server.opened()
    events = server.receive(headers(1, STREAM_BLOCK, END_HEADERS | END_STREAM))
    assert [type(event) for event in events] == [StreamOpened, RequestEnded]


def test_stream_answers_before_during_and_after_the_request() -> None:
    client, server = connected()
    stream_id = client.open(STREAM)
    (event,) = server.receive(client.h2.data_to_send())
    assert isinstance(event, StreamOpened)
    call, connection = event.call, server.connection
    connection.responder.send_headers(call, [("x-early", "yes")])
    connection.responder.send_headers(call, [("x-again", "no")])
    connection.responder.send_message(call, [b"be", b"fore"])
    exchange(client, server)
    response = client.responses[stream_id]
    assert (response.headers[b"x-early"], response.messages) == (b"yes", [b"before"])
    assert b"x-again" not in response.headers
    client.h2.send_data(stream_id, message(b"q"), end_stream=True)
    exchange(client, server)
    connection.responder.send_message(call, [b"after"])
    connection.responder.finish(call, [("x-late", "too")])
    connection.responder.finish(call)
    connection.responder.send_message(call, [b"too late"])
    exchange(client, server)
    assert response.messages == [b"before", b"after"]
    assert response.trailers == {b"grpc-status": b"0", b"x-late": b"too"}
    assert (response.ended, response.reset) == (True, None)


def test_stream_that_is_finished_early_tells_the_peer_to_stop() -> None:
    client, server = connected()
    stream_id = client.open(STREAM)
    (event,) = server.receive(client.h2.data_to_send())
    assert isinstance(event, StreamOpened)
    server.connection.responder.send_headers(event.call)
    server.connection.responder.finish(event.call)
    exchange(client, server)
    response = client.responses[stream_id]
    assert (response.status, response.ended) == (0, True)
    assert server.alive


def test_stream_fails_in_the_middle_with_trailers() -> None:
    client, server = connected()
    stream_id = client.open(STREAM, end_stream=True)
    opened, _ = server.receive(client.h2.data_to_send())
    assert isinstance(opened, StreamOpened)
    server.connection.responder.send_headers(opened.call)
    server.connection.responder.send_message(opened.call, [b"one"])
    opened.call.fail(Status.ABORTED, "broke")
    exchange(client, server)
    response = client.responses[stream_id]
    assert (response.messages, response.trailers[b"grpc-status"], response.text) == ([b"one"], b"10", "broke")


@pytest.mark.parametrize(
    "sent",
    [data(1, message(b"m", 9)), data(1, message(b"m") + message(b"m")[:2], END_STREAM)],
    ids=["bad flag", "cut off"],
)
def test_broken_stream_fails_and_cancels_its_handler(sent: bytes) -> None:
    server = Server.opened()
    events = server.receive(headers(1, STREAM_BLOCK) + sent)
    assert isinstance(events[-1], CallCancelled)
    assert not any(isinstance(event, RequestEnded) for event in events)
    assert b"13" in server.frames()[0].payload
    assert server.connection.open_calls == 0


def test_stream_ignores_what_arrives_after_its_answer() -> None:
    """The answer waits for window, so the stream is still there."""
    server = Server.opened(None, (4, 1))
    call = server.call(headers(1, STREAM_BLOCK))
    server.connection.responder.send_headers(call)
    server.connection.responder.send_message(call, [b"answer"])
    server.connection.responder.finish(call)
    assert server.receive(data(1, message(b"m")) + data(1, b"", END_STREAM)) == []
    server.receive(window_update(1, 100))
    assert [f.type for f in server.frames()] == [HEADERS, DATA, DATA, HEADERS]
    assert server.connection.table.state(1) == State.CLOSED


def test_drained_callback_comes_when_the_outbox_is_empty() -> None:
    server = Server.opened(None, (4, 10))
    call = server.call(headers(1, STREAM_BLOCK))
    drained: list[int] = []
    call.on_drained = lambda: drained.append(call.outbox_bytes)
    server.connection.responder.send_headers(call)
    server.connection.responder.send_message(call, [bytes(100)])
    assert drained == []
    server.receive(window_update(1, 50))
    assert drained == []
    server.receive(window_update(1, 50))
    assert drained == [0]


# --- plain HTTP ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT"])
@pytest.mark.parametrize("with_body", [False, True])
def test_request_that_is_not_grpc_gets_415_once_it_has_ended(method: str, with_body: bool) -> None:
    client, server = connected()
    stream_id = client.h2.get_next_available_stream_id()
    client.responses[stream_id] = response = Response()
    fields = [(":method", method), (":scheme", "http"), (":path", "/"), (":authority", "a"), ("content-type", "text/x")]
    client.h2.send_headers(stream_id, fields, end_stream=not with_body)
    if with_body:
        client.h2.send_data(stream_id, bytes(16_000))
        exchange(client, server)
        assert response.headers == {}
        client.h2.send_data(stream_id, b"", end_stream=True)
    exchange(client, server)
    assert response.headers[b":status"] == b"415"
    assert b"grpc-status" not in response.headers
    assert response.ended
    if method == "HEAD":
        assert (bytes(response.data), int(response.headers[b"content-length"]) > 0) == (b"", True)
    else:
        assert len(response.data) == int(response.headers[b"content-length"])
        assert b"gRPC" in response.data
    assert server.connection.open_calls == 0


def test_plain_http_answer_waits_for_window_like_any_other() -> None:
    server = Server.opened(None, (4, 10))
    server.receive(headers(1, block(request(method="GET")), END_HEADERS | END_STREAM))
    assert [f.type for f in server.frames()] == [HEADERS, DATA]
    server.receive(window_update(1, 1_000))
    (rest,) = server.frames()
    assert rest.flags & END_STREAM
    assert server.connection.open_calls == 0


# --- events ----------------------------------------------------------------------------------------------------------


def test_head_with_an_error_is_answered_with_its_status_and_metadata() -> None:
    response = ask(UNARY, ("grpc-encoding", "snappy"))
    assert response.status == Status.INTERNAL
    assert response.headers[b"grpc-accept-encoding"] == b"identity,deflate,gzip"


def test_oversized_metadata_fails_its_call_only() -> None:
    assert ask(UNARY, ("x-large", "v" * 17_000)).status == Status.RESOURCE_EXHAUSTED


def test_message_events_carry_bytes_of_their_own() -> None:
    server = Server.opened()
    events = server.receive(headers(1, STREAM_BLOCK) + data(1, message(b"abc")))
    received = events[-1]
    assert isinstance(received, MessageReceived)
    assert type(received.message) is bytes


def test_grpc_error_keeps_what_it_was_given() -> None:
    error = GrpcError(Status.NOT_FOUND, "text", [("a", "b")])
    assert (error.status, error.text, list(error.metadata), str(error)) == (
        Status.NOT_FOUND,
        "text",
        [("a", "b")],
        "text",
    )
