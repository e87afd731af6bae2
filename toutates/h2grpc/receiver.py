"""Handling any frame, by the table of stream states in ``streams`` (RFC 9113).

``FrameLoop`` finds the frames. It handles those of plain unary calls itself, and calls ``Receiver`` with all others.
"""

from __future__ import annotations

from typing import TypeVar

from toutates.h2grpc.call import Call
from toutates.h2grpc.events import Event, StreamOpened, tell_handler
from toutates.h2grpc.faults import ConnectionFault, StreamFault
from toutates.h2grpc.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    MAX_WINDOW,
    PADDED,
    PING,
    PRIORITY,
    PRIORITY_FLAG,
    RST_STREAM,
    SETTINGS,
    UINT32,
    WINDOW_UPDATE,
    ErrorCodes,
    FrameType,
    pack_frame,
)
from toutates.h2grpc.headers import PlainRequestHead, RequestHead
from toutates.h2grpc.parts import Parts
from toutates.h2grpc.plain import PlainCall
from toutates.h2grpc.responder import FRAMES_AT_ONCE
from toutates.h2grpc.status import CallRefused, LimitExceeded
from toutates.h2grpc.streams import IDLE, PEER_RESET, Input

__all__ = ["Receiver"]

_unpack_uint32 = UINT32.unpack_from

#: A SETTINGS frame may change the window of every open stream. For each so many of them, which take a millisecond, it
#: counts for one more of its allowance.
STREAMS_PER_SETTINGS = 2_048

_ON_CONNECTION = frozenset((SETTINGS, PING, GOAWAY))


