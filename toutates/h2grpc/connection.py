"""One server connection, sans-IO: bytes in, calls out; replies in, bytes out (RFC 9113).

    driver                           ServerConnection
      receive_data(data, now) ──────▶  frames ▶ streams ▶ calls ──▶ [events]
      views(), take_direct(count) ──▶  the same for large messages (``direct``), received where they belong
      call.reply(...) / call.fail() ▶  frames within the peer's windows
      take_output() ◀───────────────  [bytes]

It has no socket, no clock and no thread: the driver says what time it is, and the same bytes give the same events
however they are cut. The driver's duties: hand in received data, send ``take_output()`` of every connection in
``dirty``, call ``expire`` at ``deadlines.next_ns``, and close the socket after ConnectionTerminated.

No call of the driver takes longer than some milliseconds, whatever the peer has sent. ``behind`` says that something
is left to do then, and ``go_on`` does the next piece of it: the driver calls it until nothing is left, and deals with
other connections in between. Meanwhile it hands in no data.

A connection is used by one thread only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toutates.h2grpc.budget import CALL_BYTES
from toutates.h2grpc.call import Call
from toutates.h2grpc.direct_receive import DirectReceive
from toutates.h2grpc.events import ConnectionTerminated, Event, LargeRequest, MessageReceived, tell_handler
from toutates.h2grpc.faults import ConnectionFault
from toutates.h2grpc.foresight import Foresight
from toutates.h2grpc.frame_loop import DIRECTLY, FrameLoop
from toutates.h2grpc.frames import FRAME_HEAD_SIZE, PING, PREFACE, ErrorCodes, pack_frame
from toutates.h2grpc.goodbye import STOPPING
from toutates.h2grpc.limits import Limits
from toutates.h2grpc.messages import PREFIX_SIZE
from toutates.h2grpc.method import Method
from toutates.h2grpc.parts import Parts
from toutates.h2grpc.plain import Admit
from toutates.h2grpc.preface import REFUSALS, Opening, http1_answer, recognise
from toutates.h2grpc.receiver import Receiver
from toutates.h2grpc.shared import Shared
from toutates.h2grpc.status import GrpcError, LimitExceeded, Status
from toutates.h2grpc.stream import Buffer
from toutates.h2grpc.streams import OPEN
from toutates.h2grpc.vector import Vector

__all__ = ["ServerConnection"]

KEEPALIVE_PING = b"are you?"
#: Calls that one call of the driver ends at most, at their deadline or with their connection. Each takes 1 to 5 us.
ENDED_AT_ONCE = 512


class ServerConnection:
    """The server's side of one HTTP/2 connection that carries gRPC calls.

    Args:
        methods: the services' table, by ``:path`` (``method.method_table``).
        limits: bounds; also what SETTINGS advertise.
        dirty: the driver's list of connections with output. What ``bind`` was given is appended when there is some.
        response_encoding: ``gzip`` or ``deflate`` for the responses of compressible methods, "" for none.
        shared: what the connections of one driver share; None if this connection shares nothing.
        admit: judges requests that are no gRPC, which become events then; None has them refused.

    Attributes:
        carrier: what the driver has for such requests; None until it sets it.
    """

    #: HTTP/2 has windows for this
    full = False

    __slots__ = (
        "_answered_id",
        "_direct_receive",
        "_foresight",
        "_http_fields",
        "_limit_hits",
        "_limits",
        "_output",
        "_preface_seen",
        "_reason",
        "_receiver",
        "_requests",
        "behind",
        "blocks",
        "carrier",
        "deadlines",
        "direct",
        "frame_loop",
        "goodbye",
        "header_reader",
        "held",
        "queue",
        "responder",
        "settings",
        "streams",
        "table",
        "told_by_answers",
        "unread",
        "windows",
    )

    def __init__(
        self,
        methods: Mapping[bytes, Method],
        limits: Limits,
        dirty: list[Any],
        *,
        response_encoding: str = "",
        shared: Shared | None = None,
        admit: Admit | None = None,
    ) -> None:
        shared = shared or Shared()
        parts = Parts(methods, limits, dirty, response_encoding, shared, admit)
        self._limits = limits
        #: of a shutdown that waits for the end of an answer: what the GOAWAY says, and the last request before
        self.told_by_answers = False
        self._reason = ""
        self._answered_id = 0
        self._limit_hits = shared.limit_hits
        self._http_fields = shared.http_fields
        self._output = parts.output
        self.settings = parts.settings
        self.windows = parts.windows
        self.table = parts.table
        self.queue = parts.queue
        self.held = parts.held
        self._requests = parts.requests
        self.blocks = parts.blocks
        self.header_reader = parts.header_reader
        self.goodbye = parts.goodbye
        self.unread = parts.unread
        self._receiver = Receiver(parts)
        self._direct_receive = DirectReceive(
            limits, self._receiver, parts.requests, parts.table, parts.windows, parts.held, shared
        )
        self._foresight = Foresight(parts, self._direct_receive)
        self.frame_loop = FrameLoop(parts, self._receiver, self._direct_receive)
        self._preface_seen = False
        self.carrier: Any = None
        self.responder = parts.responder
        self.deadlines = parts.deadlines
        self.streams = parts.table.streams
        #: whether ``go_on`` has something to do; the driver may set it to be called for reasons of its own
        self.behind = False
        #: whether the next bytes had better be put into ``views`` than handed in
        self.direct = False

    # --- what the driver calls ---------------------------------------------------------------------------------------

    def receive_data(self, data: bytes, now_ns: int, start: int = 0) -> list[Event]:
        """Take received bytes; returns what they completed, in order, or the first of it: see ``behind``.

        Args:
            data: bytes as they came from the socket, cut anywhere.
            now_ns: the time, from which ``grpc-timeout`` counts, on any monotonic clock.
            start: offset in ``data`` of the first byte to read.
        """
        if self.responder.closed:
            return []
        if self.unread.waiting:
            if self.direct and self._direct_receive.under_way:
                return self._copy_into_views(memoryview(data)[start:], now_ns)
            data = self.unread.join(data, start)
            start = 0
            if not data:
                return []
        events: list[Event] = []
        try:
            at = start if self._preface_seen else self._receive_preface(data, events)
            if at is not None and (left := self.frame_loop.walk(data, at, now_ns, events)):
                if left == DIRECTLY:
                    self.direct = self.unread.waiting = True
                else:
                    self.behind = True
        except ConnectionFault as fault:
            self._terminate(fault.code, str(fault), events, fault.limit)
        table = self.table
        if table.cancelled:
            # A call that the same read completes and resets must not reach its handler (CVE-2023-44487). Filtering the
            # events here costs less than testing every call's ``open`` before its handler: 4 % of a request on 3.14t.
            table.cancelled = False
            events = list(filter(_is_open, events))
        if table.many:
            table.count()
        return events

    @property
    def awaited_bytes(self) -> int:
        """Bytes that are still to come of the message that is received directly; 0 for none."""
        return self._direct_receive.awaited_bytes if self.direct else 0

    @property
    def head_bytes(self) -> int:
        """Bytes that tell whether the next request is as foreseen; 0 if none is."""
        # What comes next is likely to be a large request like the last ones. Asked three times for each of them, and so
        # written three times: a call takes as long as all of it.
        if self.direct and self._direct_receive.idle and not self.unread.waiting:
            return self._foresight.head_bytes
        return 0

    @property
    def next_bytes(self) -> int:
        """Bytes of the next request, if one is foreseen; 0 if none is."""
        if self.direct and self._direct_receive.idle and not self.unread.waiting:
            return self._foresight.next_bytes
        return 0

    def foreseen_bytes(self, head: bytes) -> int:
        """Bytes of the whole request that begins so, which are worth waiting for; 0 if it is not as foreseen."""
        return self._foresight.foreseen_bytes(head)

    def vector(self) -> Vector | None:
        """What ``views`` would give for a request that is foreseen, if that is known already."""
        if self.direct and self._direct_receive.idle and not self.unread.waiting:
            return self._foresight.vector()
        return None

    def views(self) -> list[memoryview]:
        """Where the next bytes had better be put, while ``direct`` is set; none if they are to be handed in after all.

        They belong to a large message, or to the next request where that is foreseen.

        The driver puts bytes there in this order, forgets the views, and calls ``take_direct``, before it does anything
        else with this or another connection.
        """
        direct = self._direct_receive
        if direct.under_way:
            views = direct.views()
            if not views:
                self._end_direct()
            return views
        if self.unread.waiting or direct.ends:
            return []  # in the middle of a frame, or of a message
        views = self._foresight.views()
        self.direct = bool(views)
        return views

    def _copy_into_views(self, data: memoryview, now_ns: int) -> list[Event]:
        events: list[Event] = []
        while data and self.direct and self._direct_receive.under_way:
            count = 0
            views = self.views()
            while views:
                part = data[count : count + len(views[0])]
                views.pop(0)[: len(part)] = part
                count += len(part)
            data = data[count:]
            if count:
                events += self.take_direct(count, now_ns)
        if data:
            events += self.receive_data(bytes(data), now_ns)
        return list(filter(_is_open, events))

    def _end_direct(self) -> None:
        """The message that was received directly is whole, or what is left of it goes the ordinary way."""
        self.unread.waiting = False
        self._direct_receive.end()
        self.direct = self._foresight.note_end()

    def take_direct(self, count: int, now_ns: int) -> list[Event]:
        """Take ``count`` bytes that are in ``views``, one at least; returns what they completed."""
        events: list[Event] = []
        try:
            if self._direct_receive.under_way:
                rest = self._direct_receive.take(count, now_ns, events)
            else:
                request = self._foresight.take(count, now_ns)
                if request is not None:
                    return [request]
                rest = self._take_part(count, now_ns, events)
        except ConnectionFault as fault:
            self._terminate(fault.code, str(fault), events, fault.limit)
            return events
        if rest is not None:
            self._end_direct()
            if rest:
                events += self.receive_data(rest, now_ns)
        if self.queue.can_send:
            self.behind = True
        self.table.cancelled = False
        return list(filter(_is_open, events))

    def _take_part(self, count: int, now_ns: int, events: list[Event]) -> bytes | None:
        """``DirectReceive.take`` for bytes that are not all of the request that was foreseen, or of another one."""
        foresight, rest = self._foresight, b""
        self.direct = False
        try:
            head = foresight.take_head(count)
            events += self.receive_data(head, now_ns)
            count -= len(head)
            if count and not self.closed:
                if self.direct and foresight.goes_on():
                    left_over = self._direct_receive.take(count, now_ns, events)
                    if left_over and len(left_over) > FRAME_HEAD_SIZE:
                        foresight.distrust()
                    return left_over
                rest = foresight.take_surprise(count)
        finally:
            foresight.forget()
        if rest:
            events += self.receive_data(rest, now_ns)
        return None

    def go_on(self, now_ns: int) -> list[Event]:
        """Do the next piece of the work that is left (``behind``); returns the events that it makes.

        Args:
            now_ns: the time, as for ``receive_data``.
        """
        events: list[Event] = []
        unread = self.unread
        if self.closed:
            self.abandon_calls(events)
        elif self.deadlines.expired:
            self._fail_expired(events)
        elif self.queue.can_send:
            self.responder.pump_blocked()
            self.behind = bool(unread.rest) or self.queue.can_send
        else:
            self.behind = False
            if unread.rest:  # else the rest of a large message may be awaited
                rest, at = unread.take_rest()
                events = self.receive_data(rest, now_ns, at)
        return events

    def connection_lost(self) -> list[Event]:
        """End all calls, because the socket is closed. Returns the streaming ones, whose handlers have to end.

        Ends ENDED_AT_ONCE calls; ``behind`` says whether more are left.
        """
        events: list[Event] = []
        self.responder.close()
        self.abandon_calls(events)
        return events

    def expire(self, now_ns: int) -> list[Event]:
        """Fail the calls whose deadline has passed with DEADLINE_EXCEEDED; returns the streaming ones.

        Fails ENDED_AT_ONCE calls; ``behind`` says whether more are left.
        """
        events: list[Event] = []
        self.deadlines.look(self.streams.values(), now_ns)
        self._fail_expired(events)
        return events

    def _fail_expired(self, events: list[Event]) -> None:
        for call in self.deadlines.take(ENDED_AT_ONCE):
            if self.streams.get(call.stream_id) is not call:
                continue  # it has ended since
            if call.open:
                call.fail(Status.DEADLINE_EXCEEDED, "Deadline Exceeded")
                tell_handler(call, events)
            else:  # answered, but the peer takes no more
                self._receiver.reset_stream(call.stream_id, ErrorCodes.CANCEL, events)
        self.behind = bool(self.deadlines.expired or self.unread.rest) or self.queue.can_send

    def message_read(self, call: Call, size: int) -> None:
        """Return the window of a message of ``size`` bytes to the peer: a streaming call's handler has taken it."""
        self._requests.message_read(call, size)
        # Looked at first: nearly always the window is still large enough.
        low = call.receive_window <= self._limits.stream_window >> 1
        if low and call.stream_id in self.streams and call.state is OPEN:
            self.windows.refill_stream(call)

    def take_message(self, message: MessageReceived) -> None:
        """The handler of a stream has taken a message: give its window back.

        For a message that is not counted nothing is to be done as long as the stream has half of its window.
        """
        if message.is_counted:
            self.message_read(message.call, message.end - message.start)
        elif message.call.stream_id in self.streams and message.call.state is OPEN:
            self.windows.refill_stream(message.call)

    def keep_message(self, message: MessageReceived) -> None:
        """The handler of a stream keeps a message for later, in memory of its own: it counts as unread until then."""
        call = message.call
        if not message.is_counted:
            message.is_counted = True
            call.unread_bytes += message.end - message.start + PREFIX_SIZE
            call.messages += 1
        self.keep(call, call.kept_bytes)

    def keep(self, call: Call, size: int) -> None:
        """Count ``size`` bytes of answers that a streaming call's handler keeps, and the messages it has not taken.

        If the connection, or the server, holds too much, the call ends.
        """
        call.kept_bytes = size
        try:
            self._requests.count(call)
        except LimitExceeded as error:
            self._requests.refuse(call, error)

    def hold(self, call: Call, size: int) -> None:
        """Count ``size`` bytes of a unary call's request that its handler keeps; 0 before the call is answered.

        If the connection, or the server, holds too much, the call ends.
        """
        try:
            self._requests.hold(call, size)
        except LimitExceeded as error:
            self._requests.refuse(call, error)

    def inflated(self, call: Call, outcome: bytes | GrpcError) -> list[Event]:
        """Take the outcome of an InflationDue: the decompressed message, or the error that its call ends with."""
        return self._requests.inflated(call, outcome)

    def take_output(self) -> list[Buffer]:
        """Return the bytes to send, in order, and forget them."""
        if self.table.many:
            self.table.count()
        output = self._output
        pieces, output.pieces = output.pieces, []
        output.bulky = False
        return pieces

    def bind(self, link: object) -> None:
        """Set the driver's own object for this connection: appended to ``dirty``, and ``Call.link``. None unsets it."""
        self._output.link = link

    def refuse(self, reason: str) -> None:
        """Refuse the connection before its first frame, with a GOAWAY; the driver then closes it."""
        self.settings.announce()
        self._terminate(ErrorCodes.NO_ERROR, reason, [], "connections")

    def end(self, reason: str, limit: str) -> list[Event]:
        """End the connection at once.

        Args:
            reason: the debug data of the GOAWAY.
            limit: the limit that the peer has met, of ``limits.LIMIT_NAMES``; "" for a bug of the server.
        """
        events: list[Event] = []
        if not self.closed:
            code = ErrorCodes.ENHANCE_YOUR_CALM if limit else ErrorCodes.INTERNAL_ERROR
            self._terminate(code, reason, events, limit)
        return events

    def wake_senders(self) -> None:
        """Call ``on_drained`` of all calls: the driver's socket takes bytes again."""
        for call in list(self.streams.values()):
            if call.on_drained is not None:
                call.on_drained()

    def ping(self) -> None:
        """Send a PING, to find out whether the peer is still there; anything that it sends is an answer."""
        self._output.write(pack_frame(PING, 0, 0, KEEPALIVE_PING))

    @property
    def closed(self) -> bool:
        """Whether the connection has ended. No call is answered any more; ``go_on`` may have calls left to end."""
        return self.responder.closed

    @property
    def bulky(self) -> bool:
        """Whether the output is worth sending piece by piece instead of joined."""
        return self._output.bulky

    @property
    def has_output(self) -> bool:
        """Whether ``take_output`` would return anything."""
        return bool(self._output.pieces)

    @property
    def established(self) -> bool:
        """Whether the peer has sent its preface, SETTINGS included."""
        return self.settings.seen

    @property
    def calls_begun(self) -> int:
        """Calls of the connection so far, as the peer counts them."""
        return self.table.last_id + 1 >> 1

    @property
    def awaits_request(self) -> bool:
        """Whether the peer has sent a part of a frame, header block or unary request, and has to send the rest.

        False while bytes wait for ``go_on``, because the rest may be among them.
        """
        if self.unread.rest:
            return False
        return bool(self.unread.waiting or self.blocks.stream_id) or any(map(_awaits_request, self.streams.values()))

    @property
    def awaits_window(self) -> int:
        """Bytes of responses that wait for the peer's windows."""
        return self.queue.bytes_waiting

    @property
    def held_bytes(self) -> int:
        """Estimated bytes that the connection takes: incomplete requests, queued responses, calls, header blocks."""
        waiting = self.unread.size + self.held.held_bytes + self.queue.bytes_waiting
        return waiting + CALL_BYTES * len(self.streams) + self.header_reader.kept_bytes

    def trim(self) -> None:
        """Forget what only makes the next requests cheaper: there have been none for some time."""
        self.header_reader.forget()

    def announce_end(self) -> None:
        """The server is about to stop, and answers on: a client of plain HTTP is told with its next answer."""
        if not (self.closed or self.header_reader.has_grpc or self.told_by_answers):
            self._tell_by_answers()

    def _tell_by_answers(self) -> None:
        self.told_by_answers = True
        self._answered_id = self.table.last_id - 1 if self.streams else self.table.last_id

    def say_goodbye(self) -> None:
        """Before output is sent while ``told_by_answers``: send GOAWAY if it has the end of the last answer."""
        if self.closed or not self.told_by_answers:
            return
        if self.header_reader.has_grpc:
            self.told_by_answers = False
            if self._reason:
                self.goodbye.begin(self._reason)
        elif not self.streams and self.table.last_id > self._answered_id:
            self.goodbye.finish(self._reason or STOPPING)

    def begin_shutdown(self, reason: str = STOPPING) -> None:
        """Begin a graceful shutdown (RFC 9113 section 6.8): open calls are answered, the peer makes new ones elsewhere.

        Sends a first GOAWAY with the highest stream number, and a PING. The second GOAWAY, with the number of the last
        stream that will be answered, is sent when the peer answers the PING or the driver calls ``finish_shutdown``.

        Args:
            reason: the debug data of the GOAWAY frames.

        To many clients of plain HTTP, GOAWAY is the end, and what comes behind it an error: the PING, and answers that
        are under way. So where a connection has had requests of plain HTTP and no calls, there is but one: behind
        the end of the last answer, or of the next one where none is under way (``say_goodbye``).
        """
        if self.closed:
            return
        self._reason = reason
        reader = self.header_reader
        if reader.has_grpc or not reader.has_plain:
            self.told_by_answers = False
            self.goodbye.begin(reason)
        elif not self.told_by_answers:
            self._tell_by_answers()

    def finish_shutdown(self) -> None:
        """Send the GOAWAY after which no new stream is answered."""
        if not self.told_by_answers:
            self.begin_shutdown()
        if not self.closed:
            self.goodbye.finish(self._reason or STOPPING)

    @property
    def drained(self) -> bool:
        """Whether a shutdown is complete: the last GOAWAY is out and no call is left."""
        return self.goodbye.drained

    @property
    def open_calls(self) -> int:
        """Streams that are not closed."""
        return len(self.streams)

    # --- frames ------------------------------------------------------------------------------------------------------

    def _receive_preface(self, data: bytes, events: list[Event]) -> int | None:
        """The offset of the first frame; None if the preface is incomplete or wrong."""
        opening = recognise(data, self._limits.max_preface_bytes)
        if opening is Opening.INCOMPLETE:
            self.unread.hold(data, len(data) + 1)
            return None
        if opening in REFUSALS:
            answer, code, text = REFUSALS[opening]
            if opening is Opening.HTTP1:
                answer = http1_answer(answer.decode(), b"" if self._http_fields is None else self._http_fields())
            self._output.write(answer)
            self.responder.close()
            events.append(ConnectionTerminated(code, text))
            return None
        # Our SETTINGS wait until here, because clients that speak HTTP/1 or TLS could not read them.
        self.settings.announce()
        if opening is Opening.GARBAGE:
            raise ConnectionFault(ErrorCodes.PROTOCOL_ERROR, "invalid connection preface")
        self._preface_seen = True
        return len(PREFACE)

    # --- the end -----------------------------------------------------------------------------------------------------

    def _terminate(self, code: ErrorCodes, text: str, events: list[Event], limit: str = "") -> None:
        if limit:
            self._limit_hits[limit] += 1
        self.goodbye.end(code, text)
        self.responder.close()
        self.abandon_calls(events)
        events.append(ConnectionTerminated(code, text))

    def abandon_calls(self, events: list[Event]) -> None:
        """End the next ENDED_AT_ONCE calls of a connection that is over."""
        self.deadlines.clear()
        self._end_direct()
        self.direct = False
        self.unread.drop()
        self.blocks.drop()
        self.header_reader.close()
        streams = self.streams
        self.behind = bool(streams)
        for _ in range(min(len(streams), ENDED_AT_ONCE)):
            _, call = streams.popitem()  # first, so that a driver that tries again after an error comes to the next one
            tell_handler(call, events)
            self.responder.forget(call)
        self.behind = bool(streams)
        self.table.count()


def _is_open(event: Event) -> bool:
    """Whether an event is not that of a call which has ended before its handler heard of it."""
    if isinstance(event, Call):
        return event.open
    return not isinstance(event, LargeRequest) or event.call.open


def _awaits_request(call: Call) -> bool:
    return call.state == OPEN and not call.is_streaming
