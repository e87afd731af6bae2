"""A client, legal and illegal, a server that answers at any time, and h2's opinion of every frame.

Invariant: frame by frame, we and h2 agree whether it is accepted, a stream error or a connection error, or the case is
in ``DISAGREEMENTS`` with the section that decides it; requests and their bodies reach handlers as h2 reads them; and h2
finds nothing in our output that a server may not send then: no DATA beyond a window or a frame size, nothing on a
stream that is over, and an ACK for each SETTINGS and PING.
"""

from __future__ import annotations

import struct

from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from tests.fuzz.talk import NEXT, NONE, SKIP, SOME, Talk
from tests.fuzz.vocabulary import (
    FIELDS,
    LARGEST,
    LARGEST_FRAME,
    LIMITS,
    MALFORMED,
    PAYLOADS,
    SETTINGS_VALUES,
    UNDECODABLE,
    USUAL,
)
from tests.h2grpc.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    PRIORITY,
    PRIORITY_FLAG,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    block,
    frame,
    message,
    settings,
)
from toutates.h2grpc import Call, Status

__all__ = ["Conversation"]

EXISTING = st.integers(0, SOME)
ANY_STREAM = st.integers(0, NONE)
FLAG = st.booleans()
RARELY = st.integers(0, 15).map(lambda number: number == 15)


