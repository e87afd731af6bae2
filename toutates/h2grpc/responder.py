"""Responses of calls, written as frames within the peer's windows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from toutates.h2grpc.budget import MemoryBudget
from toutates.h2grpc.frames import (
    CONTINUATION,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    MAX_WINDOW,
    ErrorCodes,
    pack_frame,
    pack_rst_stream,
)
from toutates.h2grpc.headers import (
    OK_TRAILERS,
    ResponseBlock,
    encode_block,
    error_block,
    plain_http_block,
    response_block,
)
from toutates.h2grpc.messages import PREFIX, compress
from toutates.h2grpc.output import BULKY_BYTES, Output, coalesce
from toutates.h2grpc.request_memory import RequestMemory
from toutates.h2grpc.response_queue import ResponseQueue
from toutates.h2grpc.settings import Settings
from toutates.h2grpc.shared import Shared
from toutates.h2grpc.status import Metadata, Status
from toutates.h2grpc.stream import Buffer, Stream
from toutates.h2grpc.stream_table import StreamTable
from toutates.h2grpc.streams import CLOSED, HALF_CLOSED_REMOTE, TRANSITIONS, WE_RESET, Input
from toutates.h2grpc.windows import Windows

__all__ = ["FRAMES_AT_ONCE", "Responder"]

#: DATA frames that are sent at most when new window comes; the others wait for ``go_on``. Each takes 2 to 6 us, the
#: trailers included.
FRAMES_AT_ONCE = 512

_CONTINUE = encode_block([(b":status", b"100")])
_NOT_GRPC_TEXT = b"This port speaks gRPC: POST with content-type application/grpc.\n"


class Responder:
    """Answers the calls of one connection.

    Args:
        output: where frames are written.
        settings, windows: how much the peer takes.
        table: the connection's streams.
        queue: holds DATA that the windows are too small for.
        held: counts the memory of requests, which an answer releases.
        shared: what all connections of the driver share.

    Attributes:
        closed: whether the connection has ended; then no call is answered.
        short_reply_limit: the largest DATA payload that ``reply`` sends by itself, bytes; -1 for none.
    """

    __slots__ = (
        "_budget",
        "_held",
        "_limit_hits",
        "_queue",
        "_settings",
        "_streams",
        "_table",
        "_windows",
        "_wire",
        "closed",
        "output",
        "short_reply_limit",
    )

    def __init__(
        self,
        output: Output,
        settings: Settings,
        windows: Windows,
        table: StreamTable[Any],
        queue: ResponseQueue,
        held: RequestMemory,
        shared: Shared,
    ) -> None:
        self.output = output
        self._settings = settings
        self._windows = windows
        self._table = table
        self._streams: dict[int, Any] = table.streams
        self._queue = queue
        self._held = held
        self._wire = shared.wire
        self._budget: MemoryBudget = shared.budget
        self._limit_hits: Counter[str] = shared.limit_hits
        self.closed = False
        self.short_reply_limit = settings.frame_size

    # --- unary replies -----------------------------------------------------------------------------------------------

    def reply(self, call: Stream, parts: Sequence[Buffer], length: int) -> None:
        """Answer a unary call: status OK and one message of ``length`` bytes, given in ``parts``.

        The parts are sent without joining them first. They must not change until the driver's round is over; parts of
        64 KiB and more, and parts of a message above the peer's frame size or window, must not change until they are
        sent, and the caller is not told when.

        Nearly every response is within the peer's windows and frame size. It takes two packs and three list operations
        here, 0.7 us; the others are sent by ``send_message``.
        """
        size = length + 5
        windows = self._windows
        if (
            size > self.short_reply_limit
            or size > windows.send
            or size > call.send_window
            or call.state is not HALF_CLOSED_REMOTE
            or call.head.long_way
            or not call.open
        ):
            self._reply_the_long_way(call, parts)
            return
        windows.send -= size
        call.open = False
        stream_id = call.stream_id
        del self._streams[stream_id]
        output = self.output
        out = output.pieces
        if not out:
            output.dirty.append(output.link)
        wire = self._wire
        out.append(
            wire.pack_response_head(wire.headers_head, stream_id, wire.ok_headers, size << 8, 0, stream_id, 0, length)
        )
        out += parts
        out.append(wire.pack_response_tail(wire.trailers_head, stream_id, wire.ok_trailers))

    def send(self, call: Stream, head: bytes, parts: Sequence[Buffer], length: int) -> None:
        """Send one of several messages of a call: ``head`` and then ``parts``, ``length`` bytes in all.

        The rules of ``reply`` apply to the parts. Nearly every message is within the peer's windows and frame size; it
        takes one pack and two list operations here.
        """
        size = length + 5
        windows = self._windows
        if (
            size > self.short_reply_limit
            or size > windows.send
            or size > call.send_window
            or call.outbox
            or not call.headers_sent
            or call.head.response_encoding
            or not call.open
        ):
            self.send_headers(call)
            self.send_message(call, (head, *parts))
            return
        windows.send -= size
        call.send_window -= size
        output = self.output
        out = output.pieces
        if not out:
            output.dirty.append(output.link)
        out.append(self._wire.pack_message_head(size << 8, 0, call.stream_id, 0, length) + head)
        out += parts

    def _reply_the_long_way(self, call: Stream, parts: Iterable[Buffer]) -> None:
        self.send_headers(call)
        self.send_message(call, parts)
        self.finish(call)

    def reply_with_metadata(self, call: Stream, message: Buffer, initial: Metadata, trailing: Metadata) -> None:
        """``reply`` with initial and trailing metadata."""
        self.send_headers(call, initial)
        self.send_message(call, (message,))
        self.finish(call, trailing)

    # --- the parts of any response -----------------------------------------------------------------------------------

    def send_headers(self, call: Stream, metadata: Metadata = ()) -> None:
        """Send initial metadata, unless that has been done; before the call's first message."""
        if not call.open or self.closed or call.headers_sent:
            return
        block = response_block(metadata, call.head.response_encoding)
        call.headers_sent = True
        self._send_block(call.stream_id, block, end_stream=False)

    def send_message(self, call: Stream, parts: Iterable[Buffer]) -> None:
        """Send one message, compressed if the call's responses are. What exceeds the peer's windows is queued."""
        if not call.open or self.closed:
            return
        buffers: list[Buffer] = list(parts)
        flag = 0
        if call.head.response_encoding:
            flag, buffers = 1, [compress(b"".join(buffers), call.head.response_encoding)]
        buffers.insert(0, PREFIX.pack(flag, sum(map(len, buffers))))
        self._send_data(call, coalesce(buffers))
        if call.outbox and self._budget.exceeded:
            self._limit_hits["server_buffer"] += 1
            text = f"the server holds {self._budget.used} bytes for slow peers, and {self._budget.limit} is the most"
            self.fail(call, Status.RESOURCE_EXHAUSTED, text)

    def finish(self, call: Stream, metadata: Metadata = ()) -> None:
        """End the call with status OK, sent after the messages that are queued."""
        if call.open and not self.closed:
            self._end(call, error_block(Status.OK, "", metadata, trailers_only=False) if metadata else OK_TRAILERS)

    def fail(self, call: Stream, status: Status, text: str, metadata: Metadata = ()) -> None:
        """End the call with a status other than OK, at once: messages that are queued are dropped."""
        if not call.open or self.closed:
            return
        trailers = error_block(status, text, metadata, trailers_only=not call.headers_sent)
        self._queue.empty(call)
        self._end(call, trailers)

    # --- plain HTTP --------------------------------------------------------------------------------------------------

    def refuse_plain_http(self, call: Stream) -> None:
        """Answer a request that is not gRPC with HTTP status 415 and a short text (the gRPC specification, "HTTP2
        Transport Mapping")."""
        body = b"" if call.head.http_method == b"HEAD" else _NOT_GRPC_TEXT
        self.respond(call, plain_http_block(415, len(_NOT_GRPC_TEXT)), (body,), len(body))

    def respond(self, call: Stream, block: ResponseBlock, parts: Sequence[Buffer], size: int) -> None:
        """Answer a request of plain HTTP in full. Does nothing once it is no longer open.

        Nearly every answer takes the short way, which is that of ``reply`` written out once more.

        Args:
            call: whose answer has not begun.
            block: the header block.
            parts: of the body, which may be empty. The rules of ``reply`` apply to them.
            size: bytes of all of them.
        """
        if not call.open or self.closed:
            return
        windows = self._windows
        if (
            0 < size <= self.short_reply_limit
            and size <= windows.send
            and size <= call.send_window
            and call.state is HALF_CLOSED_REMOTE
            and block.fits
            and not call.held_bytes
            and not call.head_bytes
        ):
            windows.send -= size
            call.open = False
            stream_id = call.stream_id
            del self._streams[stream_id]
            output = self.output
            out = output.pieces
            if not out:
                output.dirty.append(output.link)
            out.append(block.pack(block.head, stream_id, block.octets, size << 8, END_STREAM, stream_id))
            out += parts
            return
        self._send_block(call.stream_id, block.octets, end_stream=not size)
        call.open = False
        if not size:
            self._close(call)
            return
        call.trailers = b""  # END_STREAM goes with the last DATA
        self._send_data(call, coalesce(parts))
        self._reset_if_too_much(call)

    def begin(self, call: Stream, block: ResponseBlock) -> None:
        """Begin an answer to a request of plain HTTP whose body follows in pieces."""
        if call.open and not self.closed:
            self._send_block(call.stream_id, block.octets, end_stream=False)

    def send_piece(self, call: Stream, piece: Buffer) -> None:
        """The next piece of the body."""
        if call.open and not self.closed:
            self._send_data(call, (piece,))
            self._reset_if_too_much(call)

    def end_pieces(self, call: Stream) -> None:
        """The body is complete; END_STREAM goes with the last DATA, or behind it."""
        if not call.open or self.closed:
            return
        call.open = False
        call.trailers = b""
        self._send_data(call, () if call.outbox else (b"",))

    def send_continue(self, call: Stream) -> None:
        """Tell the client to send the body (RFC 9110 section 15.2.1)."""
        self._send_block(call.stream_id, _CONTINUE, end_stream=False)

    def abort(self, call: Stream, code: ErrorCodes) -> None:
        """End a request of plain HTTP, whose answer may have begun, by a reset."""
        if call.stream_id in self._streams and not self.closed:
            self.forget(call)
            self.send_reset(call.stream_id, code)

    def hold(self, call: Stream, size: int) -> None:
        """Set the bytes that are kept of a request of plain HTTP, which its handler has.

        Raises:
            LimitExceeded: the connection, or the server, holds too much.
        """
        self._held.hold(call, size)

    def _reset_if_too_much(self, call: Stream) -> None:
        if call.outbox and self._budget.exceeded:
            self._limit_hits["server_buffer"] += 1
            self.abort(call, ErrorCodes.ENHANCE_YOUR_CALM)

    # --- for the connection ------------------------------------------------------------------------------------------

    def pump(self, call: Stream, max_frames: int = MAX_WINDOW) -> None:
        """Send what the windows, and ``max_frames``, allow of a call's outbox, then its trailers."""
        if not self._queue.send(call, max_frames):
            return
        if call.on_drained is not None:
            call.on_drained()
        if call.trailers:
            self._send_block(call.stream_id, call.trailers, end_stream=True)
        if call.trailers is not None:
            self._close(call)

    def pump_blocked(self) -> None:
        """Send FRAMES_AT_ONCE frames of the calls that wait for the connection's window, one of each in turn."""
        for _ in range(FRAMES_AT_ONCE):
            if not self._queue.can_send:
                return
            self.pump(self._queue.next(), max_frames=1)

    def send_reset(self, stream_id: int, code: ErrorCodes) -> None:
        """Send RST_STREAM, and remember that the stream was reset."""
        self.output.write(pack_rst_stream(stream_id, code))
        self._table.remember_reset(stream_id, WE_RESET)

    def forget(self, call: Stream) -> None:
        """Drop a call that no answer can reach any more."""
        call.open = False
        self._held.release(call)
        if call.head_bytes:
            self._held.release_head(call)
        self._queue.forget(call)
        call.trailers = None
        self._streams.pop(call.stream_id, None)
        if call.on_closed is not None:
            call.on_closed(call)

    def fit_short_replies(self) -> None:
        """Set ``short_reply_limit``, after a change of what it depends on."""
        due = self.closed or self._settings.table_update_due
        self.short_reply_limit = -1 if due else min(self._settings.frame_size, BULKY_BYTES)

    def close(self) -> None:
        """Answer no call any more, because the connection has ended."""
        self.closed = True
        self.fit_short_replies()

    # --- ends and frames ---------------------------------------------------------------------------------------------

    def _end(self, call: Stream, trailers: bytes) -> None:
        call.open = False
        call.trailers = trailers
        self.pump(call)

    def _close(self, call: Stream) -> None:
        """Close a stream after our END_STREAM, by a reset if the client has not sent its own (RFC 9113 section 8.1)."""
        call.open = False
        self._held.release(call)
        if call.head_bytes:
            self._held.release_head(call)
        stream_id = call.stream_id
        self._streams.pop(stream_id, None)
        call.state = TRANSITIONS[call.state][Input.SEND_END_STREAM][1]
        if call.state is not CLOSED:
            self.send_reset(stream_id, ErrorCodes.NO_ERROR)
        if call.on_closed is not None:
            call.on_closed(call)

    def _send_data(self, call: Stream, buffers: Sequence[Buffer]) -> None:
        self._queue.add(call, buffers)
        self.pump(call)
        self._queue.keep_parts(call, len(buffers))

    def _send_block(self, stream_id: int, block: bytes, *, end_stream: bool) -> None:
        if self._settings.table_update_due:
            # RFC 7541 section 4.2: a peer that made the table smaller has to be told once that we agree. We use none.
            block = b"\x20" + block
            self._settings.table_update_due = False
            self.fit_short_replies()
        write = self.output.write
        flags = END_STREAM if end_stream else 0
        room = self._settings.frame_size
        if len(block) <= room:
            write(pack_frame(HEADERS, flags | END_HEADERS, stream_id, block))
            return
        write(pack_frame(HEADERS, flags, stream_id, block[:room]))
        pieces = [block[at : at + room] for at in range(room, len(block), room)]
        for piece in pieces[:-1]:
            write(pack_frame(CONTINUATION, 0, stream_id, piece))
        write(pack_frame(CONTINUATION, END_HEADERS, stream_id, pieces[-1]))
