"""GOAWAY, both ways (RFC 9113 section 6.8)."""

from __future__ import annotations

import struct

from tests.h2grpc.frames import (
    ACK,
    END_STREAM,
    GOAWAY,
    NO_ERROR,
    OPENING,
    PING,
    PROTOCOL_ERROR,
    REQUEST_BLOCK,
    SETTINGS,
    STREAM_BLOCK,
    WINDOW_UPDATE,
    Frame,
    block,
    data,
    frame,
    headers,
    message,
    request,
    rst_stream,
    unary,
    window_update,
)
from tests.h2grpc.support import Server, connected, exchange
from toutates.h2grpc import Call, Limits


def last_ids(frames: list[Frame]) -> list[int]:
    return [struct.unpack_from(">I", f.payload)[0] for f in frames if f.type == GOAWAY]


def pong(server: Server) -> bytes:
    (ping,) = (f for f in server.frames() if f.type == PING and not f.flags & ACK)
    return frame(PING, ACK, 0, ping.payload)


def test_server_says_goodbye_in_two_steps_and_answers_what_is_under_way() -> None:
    server = Server.opened()
    first = server.call(unary(1))
    server.connection.begin_shutdown()
    server.connection.begin_shutdown()
    goaway, ping = server.frames()
    assert (goaway.code, last_ids([goaway]), ping.type) == (NO_ERROR, [2**31 - 1], PING)
    crossed = server.call(unary(3))  # sent before the peer read the GOAWAY
    server.receive(frame(PING, ACK, 0, ping.payload))
    (last,) = server.frames()
    assert last_ids([last]) == [3]
    assert {one.payload[8:] for one in (goaway, last)} == {b"server is shutting down"}
    assert server.connection.open_calls == 2
    first.reply(b"")
    crossed.reply(b"")
    assert server.connection.drained
    assert not server.connection.closed


def test_server_ignores_streams_after_its_last_goodbye_and_keeps_the_table_in_step() -> None:
    server = Server.opened()
    held = server.call(unary(1))
    server.connection.finish_shutdown()
    assert last_ids(server.frames()) == [2**31 - 1, 1]
    inserting = block(request("/test.Echo/Unary", ("x-id", "1")), form=0x40)
    assert server.receive(headers(3, inserting) + data(3, message(b"m"), END_STREAM)) == []
    assert server.receive(headers(5, STREAM_BLOCK) + data(5, message(b"m")) + rst_stream(5)) == []
    assert server.receive(data(7, b"never opened") + window_update(5, 1)) == []
    assert server.receive(headers(5, block([("x-checksum", "1")]), 5)) == []
    assert server.sent() == b""
    assert not server.connection.closed
    assert len(server.connection.header_reader.decoder.entries) == 7
    held.reply(b"")
    assert server.connection.drained


def test_server_ignores_new_streams_also_when_their_block_is_remembered() -> None:
    server = Server.opened()
    server.call(unary(1)).reply(b"")
    server.connection.finish_shutdown()
    server.sent()
    assert server.receive(unary(3) + unary(5)) == []
    assert server.connection.open_calls == 0


def test_data_of_streams_after_the_goodbye_counts_in_the_connections_window() -> None:
    server = Server.opened(Limits(stream_window=65_535, connection_window=65_535))
    server.connection.finish_shutdown()
    server.sent()
    server.receive(headers(1, REQUEST_BLOCK))
    for _ in range(10):
        server.receive(data(1, bytes(16_000)))
    assert {(f.type, f.stream_id) for f in server.frames()} == {(WINDOW_UPDATE, 0)}


def test_last_stream_never_grows_from_one_goaway_to_the_next() -> None:
    server = Server.opened()
    server.receive(unary(1))
    server.connection.finish_shutdown()
    server.receive(unary(3) + frame(PING, 0, 0, b""))
    frames = server.frames()
    assert last_ids(frames) == [2**31 - 1, 1, 1]
    assert frames[-1].code == 6  # FRAME_SIZE_ERROR


def test_server_that_says_goodbye_to_a_silent_peer_sends_settings_first() -> None:
    server = Server()
    server.connection.begin_shutdown()
    server.connection.finish_shutdown()
    assert [f.type for f in server.frames()] == [SETTINGS, WINDOW_UPDATE, GOAWAY, PING, GOAWAY]
    assert server.connection.drained
    server.receive(OPENING + unary(1))
    assert [(f.type, f.flags) for f in server.frames()] == [(SETTINGS, ACK)]


def test_refused_connection_gets_settings_and_a_goaway() -> None:
    server = Server()
    server.connection.refuse("too many connections")
    *_, goaway = frames = server.frames()
    assert frames[0].type == SETTINGS
    assert (goaway.code, last_ids([goaway]), goaway.payload[8:]) == (NO_ERROR, [0], b"too many connections")
    assert server.receive(OPENING) == []


def test_other_ping_answers_do_not_end_a_shutdown() -> None:
    server = Server.opened()
    server.receive(frame(PING, ACK, 0, b"goodbye!"))
    server.connection.begin_shutdown()
    server.receive(frame(PING, ACK, 0, b"whatever"))
    assert last_ids(server.frames()) == [2**31 - 1]


def test_shutdown_of_a_dead_connection_says_nothing() -> None:
    server = Server.opened()
    server.receive(data(0))
    assert server.frames()[-1].code == PROTOCOL_ERROR
    server.connection.begin_shutdown()
    server.connection.finish_shutdown()
    assert server.sent() == b""


def test_peers_goaway_lets_its_calls_finish() -> None:
    client, server = connected()
    stream_id = client.unary(b"m")
    (call,) = server.receive(client.h2.data_to_send() + frame(GOAWAY, 0, 0, struct.pack(">II", 0, 0)))
    assert isinstance(call, Call)
    call.reply(b"answer")
    exchange(client, server)
    assert client.responses[stream_id].messages == [b"answer"]


def test_h2_client_is_told_and_finishes_its_calls() -> None:
    client, server = connected()
    stream_id = client.unary(b"m")
    (call,) = server.receive(client.h2.data_to_send())
    assert isinstance(call, Call)
    server.connection.begin_shutdown()
    server.receive(pong(server))
    call.reply(b"answer")
    answered = server.frames()
    assert last_ids(answered) == [stream_id]
    assert server.connection.drained
