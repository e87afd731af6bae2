"""Requests that are no gRPC: a stream's head is the driver's to judge, and its DATA is a body as it is.

``PlainCall`` is the event that its driver gets: when the request is whole, or before that when it is refused, by the
driver's verdict on its head or for what it makes the server hold. The driver answers it (``Responder.respond``, or
``begin``, ``send_piece`` and ``end_pieces``), and what still comes of its body is dropped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from toutates.h2grpc.call import Call
from toutates.h2grpc.frames import DATA, END_STREAM, FRAME_HEAD_SIZE
from toutates.h2grpc.header_field import HeaderField
from toutates.h2grpc.limits import Limits
from toutates.h2grpc.request_memory import RequestMemory
from toutates.h2grpc.responder import Responder
from toutates.h2grpc.settings import Settings
from toutates.h2grpc.status import LimitExceeded
from toutates.h2grpc.stream_table import StreamTable
from toutates.h2grpc.streams import HALF_CLOSED_REMOTE
from toutates.h2grpc.windows import Windows
from toutates.h2grpc.wire import Wire

if TYPE_CHECKING:
    from toutates.h2grpc.events import Event

__all__ = ["Admit", "PlainCall", "PlainHead", "PlainRequests"]


class PlainHead(Protocol):
    """What the driver makes of the header list of such a request.

    Attributes:
        max_body_size: bytes that the body may have.
        refusal: why the request is refused, whatever its body; None where it is not.
        expects_continue: whether the client waits for status 100 before it sends the body.
    """

    max_body_size: int
    refusal: Any
    expects_continue: bool


#: Of a header list and its size by RFC 9113 section 6.5.2, makes a ``PlainHead``, and for how many reset streams such a
#: request counts. It is asked again each time where it counts for some, and where the same fields come in other octets.
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
        buffer: the body, once the driver has the request; a ``bytes`` or a ``bytearray``.
        problem: the limit that it has met; None for none.
        handed_on: whether the driver has the request.
    """

    problem: LimitExceeded | None = None
    handed_on: bool = False
    on_closed: Callable[[Any], None] | None = staticmethod(_end_context)
    #: what has come of a body in pieces
    pieces: bytearray | None = None


class PlainRequests:
    """The requests of one connection that are no gRPC.

    Args:
        limits, settings, table, windows: of the connection.
        held: counts the memory of requests that are not whole.
        responder: answers them.
        wire: of the driver's thread.
        limit_hits: counts limits that were met.
    """

    __slots__ = (
        "_held",
        "_limit_hits",
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
        wire: Wire,
        limit_hits: Counter[str],
    ) -> None:
        self._held = held
        self._limit_hits = limit_hits
        self._responder = responder
        self._settings = settings
        self._stream_window = limits.stream_window
        self._streams = table.streams
        self._table = table
        self._unpack_frame_head = wire.unpack_frame_head
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
            self._hand_on(call, events)  # nobody wants to read what follows
        elif plain.expects_continue:
            self._responder.send_continue(call)

    def feed(self, call: PlainCall, body: memoryview, events: list[Event]) -> None:
        """Add DATA, which is counted in ``received`` already."""
        if call.handed_on:
            return
        most = call.head.plain.max_body_size
        try:
            if call.received > most:
                raise LimitExceeded("message_size", f"the request's body has more than {most} bytes")
            if call.pieces is None:
                if call.state is HALF_CLOSED_REMOTE:  # all of it
                    call.buffer = bytes(body)
                    return
                call.pieces = bytearray(body)
            else:
                call.pieces += body
            self._held.hold(call, len(call.pieces))
        except LimitExceeded as error:
            call.problem = error
            self._hand_on(call, events)

    def complete(self, call: PlainCall, events: list[Event]) -> None:
        """The request has ended."""
        if not call.handed_on:
            self._hand_on(call, events)

    def _hand_on(self, call: PlainCall, events: list[Event]) -> None:
        body: Any = call.pieces
        if body is not None and call.problem is None:
            call.buffer = body
        call.pieces = None
        call.handed_on = True
        self._held.release(call)  # from here on its handler has it
        events.append(call)
