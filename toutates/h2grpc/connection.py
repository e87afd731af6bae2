"""One server connection, sans-IO: bytes in, calls out; replies in, bytes out (RFC 9113).

    driver                           ServerConnection
      receive_data(data, now) ──────▶  frames ▶ streams ▶ calls ──▶ [events]
      call.reply(...) / call.fail() ▶  frames within the peer's windows
      take_output() ◀───────────────  [bytes]

It has no socket, no clock and no thread: the driver says what time it is, and the same bytes give the same events however
they are cut. The driver's duties: hand in received data, send ``take_output()`` of every connection in ``dirty``, call
``expire`` at ``next_deadline_ns``, and close the socket after ConnectionTerminated.

A connection is used by one thread only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, TypeVar

from toutates.h2grpc.call import NEVER, Call
from toutates.h2grpc.events import (
    CallCancelled,
    ConnectionTerminated,
    Event,
    MessageReceived,
    RequestEnded,
    StreamOpened,
)
from toutates.h2grpc.frames import (
    ACK,
    CONTINUATION,
    DATA,
    DEFAULT_MAX_FRAME_SIZE,
    DEFAULT_WINDOW,
    END_HEADERS,
    END_STREAM,
    FRAME_HEAD,
    FRAME_HEAD_SIZE,
    GOAWAY,
    HEADERS,
    LARGEST_MAX_FRAME_SIZE,
    MAX_STREAM_ID,
    MAX_WINDOW,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    PRIORITY_FLAG,
    RST_STREAM,
    SETTINGS,
    UINT32,
    WINDOW_UPDATE,
    ErrorCodes,
    FrameType,
    SettingCodes,
    pack_frame,
    pack_goaway,
    pack_settings,
    pack_window_update,
)
from toutates.h2grpc.headers import HeaderBlockError, HeaderReader, RequestHead
from toutates.h2grpc.limits import Limits
from toutates.h2grpc.messages import MessageAssembler
from toutates.h2grpc.method import Method
from toutates.h2grpc.preface import HTTP1_ANSWER, Opening, recognise
from toutates.h2grpc.sender import Sender
from toutates.h2grpc.status import GrpcError, Status
from toutates.h2grpc.streams import (
    ACCEPT,
    CLOSED,
    CONNECTION_PROTOCOL_ERROR,
    CONNECTION_STREAM_CLOSED,
    HALF_CLOSED_REMOTE,
    IDLE,
    IGNORE,
    OPEN,
    PEER_RESET,
    TRANSITIONS,
    Input,
    State,
)

__all__ = ["ServerConnection"]

_unpack_frame_head = FRAME_HEAD.unpack_from
_unpack_uint32 = UINT32.unpack_from

#: The PING that follows the first GOAWAY of a graceful shutdown; its ACK shows that the peer has read the GOAWAY.
SHUTDOWN_PING = b"goodbye!"


class ConnectionFault(Exception):
    """The peer broke the protocol beyond one stream: GOAWAY with this code, and the end."""

    def __init__(self, code: ErrorCodes, text: str) -> None:
        super().__init__(text)
        self.code = code


class StreamFault(Exception):
    """The peer broke the protocol on one stream: RST_STREAM with this code."""

    def __init__(self, stream_id: int, code: ErrorCodes, text: str) -> None:
        super().__init__(text)
        self.stream_id = stream_id
        self.code = code


class ServerConnection(Sender):
    """See the module.

    Args:
        methods: the services' table, by ``:path`` (``method.method_table``).
        limits: bounds; also what SETTINGS advertise.
        dirty: where the connection puts itself once it has output for the driver to send.
        response_encoding: ``gzip`` or ``deflate`` for the responses of compressible methods, "" for none.
    """

    def __init__(
        self, methods: Mapping[bytes, Method], limits: Limits, dirty: list[Any], *, response_encoding: str = ""
    ) -> None:
        super().__init__(limits, dirty)
        self._header_reader = HeaderReader(methods, limits, response_encoding)
        self._remembered = self._header_reader.memory
        #: received bytes that do not make a whole frame yet, and how many it takes to go on
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._needed_bytes = 0
        self._preface_seen = False
        self._settings_seen = False
        self._last_stream_id = 0
        #: (low, high) numbers between which the peer skipped streams, so that they are not taken for closed ones
        self._skipped: deque[tuple[int, int]] = deque(maxlen=64)
        #: streams above it came after our last GOAWAY and are ignored
        self._highest_accepted_id = MAX_STREAM_ID
        self._shutting_down = False
        #: a header block waiting for its CONTINUATIONs: stream, flags, fragments
        self._open_block: tuple[int, int, list[bytes]] | None = None
        self._receive_window = limits.connection_window
        #: the largest unary message that may take the short way: within the message limit and the stream's window
        self._short_message_limit = min(limits.max_message_size, limits.stream_window - 5)
        #: the earliest moment at which ``expire`` may have something to do
        self.next_deadline_ns = NEVER

    # --- what the driver calls ---------------------------------------------------------------------------------------

    def receive_data(self, data: bytes, now_ns: int) -> list[Event]:
        """Take received bytes; returns what they completed, in order.

        Args:
            data: bytes as they came from the socket, cut anywhere.
            now_ns: the time, from which ``grpc-timeout`` counts, on any monotonic clock.
        """
        if self.closed:
            return []
        if self._held:
            self._held.append(data)
            self._held_bytes += len(data)
            if self._held_bytes < self._needed_bytes:
                return []
            data = b"".join(self._held)
            self._held = []
        events: list[Event] = []
        try:
            start = 0 if self._preface_seen else self._receive_preface(data, events)
            if start is not None:
                self._receive_frames(data, start, now_ns, events)
        except ConnectionFault as fault:
            self._terminate(fault.code, str(fault), events)
        except HeaderBlockError as error:
            code = ErrorCodes.ENHANCE_YOUR_CALM if error.hostile else ErrorCodes.COMPRESSION_ERROR
            self._terminate(code, str(error), events)
        return events

    def connection_lost(self) -> list[Event]:
        """The socket is gone. Every call is over; returns the streaming ones, for their handlers to end."""
        events: list[Event] = []
        self.closed = True
        self._abandon_calls(events)
        return events

    def expire(self, now_ns: int) -> list[Event]:
        """Fail the calls whose deadline has passed with DEADLINE_EXCEEDED; returns the streaming ones.

        Looks at every open call, so that calls which end in time, nearly all of them, cost nothing but a comparison.
        """
        events: list[Event] = []
        self.next_deadline_ns = NEVER
        for call in list(self.streams.values()):
            if call.deadline_ns <= now_ns and not call.open:
                self._reset_stream(call.stream_id, ErrorCodes.CANCEL, events)  # answered, but the peer takes no more
            elif call.deadline_ns <= now_ns:
                call.fail(Status.DEADLINE_EXCEEDED, "Deadline Exceeded")
                _cancel_stream(call, events)
            elif call.deadline_ns < self.next_deadline_ns:
                self.next_deadline_ns = call.deadline_ns
        return events

    def message_read(self, call: Call, size: int) -> None:
        """The handler of a streaming call has taken a message of ``size`` bytes: its window goes back to the peer."""
        call.unread_bytes -= size
        if call.stream_id in self.streams and call.state is OPEN:
            self._return_stream_window(call)

    def refuse(self, reason: str) -> None:
        """Turn the connection away before it begins; the driver then closes it."""
        self._send_preface()
        self._terminate(ErrorCodes.NO_ERROR, reason, [])

    def begin_shutdown(self) -> None:
        """Say goodbye: calls begun and under way are answered, new ones belong elsewhere (RFC 9113 section 6.8).

        A first GOAWAY with the highest stream number and a PING; the peer's answer to the PING, or ``finish_shutdown``
        called by an impatient driver, sends the second with the number of the last stream that will be answered.
        """
        if not (self._shutting_down or self.closed):
            self._shutting_down = True
            self._write(pack_goaway(MAX_STREAM_ID, ErrorCodes.NO_ERROR, "server is shutting down"))
            self._write(pack_frame(PING, 0, 0, SHUTDOWN_PING))

    def finish_shutdown(self) -> None:
        """Send the GOAWAY after which no new stream is answered."""
        self.begin_shutdown()
        if self._highest_accepted_id == MAX_STREAM_ID and not self.closed:
            self._highest_accepted_id = self._last_stream_id
            self._write(pack_goaway(self._last_stream_id, ErrorCodes.NO_ERROR, "server is shutting down"))

    @property
    def drained(self) -> bool:
        """Whether a shutdown is complete: the last GOAWAY is out and no call is left."""
        return self._highest_accepted_id != MAX_STREAM_ID and not self.streams

    @property
    def open_calls(self) -> int:
        """Streams that are not closed."""
        return len(self.streams)

    # --- frames ------------------------------------------------------------------------------------------------------

    def _receive_preface(self, data: bytes, events: list[Event]) -> int | None:
        """Where frames begin, or None while that is not known or never will be."""
        opening = recognise(data, self._limits.max_preface_bytes)
        if opening is Opening.INCOMPLETE:
            self._hold(data, len(data) + 1)
            return None
        if opening is Opening.HTTP1:
            self._write(HTTP1_ANSWER)
            self.closed = True
            events.append(ConnectionTerminated(ErrorCodes.HTTP_1_1_REQUIRED, "HTTP/1 request on a gRPC port"))
            return None
        # Ours goes out only now, since an HTTP/1 client could not read it.
        self._send_preface()
        if opening is Opening.GARBAGE:
            raise ConnectionFault(ErrorCodes.PROTOCOL_ERROR, "invalid connection preface")
        self._preface_seen = True
        return len(PREFACE)

    def _send_preface(self) -> None:
        limits = self._limits
        settings = {
            SettingCodes.MAX_CONCURRENT_STREAMS: limits.max_concurrent_streams,
            SettingCodes.INITIAL_WINDOW_SIZE: limits.stream_window,
            SettingCodes.MAX_FRAME_SIZE: limits.max_frame_size,
            SettingCodes.MAX_HEADER_LIST_SIZE: limits.max_header_list_size,
        }
        self._write(pack_settings({int(code): value for code, value in settings.items()}))
        if limits.connection_window > DEFAULT_WINDOW:
            self._write(pack_window_update(0, limits.connection_window - DEFAULT_WINDOW))

    def _hold(self, rest: bytes, needed: int) -> None:
        self._held = [rest]
        self._held_bytes = len(rest)
        self._needed_bytes = needed

    def _receive_frames(self, data: bytes, at: int, now_ns: int, events: list[Event]) -> None:
        """Walk the frames of ``data`` from ``at``; keep what is not whole.

        The frames that make up a unary call (HEADERS that opens a stream, DATA that completes it, the WINDOW_UPDATEs
        that C-core adds) are handled in this loop when they are of the plain kind. Everything else, and every doubt, goes
        to ``_receive_frame``, which does the same work by the table in ``streams``. A call per frame would cost 0.3 us
        a request, and attribute look-ups as much again, hence the local names.
        """
        end_of_data = len(data)
        largest = self._limits.max_frame_size
        streams = self.streams
        remembered = self._remembered
        max_streams = self._limits.max_concurrent_streams
        while end_of_data - at >= FRAME_HEAD_SIZE:
            word, flags, stream_id = _unpack_frame_head(data, at)
            length = word >> 8
            if length > largest:
                raise ConnectionFault(ErrorCodes.FRAME_SIZE_ERROR, f"frame of {length} bytes, at most {largest} allowed")
            payload = at + FRAME_HEAD_SIZE
            end = payload + length
            if end > end_of_data:
                self._hold(data[at:], FRAME_HEAD_SIZE + length)
                return
            at = end
            frame_type = word & 0xFF
            if self._open_block is None and self._settings_seen:
                if frame_type == DATA:
                    call = streams.get(stream_id)
                    size = length - 5
                    if (
                        call is not None
                        and flags == END_STREAM
                        and call.state is OPEN
                        and call.open
                        and call.received == 0
                        and 0 <= size <= self._short_message_limit
                        and data[payload] == 0
                        and _unpack_uint32(data, payload + 1)[0] == size
                        and call.head.method is not None
                        and call.head.method.unary is not None
                        and (call.head.content_length is None or call.head.content_length == length)
                        and length <= self._receive_window
                    ):
                        call.state = HALF_CLOSED_REMOTE
                        call.buffer = data
                        call.start = payload + 5
                        call.end = end
                        self._receive_window -= length
                        if self._receive_window < self._limits.connection_window >> 1:
                            self._return_connection_window()
                        events.append(call)
                        continue
                elif frame_type == HEADERS:
                    if flags == END_HEADERS and stream_id == self._last_stream_id + 2 and len(streams) < max_streams:
                        head = remembered.get(data[payload:end])
                        if head is not None and head.method is not None and stream_id <= self._highest_accepted_id:
                            self._last_stream_id = stream_id
                            call = Call(self, stream_id, head, self._peer_stream_window, self._limits.stream_window)
                            streams[stream_id] = call
                            if head.timeout_ns is not None:
                                self._set_deadline(call, now_ns)
                            if head.method.unary is None:
                                events.append(StreamOpened(call))
                            continue
                elif frame_type == WINDOW_UPDATE and length == 4:
                    increment = _unpack_uint32(data, payload)[0] & MAX_WINDOW
                    if stream_id == 0:
                        if increment and not self._blocked and self._send_window + increment <= MAX_WINDOW:
                            self._send_window += increment
                            continue
                    elif (call := streams.get(stream_id)) is None:
                        # C-core credits streams that are closed by now; those of the future are an error
                        if increment and stream_id & 1 and stream_id <= self._last_stream_id:
                            continue
                    elif increment and not call.outbox and call.send_window + increment <= MAX_WINDOW:
                        call.send_window += increment
                        continue
            try:
                self._receive_frame(frame_type, flags, stream_id & MAX_STREAM_ID, data, payload, end, now_ns, events)
            except StreamFault as fault:
                self._reset_stream(fault.stream_id, fault.code, events)
        if at < end_of_data:
            self._hold(data[at:], FRAME_HEAD_SIZE)

    def _receive_frame(
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
        if not self._settings_seen and (frame_type != SETTINGS or flags & ACK):
            raise ConnectionFault(ErrorCodes.PROTOCOL_ERROR, "the first frame is not SETTINGS")
        if self._open_block is not None and (frame_type != CONTINUATION or stream_id != self._open_block[0]):
            raise ConnectionFault(ErrorCodes.PROTOCOL_ERROR, "header block interrupted by another frame")
        if frame_type > CONTINUATION:
            return  # RFC 9113 section 4.1: unknown types are ignored
        if (stream_id == 0) is not (frame_type in _ON_CONNECTION) and frame_type != WINDOW_UPDATE:
            raise ConnectionFault(ErrorCodes.PROTOCOL_ERROR, f"{FrameType(frame_type).name} on stream {stream_id}")
        if frame_type == DATA:
            self._receive_data_frame(flags, stream_id, memoryview(data)[start:end], events)
        elif frame_type == HEADERS:
            self._receive_headers(flags, stream_id, data[start:end], now_ns, events)
        elif frame_type == CONTINUATION:
            self._receive_continuation(flags, data[start:end], now_ns, events)
        elif frame_type == WINDOW_UPDATE:
            self._receive_window_update(stream_id, data[start:end])
        elif frame_type == RST_STREAM:
            self._receive_rst_stream(stream_id, data[start:end], events)
        elif frame_type == SETTINGS:
            self._receive_settings(flags, data[start:end])
        elif frame_type == PING:
            self._receive_ping(flags, data[start:end])
        elif frame_type == PRIORITY:
            if end - start != 5:
                raise StreamFault(stream_id, ErrorCodes.FRAME_SIZE_ERROR, "PRIORITY is not 5 bytes long")
        elif frame_type == GOAWAY:
            if end - start < 8:
                raise ConnectionFault(ErrorCodes.FRAME_SIZE_ERROR, "GOAWAY is shorter than 8 bytes")
        else:
            raise ConnectionFault(ErrorCodes.PROTOCOL_ERROR, "PUSH_PROMISE from a client")

    # --- streams -----------------------------------------------------------------------------------------------------

    def _state(self, stream_id: int) -> State:
        call = self.streams.get(stream_id)
        if call is not None:
            return call.state
        if stream_id in self._reset:
            return self._reset[stream_id]
        return IDLE if stream_id > self._last_stream_id or not stream_id & 1 else CLOSED

    def _input(self, stream_id: int, stream_input: Input) -> bool:
        """Whether the table accepts this; raises what it calls an error."""
        action = TRANSITIONS[self._state(stream_id)][stream_input][0]
        if action is ACCEPT:
            return True
        if action is IGNORE:
            return False
        text = f"{stream_input.name} on stream {stream_id} in state {self._state(stream_id).name}"
        if action is CONNECTION_PROTOCOL_ERROR:
            raise ConnectionFault(ErrorCodes.PROTOCOL_ERROR, text)
        if action is CONNECTION_STREAM_CLOSED:
            raise ConnectionFault(ErrorCodes.STREAM_CLOSED, text)
        raise StreamFault(stream_id, ErrorCodes.STREAM_CLOSED, text)

    def _reset_stream(self, stream_id: int, code: ErrorCodes, events: list[Event]) -> None:
        call = self.streams.get(stream_id)
        if call is not None:
            _cancel_stream(call, events)
            self._forget(call)
        self._send_reset(stream_id, code)

    def _receive_rst_stream(self, stream_id: int, payload: bytes, events: list[Event]) -> None:
        if len(payload) != 4:
            raise ConnectionFault(ErrorCodes.FRAME_SIZE_ERROR, "RST_STREAM is not 4 bytes long")
        if self._input(stream_id, Input.RECV_RST_STREAM):
            call = self.streams[stream_id]
            _cancel_stream(call, events)
            self._forget(call)
            self._remember_reset(stream_id, PEER_RESET)

    def _set_deadline(self, call: Call, now_ns: int) -> None:
        assert call.head.timeout_ns is not None
        call.deadline_ns = now_ns + call.head.timeout_ns
        if call.deadline_ns < self.next_deadline_ns:
            self.next_deadline_ns = call.deadline_ns

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
            self._open_block = (stream_id, flags, [block])

    def _receive_continuation(self, flags: int, payload: bytes, now_ns: int, events: list[Event]) -> None:
        if self._open_block is None:
            raise ConnectionFault(ErrorCodes.PROTOCOL_ERROR, "CONTINUATION without a header block")
        stream_id, first_flags, fragments = self._open_block
        fragments.append(payload)
        if len(fragments) > self._limits.max_continuations + 1:
            raise ConnectionFault(ErrorCodes.ENHANCE_YOUR_CALM, "header block in too many CONTINUATION frames")
        if sum(map(len, fragments)) > self._limits.max_header_block_size:
            raise ConnectionFault(ErrorCodes.ENHANCE_YOUR_CALM, "header block is too large")
        if flags & END_HEADERS:
            self._open_block = None
            self._receive_block(first_flags, stream_id, b"".join(fragments), now_ns, events)

    def _receive_block(self, flags: int, stream_id: int, block: bytes, now_ns: int, events: list[Event]) -> None:
        """A whole header block: a request, or the trailer section of one."""
        state = self._state(stream_id)
        if len(block) > self._limits.max_header_block_size:
            raise ConnectionFault(ErrorCodes.ENHANCE_YOUR_CALM, "header block is too large")
        if state is IDLE:
            if not stream_id & 1:
                raise ConnectionFault(ErrorCodes.PROTOCOL_ERROR, f"stream {stream_id} has a server's number")
            head = self._remembered.get(block) or self._header_reader.read(block)
            self._open_stream(flags, stream_id, head, now_ns, events)
            return
        # Whatever becomes of it, a block has to be decoded to keep the table in step (RFC 9113 section 4.3).
        malformed = self._header_reader.read_trailers(block)
        if stream_id > self._highest_accepted_id:
            return
        if any(low < stream_id < high for low, high in self._skipped):
            raise ConnectionFault(ErrorCodes.PROTOCOL_ERROR, f"stream {stream_id} is below the last one opened")
        if not self._input(stream_id, Input.RECV_HEADERS):
            return
        if not flags & END_STREAM:
            raise StreamFault(stream_id, ErrorCodes.PROTOCOL_ERROR, "a trailer section must end the stream")
        if malformed:
            raise StreamFault(stream_id, ErrorCodes.PROTOCOL_ERROR, malformed)
        self._end_request(self.streams[stream_id], events)

    def _open_stream(self, flags: int, stream_id: int, head: RequestHead, now_ns: int, events: list[Event]) -> None:
        if stream_id > self._last_stream_id + 2:
            self._skipped.append((self._last_stream_id, stream_id))
        self._last_stream_id = stream_id
        if stream_id > self._highest_accepted_id:
            return  # it crossed our last GOAWAY; its caller tries elsewhere (RFC 9113 section 6.8)
        if len(self.streams) >= self._limits.max_concurrent_streams:
            raise StreamFault(stream_id, ErrorCodes.REFUSED_STREAM, "too many concurrent streams")
        if head.malformed:
            raise StreamFault(stream_id, ErrorCodes.PROTOCOL_ERROR, head.malformed)
        call = Call(self, stream_id, head, self._peer_stream_window, self._limits.stream_window)
        self.streams[stream_id] = call
        if head.timeout_ns is not None:
            self._set_deadline(call, now_ns)
        if head.method is not None and head.method.unary is None:
            events.append(StreamOpened(call))
        if flags & END_STREAM:
            self._end_request(call, events)
        elif head.error is not None:
            call.fail(head.error.status, head.error.text, head.error.metadata)

    # --- DATA --------------------------------------------------------------------------------------------------------

    def _receive_data_frame(self, flags: int, stream_id: int, payload: memoryview, events: list[Event]) -> None:
        # The connection's window counts every DATA frame, also those that are then ignored (RFC 9113 section 6.9).
        size = len(payload)
        self._receive_window -= size
        if self._receive_window < 0:
            raise ConnectionFault(ErrorCodes.FLOW_CONTROL_ERROR, "DATA exceeds the connection's window")
        if self._receive_window < self._limits.connection_window >> 1:
            self._return_connection_window()
        body = _strip_padding(payload, flags)
        if stream_id > self._highest_accepted_id or not self._input(stream_id, Input.RECV_DATA):
            return
        call = self.streams[stream_id]
        call.receive_window -= size
        if call.receive_window < 0:
            raise StreamFault(stream_id, ErrorCodes.FLOW_CONTROL_ERROR, "DATA exceeds the stream's window")
        call.received += len(body)
        announced = call.head.content_length
        if announced is not None and call.received > announced:
            raise StreamFault(stream_id, ErrorCodes.PROTOCOL_ERROR, "DATA exceeds content-length")
        if call.head.method is not None and call.open:
            self._assemble(call, body, events)
        if stream_id not in self.streams:
            return  # answered with an error, which closed it
        if flags & END_STREAM:
            self._end_request(call, events)
        else:
            self._return_stream_window(call)

    def _assemble(self, call: Call, body: memoryview, events: list[Event]) -> None:
        """Add DATA to the call's message; a unary call's waits here for END_STREAM, a stream's is an event."""
        if call.assembler is None:
            call.assembler = MessageAssembler(call.head.encoding, self._limits.max_message_size)
        assert call.head.method is not None
        try:
            messages = call.assembler.feed(body)
            if call.head.method.unary is None:
                for message in messages:
                    call.unread_bytes += len(message)
                    events.append(MessageReceived(call, message))
            elif messages:
                call.messages += len(messages)
                call.buffer = messages[0]
                if call.messages > 1:
                    raise GrpcError(Status.INTERNAL, "a unary call takes one message, got more")
        except GrpcError as error:
            call.fail(error.status, error.text, error.metadata)
            _cancel_stream(call, events)

    def _end_request(self, call: Call, events: list[Event]) -> None:
        """The peer's END_STREAM: a unary request is complete, a stream half-closed."""
        head = call.head
        if head.content_length is not None and head.content_length != call.received:
            raise StreamFault(call.stream_id, ErrorCodes.PROTOCOL_ERROR, "DATA is less than content-length")
        call.state = TRANSITIONS[call.state][Input.RECV_END_STREAM][1]
        if not call.open:
            return
        if head.not_grpc:
            self._refuse_plain_http(call)
        elif head.error is not None:
            call.fail(head.error.status, head.error.text, head.error.metadata)
        elif call.assembler is not None and call.assembler.pending_bytes:
            call.fail(Status.INTERNAL, "the request ended in the middle of a message")
            _cancel_stream(call, events)
        elif head.method is not None and head.method.unary is None:
            events.append(RequestEnded(call))
        elif call.messages != 1:
            call.fail(Status.INTERNAL, "a unary call takes one message, got none")
        else:
            call.end = len(call.buffer)
            events.append(call)

    # --- flow control ------------------------------------------------------------------------------------------------

    def _return_connection_window(self) -> None:
        # At once, whoever the data was for: what a handler does not read is bounded by its stream's window.
        full = self._limits.connection_window
        self._write(pack_window_update(0, full - self._receive_window))
        self._receive_window = full

    def _return_stream_window(self, call: Call) -> None:
        """Open the stream's window again to its full size, less what its handler has not read yet."""
        full = self._limits.stream_window
        increment = full - call.unread_bytes - call.receive_window
        if increment > full >> 1:
            call.receive_window += increment
            self._write(pack_window_update(call.stream_id, increment))

    def _receive_window_update(self, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ConnectionFault(ErrorCodes.FRAME_SIZE_ERROR, "WINDOW_UPDATE is not 4 bytes long")
        increment = _unpack_uint32(payload)[0] & MAX_WINDOW
        if stream_id == 0:
            self._send_window += increment
            if not increment:
                raise ConnectionFault(ErrorCodes.PROTOCOL_ERROR, "WINDOW_UPDATE of 0")
            if self._send_window > MAX_WINDOW:
                raise ConnectionFault(ErrorCodes.FLOW_CONTROL_ERROR, "WINDOW_UPDATE exceeds 2^31-1")
            self._pump_blocked()
        elif self._input(stream_id, Input.RECV_WINDOW_UPDATE):
            call = self.streams[stream_id]
            call.send_window += increment
            if not increment:
                raise StreamFault(stream_id, ErrorCodes.PROTOCOL_ERROR, "WINDOW_UPDATE of 0")
            if call.send_window > MAX_WINDOW:
                raise StreamFault(stream_id, ErrorCodes.FLOW_CONTROL_ERROR, "WINDOW_UPDATE exceeds 2^31-1")
            if call.outbox:
                self._pump(call)

    # --- SETTINGS, PING ----------------------------------------------------------------------------------------------

    def _receive_settings(self, flags: int, payload: bytes) -> None:
        if flags & ACK:
            if payload:
                raise ConnectionFault(ErrorCodes.FRAME_SIZE_ERROR, "SETTINGS ACK is not empty")
            return
        if len(payload) % 6:
            raise ConnectionFault(ErrorCodes.FRAME_SIZE_ERROR, "SETTINGS is not a multiple of 6 bytes long")
        self._settings_seen = True
        for at in range(0, len(payload), 6):
            self._apply_setting(int.from_bytes(payload[at : at + 2], "big"), _unpack_uint32(payload, at + 2)[0])
        self._write(pack_frame(SETTINGS, ACK, 0))

    def _apply_setting(self, code: int, value: int) -> None:
        """RFC 9113 section 6.5.2; identifiers that are not known are ignored."""
        if code == SettingCodes.INITIAL_WINDOW_SIZE:
            self._change_initial_window(value)
        elif code == SettingCodes.MAX_FRAME_SIZE:
            if not DEFAULT_MAX_FRAME_SIZE <= value <= LARGEST_MAX_FRAME_SIZE:
                raise ConnectionFault(ErrorCodes.PROTOCOL_ERROR, f"SETTINGS_MAX_FRAME_SIZE is {value}")
            self._peer_frame_size = value
        elif code == SettingCodes.HEADER_TABLE_SIZE:
            # We use none of the table. Only a size below the default one has to be acknowledged in a header block.
            self._table_update_due = self._table_update_due or value < _DEFAULT_TABLE_SIZE
        elif code == SettingCodes.ENABLE_PUSH and value > 1:
            raise ConnectionFault(ErrorCodes.PROTOCOL_ERROR, f"SETTINGS_ENABLE_PUSH is {value}")
        self._short_reply_limit = -1 if self._table_update_due else self._peer_frame_size

    def _change_initial_window(self, value: int) -> None:
        """Applies to the streams that exist too, whose windows may become negative (RFC 9113 section 6.9.2)."""
        if value > MAX_WINDOW:
            raise ConnectionFault(ErrorCodes.FLOW_CONTROL_ERROR, f"SETTINGS_INITIAL_WINDOW_SIZE is {value}")
        change = value - self._peer_stream_window
        self._peer_stream_window = value
        for call in list(self.streams.values()):
            call.send_window += change
            if call.send_window > MAX_WINDOW:
                raise ConnectionFault(ErrorCodes.FLOW_CONTROL_ERROR, "SETTINGS_INITIAL_WINDOW_SIZE overflows a stream")
            if change > 0 and call.outbox:
                self._pump(call)

    def _receive_ping(self, flags: int, payload: bytes) -> None:
        if len(payload) != 8:
            raise ConnectionFault(ErrorCodes.FRAME_SIZE_ERROR, "PING is not 8 bytes long")
        if not flags & ACK:
            self._write(pack_frame(PING, ACK, 0, payload))
        elif payload == SHUTDOWN_PING and self._shutting_down:
            self.finish_shutdown()

    # --- the end -----------------------------------------------------------------------------------------------------

    def _terminate(self, code: ErrorCodes, text: str, events: list[Event]) -> None:
        self._write(pack_goaway(self._last_stream_id, code, text))
        self.closed = True
        self._abandon_calls(events)
        events.append(ConnectionTerminated(code, text))

    def _abandon_calls(self, events: list[Event]) -> None:
        for call in list(self.streams.values()):
            _cancel_stream(call, events)
            self._forget(call)


_ON_CONNECTION = frozenset((SETTINGS, PING, GOAWAY))
_DEFAULT_TABLE_SIZE = 4_096


def _cancel_stream(call: Call, events: list[Event]) -> None:
    if call.head.method is not None and call.head.method.unary is None:
        events.append(CallCancelled(call))


_Payload = TypeVar("_Payload", bytes, memoryview)


def _strip_padding(payload: _Payload, flags: int) -> _Payload:
    """A payload without its padding (RFC 9113 section 6.1)."""
    if not flags & PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise ConnectionFault(ErrorCodes.PROTOCOL_ERROR, "padding is longer than the frame")
    return payload[1 : len(payload) - payload[0]]
