"""Whole connections: what a peer may send, and what must hold whatever it sends.

Invariant: no bytes make the connection raise anything. The same bytes, with answers given after the same ones, make the
same events and the same output however they are cut: the driver's reads are no part of the protocol. (Answers given
after other bytes are another session: a frame that came before an answer may be a stream error, and a connection error
once its stream is closed. And a unary call that is over before anyone could answer does not count: it is handed on or
not, as the reads fall.) At every step the connection's books balance, and no call outlives it. The same holds where
messages of 1 KiB are large, and are received straight into their memory if a read ends in them.

A case is 8 bytes that settle limits, cuts and answers, and then the peer's bytes.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterable
from itertools import pairwise

from tests.h2grpc.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    OPENING,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    PRIORITY_FLAG,
    PUSH_PROMISE,
    RESERVED_BIT,
    RST_STREAM,
    SETTINGS,
    STREAM,
    UNARY,
    WINDOW_UPDATE,
    block,
    frame,
    message,
    parse,
    request,
    settings,
)
from tests.h2grpc.support import FLOW, Server, describe, small_is_large
from toutates.h2grpc import (
    Allowance,
    Call,
    CallCancelled,
    ConnectionTerminated,
    Limits,
    MessageReceived,
    Status,
    StreamOpened,
)
from toutates.h2grpc.budget import CALL_BYTES

__all__ = ["SEED_BYTES", "check", "drive", "make_case", "mutate"]

SEED_BYTES = 8

#: Small bounds, so that cases of a few hundred bytes get to them.
TIGHT = Limits(
    max_frame_size=16_384,
    stream_window=65_535,
    connection_window=65_535,
    max_message_size=20_000,
    max_header_block_size=5_000,
    max_header_list_size=2_000,
    max_concurrent_streams=5,
    closed_stream_memory=3,
    header_memory_entries=3,
    max_queued_bytes=100,
    max_preface_bytes=1_000,
    max_buffered_bytes=17_000,
    max_decompressed_size=10_000,
)
_ALLOWANCE = Allowance(burst=2, per_second=1, per_call=0.5)
SUSPICIOUS = Limits(
    max_continuations=1,
    max_settings=1,
    resets=_ALLOWANCE,
    pings=_ALLOWANCE,
    settings=_ALLOWANCE,
    empty_frames=_ALLOWANCE,
    window_updates=_ALLOWANCE,
    other_frames=_ALLOWANCE,
)
#: With large messages: their memory is counted as it comes, so that tight bounds on it are met as the reads fall.
LARGE = (Limits(stream_window=65_535, connection_window=65_535, max_message_size=20_000), "")
PROFILES = ((TIGHT, ""), (TIGHT, "gzip"), (Limits(), "deflate"), (SUSPICIOUS, ""))

INTERESTING = (0, 1, 2, 5, 100, 16_384, 65_535, 65_536, 2**24, 2**31 - 1, 2**31, 2**32 - 1)
BODIES = (b"", b"hello", bytes(300), zlib.compress(b"x" * 30_000, wbits=31))

# --- what a peer sends -----------------------------------------------------------------------------------------------


class _Peer:
    """Writes frames that are mostly right, so that the wrong ones meet a connection with something to lose."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._last_id = -1

    def frames(self) -> bytes:
        """One frame, or a few that belong together."""
        rng = self._rng
        kind = rng.choices(
            (
                self._call,
                self._head,
                self._data,
                self._upload,
                self._reset,
                self._credit,
                self._settings,
                self._connection,
                self._odd,
            ),
            (8, 5, 5, 2, 2, 3, 1, 1, 1),
        )[0]
        octets = kind()
        if rng.random() < 0.05:
            at = rng.randrange(5, 9)  # the reserved bit, or another stream
            octets = octets[:at] + bytes([octets[at] ^ 1 << rng.randrange(8)]) + octets[at + 1 :]
        return octets

    def _new_id(self) -> int:
        self._last_id += self._rng.choice((2, 2, 2, 2, 2, 2, 2, 4, 10))
        return self._last_id

    def _some_id(self) -> int:
        if self._rng.random() < 0.1:
            return self._rng.choice((0, 2, self._last_id + 2, 2**31 - 1, RESERVED_BIT | 1))
        return max(1, self._last_id - 2 * self._rng.randrange(4))

    def _block(self) -> bytes:
        rng = self._rng
        fields = list(request(rng.choice((UNARY, UNARY, UNARY, STREAM, STREAM, FLOW, FLOW, "/nowhere", ""))))
        if rng.random() < 0.3:
            extra = rng.choice(
                (
                    ("grpc-timeout", rng.choice(("1n", "1S", "0S", "99999999H", "soon"))),
                    ("grpc-encoding", rng.choice(("gzip", "identity", "brotli"))),
                    ("grpc-accept-encoding", "gzip, deflate"),
                    ("content-length", rng.choice(("0", "5", "10", "-1"))),
                    ("x-note", "v" * rng.choice((0, 1, 40, 700, 1_500))),
                    ("x-data-bin", "????"),
                    ("TE", "trailers"),
                    (":late", ""),
                )
            )
            fields.insert(rng.choice((len(fields), len(fields), 0)), extra)
        if rng.random() < 0.1:
            del fields[rng.randrange(len(fields))]
        if rng.random() < 0.05:
            fields[0] = (":method", rng.choice(("GET", "HEAD", "CONNECT")))
        octets = block(fields, rng.choice((0x00, 0x00, 0x10, 0x40)))
        return octets + rng.choice((b"", b"", b"", b"\x82", b"\xbe", b"\x20", b"\xff\x80"))

    def _head(self, stream_id: int | None = None, flags: int | None = None) -> bytes:
        """HEADERS, whole or continued; trailers at times."""
        rng = self._rng
        if stream_id is None:
            stream_id = self._new_id() if rng.random() < 0.8 else self._some_id()
        octets = self._block() if rng.random() < 0.9 else block([("x-checksum", "1")])
        flags = rng.choice((0, 0, END_STREAM)) if flags is None else flags
        if rng.random() < 0.1:
            octets, flags = rng.randbytes(5) + octets, flags | PRIORITY_FLAG
        pad = rng.choice((0, 0, 0, 3, 255)) if rng.random() < 0.2 else None
        if pad is not None and rng.random() < 0.9:
            octets, flags = bytes([pad]) + octets + bytes(pad), flags | PADDED
        if rng.random() < 0.85 or pad is not None:
            return frame(HEADERS, flags | END_HEADERS, stream_id, octets)
        size = rng.choice((1 + len(octets) // 2, 10, 1 + len(octets)))
        pieces = [octets[at : at + size] for at in range(0, len(octets), size)] or [b""]
        frames = [frame(HEADERS, flags, stream_id, pieces[0])]
        frames += [frame(CONTINUATION, 0, stream_id, piece) for piece in pieces[1:]]
        if rng.random() < 0.1:
            frames.insert(rng.randrange(1, len(frames) + 1), frame(PING, 0, 0, bytes(8)))
        return b"".join(frames) + frame(CONTINUATION, END_HEADERS, stream_id)

    def _call(self) -> bytes:
        """A unary call, as clients send it."""
        stream_id = self._new_id()
        body = self._rng.choice(BODIES)
        return self._head(stream_id, 0) + frame(DATA, END_STREAM, stream_id, message(body))

    def _data(self) -> bytes:
        rng = self._rng
        payload = message(rng.choice(BODIES), rng.choice((0, 0, 0, 1, 2)))
        payload = rng.choice((payload, payload, payload * 2, payload[: rng.randrange(9)], b"", bytes(16_384)))
        flags = rng.choice((0, END_STREAM))
        if rng.random() < 0.2:
            pad = rng.choice((0, 1, 100, 255))
            payload, flags = bytes([pad]) + payload + bytes(rng.choice((pad, 0))), flags | PADDED
        return frame(DATA, flags, self._some_id(), payload[:16_384])

    def _upload(self) -> bytes:
        """A larger message, in frames that are mostly alike; at times something comes between, or it stays open."""
        rng = self._rng
        stream_id = self._new_id()
        octets = message(rng.randbytes(rng.choice((1_100, 3_000, 9_000))))
        size = rng.choice((64, 500, 1_000, 2_500, 16_384))
        out, at = [self._head(stream_id, 0)], 0
        while at < len(octets):
            length = size if rng.random() < 0.9 else rng.randint(1, size)
            end = at + length >= len(octets) and rng.random() < 0.9
            out.append(frame(DATA, END_STREAM if end else 0, stream_id, octets[at : at + length]))
            at += length
            if rng.random() < 0.03:
                out.append(rng.choice((self._call, self._connection, self._reset, self._credit, self._data))())
        return b"".join(out)

    def _reset(self) -> bytes:
        return frame(RST_STREAM, 0, self._some_id(), self._number(4))

    def _credit(self) -> bytes:
        return frame(WINDOW_UPDATE, 0, self._rng.choice((0, self._some_id())), self._number(4))

    def _settings(self) -> bytes:
        rng = self._rng
        if rng.random() < 0.2:
            return frame(SETTINGS, ACK, 0, rng.choice((b"", b"", bytes(6))))
        pairs = [
            (rng.choice((1, 2, 3, 4, 4, 4, 5, 6, 8, 99)), rng.choice(INTERESTING)) for _ in range(rng.randrange(3))
        ]
        return settings(*pairs) if rng.random() < 0.95 else frame(SETTINGS, 0, 0, bytes(5))

    def _connection(self) -> bytes:
        rng = self._rng
        payload = rng.choice((bytes(8), b"goodbye!", bytes(7)))
        return rng.choice(
            (
                frame(PING, rng.choice((0, ACK)), rng.choice((0, 0, 0, 1)), payload),
                frame(GOAWAY, 0, 0, bytes(8)),
                frame(PRIORITY, 0, self._some_id(), rng.randbytes(rng.choice((5, 5, 4)))),
            )
        )

    def _odd(self) -> bytes:
        rng = self._rng
        kind = rng.choice((PUSH_PROMISE, CONTINUATION, 10, 11, 99, rng.randrange(10)))
        return frame(kind, rng.randrange(256), self._some_id(), rng.randbytes(rng.choice((0, 4, 5, 8, 40))))

    def _number(self, size: int) -> bytes:
        octets = self._rng.choice(INTERESTING).to_bytes(size, "big")
        return octets if self._rng.random() < 0.97 else octets[1:]


def make_case(rng: random.Random) -> bytes:
    """A session of some frames, most of them right, with some bytes changed every other time."""
    peer = _Peer(rng)
    other = b"GET /" + b"a" * rng.choice((0, 980, 990, 2_000)) + b" HTTP/1.1\r\nhost: a\r\n\r\n"
    octets = OPENING if rng.random() < 0.98 else rng.choice((PREFACE, b"", other, b"\x16\x03\x01\x02\x00\x01\x00"))
    octets += b"".join(peer.frames() for _ in range(rng.randint(1, 20)))
    if rng.random() < 0.4:
        octets = mutate(octets, rng)
    return rng.randbytes(SEED_BYTES) + octets


def mutate(octets: bytes, rng: random.Random) -> bytes:
    """Change, drop, repeat, insert or swap some bytes; the preface mostly stays."""
    out = bytearray(octets)
    keep = len(PREFACE) if rng.random() < 0.95 else 0
    for _ in range(rng.randint(1, 5)):
        if len(out) <= keep:
            break
        at = rng.randrange(keep, len(out))
        length = rng.randint(1, 20)
        kind = rng.randrange(5)
        if kind == 0:
            out[at] = rng.randrange(256)
        elif kind == 1:
            del out[at : at + length]
        elif kind == 2:
            out[at:at] = out[at : at + 2 * length]
        elif kind == 3:
            out[at:at] = rng.randbytes(length)
        else:
            out[at] ^= 1 << rng.randrange(8)
    return bytes(out)


# --- what must hold --------------------------------------------------------------------------------------------------


def check(case: bytes) -> None:
    """Raise AssertionError, or whatever leaks, if the invariant breaks."""
    seed, octets = case[:SEED_BYTES], case[SEED_BYTES:]
    plan = random.Random(seed)
    profile = plan.choice(PROFILES)
    pauses = sorted(plan.randrange(len(octets) + 1) for _ in range(plan.randrange(6)))
    cuts = sorted(plan.randrange(len(octets) + 1) for _ in range(plan.choice((1, 3, 9, 40))))
    _compare(octets, pauses, cuts, profile, seed)
    if plan.random() < 0.5:
        step = plan.choice((1, 10, 100, 100, 1_000, 1_000))
        with small_is_large():
            _compare(octets, pauses, list(range(plan.randint(1, step), len(octets), step)), LARGE, seed)


def _compare(octets: bytes, pauses: list[int], cuts: list[int], profile: tuple[Limits, str], seed: bytes) -> None:
    whole = drive(octets, pauses, [], profile, seed)
    cut = drive(octets, pauses, cuts, profile, seed)
    assert whole == cut, f"cut at {cuts}, with answers at {pauses}, it gives\n{cut}\ninstead of\n{whole}"


def drive(
    octets: bytes, pauses: list[int], cuts: list[int], profile: tuple[Limits, str], seed: bytes
) -> list[tuple[object, bytes]]:
    """The events and the output up to each pause, and after the answers that follow it; the end is one more pause.

    Args:
        octets: the peer's bytes.
        pauses: where in them the handlers answer.
        cuts: where else the driver's reads end.
        profile: limits, and the encoding of responses.
        seed: settles the answers.
    """
    server = Server(*profile)
    handlers = _Handlers(server, random.Random(seed))
    outcome: list[tuple[object, bytes]] = []
    for start, end in pairwise([0, *pauses, len(octets)]):
        inner = [start, *(cut for cut in cuts if start < cut < end), end]
        before = len(server.events)
        for low, high in pairwise(inner):
            server.receive(octets[low:high])
        events = [event for event in server.events[before:] if not isinstance(event, Call) or event.open]
        handlers.take(events)
        outcome.append((describe(events), server.sent()))
        before = len(server.events)
        handlers.answer()
        outcome.append((describe(server.events[before:]), server.sent()))
        for _, sent in outcome[-2:]:
            if not sent.startswith((b"HTTP/1.1", b"\x15\x03")):  # for those who speak HTTP/1, or TLS
                parse(sent)
        _check_books(server)
    ended = any(isinstance(event, ConnectionTerminated) for event in server.events)
    assert ended == server.connection.closed, "a connection ends without a word"
    handlers.take(server.connection.connection_lost())
    while server.connection.behind:
        handlers.take(server.connection.go_on(server.now_ns))
    handlers.check_over()
    _check_books(server)
    assert not server.connection.streams, "streams are left after the connection was lost"
    assert not server.pool.lent, "messages that will never be whole have memory"
    return outcome


class _Handlers:
    """What answers the calls of a connection, in every way there is, by chance."""

    def __init__(self, server: Server, chance: random.Random) -> None:
        self._server, self._chance = server, chance
        self._calls: list[Call] = []
        self._messages: list[MessageReceived] = []
        self._streams: set[Call] = set()
        self._cancelled: set[Call] = set()

    def take(self, events: Iterable[object]) -> None:
        for event in events:
            if isinstance(event, Call):
                self._calls.append(event)
            elif isinstance(event, StreamOpened):
                self._calls.append(event.call)
                self._streams.add(event.call)
            elif isinstance(event, MessageReceived):
                self._messages.append(event)
            elif isinstance(event, CallCancelled):
                assert event.call.is_streaming, "a unary call is cancelled in silence"
                assert event.call not in self._cancelled, "cancelled twice"
                self._cancelled.add(event.call)

    def answer(self) -> None:
        chance, connection = self._chance, self._server.connection
        for call in self._calls:
            answer = chance.randrange(9)
            if answer == 0:
                call.fail(Status.INTERNAL, "text \u20ac")
            elif call not in self._streams:
                if answer == 1:
                    call.reply(bytes(chance.choice((0, 10, 70_000))))
                elif answer == 2:
                    call.reply(b"message", [("x-initial", "1")], [("x-trailing-bin", b"\xff")])
            elif answer < 4:
                connection.responder.send_headers(call)
                connection.responder.send_message(call, [b"message", bytes(chance.choice((0, 70_000)))])
            elif answer == 4:
                connection.responder.finish(call)
        for event in self._messages:
            call = event.call
            if chance.random() < 0.5:
                connection.message_read(call, len(event.message))
            if call.open and call.head.method is not None and call.head.method.half_close is not None:
                if chance.random() < 0.3:
                    connection.keep(call, chance.choice((0, 1_000, 100_000)))
                part = bytes(chance.choice((0, 10, 10, 10, 70_000)))
                connection.responder.send(call, b"head", (part,), 4 + len(part))
        self._messages.clear()
        late = chance.random()
        if late < 0.2:
            self._server.now_ns += 10**9
            events = connection.expire(self._server.now_ns)
            self._server.events += events
            self.take(events)
        elif late < 0.25:
            connection.begin_shutdown()
        elif late < 0.3:
            connection.finish_shutdown()

    def check_over(self) -> None:
        """Once the connection is lost: nobody waits for anything."""
        assert not any(call.open for call in self._calls), "a call is open after the connection was lost"


def _check_books(server: Server) -> None:
    connection, limits = server.connection, server.limits
    queued = sum(call.outbox_bytes for call in connection.streams.values())
    assert connection.queue.bytes_waiting == queued, "the count of queued bytes is off"
    heads = sum(call.head_bytes for call in connection.streams.values())
    held = heads + sum(call.held_bytes for call in connection.streams.values())
    assert connection.held.held_bytes == held, "the count of bytes of requests is off"
    received = connection.unread.held_bytes + connection.blocks.held_bytes
    tasks = sum(call.task_bytes for call in connection.streams.values())
    records = tasks + CALL_BYTES * connection.table.counted
    budget = server.budget
    assert budget.call_bytes == records + heads, "the server's count of bytes of open calls is off"
    assert budget.used == queued + held + received + records + connection.header_reader.kept_bytes, (
        "the server's count of bytes is off"
    )
    blocked = connection.queue.blocked
    assert all(call.stream_id in connection.streams for call in blocked), "a closed stream waits for window"
    assert len(connection.streams) <= limits.max_concurrent_streams, "more streams than are allowed"
    assert connection.table.remembered_resets <= limits.closed_stream_memory, "more closed streams than are remembered"
    if connection.closed:
        assert not connection.streams, "streams are open on a closed connection"
