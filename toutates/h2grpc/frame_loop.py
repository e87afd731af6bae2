"""Finding the frames in received bytes; those of plain unary calls are handled here, without a call per frame."""

from __future__ import annotations

from typing import Final

from toutates.h2grpc.call import Call
from toutates.h2grpc.direct_receive import DirectReceive
from toutates.h2grpc.events import Event, MessageReceived
from toutates.h2grpc.faults import ConnectionFault
from toutates.h2grpc.frames import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    FRAME_HEAD_SIZE,
    HEADERS,
    MAX_STREAM_ID,
    MAX_WINDOW,
    SETTINGS,
    UINT32,
    WINDOW_UPDATE,
    ErrorCodes,
)
from toutates.h2grpc.messages import PREFIX_SIZE
from toutates.h2grpc.parts import Parts
from toutates.h2grpc.receiver import Receiver
from toutates.h2grpc.streams import HALF_CLOSED_REMOTE, OPEN
from toutates.h2grpc.wire import MESSAGE_HEAD_SIZE

__all__ = ["BEHIND", "BYTES_AT_ONCE", "DIRECTLY", "FrameLoop"]

_unpack_uint32 = UINT32.unpack_from

#: Received bytes that one call of ``walk`` handles, if their frames are large or belong to plain calls. The most
#: expensive such bytes take 0.08 us each (on 3.14t 0.15), so a call takes 5 ms at most (10).
BYTES_AT_ONCE = 65_536
#: Other work is counted as the bytes that take as long: a frame that the ``Receiver`` handles, each event that such a
#: frame makes, and each byte of a header block that has to be decoded.
SLOW_FRAME_BYTES = 96
EVENT_BYTES = 24
DECODING_BYTES = 32
#: The same for each open stream at a SETTINGS frame, which may change the windows of all of them.
STREAM_BYTES = 2


#: What ``walk`` returns: ``go_on`` has something to do; the rest of a large message is to be received directly.
BEHIND: Final = 1
DIRECTLY: Final = 2