class Receiver:
    """Handles the frames of one connection that ``FrameLoop`` does not handle itself.

    Args:
        parts: of the connection.
    """

    __slots__ = (
        "_blocks",
        "_deadlines",
        "_goodbye",
        "_header_reader",
        "_held",
        "_limit_hits",
        "_limits",
        "_output",
        "_queue",
        "_requests",
        "_responder",
        "_settings",
        "_spending",
        "_table",
        "_windows",
    )

    def __init__(self, parts: Parts) -> None:
        self._blocks = parts.blocks
        self._deadlines = parts.deadlines
        self._goodbye = parts.goodbye
        self._header_reader = parts.header_reader
        self._held = parts.held
        self._limit_hits = parts.shared.limit_hits
        self._limits = parts.limits
        self._output = parts.output
        self._queue = parts.queue
        self._requests = parts.requests
        self._responder = parts.responder
        self._settings = parts.settings
        self._spending = parts.spending
        self._table = parts.table
        self._windows = parts.windows

    # --- any frame ---------------------------------------------------------------------------------------------------

    def receive(
        self,
        frame_type: int,
        flags: int,
        stream_id: int,
        data: bytes,
        start: int,
        end: int,
        now_ns: int,
        events: list[Event],
    ) -> None:
        """Handle the frame whose payload is ``data[start:end]``.

        Raises:
            ConnectionFault: the connection has to end.
        """
        self._requests.now_ns = now_ns
        if not self._settings.seen and (frame_type != SETTINGS or flags & ACK):
            raise ConnectionFault(ErrorCodes.PROTOCOL_ERROR, "the first frame is not SETTINGS")
        if self._blocks.stream_id and (frame_type != CONTINUATION or stream_id != self._blocks.stream_id):
            raise ConnectionFault(ErrorCodes.PROTOCOL_ERROR, "header block interrupted by another frame")
        if frame_type > CONTINUATION:
            self._spend("other_frames", "frames of unknown types", now_ns)
            return  # RFC 9113 section 4.1: unknown types are ignored
        if (stream_id == 0) is not (frame_type in _ON_CONNECTION) and frame_type != WINDOW_UPDATE:
            raise ConnectionFault(ErrorCodes.PROTOCOL_ERROR, f"{FrameType(frame_type).name} on stream {stream_id}")
        try:
            if frame_type == DATA:
                if not flags & END_STREAM and (start == end or (flags & PADDED and data[start] == end - start - 1)):
                    self._spend("empty_frames", "empty DATA frames", now_ns)
                self._receive_data(flags, stream_id, end - start, memoryview(data)[start:end], events)
            elif frame_type == HEADERS:
                self._receive_headers(flags, stream_id, data[start:end], now_ns, events)
            elif frame_type == CONTINUATION:
                self._receive_continuation(flags, data[start:end], now_ns, events)
            elif frame_type == WINDOW_UPDATE:
                self._spend("window_updates", "WINDOW_UPDATE frames for what they let us send", now_ns)
                self._receive_window_update(stream_id, data[start:end])
            elif frame_type == RST_STREAM:
                self._spend("resets", "RST_STREAM frames for the calls made", now_ns)
                self._receive_rst_stream(stream_id, data[start:end], events)
            elif frame_type == SETTINGS:
                cost = 1 + len(self._table.streams) // STREAMS_PER_SETTINGS
                self._spend("settings", "SETTINGS frames", now_ns, cost)
                self._receive_settings(flags, data[start:end])
            elif frame_type == PING:
                self._spend("pings", "PING frames for the calls made", now_ns)
                self._receive_ping(flags, data[start:end])
            elif frame_type == PRIORITY:
                self._spend("other_frames", "PRIORITY frames", now_ns)
                self._receive_priority(stream_id, end - start)
            elif frame_type == GOAWAY:
                self._spend("other_frames", "GOAWAY frames", now_ns)
                if end - start < 8:
                    raise ConnectionFault(ErrorCodes.FRAME_SIZE_ERROR, "GOAWAY is shorter than 8 bytes")
            else:
                raise ConnectionFault(ErrorCodes.PROTOCOL_ERROR, "PUSH_PROMISE from a client")
        except StreamFault as fault:
            self._give_up_stream(fault, now_ns, events)

    def receive_landed(
        self, flags: int, stream_id: int, size: int, unchecked: int, now_ns: int, events: list[Event]
    ) -> None:
        """Handle a DATA frame without padding whose payload, of ``size`` bytes, is in its message's memory already.

        Args:
            unchecked: as of ``Requests.landed``.

        Raises:
            ConnectionFault: the connection has to end.
        """
        self._requests.now_ns = now_ns
        try:
            self._receive_data(flags, stream_id, size, None, events, unchecked)
        except StreamFault as fault:
            self._give_up_stream(fault, now_ns, events)

    def receive_rest(self, call: Call, unchecked: int, now_ns: int, events: list[Event]) -> None:
        """Handle the end of a request whose last DATA frames are in its message's memory, and settled but for that.

        Args:
            unchecked: as of ``Requests.landed``.
        """
        requests = self._requests
        requests.now_ns = now_ns
        requests.half_close(call)
        requests.landed(call, unchecked, events)
        requests.complete(call, events)

    def _spend(self, limit: str, frames: str, now_ns: int, cost: int = 1) -> None:
        work = (self._table.last_id >> 1) + self._queue.sent_kib
        self._spending.spend(limit, frames, now_ns, work, cost)

    # --- streams -----------------------------------------------------------------------------------------------------

    def _give_up_stream(self, fault: StreamFault, now_ns: int, events: list[Event]) -> None:
        """Reset a stream for the peer's mistake, and charge the peer, as its request may still run (CVE-2025-8671)."""
        if fault.limit:
            self._limit_hits[fault.limit] += 1
        self.reset_stream(fault.stream_id, fault.code, events)
        self._spend("resets", "mistakes that reset streams", now_ns)

    def reset_stream(self, stream_id: int, code: ErrorCodes, events: list[Event]) -> None:
        """Send RST_STREAM and end the stream's call, if it is open."""
        call = self._table.streams.get(stream_id)
        if call is not None:
            self._cancel(call, events)
        self._responder.send_reset(stream_id, code)

    def _cancel(self, call: Call, events: list[Event]) -> None:
        tell_handler(call, events)
        self._responder.forget(call)
        self._table.cancelled = True

    def _receive_rst_stream(self, stream_id: int, payload: bytes, events: list[Event]) -> None:
        if len(payload) != 4:
            raise ConnectionFault(ErrorCodes.FRAME_SIZE_ERROR, "RST_STREAM is not 4 bytes long")
        if self._table.accepts(stream_id, Input.RECV_RST_STREAM):
            self._cancel(self._table.streams[stream_id], events)
            self._table.remember_reset(stream_id, PEER_RESET)

    def _receive_priority(self, stream_id: int, size: int) -> None:
        if size != 5:
            text = "PRIORITY is not 5 bytes long"
            if self._table.state(stream_id) is IDLE:  # which cannot be reset
                raise ConnectionFault(ErrorCodes.FRAME_SIZE_ERROR, text)
            raise StreamFault(stream_id, ErrorCodes.FRAME_SIZE_ERROR, text)

    # --- HEADERS -----------------------------------------------------------------------------------------------------

    def _receive_headers(self, flags: int, stream_id: int, payload: bytes, now_ns: int, events: list[Event]) -> None:
        block = _strip_padding(payload, flags)
        if flags & PRIORITY_FLAG:
            if len(block) < 5:
                raise ConnectionFault(ErrorCodes.FRAME_SIZE_ERROR, "HEADERS is too short for its priority")
            block = block[5:]
        if flags & END_HEADERS:
            self._receive_block(flags, stream_id, block, now_ns, events)
        else:
            self._blocks.begin(stream_id, flags, block)

    def _receive_continuation(self, flags: int, payload: bytes, now_ns: int, events: list[Event]) -> None:
        stream_id = self._blocks.stream_id
        self._blocks.add(payload)
        if flags & END_HEADERS:
            first_flags, block = self._blocks.take()
            self._receive_block(first_flags, stream_id, block, now_ns, events)

    def _receive_block(self, flags: int, stream_id: int, block: bytes, now_ns: int, events: list[Event]) -> None:
        """Handle a whole header block: that of a request, or a request's trailer section."""
        table = self._table
        self._blocks.check_size(len(block))
        if table.state(stream_id) is IDLE:
            if not stream_id & 1:
                raise ConnectionFault(ErrorCodes.PROTOCOL_ERROR, f"stream {stream_id} has a server's number")
            head = self._header_reader.memory.get(block) or self._header_reader.read(block)
            self._open_stream(flags, stream_id, head, now_ns, events)
            return
        # A block that is ignored has to be decoded too, because it may change the dynamic table (RFC 9113 section 4.3).
        malformed = self._header_reader.read_trailers(block)
        if stream_id > table.highest_accepted_id:
            return
        if table.was_skipped(stream_id):
            raise ConnectionFault(ErrorCodes.PROTOCOL_ERROR, f"stream {stream_id} is below the last one opened")
        if not table.accepts(stream_id, Input.RECV_HEADERS):
            return
        if not flags & END_STREAM:
            raise StreamFault(stream_id, ErrorCodes.PROTOCOL_ERROR, "a trailer section must end the stream")
        if malformed:
            raise StreamFault(stream_id, ErrorCodes.PROTOCOL_ERROR, malformed)
        call = table.streams[stream_id]
        self._requests.half_close(call)
        self._requests.complete(call, events)

    def open_unusual_stream(self, stream_id: int, head: RequestHead, now_ns: int, events: list[Event]) -> None:
        """Open a stream whose head names no method that may be called, or has many fields."""
        try:
            self._open_stream(END_HEADERS, stream_id, head, now_ns, events)
        except StreamFault as fault:
            self._give_up_stream(fault, now_ns, events)

    def _open_stream(self, flags: int, stream_id: int, head: RequestHead, now_ns: int, events: list[Event]) -> None:
        table = self._table
        table.advance(stream_id)
        if stream_id > table.highest_accepted_id:
            return  # sent before our last GOAWAY came; the client makes the call elsewhere (RFC 9113 section 6.8)
        most = table.most(self._queue.bytes_waiting)
        if len(table.streams) >= most:
            if len(table.streams) >= self._limits.max_concurrent_streams:
                limit = "streams"
            else:
                limit = "server_buffer" if most else "unread_responses"
            raise StreamFault(stream_id, ErrorCodes.REFUSED_STREAM, "too many concurrent streams", limit)
        if head.malformed:
            raise StreamFault(stream_id, ErrorCodes.PROTOCOL_ERROR, head.malformed)
        if head.kept_bytes and not self._held.has_room_for_head(head.kept_bytes):
            text = "no memory for the request's header fields"
            raise StreamFault(stream_id, ErrorCodes.REFUSED_STREAM, text, "server_buffer")
        if isinstance(head.error, CallRefused):
            self._spend("resets", "calls that are refused", now_ns, head.error.cost)
        make = Call
        if isinstance(head, PlainRequestHead):
            make = PlainCall
            if head.cost:
                self._spend("resets", "requests that are refused", now_ns, head.cost)
        call = make(self._responder, stream_id, head, self._settings.stream_window, self._limits.stream_window)
        table.streams[stream_id] = call
        if head.kept_bytes:
            self._held.hold_head(call)
        if head.timeout_ns is not None:
            self._deadlines.set(call, now_ns)
        if call.is_streaming and not self.begin_stream(call, events):
            return
        if flags & END_STREAM:
            self._requests.half_close(call)
            self._requests.complete(call, events)
        elif head.error is not None:
            self._requests.refuse(call, head.error)
        elif isinstance(call, PlainCall):
            self._requests.plain.begin(call, events)

    def begin_stream(self, call: Call, events: list[Event]) -> bool:
        """Have the driver start a streaming call's handler, if there is memory for its task; whether there is.

        A handler of single messages has no task, and hears of the call with its first message.
        """
        if call.head.method is not None and call.head.method.message is not None:
            return True
        try:
            self._held.hold_task(call)
        except LimitExceeded as error:
            self._requests.refuse(call, error)
            return False
        events.append(StreamOpened(call))
        return True

    # --- DATA --------------------------------------------------------------------------------------------------------

    def _receive_data(
        self,
        flags: int,
        stream_id: int,
        size: int,
        payload: memoryview | None,
        events: list[Event],
        unchecked: int = 0,
    ) -> None:
        """Handle a DATA frame of ``size`` bytes; ``payload`` is None if they are in their message's memory already."""
        # The connection's window counts every DATA frame, also those that are then ignored (RFC 9113 section 6.9).
        self._windows.take(size)
        body = None if payload is None else _strip_padding(payload, flags)
        if stream_id > self._table.highest_accepted_id or not self._table.accepts(stream_id, Input.RECV_DATA):
            return
        call = self._table.streams[stream_id]
        call.receive_window -= size
        if call.receive_window < 0:
            raise StreamFault(stream_id, ErrorCodes.FLOW_CONTROL_ERROR, "DATA exceeds the stream's window")
        call.received += size if body is None else len(body)
        announced = call.head.content_length
        if announced is not None and call.received > announced:
            raise StreamFault(stream_id, ErrorCodes.PROTOCOL_ERROR, "DATA exceeds content-length")
        if flags & END_STREAM:
            self._requests.half_close(call)
        if call.head.method is not None and call.open:
            if body is None:
                self._requests.landed(call, unchecked, events)
            else:
                self._requests.feed(call, body, events)
        elif call.open and isinstance(call, PlainCall):
            if body is None:
                self._requests.plain.landed(call, unchecked, events)
            elif body:
                self._requests.plain.feed(call, body, events)
        if stream_id not in self._table.streams:
            return  # the call was answered with an error, which closed the stream
        if flags & END_STREAM:
            self._requests.complete(call, events)
        else:
            self._windows.refill_stream(call)

    # --- the connection ----------------------------------------------------------------------------------------------

    def _receive_window_update(self, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ConnectionFault(ErrorCodes.FRAME_SIZE_ERROR, "WINDOW_UPDATE is not 4 bytes long")
        increment = _unpack_uint32(payload)[0] & MAX_WINDOW
        if stream_id == 0:
            self._windows.credit(increment)
            self._responder.pump_blocked()
        elif self._table.accepts(stream_id, Input.RECV_WINDOW_UPDATE):
            call = self._table.streams[stream_id]
            self._windows.credit_stream(call, increment)
            if call.outbox:
                self._responder.pump(call, FRAMES_AT_ONCE)

    def _receive_settings(self, flags: int, payload: bytes) -> None:
        if flags & ACK:
            if payload:
                raise ConnectionFault(ErrorCodes.FRAME_SIZE_ERROR, "SETTINGS ACK is not empty")
            return
        streams = self._table.streams.values()
        change = self._settings.receive(payload)
        if change:
            self._windows.change_streams(streams, change)
        self._responder.fit_short_replies()
        # The peer may enforce its old values until it has read this ACK, so it goes before DATA that uses the new ones.
        self._output.write(pack_frame(SETTINGS, ACK, 0))
        if change > 0:
            self._queue.unblock(streams)
            self._responder.pump_blocked()

    def _receive_ping(self, flags: int, payload: bytes) -> None:
        if len(payload) != 8:
            raise ConnectionFault(ErrorCodes.FRAME_SIZE_ERROR, "PING is not 8 bytes long")
        if flags & ACK:
            self._goodbye.take_pong(payload)
        else:
            self._output.write(pack_frame(PING, ACK, 0, payload))


_Payload = TypeVar("_Payload", bytes, memoryview)


def _strip_padding(payload: _Payload, flags: int) -> _Payload:
    """A payload without its padding (RFC 9113 section 6.1)."""
    if not flags & PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise ConnectionFault(ErrorCodes.PROTOCOL_ERROR, "padding is longer than the frame")
    return payload[1 : len(payload) - payload[0]]
