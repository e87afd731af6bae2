"""Requests that are no gRPC: a stream's head is the driver's to judge, and its DATA is a body as it is.

The driver gets a ``PlainCall`` when the request is whole. It gets it earlier where the request is refused: the driver's
own verdict on the head says so, or the body is too large. Then the driver answers (``Responder.respond``, or ``begin``,
``send_piece`` and ``end_pieces``), and what still comes of the body is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, cast

from toutates.h2grpc.call import Call
from toutates.h2grpc.events import Event, LargeRequest
from toutates.h2grpc.frames import DATA, END_STREAM, FRAME_HEAD_SIZE
from toutates.h2grpc.header_field import HeaderField
from toutates.h2grpc.limits import Limits
from toutates.h2grpc.message_memory import ALIGNMENT, LARGE_MESSAGE_BYTES, LargeMessage, MessageMemory
from toutates.h2grpc.request_memory import RequestMemory
from toutates.h2grpc.responder import Responder
from toutates.h2grpc.settings import Settings
from toutates.h2grpc.shared import Shared
from toutates.h2grpc.status import LimitExceeded
from toutates.h2grpc.stream_table import StreamTable
from toutates.h2grpc.streams import HALF_CLOSED_REMOTE
from toutates.h2grpc.windows import Windows

__all__ = ["Admit", "PlainCall", "PlainHead", "PlainRequests"]


#: A refused request that does not say its length is answered at its end, or when so many bytes of it were dropped.
MOST_UNREAD: Final = 65_536


class PlainHead(Protocol):
    """What the driver makes of the header list of such a request.

    Attributes:
        max_body_size: bytes that the body may have.
        refusal: why the request is refused, whatever its body; None where it is not.
        expects_continue: whether the client waits for status 100 before it sends the body.
        in_memory: whether a large body may come as a ``MessageMemory``.
        aligned_at: the place in such a body that is to be aligned.
    """

    max_body_size: int
    refusal: Any
    expects_continue: bool
    in_memory: bool
    aligned_at: int


#: Takes a header list and its size by RFC 9113 section 6.5.2. Returns a ``PlainHead``, and for how many reset streams
#: the request counts. Where that is none, it is not asked again for a header block of the same octets.
Admit = Callable[[Sequence[HeaderField], int], tuple[PlainHead, int]]


def _end_context(call: Any) -> None:
    if call.context is not None:
        call.context.open = False
        call.context = None


class PlainCall(Call):
    """A request that is no gRPC, and the record of its stream.

    Attributes:
        context: the driver's own request, until it is answered; its attribute ``open`` is cleared when the stream is
            closed for another reason.
        buffer: the body, once the driver has the request: a ``bytes``, a ``bytearray``, or a ``MessageMemory`` where it
            comes in a ``LargeRequest``.
        problem: the limit that it has met; None for none.
        handed_on: whether the driver has the request.
    """

    problem: LimitExceeded | None = None
    handed_on: bool = False
    on_closed: Callable[[Any], None] | None = staticmethod(_end_context)
    #: what has come of a body in pieces
    pieces: bytearray | None = None


class LargeBody(LargeMessage):
    """A large body in memory of its own, which is a ``messages.Assembler``."""

    __slots__ = ()

    @property
    def pending_bytes(self) -> int:
        """Bytes that it takes."""
        return self.held_bytes

    def feed(self, payload: memoryview) -> list[bytes]:
        """Copy the next bytes; there are no messages."""
        self.add(payload)
        return []

    def take_whole(self) -> bytes:
        """The body, if it is whole; b"" otherwise."""
        return b"" if self.missing else cast(bytes, self.take())


class PlainRequests:
    """The requests of one connection that are no gRPC.

    Args:
        limits, settings, table, windows: of the connection.
        held: counts the memory of requests that are not whole.
        responder: answers them.
        shared: what all connections of the driver share.
    """

    __slots__ = (
        "_held",
        "_pool",
        "_responder",
        "_settings",
        "_stream_window",
        "_streams",
        "_table",
        "_unpack_frame_head",
        "_windows",
    )

    def __init__(
        self,
        limits: Limits,
        settings: Settings,
        table: StreamTable[Call],
        windows: Windows,
        held: RequestMemory,
        responder: Responder,
        shared: Shared,
    ) -> None:
        self._held = held
        self._pool = shared.pool
        self._responder = responder
        self._settings = settings
        self._stream_window = limits.stream_window
        self._streams = table.streams
        self._table = table
        self._unpack_frame_head = shared.wire.unpack_frame_head
        self._windows = windows

    def take_whole(self, data: bytes, at: int, stream_id: int, head: Any, events: list[Event]) -> int:
        """Take a request whose head has been read and may open a stream, if its body is the frame that follows.

        That is how nearly all of them come that have a small body.

        Args:
            data: received bytes.
            at: where the frame behind the head begins, if there is one.
            stream_id: of the request, the next one of the peer.
            head: of the request.
            events: where the request goes.

        Returns:
            Where the next frame begins; 0 if it is no such request, and nothing was done.
        """
        if len(data) - at < FRAME_HEAD_SIZE:
            return 0
        word, flags, data_id = self._unpack_frame_head(data, at)
        length = word >> 8
        start = at + FRAME_HEAD_SIZE
        end: int = start + length
        windows = self._windows
        if (
            word & 0xFF != DATA
            or flags != END_STREAM
            or data_id != stream_id
            or end > len(data)
            or not head.least <= length <= head.most
            or length > windows.receive
        ):
            return 0
        self._table.last_id = stream_id
        call = PlainCall(self._responder, stream_id, head, self._settings.stream_window, self._stream_window)
        self._streams[stream_id] = call
        call.state = HALF_CLOSED_REMOTE
        call.buffer = data[start:end]
        windows.receive -= length
        if windows.receive < windows.low:
            windows.refill()
        events.append(call)
        return end

    def begin(self, call: PlainCall, events: list[Event]) -> None:
        """The head of a request has come, and a body is to follow."""
        plain: PlainHead = call.head.plain
        if plain.refusal is not None:
            # One that does not say how long it is mostly ends soon, and until then it may be found to be malformed.
            if call.head.content_length is not None or plain.expects_continue:
                self._hand_on(call, events)
        elif plain.expects_continue:
            self._responder.send_continue(call)

    def begin_large(self, call: PlainCall, least: int) -> LargeBody | None:
        """Have memory for a large body of known length, of which ``least`` bytes are there; None if it gets none."""
        plain: PlainHead = call.head.plain
        size = call.head.content_length
        if (
            size is None
            or not LARGE_MESSAGE_BYTES <= size <= plain.max_body_size
            or not plain.in_memory
            or call.handed_on
            or call.pieces is not None
        ):
            return None
        body = LargeBody.begin(self._pool, size, least, -plain.aligned_at % ALIGNMENT)
        call.assembler = body
        return body

    def landed(self, call: PlainCall, unchecked: int, events: list[Event]) -> None:
        """Take DATA that is in the body's memory, and noted in ``held``, already; see ``Requests.landed``."""
        try:
            if unchecked > 0 and not call.handed_on:
                self._held.check()
        except LimitExceeded as error:
            call.problem = error.with_traceback(None)
            self._hand_on(call, events)

    def feed(self, call: PlainCall, body: memoryview, events: list[Event]) -> None:
        """Add DATA, which is counted in ``received`` already."""
        if call.handed_on:
            return
        if call.head.plain.refusal is not None:
            if call.received > MOST_UNREAD:
                self._hand_on(call, events)
            return
        most = call.head.plain.max_body_size
        try:
            if call.received > most:
                raise LimitExceeded("message_size", f"the request's body has more than {most} bytes")
            assembler = call.assembler
            if assembler is None and call.pieces is None:
                if call.state is HALF_CLOSED_REMOTE:  # all of it
                    call.buffer = bytes(body)
                    return
                assembler = self.begin_large(call, len(body))
            if assembler is not None:
                assembler.feed(body)
                size = assembler.pending_bytes
            else:
                call.pieces = pieces = bytearray() if call.pieces is None else call.pieces
                pieces += body
                size = len(pieces)
            self._held.hold(call, size)
        except LimitExceeded as error:
            call.problem = error.with_traceback(None)
            self._hand_on(call, events)

    def complete(self, call: PlainCall, events: list[Event]) -> None:
        """The request has ended."""
        if not call.handed_on:
            self._hand_on(call, events)

    def _hand_on(self, call: PlainCall, events: list[Event]) -> None:
        body: Any = call.pieces
        if call.assembler is not None and call.problem is None:
            body = call.assembler.take_whole()
        if body is not None and call.problem is None:
            call.buffer = body
        call.pieces = None
        call.handed_on = True
        self._held.release(call)  # from here on its handler has it
        events.append(LargeRequest(call) if isinstance(body, MessageMemory) else call)
