"""One server connection, sans-IO: bytes in, calls out; replies in, bytes out (RFC 9113).

    driver                           ServerConnection
      receive_data(data, now) ──────▶  frames ▶ streams ▶ calls ──▶ [events]
      call.reply(...) / call.fail() ▶  frames within the peer's windows
      take_output() ◀───────────────  [bytes]

It has no socket, no clock and no thread: the driver says what time it is, and the same bytes give the same events
however they are cut. The driver's duties: hand in received data, send ``take_output()`` of every connection in
``dirty``, call ``expire`` at ``next_deadline_ns``, and close the socket after ConnectionTerminated.

No call of the driver takes longer than some milliseconds, whatever the peer has sent. ``behind`` says that something
is left to do then, and ``go_on`` does the next piece of it: the driver calls it until nothing is left, and deals with
other connections in between. Meanwhile it hands in no data.

A connection is used by one thread only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toutates.h2grpc.budget import CALL_BYTES, MESSAGE_BYTES
from toutates.h2grpc.call import NEVER, Call
from toutates.h2grpc.events import ConnectionTerminated, Event
from toutates.h2grpc.faults import ConnectionFault, StreamFault
from toutates.h2grpc.frames import (
    ACK,
    CONTINUATION,
    DATA,
    DEFAULT_WINDOW,
    END_HEADERS,
    END_STREAM,
    FRAME_HEAD_SIZE,
    GOAWAY,
    HEADERS,
    MAX_STREAM_ID,
    MAX_WINDOW,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
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
from toutates.h2grpc.headers import HeaderBlockError, RequestHead
from toutates.h2grpc.limits import Limits
from toutates.h2grpc.messages import PREFIX_SIZE
from toutates.h2grpc.method import Method
from toutates.h2grpc.preface import REFUSALS, Opening, recognise
from toutates.h2grpc.receiver import Receiver, cancel_stream
from toutates.h2grpc.shared import Shared
from toutates.h2grpc.status import GrpcError, Status
from toutates.h2grpc.streams import HALF_CLOSED_REMOTE, IDLE, OPEN
from toutates.h2grpc.wire import MESSAGE_HEAD_SIZE

__all__ = ["ServerConnection"]

_unpack_uint32 = UINT32.unpack_from

#: The PING that follows the first GOAWAY of a graceful shutdown; its ACK shows that the peer has read the GOAWAY.
SHUTDOWN_PING = b"goodbye!"
KEEPALIVE_PING = b"are you?"
#: SETTINGS may change the window of every stream; with this many more, one costs a millisecond more and counts twice.
STREAMS_PER_SETTINGS = 2_048
#: Received bytes whose frames are handled in one go, where they are those of plain calls, or large. The dearest such
#: bytes take 0.08 us each (on 3.14t 0.15), so that this takes 5 ms (10).
BYTES_AT_ONCE = 65_536
#: How many bytes count for a frame off the short way, for each event that it brings besides, and for a byte of a header
#: block that has to be decoded: what takes as long.
SLOW_FRAME_BYTES = 96
EVENT_BYTES = 24
DECODING_BYTES = 8
#: And for a stream that SETTINGS may have changed the window of.
STREAM_BYTES = 2
#: Calls that are ended in one go, by their deadline or with their connection. Each takes 1 to 5 us.
ENDED_AT_ONCE = 512
#: Reads that are held as they came: those of a byte or two take twenty times their size.
MOST_PIECES_HELD = 64


class ServerConnection(Receiver):
    """See the module.

    Args:
        methods: the services' table, by ``:path`` (``method.method_table``).
        limits: bounds; also what SETTINGS advertise.
        dirty: where the connection puts itself once it has output for the driver to send.
        response_encoding: ``gzip`` or ``deflate`` for the responses of compressible methods, "" for none.
        shared: what the connections of one driver share; None makes one for this connection alone.
    """

    __slots__ = (
        "_expired",
        "_goodbye",
        "_held",
        "_held_bytes",
        "_held_joined",
        "_needed_bytes",
        "_preface_seen",
        "_preface_sent",
        "_rest",
        "_rest_at",
        "_short_message_limit",
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
        super().__init__(methods, limits, dirty, response_encoding=response_encoding, shared=shared)
        #: received bytes that do not make a whole frame yet, and how many it takes to go on
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._needed_bytes = 0
        #: received bytes that were left for ``go_on``, and where in them the next frame begins
        self._rest = b""
        self._rest_at = 0
        #: calls that were left for ``go_on`` to fail, the next one last
        self._expired: list[Call] = []
        #: pieces that were joined from several reads
        self._held_joined = 0
        self._preface_seen = False
        self._preface_sent = False
        #: why the peer was told to leave; "" as long as it was not
        self._goodbye = ""
        #: the largest unary message that may take the short way: within the message limit and the stream's window
        self._short_message_limit = min(limits.max_message_size, limits.stream_window - 5)

    # --- what the driver calls ---------------------------------------------------------------------------------------

    def receive_data(self, data: bytes, now_ns: int, start: int = 0) -> list[Event]:
        """Take received bytes; returns what they completed, in order, or the first of it: see ``behind``.

        Args:
            data: bytes as they came from the socket, cut anywhere.
            now_ns: the time, from which ``grpc-timeout`` counts, on any monotonic clock.
            start: where in ``data`` they begin.
        """
        if self.closed:
            return []
        self._now_ns = now_ns
        if self._rest:
            data = self._rest[self._rest_at :] + data[start:]
            start = 0
            self._rest = b""
        if self._held:
            data = self._join_held(data)
            if not data:
                return []
        events: list[Event] = []
        try:
            at = start if self._preface_seen else self._receive_preface(data, events)
            if at is not None:
                self._receive_frames(data, at, now_ns, events)
        except ConnectionFault as fault:
            self._terminate(fault.code, str(fault), events, fault.limit)
        except HeaderBlockError as error:
            if error.hostile:
                self._terminate(ErrorCodes.ENHANCE_YOUR_CALM, str(error), events, "header_list_size")
            else:
                self._terminate(ErrorCodes.COMPRESSION_ERROR, str(error), events)
        if self._cancelled:
            # Completed and reset at once: it shall not cost us the work (CVE-2023-44487). Looking for them here, all in
            # one go, costs less than looking at every call's ``open`` before its handler: 4 % of a request on 3.14t.
            self._cancelled = False
            events = [event for event in events if event.__class__ is not Call or event.open]
        if self._many_calls:
            self._count_calls()
        return events

    def go_on(self, now_ns: int) -> list[Event]:
        """Do the next piece of the work that one turn had no time for; returns what came of it.

        Args:
            now_ns: as for ``receive_data``.
        """
        events: list[Event] = []
        if self.closed:
            self._abandon_calls(events)
        elif self._expired:
            self._fail_expired(events)
        elif self._can_pump:
            self.behind = bool(self._rest)
            self._pump_blocked()
        else:
            rest, self._rest = self._rest, b""
            self.behind = False
            if rest:
                events = self.receive_data(rest, now_ns, self._rest_at)
        return events

    def connection_lost(self) -> list[Event]:
        """The socket is gone. Every call is over; returns the streaming ones, for their handlers to end.

        Of many calls the first ones only: see ``behind``.
        """
        events: list[Event] = []
        self.closed = True
        self._abandon_calls(events)
        return events

    def expire(self, now_ns: int) -> list[Event]:
        """Fail the calls whose deadline has passed with DEADLINE_EXCEEDED; returns the streaming ones.

        Looks at every open call, so that calls which end in time, nearly all of them, cost nothing but a comparison. Of
        many that are late it fails the first ones only: see ``behind``.
        """
        events: list[Event] = []
        self.next_deadline_ns = NEVER
        self._expired = []
        for call in self.streams.values():
            if call.deadline_ns <= now_ns:
                self._expired.append(call)
            elif call.deadline_ns < self.next_deadline_ns:
                self.next_deadline_ns = call.deadline_ns
        self._expired.reverse()
        self._fail_expired(events)
        return events

    def _fail_expired(self, events: list[Event]) -> None:
        expired = self._expired
        for _ in range(min(len(expired), ENDED_AT_ONCE)):
            call = expired.pop()
            if self.streams.get(call.stream_id) is not call:
                continue  # it has ended since
            if call.open:
                call.fail(Status.DEADLINE_EXCEEDED, "Deadline Exceeded")
                cancel_stream(call, events)
            else:
                self._reset_stream(call.stream_id, ErrorCodes.CANCEL, events)  # answered, but the peer takes no more
        self.behind = bool(expired or self._rest) or self._can_pump

    def message_read(self, call: Call, size: int) -> None:
        """The handler of a streaming call has taken a message of ``size`` bytes: its window goes back to the peer."""
        call.unread_bytes -= size + PREFIX_SIZE
        call.messages -= 1
        if call.held_bytes:
            self._hold_request(call, call.held_bytes - size - PREFIX_SIZE - MESSAGE_BYTES)
        if call.stream_id in self.streams and call.state is OPEN:
            self._return_stream_window(call)

    def inflated(self, call: Call, outcome: bytes | GrpcError) -> list[Event]:
        """What became of an InflationDue: the message, or the error that the call ends with."""
        events: list[Event] = []
        if call.open and isinstance(outcome, GrpcError):
            self._refuse(call, outcome)
        elif call.open and isinstance(outcome, bytes):
            call.buffer = outcome
            self._hand_on(call, events)
        return events

    def refuse(self, reason: str) -> None:
        """Turn the connection away before it begins; the driver then closes it."""
        self._send_preface()
        self._terminate(ErrorCodes.NO_ERROR, reason, [], "connections")

    def end(self, code: ErrorCodes, reason: str, limit: str) -> list[Event]:
        """End the connection because of a limit that the driver keeps.

        Args:
            code: of the GOAWAY.
            reason: its debug data.
            limit: of ``limits.LIMIT_NAMES``.
        """
        events: list[Event] = []
        if not self.closed:
            self._terminate(code, reason, events, limit)
        return events

    def ping(self) -> None:
        """Ask whether the peer is there; anything that it sends is an answer."""
        self._write(pack_frame(PING, 0, 0, KEEPALIVE_PING))

    @property
    def established(self) -> bool:
        """Whether the peer has sent its preface, SETTINGS included."""
        return self._settings_seen

    @property
    def calls_begun(self) -> int:
        """Calls of the connection so far, as the peer counts them."""
        return self._last_stream_id + 1 >> 1

    @property
    def awaits_request(self) -> bool:
        """Whether a frame, a header block or a unary request has begun that is not whole yet.

        Not while the rest of it may be among what waits for ``go_on``.
        """
        if self._rest:
            return False
        return bool(self._held) or self._open_block is not None or any(map(_awaits_request, self.streams.values()))

    @property
    def awaits_window(self) -> int:
        """Bytes of responses that wait for the peer's windows."""
        return self._queued_bytes

    @property
    def held_bytes(self) -> int:
        """About how many bytes the connection's calls take: requests under way, responses that wait, and records."""
        received = self._held_bytes + len(self._rest)
        return received + self._request_bytes + self._queued_bytes + CALL_BYTES * len(self.streams)

    def begin_shutdown(self, reason: str = "server is shutting down") -> None:
        """Say goodbye: calls begun and under way are answered, new ones belong elsewhere (RFC 9113 section 6.8).

        A first GOAWAY with the highest stream number and a PING; the peer's answer to the PING, or ``finish_shutdown``
        called by an impatient driver, sends the second with the number of the last stream that will be answered.

        Args:
            reason: the debug data of both.
        """
        if not (self._goodbye or self.closed):
            self._goodbye = reason
            self._send_preface()  # on a connection that has said nothing yet: SETTINGS comes first
            self._write(pack_goaway(MAX_STREAM_ID, ErrorCodes.NO_ERROR, reason))
            self._write(pack_frame(PING, 0, 0, SHUTDOWN_PING))

    def finish_shutdown(self) -> None:
        """Send the GOAWAY after which no new stream is answered."""
        self.begin_shutdown()
        if self._highest_accepted_id == MAX_STREAM_ID and not self.closed:
            self._highest_accepted_id = self._last_stream_id
            self._write(pack_goaway(self._last_stream_id, ErrorCodes.NO_ERROR, self._goodbye))

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
        if opening in REFUSALS:
            answer, code, text = REFUSALS[opening]
            self._write(answer)
            self.closed = True
            events.append(ConnectionTerminated(code, text))
            return None
        # Ours goes out only now, since an HTTP/1 client could not read it, nor one that speaks TLS.
        self._send_preface()
        if opening is Opening.GARBAGE:
            raise ConnectionFault(ErrorCodes.PROTOCOL_ERROR, "invalid connection preface")
        self._preface_seen = True
        return len(PREFACE)

    def _send_preface(self) -> None:
        if self._preface_sent:
            return
        self._preface_sent = True
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
        self._held_joined = 0
        self._budget.used += len(rest)

    def _join_held(self, data: bytes) -> bytes:
        """What was held with ``data`` behind it, once that is enough to go on; b"" before."""
        self._held.append(data)
        self._held_bytes += len(data)
        self._budget.used += len(data)
        if self._held_bytes < self._needed_bytes:
            if len(self._held) - self._held_joined >= MOST_PIECES_HELD:
                self._held[self._held_joined :] = [b"".join(self._held[self._held_joined :])]
                self._held_joined += 1
            return b""
        data = b"".join(self._held)
        self._drop_held()
        return data

    def _drop_held(self) -> None:
        self._budget.used -= self._held_bytes
        self._held = []
        self._held_bytes = 0

    def _receive_frames(self, data: bytes, at: int, now_ns: int, events: list[Event]) -> None:
        """Walk the frames of ``data`` from ``at``, BYTES_AT_ONCE of them; keep what is left, or not whole.

        The frames that make up a unary call (HEADERS that opens a stream, DATA that completes it, the WINDOW_UPDATEs
        that C-core adds) are handled in this loop when they are of the plain kind. Everything else, and every doubt,
        goes to ``_receive_frame``, which does the same work by the table in ``streams``. The short way takes 0.9 us for
        a request, the long one 3.9.
        """
        end_of_data = len(data)
        # Where to stop. What takes longer than its bytes moves ``enough`` back, so that the short way need not count.
        stop = enough = at + BYTES_AT_ONCE
        if stop > end_of_data:
            stop = end_of_data
        unpack_frame_head = self._wire.unpack_frame_head
        unpack_message_head = self._wire.unpack_message_head
        largest = self._limits.max_frame_size
        streams = self.streams
        remembered = self._remembered
        max_streams = self._few_streams
        if self._queued_bytes or len(streams) >= max_streams:
            max_streams = self._max_streams()
        while stop - at >= FRAME_HEAD_SIZE:
            word, flags, stream_id = unpack_frame_head(data, at)
            length = word >> 8
            if length > largest:
                text = f"frame of {length} bytes, at most {largest}"
                raise ConnectionFault(ErrorCodes.FRAME_SIZE_ERROR, text, "frame_size")
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
                        and call.assembler is None
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
                    if (
                        flags == END_HEADERS
                        and stream_id == self._last_stream_id + 2
                        and stream_id & 1
                        and len(streams) < max_streams
                        and stream_id <= self._highest_accepted_id
                        and length <= self._limits.max_header_block_size
                    ):
                        block = data[payload:end]
                        head = remembered.get(block)
                        if head is None:
                            head = self._header_reader.read(block)
                            enough -= length * DECODING_BYTES
                            stop = min(stop, enough)
                        if head.method is None:
                            self._open_hopeless_stream(stream_id, head, now_ns, events)
                            enough -= SLOW_FRAME_BYTES
                            stop = min(stop, enough)
                            continue
                        self._last_stream_id = stream_id
                        call = Call(self, stream_id, head, self._peer_stream_window, self._limits.stream_window)
                        streams[stream_id] = call
                        if head.timeout_ns is not None:
                            self._set_deadline(call, now_ns)
                        if head.method.unary is None:
                            self._begin_stream(call, events)
                        elif end_of_data - at >= MESSAGE_HEAD_SIZE:
                            # Of nearly every call the whole request follows at once.
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
                                and length <= self._receive_window
                                and length <= largest
                            ):
                                call.state = HALF_CLOSED_REMOTE
                                call.buffer = data
                                call.start = at + MESSAGE_HEAD_SIZE
                                call.end = at = end
                                self._receive_window -= length
                                if self._receive_window < self._limits.connection_window >> 1:
                                    self._return_connection_window()
                                events.append(call)
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
            known = len(events)
            try:
                self._receive_frame(frame_type, flags, stream_id & MAX_STREAM_ID, data, payload, end, now_ns, events)
            except StreamFault as fault:
                self._give_up_stream(fault, now_ns, events)
            max_streams = self._max_streams()  # the frame may have made us queue something
            enough -= SLOW_FRAME_BYTES + (len(events) - known) * EVENT_BYTES
            if frame_type in (HEADERS, CONTINUATION):
                enough -= length * DECODING_BYTES
            elif frame_type == SETTINGS:
                enough -= len(streams) * STREAM_BYTES
            stop = at if self.behind else min(stop, enough)
        if end_of_data - at >= FRAME_HEAD_SIZE:
            self._rest = data
            self._rest_at = at
            self.behind = True
        elif at < end_of_data:
            self._hold(data[at:], FRAME_HEAD_SIZE)

    def _open_hopeless_stream(self, stream_id: int, head: RequestHead, now_ns: int, events: list[Event]) -> None:
        """HEADERS of a call that has no method, for whatever reason: it is answered with an error."""
        try:
            self._open_stream(END_HEADERS, stream_id, head, now_ns, events)
        except StreamFault as fault:
            self._give_up_stream(fault, now_ns, events)

    def _give_up_stream(self, fault: StreamFault, now_ns: int, events: list[Event]) -> None:
        """Reset a stream for the peer's mistake. Its work may go on: a way to overload a server (CVE-2025-8671)."""
        if fault.limit:
            self._limit_hits[fault.limit] += 1
        self._reset_stream(fault.stream_id, fault.code, events)
        self._spend("resets", "mistakes that reset streams", now_ns)

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
            self._spend("other_frames", "frames of unknown types", now_ns)
            return  # RFC 9113 section 4.1: unknown types are ignored
        if (stream_id == 0) is not (frame_type in _ON_CONNECTION) and frame_type != WINDOW_UPDATE:
            raise ConnectionFault(ErrorCodes.PROTOCOL_ERROR, f"{FrameType(frame_type).name} on stream {stream_id}")
        if frame_type == DATA:
            if not flags & END_STREAM and (start == end or (flags & PADDED and data[start] == end - start - 1)):
                self._spend("empty_frames", "empty DATA frames", now_ns)
            self._receive_data_frame(flags, stream_id, memoryview(data)[start:end], events)
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
            self._spend("settings", "SETTINGS frames", now_ns, 1 + len(self.streams) // STREAMS_PER_SETTINGS)
            self._receive_settings(flags, data[start:end])
        elif frame_type == PING:
            self._spend("pings", "PING frames for the calls made", now_ns)
            self._receive_ping(flags, data[start:end])
        elif frame_type == PRIORITY:
            self._spend("other_frames", "PRIORITY frames", now_ns)
            if end - start != 5:
                text = "PRIORITY is not 5 bytes long"
                if self._state(stream_id) is IDLE:  # which cannot be reset
                    raise ConnectionFault(ErrorCodes.FRAME_SIZE_ERROR, text)
                raise StreamFault(stream_id, ErrorCodes.FRAME_SIZE_ERROR, text)
        elif frame_type == GOAWAY:
            self._spend("other_frames", "GOAWAY frames", now_ns)
            if end - start < 8:
                raise ConnectionFault(ErrorCodes.FRAME_SIZE_ERROR, "GOAWAY is shorter than 8 bytes")
        else:
            raise ConnectionFault(ErrorCodes.PROTOCOL_ERROR, "PUSH_PROMISE from a client")

    def _receive_ping(self, flags: int, payload: bytes) -> None:
        if len(payload) != 8:
            raise ConnectionFault(ErrorCodes.FRAME_SIZE_ERROR, "PING is not 8 bytes long")
        if not flags & ACK:
            self._write(pack_frame(PING, ACK, 0, payload))
        elif payload == SHUTDOWN_PING and self._goodbye:
            self.finish_shutdown()

    # --- the end -----------------------------------------------------------------------------------------------------

    def _terminate(self, code: ErrorCodes, text: str, events: list[Event], limit: str = "") -> None:
        if limit:
            self._limit_hits[limit] += 1
        # The number must not grow from one GOAWAY to the next (RFC 9113 section 6.8).
        self._write(pack_goaway(min(self._last_stream_id, self._highest_accepted_id), code, text))
        self.closed = True
        self._abandon_calls(events)
        events.append(ConnectionTerminated(code, text))

    def _abandon_calls(self, events: list[Event]) -> None:
        """End the next ENDED_AT_ONCE calls of a connection that is over."""
        self.next_deadline_ns = NEVER
        self._short_reply_limit = -1  # calls that still wait for their end are not answered any more
        self._drop_held()
        self._drop_open_block()
        self._rest = b""
        self._expired = []
        streams = self.streams
        self.behind = bool(streams)
        for _ in range(min(len(streams), ENDED_AT_ONCE)):
            _, call = streams.popitem()  # first of all, so that each try of a driver brings it further
            cancel_stream(call, events)
            self._forget(call)
        self.behind = bool(streams)
        self._count_calls()


def _awaits_request(call: Call) -> bool:
    method = call.head.method
    return call.state == OPEN and (method is None or method.unary is not None)


_ON_CONNECTION = frozenset((SETTINGS, PING, GOAWAY))
