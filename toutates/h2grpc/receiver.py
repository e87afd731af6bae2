"""The half of a connection that reads: what each frame means for its stream, by the table in ``streams`` (RFC 9113).

``ServerConnection`` finds the frames and hands them in, all but the plain ones of unary calls, which it does in line.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from functools import partial
from typing import Any, TypeVar

from toutates.h2grpc.allowances import Meter
from toutates.h2grpc.budget import CALL_BYTES, MESSAGE_BYTES, TASK_BYTES, UNCOUNTED_CALLS
from toutates.h2grpc.call import NEVER, Call
from toutates.h2grpc.events import CallCancelled, Event, InflationDue, MessageReceived, RequestEnded, StreamOpened
from toutates.h2grpc.faults import ConnectionFault, StreamFault
from toutates.h2grpc.frames import (
    ACK,
    DEFAULT_MAX_FRAME_SIZE,
    END_HEADERS,
    END_STREAM,
    LARGEST_MAX_FRAME_SIZE,
    MAX_STREAM_ID,
    MAX_WINDOW,
    PADDED,
    PRIORITY_FLAG,
    SETTINGS,
    UINT32,
    ErrorCodes,
    SettingCodes,
    pack_frame,
    pack_window_update,
)
from toutates.h2grpc.headers import HeaderReader, RequestHead
from toutates.h2grpc.limits import Limits
from toutates.h2grpc.messages import PREFIX_SIZE, MessageAssembler
from toutates.h2grpc.method import Method
from toutates.h2grpc.sender import FRAMES_AT_ONCE, Sender
from toutates.h2grpc.shared import Shared
from toutates.h2grpc.status import GrpcError, LimitExceeded, Status
from toutates.h2grpc.streams import (
    ACCEPT,
    CLOSED,
    CONNECTION_PROTOCOL_ERROR,
    CONNECTION_STREAM_CLOSED,
    IDLE,
    IGNORE,
    PEER_RESET,
    TRANSITIONS,
    WE_RESET,
    Input,
    State,
)

__all__ = ["Receiver"]

_unpack_uint32 = UINT32.unpack_from

_DEFAULT_TABLE_SIZE = 4_096


class Receiver(Sender):
    """See the module.

    Args:
        methods: the services' table, by ``:path`` (``method.method_table``).
        limits: bounds; also what SETTINGS advertise.
        dirty: where the connection puts itself once it has output for the driver to send.
        response_encoding: ``gzip`` or ``deflate`` for the responses of compressible methods, "" for none.
        shared: what the connections of one driver share; None makes one for this connection alone.
    """

    __slots__ = (
        "_cancelled",
        "_few_streams",
        "_header_reader",
        "_highest_accepted_id",
        "_last_stream_id",
        "_meters",
        "_now_ns",
        "_open_block",
        "_receive_window",
        "_remembered",
        "_settings_seen",
        "_skipped",
        "next_deadline_ns",
    )

    def __init__(
        self,
        methods: Mapping[bytes, Method],
        limits: Limits,
        dirty: list[Any],
        *,
        response_encoding: str = "",
        shared: Shared | None = None,
    ) -> None:
        super().__init__(limits, dirty, shared)
        self._header_reader = HeaderReader(methods, limits, response_encoding)
        self._remembered = self._header_reader.memory
        self._settings_seen = False
        #: whether a call was cancelled that may be among the events of what is being received
        self._cancelled = False
        #: streams that the peer may open whatever others do
        self._few_streams = min(UNCOUNTED_CALLS, limits.max_concurrent_streams)
        #: the time of what is being received
        self._now_ns = 0
        #: what is left of the peer's allowances, by limit; of those that it has used
        self._meters: dict[str, Meter] = {}
        self._last_stream_id = 0
        #: (low, high) numbers between which the peer skipped streams, so that they are not taken for closed ones
        self._skipped: deque[tuple[int, int]] = deque(maxlen=64)
        #: streams above it came after our last GOAWAY and are ignored
        self._highest_accepted_id = MAX_STREAM_ID
        #: a header block waiting for its CONTINUATIONs: stream, flags, fragments
        self._open_block: tuple[int, int, list[bytes]] | None = None
        self._receive_window = limits.connection_window
        #: the earliest moment at which ``expire`` may have something to do
        self.next_deadline_ns = NEVER

    # --- allowances --------------------------------------------------------------------------------------------------

    def _spend(self, limit: str, frames: str, now_ns: int, cost: int = 1) -> None:
        """One more of the frames that a peer has an allowance of, the field ``limit`` of ``Limits``.

        One that makes us work for each of many streams counts for ``cost`` of them.

        Raises:
            ConnectionFault: there were too many of ``frames``.
        """
        work = (self._last_stream_id >> 1) + self._sent_kib
        meter = self._meters.get(limit)
        if meter is None:
            meter = self._meters[limit] = Meter(getattr(self._limits, limit), now_ns, work)
        if not meter.take(now_ns, work, cost):
            raise ConnectionFault(ErrorCodes.ENHANCE_YOUR_CALM, f"too many {frames}", limit)

    # --- streams -----------------------------------------------------------------------------------------------------

    def _state(self, stream_id: int) -> int:
        call = self.streams.get(stream_id)
        if call is not None:
            return call.state
        if stream_id in self._reset:
            return self._reset[stream_id]
        if stream_id > self._last_stream_id or not stream_id & 1:
            return IDLE
        # So far back it is no longer known how a stream was closed: take the state that does a correct peer no harm.
        return CLOSED if stream_id > self._forgotten_id else WE_RESET

    def _input(self, stream_id: int, stream_input: Input) -> bool:
        """Whether the table accepts this; raises what it calls an error."""
        action = TRANSITIONS[self._state(stream_id)][stream_input][0]
        if action is ACCEPT:
            return True
        if action is IGNORE:
            return False
        text = f"{stream_input.name} on stream {stream_id} in state {State(self._state(stream_id)).name}"
        if action is CONNECTION_PROTOCOL_ERROR:
            raise ConnectionFault(ErrorCodes.PROTOCOL_ERROR, text)
        if action is CONNECTION_STREAM_CLOSED:
            raise ConnectionFault(ErrorCodes.STREAM_CLOSED, text)
        raise StreamFault(stream_id, ErrorCodes.STREAM_CLOSED, text)

    def _reset_stream(self, stream_id: int, code: ErrorCodes, events: list[Event]) -> None:
        call = self.streams.get(stream_id)
        if call is not None:
            self._cancel(call, events)
        self._send_reset(stream_id, code)

    def _cancel(self, call: Call, events: list[Event]) -> None:
        cancel_stream(call, events)
        self._forget(call)
        self._cancelled = True

    def _receive_rst_stream(self, stream_id: int, payload: bytes, events: list[Event]) -> None:
        if len(payload) != 4:
            raise ConnectionFault(ErrorCodes.FRAME_SIZE_ERROR, "RST_STREAM is not 4 bytes long")
        if self._input(stream_id, Input.RECV_RST_STREAM):
            self._cancel(self.streams[stream_id], events)
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
            self._budget.used += len(block)

    def _receive_continuation(self, flags: int, payload: bytes, now_ns: int, events: list[Event]) -> None:
        if self._open_block is None:
            raise ConnectionFault(ErrorCodes.PROTOCOL_ERROR, "CONTINUATION without a header block")
        stream_id, first_flags, fragments = self._open_block
        fragments.append(payload)
        self._budget.used += len(payload)
        if len(fragments) > self._limits.max_continuations + 1:
            text = "header block in too many CONTINUATION frames"
            raise ConnectionFault(ErrorCodes.ENHANCE_YOUR_CALM, text, "continuations")
        if sum(map(len, fragments)) > self._limits.max_header_block_size:
            raise ConnectionFault(ErrorCodes.ENHANCE_YOUR_CALM, "header block is too large", "header_block_size")
        if flags & END_HEADERS:
            self._drop_open_block()
            self._receive_block(first_flags, stream_id, b"".join(fragments), now_ns, events)

    def _drop_open_block(self) -> None:
        if self._open_block is not None:
            self._budget.used -= sum(map(len, self._open_block[2]))
            self._open_block = None

    def _receive_block(self, flags: int, stream_id: int, block: bytes, now_ns: int, events: list[Event]) -> None:
        """A whole header block: a request, or the trailer section of one."""
        state = self._state(stream_id)
        if len(block) > self._limits.max_header_block_size:
            raise ConnectionFault(ErrorCodes.ENHANCE_YOUR_CALM, "header block is too large", "header_block_size")
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
        self._half_close(self.streams[stream_id])
        self._complete_request(self.streams[stream_id], events)

    def _max_streams(self) -> int:
        """How many streams the peer may have open now.

        None more while it leaves too many responses queued, and few while there is no memory for the records of more.
        """
        calls = len(self.streams)
        if not self._queued_bytes and calls < self._few_streams:
            return self._few_streams  # who opens more of them with one read is asked again
        self._many_calls = True
        if self._queued_bytes and (self._queued_bytes > self._limits.max_queued_bytes or self._budget.exceeded):
            return 0
        most = self._counted_calls + self._budget.call_room // CALL_BYTES
        return min(self._limits.max_concurrent_streams, max(self._few_streams, most))

    def _open_stream(self, flags: int, stream_id: int, head: RequestHead, now_ns: int, events: list[Event]) -> None:
        if stream_id > self._last_stream_id + 2:
            self._skipped.append((self._last_stream_id, stream_id))
        self._last_stream_id = stream_id
        if stream_id > self._highest_accepted_id:
            return  # it crossed our last GOAWAY; its caller tries elsewhere (RFC 9113 section 6.8)
        if len(self.streams) >= self._max_streams():
            if len(self.streams) >= self._limits.max_concurrent_streams:
                limit = "streams"
            else:
                limit = "server_buffer" if self._max_streams() else "unread_responses"
            raise StreamFault(stream_id, ErrorCodes.REFUSED_STREAM, "too many concurrent streams", limit)
        if head.malformed:
            raise StreamFault(stream_id, ErrorCodes.PROTOCOL_ERROR, head.malformed)
        call = Call(self, stream_id, head, self._peer_stream_window, self._limits.stream_window)
        self.streams[stream_id] = call
        if head.timeout_ns is not None:
            self._set_deadline(call, now_ns)
        if head.method is not None and head.method.unary is None and not self._begin_stream(call, events):
            return
        if flags & END_STREAM:
            self._half_close(call)
            self._complete_request(call, events)
        elif head.error is not None:
            self._refuse(call, head.error)

    def _begin_stream(self, call: Call, events: list[Event]) -> bool:
        """Have a streaming call's handler started, if there is memory for its task."""
        budget = self._budget
        if budget.call_room < TASK_BYTES:
            text = f"the server holds {budget.call_bytes} bytes for open calls, and {budget.limit >> 1} is the most"
            self._refuse(call, LimitExceeded("server_buffer", text))
            return False
        call.task_bytes = TASK_BYTES
        budget.used += TASK_BYTES
        budget.call_bytes += TASK_BYTES
        events.append(StreamOpened(call))
        return True

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
        if flags & END_STREAM:
            self._half_close(call)
        if call.head.method is not None and call.open:
            self._assemble(call, body, events)
        if stream_id not in self.streams:
            return  # answered with an error, which closed it
        if flags & END_STREAM:
            self._complete_request(call, events)
        else:
            self._return_stream_window(call)

    def _assemble(self, call: Call, body: memoryview, events: list[Event]) -> None:
        """Add DATA to the call's message; a unary call's waits here for END_STREAM, a stream's is an event."""
        if call.assembler is None:
            is_unary = call.head.method is not None and call.head.method.unary is not None
            inflate = partial(_inflate_later, call) if is_unary else partial(self._inflate, call.head.encoding)
            call.assembler = MessageAssembler(call.head.encoding, self._limits.max_message_size, inflate)
        assert call.head.method is not None
        try:
            messages = call.assembler.feed(body)
            if call.head.method.unary is None:
                for message in messages:
                    # The prefix counts too, or messages of no bytes would pile up without bound.
                    call.unread_bytes += len(message) + PREFIX_SIZE
                    events.append(MessageReceived(call, message))
                call.messages += len(messages)
                held = call.unread_bytes + MESSAGE_BYTES * call.messages
            else:
                if messages:
                    call.messages += len(messages)
                    call.buffer = messages[0]
                    if call.messages > 1:
                        raise GrpcError(Status.INTERNAL, "a unary call takes one message, got more")
                held = len(call.buffer)  # which may be here long before END_STREAM
            self._hold_request(call, call.assembler.pending_bytes + held)
        except GrpcError as error:
            self._refuse(call, error)
            cancel_stream(call, events)

    def _inflate(self, encoding: str, data: bytes) -> bytes:
        max_size = min(self._limits.max_message_size, self._limits.max_decompressed_size)
        return self._inflater.inflate(data, encoding, max_size, self._now_ns)

    def _hold_request(self, call: Call, size: int) -> None:
        """Account for ``size`` bytes of a call's request that have to be kept.

        Raises:
            LimitExceeded: the connection, or the server, holds too much.
        """
        growth = size - call.held_bytes
        call.held_bytes = size
        self._request_bytes += growth
        self._budget.used += growth
        if growth <= 0:
            return
        if self._request_bytes > self._limits.max_buffered_bytes:
            text = f"the connection has {self._request_bytes} bytes of requests under way"
            raise LimitExceeded("connection_buffer", f"{text}, and {self._limits.max_buffered_bytes} is the most")
        if self._budget.exceeded:
            text = f"the server holds {self._budget.used} bytes for slow peers, and {self._budget.limit} is the most"
            raise LimitExceeded("server_buffer", text)

    def _refuse(self, call: Call, error: GrpcError) -> None:
        if isinstance(error, LimitExceeded):
            self._limit_hits[error.limit] += 1
        call.fail(error.status, error.text, error.metadata)

    def _half_close(self, call: Call) -> None:
        """The peer's END_STREAM."""
        if call.head.content_length is not None and call.head.content_length != call.received:
            raise StreamFault(call.stream_id, ErrorCodes.PROTOCOL_ERROR, "DATA is less than content-length")
        call.state = TRANSITIONS[call.state][Input.RECV_END_STREAM][1]

    def _complete_request(self, call: Call, events: list[Event]) -> None:
        """All of a half-closed stream's request is here: judge it, and hand it on."""
        head = call.head
        if not call.open:
            return
        if head.not_grpc:
            self._refuse_plain_http(call)
        elif head.error is not None:
            self._refuse(call, head.error)
        elif call.assembler is not None and call.assembler.pending_bytes:
            call.fail(Status.INTERNAL, "the request ended in the middle of a message")
            cancel_stream(call, events)
        elif head.method is not None and head.method.unary is None:
            events.append(RequestEnded(call))
        elif call.messages != 1:
            call.fail(Status.INTERNAL, "a unary call takes one message, got none")
        else:
            self._inflate_request(call, events)

    def _inflate_request(self, call: Call, events: list[Event]) -> None:
        """Hand a whole unary request on, decompressed if it is compressed."""
        if call.compressed:
            max_size = min(self._limits.max_message_size, self._limits.max_decompressed_size)
            encoding = call.head.encoding
            try:
                message = self._inflater.inflate_small(call.buffer, encoding, max_size, self._now_ns)
            except GrpcError as error:
                self._refuse(call, error)
                return
            if message is None:
                events.append(InflationDue(call, call.buffer, encoding, max_size))
                return
            call.buffer = message
        self._hand_on(call, events)

    def _hand_on(self, call: Call, events: list[Event]) -> None:
        call.end = len(call.buffer)
        events.append(call)
        self._release_request(call)  # the handler has it now

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
                self._pump(call, FRAMES_AT_ONCE)
                self.behind = self.behind or self._can_pump

    # --- SETTINGS ----------------------------------------------------------------------------------------------------

    def _receive_settings(self, flags: int, payload: bytes) -> None:
        if flags & ACK:
            if payload:
                raise ConnectionFault(ErrorCodes.FRAME_SIZE_ERROR, "SETTINGS ACK is not empty")
            return
        if len(payload) % 6:
            raise ConnectionFault(ErrorCodes.FRAME_SIZE_ERROR, "SETTINGS is not a multiple of 6 bytes long")
        if len(payload) > 6 * self._limits.max_settings:
            text = f"SETTINGS frame with {len(payload) // 6} settings, at most {self._limits.max_settings}"
            raise ConnectionFault(ErrorCodes.ENHANCE_YOUR_CALM, text, "settings")
        self._settings_seen = True
        window = self._peer_stream_window
        for at in range(0, len(payload), 6):
            code = int.from_bytes(payload[at : at + 2], "big")
            value = _unpack_uint32(payload, at + 2)[0]
            if code == SettingCodes.INITIAL_WINDOW_SIZE:
                if value > MAX_WINDOW:
                    raise ConnectionFault(ErrorCodes.FLOW_CONTROL_ERROR, f"SETTINGS_INITIAL_WINDOW_SIZE is {value}")
                window = value
            else:
                self._apply_setting(code, value)
        change = window - self._peer_stream_window
        if change:
            self._change_initial_window(change)
        # The peer may hold us to its old values until it has read this, so it goes before DATA that uses the new ones.
        self._write(pack_frame(SETTINGS, ACK, 0))
        if change > 0:
            for call in self.streams.values():
                if call.outbox and call.send_window > 0:
                    self._blocked[call] = None
            self._pump_blocked()

    def _apply_setting(self, code: int, value: int) -> None:
        """RFC 9113 section 6.5.2; identifiers that are not known are ignored."""
        if code == SettingCodes.MAX_FRAME_SIZE:
            if not DEFAULT_MAX_FRAME_SIZE <= value <= LARGEST_MAX_FRAME_SIZE:
                raise ConnectionFault(ErrorCodes.PROTOCOL_ERROR, f"SETTINGS_MAX_FRAME_SIZE is {value}")
            self._peer_frame_size = value
        elif code == SettingCodes.HEADER_TABLE_SIZE:
            # We use none of the table. Only a size below the default one has to be acknowledged in a header block.
            self._table_update_due = self._table_update_due or value < _DEFAULT_TABLE_SIZE
        elif code == SettingCodes.ENABLE_PUSH and value > 1:
            raise ConnectionFault(ErrorCodes.PROTOCOL_ERROR, f"SETTINGS_ENABLE_PUSH is {value}")
        self._short_reply_limit = -1 if self._table_update_due else self._peer_frame_size

    def _change_initial_window(self, change: int) -> None:
        """Applies to the streams that exist too, whose windows may become negative (RFC 9113 section 6.9.2)."""
        self._peer_stream_window += change
        for call in self.streams.values():
            call.send_window += change
            if call.send_window > MAX_WINDOW:
                raise ConnectionFault(ErrorCodes.FLOW_CONTROL_ERROR, "SETTINGS_INITIAL_WINDOW_SIZE overflows a stream")


def _inflate_later(call: Call, data: bytes) -> bytes:
    call.compressed = True
    return data


def cancel_stream(call: Call, events: list[Event]) -> None:
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