class Conversation(Talk):
    """See the module."""

    @initialize(window=st.sampled_from((None, 0, 5, 65_535, LARGEST)))
    def open(self, window: int | None) -> None:
        if window is not None:
            self.start([(4, window)])

    # --- what the peer sends -----------------------------------------------------------------------------------------

    @rule(
        fields=st.sampled_from(("request", "request of a stream")),
        size=st.sampled_from((0, 5, 5, 20_000, 50_000)),
        together=FLAG,
    )
    def call(self, fields: str, size: int, together: bool) -> None:
        """What clients do nearly always."""
        body = b"h" * size
        stream_id = self.pick(NEXT)
        head = frame(HEADERS, END_HEADERS, stream_id, block(FIELDS[fields]))
        chunks = [message(body)[at : at + LARGEST_FRAME] for at in range(0, len(body) + 5, LARGEST_FRAME)]
        if len(self.server.connection.streams) >= LIMITS.max_concurrent_streams:
            return
        if together and len(chunks) == 1:
            self.opened(stream_id, END_STREAM, None)
            self.spent(stream_id, len(chunks[0]), len(chunks[0]))
            self.send(head + frame(DATA, END_STREAM, stream_id, chunks[0]), "a call", stream_id, "idle")
            return
        self.opened(stream_id, 0, None)
        self.send(head, "HEADERS", stream_id, "idle")
        for at, chunk in enumerate(chunks):
            self.data_frame(stream_id, chunk, END_STREAM if at == len(chunks) - 1 else 0)

    @rule(
        which=st.sampled_from((NEXT, NEXT, NEXT, NEXT, SKIP)) | ANY_STREAM,
        fields=st.sampled_from(USUAL) | st.sampled_from(USUAL) | st.sampled_from(list(FIELDS)),
        form=st.sampled_from((0x00, 0x10, 0x40)),
        end=FLAG,
        padding=st.one_of(st.none(), st.none(), st.integers(0, 255)),
        priority=st.one_of(st.none(), st.none(), st.sampled_from((0, 1))),
        pieces=st.sampled_from((1, 1, 1, 2, 5)),
    )
    def headers(
        self, which: int, fields: str, form: int, end: bool, padding: int | None, priority: int | None, pieces: int
    ) -> None:
        label = f"HEADERS: {fields}"
        if fields == "request":
            label = "HEADERS"
        self.header_frames(self.pick(which), label, block(FIELDS[fields], form), end, padding, priority, pieces)

    @rule(which=st.just(NEXT) | EXISTING, number=st.integers(0, len(MALFORMED) - 1), end=FLAG, rare=RARELY)
    def malformed(self, which: int, number: int, end: bool, rare: bool) -> None:
        if rare:
            padding = 7 if not MALFORMED[number] else None
            self.header_frames(self.pick(which), "HEADERS, malformed", block(MALFORMED[number]), end, padding, None, 2)

    @rule(which=EXISTING, end=FLAG)
    def trailers(self, which: int, end: bool) -> None:
        self.header_frames(self.pick(which), "HEADERS: trailers", block(FIELDS["trailers"]), end, None, None, 1)

    @rule(size=st.sampled_from((3, 5, 7)), end=FLAG, by_trailers=FLAG)
    def announced(self, size: int, end: bool, by_trailers: bool) -> None:
        """A request that says how long it is, and may be wrong."""
        stream_id = self.pick(NEXT)
        if len(self.server.connection.streams) >= LIMITS.max_concurrent_streams or self.window < 100:
            return
        self.opened(stream_id, 0, 5)
        self.send(
            frame(HEADERS, END_HEADERS, stream_id, block(FIELDS["request of five bytes"])), "HEADERS", stream_id, "idle"
        )
        payload = (message(b"") + bytes(2))[:size]
        if self.data_frame(stream_id, payload, END_STREAM if end and not by_trailers else 0) and by_trailers:
            self.header_frames(stream_id, "HEADERS: trailers", block(FIELDS["trailers"]), True, None, None, 1)

    @rule(which=st.just(NEXT) | EXISTING, octets=st.sampled_from(UNDECODABLE), rare=RARELY)
    def undecodable(self, which: int, octets: bytes, rare: bool) -> None:
        if rare:
            self.header_frames(self.pick(which), "HEADERS that cannot be decoded", octets, False, None, None, 1)

    def header_frames(
        self,
        stream_id: int,
        label: str,
        octets: bytes,
        end: bool,
        padding: int | None,
        priority: int | None,
        pieces: int,
    ) -> None:
        """HEADERS and its CONTINUATIONs, with a label for what is to be said about them."""
        if stream_id < 0:
            return
        state = self.state(stream_id)
        full = len(self.server.connection.streams) >= LIMITS.max_concurrent_streams
        if full and state.startswith("reset"):
            return  # h2 may have forgotten the stream, and then counts it before it sees that it is over
        flags = END_STREAM if end else 0
        size = max(1, -(-len(octets) // pieces))
        parts = [octets[at : at + size] for at in range(0, len(octets), size)] or [b""]
        first = parts[0]
        if priority is not None:
            on_itself = priority and label == "HEADERS" and state == "idle"
            if on_itself:
                label = "HEADERS, dependent on itself"
            depends_on = stream_id if on_itself else 0
            first, flags = struct.pack(">IB", depends_on, 15) + first, flags | PRIORITY_FLAG
        if padding is not None:
            first, flags = bytes([padding]) + first + bytes(padding), flags | PADDED
        if state == "idle":
            if full:
                label = "HEADERS of one stream too many"
            elif end and "five bytes" in label:
                label = "HEADERS of a request that is short of its content-length"
        elif state == "open" and not label.startswith(("HEADERS that", "HEADERS: request of a huge")):
            trailers = label.startswith("HEADERS: trailers")
            label = ("trailers" if trailers else "trailers, malformed") + ("" if end else ", not at the end")
            if trailers and end and self.short(stream_id):
                label = "trailers of a request that is short of its content-length"
        elif not label.startswith(("HEADERS that", "HEADERS: request of a huge")):
            label = "HEADERS"
        if padding and not octets:
            label = "HEADERS of nothing but padding"
        frames = [frame(HEADERS, flags | (END_HEADERS if len(parts) == 1 else 0), stream_id, first)]
        for at, part in enumerate(parts[1:], 2):
            frames.append(frame(CONTINUATION, END_HEADERS if at == len(parts) else 0, stream_id, part))
        self.opened(stream_id, flags & END_STREAM, 5 if "five bytes" in label else None)
        self.send(b"".join(frames), label, stream_id, state)

    @rule(which=EXISTING, between=st.sampled_from((PING, DATA, HEADERS, CONTINUATION, SETTINGS, 99)), rare=RARELY)
    def interrupted_block(self, which: int, between: int, rare: bool) -> None:
        if not rare:
            return
        stream_id = self.pick(NEXT)
        other = abs(self.pick(which)) if between in (DATA, HEADERS, CONTINUATION) else 0
        if other == stream_id and between == CONTINUATION:
            other += 2
        octets = frame(HEADERS, 0, stream_id, block(FIELDS["request"])[:10]) + frame(between, 0, other, bytes(8))
        self.send(octets, "a header block interrupted", stream_id)

    @rule(
        which=ANY_STREAM,
        content=st.sampled_from(list(PAYLOADS)),
        end=FLAG,
        padding=st.one_of(st.none(), st.none(), st.integers(0, 255)),
        too_much=RARELY,
    )
    def data(self, which: int, content: str, end: bool, padding: int | None, too_much: bool) -> None:
        stream_id, payload = self.pick(which), PAYLOADS[content]
        flags, label, size = (END_STREAM if end else 0), "DATA", len(payload)
        if padding is not None:
            payload = payload[: LARGEST_FRAME - 1 - padding]
            size = len(payload)
            payload, flags = bytes([padding]) + payload + bytes(padding), flags | PADDED
            if too_much and len(payload) < 256:
                payload, label = bytes([len(payload)]) + payload[1:], "DATA with more padding than there is"
        if stream_id >= 0:
            self.data_frame(stream_id, payload, flags, label, size)

    @rule(which=EXISTING, whole=FLAG)
    def flood(self, which: int, whole: bool) -> None:
        """DATA up to the window, or one byte more."""
        stream_id = self.pick(which)
        left = self.window if whole else min(self.window, self.windows.get(stream_id, 0))
        if self.state(stream_id) != "open" or left > 70_000:
            return
        for size in [LARGEST_FRAME] * (left // LARGEST_FRAME) + [left % LARGEST_FRAME + 1]:
            if not self.data_frame(stream_id, bytes(size), 0):
                return

    def data_frame(
        self, stream_id: int, payload: bytes, flags: int, label: str = "DATA", size: int | None = None
    ) -> bool:
        """One DATA frame of ``size`` bytes without its padding; whether the stream is as open as before."""
        connection, state = self.server.connection, self.state(stream_id)
        size = len(payload) if size is None else size
        fits = self.spent(stream_id, len(payload), size)
        if label == "DATA" and stream_id and state in ("open", "half-closed", "closed", "reset by us", "reset by peer"):
            announced, received = self.lengths.get(stream_id, (None, 0))
            if self.window < 0:
                label = "DATA beyond the connection's window"
            elif state == "open" and not fits:
                label = "DATA beyond the stream's window"
            elif state == "open" and announced is not None and received > announced:
                label = "DATA beyond content-length"
            elif state == "open" and flags & END_STREAM and self.short(stream_id):
                label = "DATA short of content-length"
        self.send(frame(DATA, flags, stream_id, payload), label, stream_id)
        return connection is self.server.connection and self.state(stream_id) == state

    @rule(which=ANY_STREAM, code=st.sampled_from((0, 8, 99)), whole=st.integers(0, 15))
    def reset(self, which: int, code: int, whole: int) -> None:
        stream_id, payload = self.pick(which), code.to_bytes(4, "big")
        label = "RST_STREAM" if whole else "RST_STREAM of a wrong length"
        if stream_id >= 0:
            self.send(frame(RST_STREAM, 0, stream_id, payload if whole else payload[1:]), label, stream_id)

    @rule(
        which=ANY_STREAM | st.just(NONE),
        increment=st.sampled_from((1, 5, 10_000, 100_000, 1, 5, 10_000, 100_000, LARGEST, 0)),
        whole=st.integers(0, 15),
    )
    def credit(self, which: int, increment: int, whole: int) -> None:
        stream_id = self.pick(which)
        if stream_id < 0:
            return
        connection = self.server.connection
        label = "WINDOW_UPDATE"
        if not whole:
            label = "WINDOW_UPDATE of a wrong length"
        elif not increment:
            label = "WINDOW_UPDATE of 0"
        else:
            bearer = connection.streams.get(stream_id)
            window = connection.windows.send if not stream_id else 0 if bearer is None else bearer.send_window
            if window + increment > LARGEST:
                label = "WINDOW_UPDATE beyond the largest window"
        payload = increment.to_bytes(4, "big")
        self.send(frame(WINDOW_UPDATE, 0, stream_id, payload if whole else payload[1:]), label, stream_id)

    @rule(values=st.lists(st.sampled_from(SETTINGS_VALUES[:-5]), max_size=3))
    def settings(self, values: list[tuple[str, int, int]]) -> None:
        self.settings_frame(values)

    @rule(values=st.lists(st.sampled_from(SETTINGS_VALUES), min_size=1, max_size=3), rare=RARELY)
    def illegal_settings(self, values: list[tuple[str, int, int]], rare: bool) -> None:
        if rare:
            self.settings_frame(values)

    def settings_frame(self, values: list[tuple[str, int, int]]) -> None:
        final = {code: (label, value) for label, code, value in values}
        label = "SETTINGS"
        if any(given for given, _, _ in values):
            legal = not any(given for given, _ in final.values())
            label += " of a value that is illegal, then legal" if legal else max(given for given, _ in final.values())
        elif 4 in final:
            connection = self.server.connection
            change = final[4][1] - connection.settings.stream_window
            if any(call.send_window + change > LARGEST for call in connection.streams.values()):
                label += " beyond a stream's largest window"
        if 1 in final:
            self.oracle.change_table_size(final[1][1])
        self.send(settings(*((code, value) for _, code, value in values)), label, 0)

    @rule(
        octets=st.sampled_from(
            (
                ("SETTINGS, ACK", frame(SETTINGS, ACK)),
                ("SETTINGS, ACK with something in it", frame(SETTINGS, ACK, 0, bytes(6))),
                ("SETTINGS of a wrong length", frame(SETTINGS, 0, 0, bytes(5))),
                ("SETTINGS on a stream", frame(SETTINGS, 0, 1)),
                ("PING of a wrong length", frame(PING, 0, 0, bytes(7))),
                ("PING on a stream", frame(PING, 0, 1, bytes(8))),
                ("GOAWAY of a wrong length", frame(GOAWAY, 0, 0, bytes(7))),
                ("GOAWAY on a stream", frame(GOAWAY, 0, 1, bytes(8))),
                ("PRIORITY on the connection", frame(PRIORITY, 0, 0, bytes(5))),
                ("PUSH_PROMISE", frame(PUSH_PROMISE, END_HEADERS, 1, b"\0\0\0\2" + block(FIELDS["request"]))),
                ("a frame too large", frame(99, 0, 0, bytes(LARGEST_FRAME + 1))),
                ("DATA on the connection", frame(DATA, 0, 0, b"a")),
                ("HEADERS with padding and no room for it", frame(HEADERS, PADDED | END_HEADERS, 1)),
                ("DATA with padding and no room for it", frame(DATA, PADDED, 1)),
                ("GOAWAY", frame(GOAWAY, 0, 0, bytes(8))),
            )
        ),
        rare=RARELY,
    )
    def misfit(self, octets: tuple[str, bytes], rare: bool) -> None:
        if rare:
            stream_id = int.from_bytes(octets[1][5:9], "big")
            self.send(octets[1], octets[0], stream_id)

    @rule(payload=st.sampled_from((bytes(8), b"goodbye!")), ack=FLAG)
    def ping(self, payload: bytes, ack: bool) -> None:
        self.send(frame(PING, ACK if ack else 0, 0, payload), "PING", 0)

    @rule(which=ANY_STREAM, kind=st.sampled_from(("",) * 12 + (" on itself", " of a wrong length")))
    def priority(self, which: int, kind: str) -> None:
        stream_id = self.pick(which)
        if stream_id > 0:
            depends_on = stream_id if kind == " on itself" else 0
            payload = struct.pack(">IB", depends_on, 3)[: 4 if kind == " of a wrong length" else 5]
            self.send(frame(PRIORITY, 0, stream_id, payload), f"PRIORITY{kind}", stream_id)

    @rule(which=ANY_STREAM, kind=st.sampled_from((11, 16, 99, 255, 10)), size=st.sampled_from((0, 2, 30)))
    def unknown(self, which: int, kind: int, size: int) -> None:
        stream_id = self.pick(which)
        label = "ALTSVC, broken" if kind == 10 and not size else "a frame of an unknown type"
        if stream_id >= 0:
            self.send(frame(kind, 0xFF, stream_id, bytes(size)), label, stream_id)

    @rule(which=EXISTING, rare=RARELY)
    def continuation(self, which: int, rare: bool) -> None:
        stream_id = self.pick(which)
        if rare and stream_id >= 0:
            self.send(frame(CONTINUATION, END_HEADERS, stream_id, b""), "CONTINUATION", stream_id)

    # --- what the server does ----------------------------------------------------------------------------------------

    @rule(count=st.integers(1, 6), size=st.sampled_from((0, 10, 16_379)))
    def serve(self, count: int, size: int) -> None:
        """Calls answered at once."""
        for _ in range(count):
            self.call("request", 5, together=True)
            self.reply(-1, size)

    @rule(which=st.integers(0, 5), size=st.sampled_from((0, 10, 16_379, 16_380, 70_000)))
    def reply(self, which: int, size: int) -> None:
        call = self.some_call(which, unary=True)
        if call is not None:
            call.reply(bytes(size))
            self.sent()

    @rule(which=st.integers(0, 5))
    def reply_with_metadata(self, which: int) -> None:
        call = self.some_call(which, unary=True)
        if call is not None:
            call.reply(b"a", [("x-initial", "1" * 5_000)], [("x-trailing-bin", bytes(15_000))])
            self.sent()

    @rule(which=st.integers(0, 5))
    def fail(self, which: int) -> None:
        call = self.some_call(which)
        if call is not None:
            call.fail(Status.INTERNAL, "text")
            self.sent()

    @rule(which=st.integers(0, 5), size=st.sampled_from((0, 10, 70_000)), finish=FLAG)
    def send_message(self, which: int, size: int, finish: bool) -> None:
        call = self.some_call(which, unary=False)
        if call is not None:
            self.server.connection.responder.send_headers(call)
            self.server.connection.responder.send_message(call, [b"a", bytes(size)])
            if finish:
                self.server.connection.responder.finish(call)
            self.sent()

    @rule()
    def read_messages(self) -> None:
        for event in self.unread:
            self.server.connection.message_read(event.call, len(event.message))
        self.unread.clear()
        self.sent()

    @rule()
    def expire(self) -> None:
        self.server.now_ns += 2 * 10**9
        self.server.connection.expire(self.server.now_ns)
        self.sent()

    def some_call(self, which: int, *, unary: bool | None = None) -> Call | None:
        """One of the calls that wait for an answer, of either kind or of one; a new one if there is none."""
        calls = self.waiting(unary)
        if not calls:
            self.call("request of a stream" if unary is False else "request", 5, together=True)
            calls = self.waiting(unary)
        return calls[which % len(calls)] if calls else None

    def waiting(self, unary: bool | None) -> list[Call]:
        self.calls = [call for call in self.calls if call.open]
        return [call for call in self.calls if unary in (None, is_unary(call))]


def is_unary(call: Call) -> bool:
    """Whether its handler answers with one message."""
    return call.head.method is not None and call.head.method.unary is not None