class FrameLoop:
    """The loop over the frames that one connection receives.

    Args:
        parts: of the connection.
        receiver: handles the frames that the loop does not handle itself.
        direct_receive: receives large messages.
    """

    __slots__ = (
        "_blocks",
        "_deadlines",
        "_direct_receive",
        "_header_reader",
        "_largest_block",
        "_largest_frame",
        "_plain",
        "_queue",
        "_receiver",
        "_remembered",
        "_responder",
        "_settings",
        "_short_message_limit",
        "_stream_window",
        "_streams",
        "_table",
        "_unread",
        "_windows",
        "_wire",
    )

    def __init__(self, parts: Parts, receiver: Receiver, direct_receive: DirectReceive) -> None:
        limits = parts.limits
        self._direct_receive = direct_receive
        self._blocks = parts.blocks
        self._deadlines = parts.deadlines
        self._header_reader = parts.header_reader
        self._largest_block = limits.max_header_block_size
        self._largest_frame = limits.max_frame_size
        self._plain = parts.plain
        self._queue = parts.queue
        self._receiver = receiver
        self._remembered = parts.header_reader.memory
        self._responder = parts.responder
        self._settings = parts.settings
        #: the largest message that this loop handles, bytes: within the message limit and a stream's window
        self._short_message_limit = min(limits.max_message_size, limits.stream_window - PREFIX_SIZE)
        self._stream_window = limits.stream_window
        self._streams = parts.table.streams
        self._table = parts.table
        self._unread = parts.unread
        self._windows = parts.windows
        self._wire = parts.shared.wire

    def walk(self, data: bytes, at: int, now_ns: int, events: list[Event]) -> int:
        """Handle the frames of ``data`` from ``at`` on, up to BYTES_AT_ONCE; keep the rest in the ``ReadBuffer``.

        The frames that make up a unary call (HEADERS that opens a stream, DATA that completes it, the WINDOW_UPDATEs
        that C-core adds) are handled in this loop if nothing about them is unusual. All other frames go to the
        ``Receiver``, which does the same work by the table in ``streams``. A request takes 0.9 us here, and 3.9 there.

        Args:
            data: received bytes.
            at: offset of a frame.
            now_ns: the time, from which ``grpc-timeout`` counts.
            events: where events are appended.

        Returns:
            BEHIND, DIRECTLY, or 0.

        Raises:
            ConnectionFault: the connection has to end.
        """
        end_of_data = len(data)
        # ``stop`` is where to stop. Work that takes longer than its bytes moves ``enough`` back, so that plain frames
        # need not count anything.
        stop = enough = at + BYTES_AT_ONCE
        if stop > end_of_data:
            stop = end_of_data
        wire = self._wire
        unpack_frame_head = wire.unpack_frame_head
        unpack_message_head = wire.unpack_message_head
        largest = self._largest_frame
        streams = self._streams
        remembered = self._remembered
        table = self._table
        windows = self._windows
        settings = self._settings
        # Whether HEADERS and DATA may come next.
        ready = settings.seen and not self._blocks.stream_id
        behind = 0
        max_streams = table.few
        if self._queue.bytes_waiting or len(streams) >= max_streams:
            max_streams = table.most(self._queue.bytes_waiting)
        while stop - at >= FRAME_HEAD_SIZE:
            word, flags, stream_id = unpack_frame_head(data, at)
            length = word >> 8
            if length > largest:
                text = f"frame of {length} bytes, at most {largest}"
                raise ConnectionFault(ErrorCodes.FRAME_SIZE_ERROR, text, "frame_size")
            payload = at + FRAME_HEAD_SIZE
            end = payload + length
            if end > end_of_data:
                begin = self._direct_receive.begin
                if word & 0xFF == DATA and ready and not behind and begin(data, payload, flags, stream_id, length):
                    return DIRECTLY
                self._unread.hold(data[at:], FRAME_HEAD_SIZE + length)
                return behind
            at = end
            frame_type = word & 0xFF
            if ready:
                if frame_type == DATA:
                    call = streams.get(stream_id)
                    size = length - 5
                    if (
                        call is not None
                        and flags == END_STREAM
                        and call.state is OPEN
                        and call.assembler is None
                        and 0 <= size <= self._short_message_limit
                        and data[payload] == 0
                        and _unpack_uint32(data, payload + 1)[0] == size
                        and call.head.method is not None
                        and call.head.method.unary is not None
                        and (call.head.content_length is None or call.head.content_length == length)
                        and length <= windows.receive
                    ):
                        call.state = HALF_CLOSED_REMOTE
                        call.buffer = data
                        call.start = payload + 5
                        call.end = end
                        windows.receive -= length
                        if windows.receive < windows.low:
                            windows.refill()
                        events.append(call)
                        continue
                    if (
                        call is not None
                        and not flags
                        and call.assembler is None
                        and call.state is OPEN
                        and call.open
                        and 0 <= size <= self._short_message_limit
                        and data[payload] == 0
                        and _unpack_uint32(data, payload + 1)[0] == size
                        and call.head.method is not None
                        and call.head.method.half_close is not None
                        and call.head.content_length is None
                        and length <= windows.receive
                        and length <= call.receive_window
                    ):
                        # One whole message of a stream, as nearly all of them come.
                        call.receive_window -= length
                        windows.receive -= length
                        if windows.receive < windows.low:
                            windows.refill()
                        events.append(MessageReceived(call, data, payload + PREFIX_SIZE, end))
                        enough -= EVENT_BYTES
                        stop = min(stop, enough)
                        continue
                elif frame_type == HEADERS:
                    if (
                        flags == END_HEADERS
                        and stream_id == table.last_id + 2
                        and stream_id & 1
                        and len(streams) < max_streams
                        and stream_id <= table.highest_accepted_id
                        and length <= self._largest_block
                    ):
                        block = data[payload:end]
                        head = remembered.get(block)
                        if head is None:
                            head = self._header_reader.read(block)
                            enough -= length * DECODING_BYTES
                            stop = min(stop, enough)
                        if head.method is None or head.kept_bytes:
                            plain = head.plain and not head.kept_bytes
                            end = self._plain.take_whole(data, at, stream_id, head, events) if plain else 0
                            if end:
                                at = end
                                continue
                            self._receiver.open_unusual_stream(stream_id, head, now_ns, events)
                            enough -= SLOW_FRAME_BYTES
                            stop = min(stop, enough)
                            continue
                        table.last_id = stream_id
                        call = Call(self._responder, stream_id, head, settings.stream_window, self._stream_window)
                        streams[stream_id] = call
                        if head.timeout_ns is not None:
                            self._deadlines.set(call, now_ns)
                        if head.method.unary is None:
                            self._receiver.begin_stream(call, events)
                        elif end_of_data - at >= MESSAGE_HEAD_SIZE:
                            # Nearly always the whole request follows in the same read.
                            word, flags, data_id, compressed, size = unpack_message_head(data, at)
                            length = word >> 8
                            end = at + FRAME_HEAD_SIZE + length
                            if (
                                word & 0xFF == DATA
                                and flags == END_STREAM
                                and data_id == stream_id
                                and not compressed
                                and size == length - PREFIX_SIZE
                                and size <= self._short_message_limit
                                and end <= end_of_data
                                and (head.content_length is None or head.content_length == length)
                                and length <= windows.receive
                                and length <= largest
                            ):
                                call.state = HALF_CLOSED_REMOTE
                                call.buffer = data
                                call.start = at + MESSAGE_HEAD_SIZE
                                call.end = at = end
                                windows.receive -= length
                                if windows.receive < windows.low:
                                    windows.refill()
                                events.append(call)
                        continue
                elif frame_type == WINDOW_UPDATE and length == 4:
                    increment = _unpack_uint32(data, payload)[0] & MAX_WINDOW
                    if stream_id == 0:
                        if increment and not self._queue.blocked and windows.send + increment <= MAX_WINDOW:
                            windows.send += increment
                            continue
                    elif (call := streams.get(stream_id)) is None:
                        # C-core sends these for streams that have just been closed; for an idle stream it is an error.
                        if increment and stream_id & 1 and stream_id <= table.last_id:
                            continue
                    elif increment and not call.outbox and call.send_window + increment <= MAX_WINDOW:
                        call.send_window += increment
                        continue
            known = len(events)
            self._receiver.receive(frame_type, flags, stream_id & MAX_STREAM_ID, data, payload, end, now_ns, events)
            max_streams = table.most(self._queue.bytes_waiting)  # the frame may have queued a response
            ready = settings.seen and not self._blocks.stream_id
            if self._queue.can_send:
                behind = BEHIND
            enough -= SLOW_FRAME_BYTES + (len(events) - known) * EVENT_BYTES
            if frame_type in (HEADERS, CONTINUATION):
                enough -= length * DECODING_BYTES
            elif frame_type == SETTINGS:
                enough -= len(streams) * STREAM_BYTES
            stop = at if behind else min(stop, enough)
        if at == end_of_data:
            return behind
        if end_of_data - at >= FRAME_HEAD_SIZE:
            self._unread.leave(data, at)
            return BEHIND
        self._unread.hold(data[at:], FRAME_HEAD_SIZE)
        return behind
