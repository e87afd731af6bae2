"""The half of a connection that writes: replies in, frames out, within the peer's windows.

``ServerConnection`` adds the half that reads. The two share the streams and are one object, because a reply is on the
way of every request and each look-up through another object costs.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from typing import Any

from toutates.h2grpc.budget import CALL_BYTES, UNCOUNTED_CALLS
from toutates.h2grpc.call import Buffer, Call
from toutates.h2grpc.frames import (
    CONTINUATION,
    DATA,
    DEFAULT_MAX_FRAME_SIZE,
    DEFAULT_WINDOW,
    END_HEADERS,
    END_STREAM,
    FRAME_HEAD,
    HEADERS,
    MAX_WINDOW,
    ErrorCodes,
    pack_frame,
    pack_rst_stream,
)
from toutates.h2grpc.headers import OK_TRAILERS, error_block, plain_http_block, response_block
from toutates.h2grpc.limits import Limits
from toutates.h2grpc.messages import PREFIX, compress
from toutates.h2grpc.shared import Shared
from toutates.h2grpc.status import Metadata, Status
from toutates.h2grpc.streams import CLOSED, HALF_CLOSED_REMOTE, TRANSITIONS, WE_RESET, Input

__all__ = ["Sender", "part_of_its_own"]

#: Buffers at least this long are worth handing to the kernel as they are, instead of joining them first.
BULKY_BYTES = 65_536

#: What a buffer that waits may keep besides itself.
SMALL_PART_BYTES = 4_096

#: DATA frames that new window lets go in one turn; more wait for the next. Each takes 2 to 6 us, the trailers included.
FRAMES_AT_ONCE = 512

_NOT_GRPC_TEXT = b"This port speaks gRPC: POST with content-type application/grpc.\n"


class Sender:
    """See the module.

    Args:
        limits: bounds of the connection.
        dirty: where the connection puts itself once it has output; the driver flushes what is there.
        shared: what the connections of one driver share; None makes one for this connection alone.
    """

    # With the halves below it, more attributes than CPython keeps in line in an object (30): as a dictionary they cost
    # 8 % of a request on 3.14t. Slots save as much again.
    __slots__ = (
        "_blocked",
        "_budget",
        "_counted_calls",
        "_dirty",
        "_forgotten_id",
        "_inflater",
        "_limit_hits",
        "_limits",
        "_many_calls",
        "_out",
        "_peer_frame_size",
        "_peer_stream_window",
        "_queued_bytes",
        "_request_bytes",
        "_reset",
        "_send_window",
        "_sent_kib",
        "_short_reply_limit",
        "_table_update_due",
        "_wire",
        "behind",
        "bulky",
        "closed",
        "streams",
    )

    def __init__(self, limits: Limits, dirty: list[Any], shared: Shared | None = None) -> None:
        shared = shared or Shared()
        self._limits = limits
        self._wire = shared.wire
        self._budget = shared.budget
        self._limit_hits = shared.limit_hits
        self._inflater = shared.inflater
        self._dirty = dirty
        #: open and half-closed streams, by number
        self.streams: dict[int, Call] = {}
        #: the connection is over: nothing is answered, though some calls may still wait for their end
        self.closed = False
        #: whether ``go_on`` has something to do; the driver may set it to be called for reasons of its own
        self.behind = False
        #: whether the output is worth sending piece by piece instead of joined: a buffer of BULKY_BYTES is in it
        self.bulky = False
        self._out: list[Buffer] = []
        self._send_window = DEFAULT_WINDOW
        self._peer_stream_window = DEFAULT_WINDOW
        self._peer_frame_size = DEFAULT_MAX_FRAME_SIZE
        #: largest DATA payload the short way of ``reply`` may send; -1 while a table size update is due
        self._short_reply_limit = DEFAULT_MAX_FRAME_SIZE
        self._table_update_due = False
        #: calls whose outbox waits for the connection's window, next one first; those that wait for their own
        #: stream's window are not here, since credit for the connection does not help them
        self._blocked: OrderedDict[Call, None] = OrderedDict()
        #: bytes in all outboxes
        self._queued_bytes = 0
        #: calls whose records are in the budget; see ``_count_calls``
        self._counted_calls = 0
        #: whether there may be more calls than are left uncounted
        self._many_calls = False
        #: bytes held of all calls' requests
        self._request_bytes = 0
        #: KiB of responses that were too large for the short way, sent so far
        self._sent_kib = 0
        #: how streams were closed that were not closed by END_STREAM; the latest ``closed_stream_memory`` of them
        self._reset: dict[int, int] = {}
        #: the highest stream number dropped from ``_reset``
        self._forgotten_id = 0

    # --- what the driver takes ---------------------------------------------------------------------------------------

    def take_output(self) -> list[Buffer]:
        """The bytes to send now, in order; the connection forgets them."""
        out, self._out = self._out, []
        self.bulky = False
        if self._many_calls:
            self._count_calls()
        return out

    @property
    def has_output(self) -> bool:
        """Whether ``take_output`` would return anything."""
        return bool(self._out)

    # --- unary replies -----------------------------------------------------------------------------------------------

    def reply(self, call: Call, parts: Sequence[Buffer], length: int) -> None:
        """Answer a unary call: status OK and one message of ``length`` bytes, given in ``parts``.

        The short way holds for a response within the windows and frame size of the peer, that is for nearly every one:
        two packs and three list operations, 0.7 us.
        """
        size = length + 5
        if (
            size > self._short_reply_limit
            or size > self._send_window
            or size > call.send_window
            or call.state is not HALF_CLOSED_REMOTE
            or call.head.response_encoding
            or not call.open
        ):
            self._reply_the_long_way(call, parts)
            return
        self._send_window -= size
        call.open = False
        stream_id = call.stream_id
        del self.streams[stream_id]
        out = self._out
        if not out:
            self._dirty.append(self)
        wire = self._wire
        out.append(
            wire.pack_response_head(wire.headers_head, stream_id, wire.ok_headers, size << 8, 0, stream_id, 0, length)
        )
        out += parts
        out.append(wire.pack_response_tail(wire.trailers_head, stream_id, wire.ok_trailers))

    def _reply_the_long_way(self, call: Call, parts: Iterable[Buffer]) -> None:
        if call.open and not self.closed:
            self.send_headers(call)
            self.send_message(call, parts)
            self.finish(call)

    def reply_with_metadata(self, call: Call, message: Buffer, initial: Metadata, trailing: Metadata) -> None:
        """``reply`` with initial and trailing metadata."""
        if call.open and not self.closed:
            self.send_headers(call, initial)
            self.send_message(call, (message,))
            self.finish(call, trailing)

    # --- the parts of any response -----------------------------------------------------------------------------------

    def send_headers(self, call: Call, metadata: Metadata = ()) -> None:
        """Initial metadata; once per call, before its first message."""
        if not call.open or self.closed or call.headers_sent:
            return
        block = response_block(metadata, call.head.response_encoding)
        call.headers_sent = True
        self._send_block(call.stream_id, block, end_stream=False)

    def send_message(self, call: Call, parts: Iterable[Buffer]) -> None:
        """One message, compressed if the call's response is; queued where the peer's windows are too small for it."""
        if not call.open or self.closed:
            return
        buffers: list[Buffer] = list(parts)
        flag = 0
        if call.head.response_encoding:
            flag, buffers = 1, [compress(b"".join(buffers), call.head.response_encoding)]
        buffers.insert(0, PREFIX.pack(flag, sum(map(len, buffers))))
        self._queue_data(call, _coalesce(buffers))
        if call.outbox and self._budget.exceeded:
            self._limit_hits["server_buffer"] += 1
            text = f"the server holds {self._budget.used} bytes for slow peers, and {self._budget.limit} is the most"
            self.fail(call, Status.RESOURCE_EXHAUSTED, text)

    def finish(self, call: Call, metadata: Metadata = ()) -> None:
        """Status OK, sent once everything queued before it is."""
        if call.open and not self.closed:
            self._end(call, error_block(Status.OK, "", metadata, trailers_only=False) if metadata else OK_TRAILERS)

    def fail(self, call: Call, status: Status, text: str, metadata: Metadata = ()) -> None:
        """A status other than OK, at once: messages that still wait for window are dropped."""
        if not call.open or self.closed:
            return
        trailers = error_block(status, text, metadata, trailers_only=not call.headers_sent)
        self._empty_outbox(call)
        self._end(call, trailers)

    def _refuse_plain_http(self, call: Call) -> None:
        """415 and a short text, for a request that is not gRPC (the gRPC specification, "HTTP2 Transport Mapping")."""
        body = b"" if call.head.http_method == b"HEAD" else _NOT_GRPC_TEXT
        self._send_block(call.stream_id, plain_http_block(415, len(_NOT_GRPC_TEXT)), end_stream=not body)
        call.open = False
        if body:
            call.trailers = b""  # END_STREAM goes with the last DATA
            self._queue_data(call, [body])
        else:
            self._close(call)

    # --- streams -----------------------------------------------------------------------------------------------------

    def _end(self, call: Call, trailers: bytes) -> None:
        call.open = False
        call.trailers = trailers
        self._pump(call)

    def _close(self, call: Call) -> None:
        """Our END_STREAM is out. A caller that has not sent its own is told to stop (RFC 9113 section 8.1)."""
        call.open = False
        self._release_request(call)
        stream_id = call.stream_id
        self.streams.pop(stream_id, None)
        call.state = TRANSITIONS[call.state][Input.SEND_END_STREAM][1]
        if call.state is not CLOSED:
            self._send_reset(stream_id, ErrorCodes.NO_ERROR)
        if call.on_closed is not None:
            call.on_closed(call)

    def _send_reset(self, stream_id: int, code: ErrorCodes) -> None:
        self._write(pack_rst_stream(stream_id, code))
        self._remember_reset(stream_id, WE_RESET)

    def _remember_reset(self, stream_id: int, state: int) -> None:
        self._reset[stream_id] = state
        if len(self._reset) > self._limits.closed_stream_memory:
            oldest = next(iter(self._reset))
            del self._reset[oldest]
            self._forgotten_id = max(self._forgotten_id, oldest)

    def _forget(self, call: Call) -> None:
        """Drop a call that no answer can reach any more."""
        call.open = False
        self._release_request(call)
        self._empty_outbox(call)
        call.trailers = None
        self._blocked.pop(call, None)
        self.streams.pop(call.stream_id, None)
        if call.on_closed is not None:
            call.on_closed(call)

    def _release_request(self, call: Call) -> None:
        """What was held of a call's request is of no more use."""
        call.assembler = None
        self._request_bytes -= call.held_bytes
        self._budget.used -= call.held_bytes
        call.held_bytes = 0
        if call.task_bytes:
            self._budget.used -= call.task_bytes
            self._budget.call_bytes -= call.task_bytes
            call.task_bytes = 0

    def _empty_outbox(self, call: Call) -> None:
        self._queued_bytes -= call.outbox_bytes
        self._budget.used -= call.outbox_bytes
        call.outbox = None
        call.outbox_bytes = 0

    def _count_calls(self) -> None:
        """Account for the records of the calls that are open now.

        That is done once per read that leaves more than UNCOUNTED_CALLS open, and then with all output, instead of with
        each call.
        """
        calls = len(self.streams)
        if calls <= UNCOUNTED_CALLS:
            calls = 0
        growth = CALL_BYTES * (calls - self._counted_calls)
        self._counted_calls = calls
        self._many_calls = calls > 0
        self._budget.used += growth
        self._budget.call_bytes += growth

    # --- frames ------------------------------------------------------------------------------------------------------

    def _write(self, *frames: Buffer) -> None:
        if not self._out:
            self._dirty.append(self)
        self._out += frames

    def _send_block(self, stream_id: int, block: bytes, *, end_stream: bool) -> None:
        if self._table_update_due:
            # RFC 7541 section 4.2: a peer that shrank the table is told, once, that we follow. We use none of it.
            block = b"\x20" + block
            self._table_update_due = False
            self._short_reply_limit = self._peer_frame_size
        flags = END_STREAM if end_stream else 0
        room = self._peer_frame_size
        if len(block) <= room:
            self._write(pack_frame(HEADERS, flags | END_HEADERS, stream_id, block))
            return
        self._write(pack_frame(HEADERS, flags, stream_id, block[:room]))
        pieces = [block[at : at + room] for at in range(room, len(block), room)]
        for piece in pieces[:-1]:
            self._write(pack_frame(CONTINUATION, 0, stream_id, piece))
        self._write(pack_frame(CONTINUATION, END_HEADERS, stream_id, pieces[-1]))

    def _queue_data(self, call: Call, buffers: Iterable[Buffer]) -> None:
        if call.outbox is None:
            call.outbox = deque()
        for buffer in buffers:
            view = memoryview(buffer).cast("B") if len(buffer) else memoryview(b"")
            call.outbox.append(view)
            call.outbox_bytes += len(view)
            self._queued_bytes += len(view)
            self._budget.used += len(view)
        self._pump(call)
        if call.outbox:
            call.outbox = deque(map(part_of_its_own, call.outbox))

    def _pump(self, call: Call, max_frames: int = MAX_WINDOW) -> None:
        """Send what the windows, and ``max_frames``, allow of a call's outbox, then its trailers."""
        outbox = call.outbox
        while outbox:
            view = outbox[0]
            room = min(self._send_window, call.send_window, self._peer_frame_size)
            if (room <= 0 and view) or max_frames == 0:
                if call.send_window > 0:
                    self._blocked[call] = None
                outbox[0] = part_of_its_own(view)
                return
            max_frames -= 1
            chunk = view[:room]
            if len(chunk) == len(view):
                outbox.popleft()
            else:
                outbox[0] = view[room:]
                self.bulky = self.bulky or len(view) >= BULKY_BYTES
            self._send_data(call, chunk, end_stream=call.trailers == b"" and not outbox)
        call.outbox = None  # an empty deque takes more memory than the rest of a call that stays open
        self._blocked.pop(call, None)
        if call.on_drained is not None:
            call.on_drained()
        if call.trailers:
            self._send_block(call.stream_id, call.trailers, end_stream=True)
        if call.trailers is not None:
            self._close(call)

    def _send_data(self, call: Call, chunk: memoryview, *, end_stream: bool) -> None:
        size = len(chunk)
        self._send_window -= size
        call.send_window -= size
        call.outbox_bytes -= size
        self._queued_bytes -= size
        self._budget.used -= size
        self._sent_kib += size >> 10
        self.bulky = self.bulky or size >= BULKY_BYTES
        self._write(FRAME_HEAD.pack(size << 8 | DATA, END_STREAM if end_stream else 0, call.stream_id), chunk)

    def _pump_blocked(self) -> None:
        """New window: share it among the calls that wait for it, a frame each in turn.

        FRAMES_AT_ONCE of them; ``behind`` says that there is more.
        """
        for _ in range(FRAMES_AT_ONCE):
            if not self._can_pump:
                return
            call, _ = self._blocked.popitem(last=False)
            self._pump(call, max_frames=1)  # which puts it in again at the end unless it is done
        self.behind = self.behind or self._can_pump

    @property
    def _can_pump(self) -> bool:
        """Whether a call waits whose next frame the windows allow."""
        return bool(self._blocked) and self._send_window > 0

    @property
    def send_window(self) -> int:
        """Bytes of DATA the peer accepts on the whole connection; may be negative."""
        return self._send_window


def part_of_its_own(view: memoryview, together: int = 0) -> memoryview:
    """``view``, or a copy of it where it keeps much more memory than it shows, such as the outputs of a whole batch.

    For what has to wait for a peer, who shall make us hold no more than is counted.

    Args:
        view: of some buffer.
        together: bytes of all views of that buffer that wait; 0 where this is the only one.
    """
    whole: Any = view.obj
    size: int = getattr(whole, "nbytes", 0) or len(whole)  # of an array or a memoryview; of bytes
    return memoryview(bytes(view)) if size > 4 * (together or len(view)) + SMALL_PART_BYTES else view


def _coalesce(buffers: Iterable[Buffer]) -> list[Buffer]:
    """Join neighbouring small buffers, so that a message does not become a frame per piece."""
    joined: list[Buffer] = []
    small: list[Buffer] = []
    for buffer in buffers:
        if len(buffer) < BULKY_BYTES:
            small.append(buffer)
            continue
        if small:
            joined.append(b"".join(small))
            small = []
        joined.append(buffer)
    if small:
        joined.append(b"".join(small))
    return joined
