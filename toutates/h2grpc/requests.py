"""Receiving requests: DATA is assembled to messages, and complete requests become events."""

from __future__ import annotations

from functools import partial
from typing import Final

from toutates.h2grpc.budget import MESSAGE_BYTES
from toutates.h2grpc.call import Call
from toutates.h2grpc.events import Event, InflationDue, LargeRequest, MessageReceived, RequestEnded, tell_handler
from toutates.h2grpc.faults import StreamFault
from toutates.h2grpc.frames import ErrorCodes
from toutates.h2grpc.limits import Limits
from toutates.h2grpc.message_memory import MessageMemory
from toutates.h2grpc.messages import PREFIX_SIZE, MessageAssembler
from toutates.h2grpc.plain import PlainCall, PlainRequests
from toutates.h2grpc.request_memory import RequestMemory
from toutates.h2grpc.responder import Responder
from toutates.h2grpc.shared import Shared
from toutates.h2grpc.status import GrpcError, LimitExceeded, Status
from toutates.h2grpc.stream import Stream
from toutates.h2grpc.streams import TRANSITIONS, Input

__all__ = ["Requests"]

#: Messages of streams are hardly ever smaller, bytes: an inference names its model and its tensors.
LEAST_MESSAGE_BYTES: Final = 64


class Requests:
    """The requests of one connection, except plain ones, which ``FrameLoop`` makes events of by itself.

    Args:
        limits: sizes of messages.
        held: counts the memory of incomplete requests.
        responder: answers requests that are refused.
        shared: what all connections of the driver share.
        plain: has the requests that are no gRPC.

    Attributes:
        now_ns: the time of the current read.
    """

    __slots__ = ("_budget", "_held", "_inflater", "_limit_hits", "_limits", "_pool", "_responder", "now_ns", "plain")

    def __init__(
        self, limits: Limits, held: RequestMemory, responder: Responder, shared: Shared, plain: PlainRequests
    ) -> None:
        self._limits = limits
        self._held = held
        self._responder = responder
        self._budget = shared.budget
        self._inflater = shared.inflater
        self._limit_hits = shared.limit_hits
        self._pool = shared.pool
        self.plain = plain
        self.now_ns = 0

    def feed(self, call: Call, body: memoryview, events: list[Event]) -> None:
        """Add DATA to a call's messages. A streaming call's become events; a unary call's is kept until END_STREAM."""
        if call.assembler is None:
            call.assembler = self.assembler(call)
        try:
            messages = call.assembler.feed(body)
            if call.is_streaming:
                for message in messages:
                    # The prefix counts too, otherwise nothing would bound the number of empty messages.
                    call.unread_bytes += len(message) + PREFIX_SIZE
                    received = MessageReceived(call, message, 0, len(message))
                    received.is_counted = True
                    events.append(received)
                call.messages += len(messages)
                self.count(call)
                if not call.assembler.pending_bytes:
                    call.assembler = None  # so that the ``FrameLoop`` may take the next message
            else:
                if messages:
                    call.messages += len(messages)
                    call.buffer = messages[0]
                    if call.messages > 1:
                        raise GrpcError(Status.INTERNAL, "a unary call takes one message, got more")
                # END_STREAM may come much later.
                self._held.hold(call, call.assembler.pending_bytes + len(call.buffer))
        except GrpcError as error:
            self.refuse(call, error)
            tell_handler(call, events)

    def landed(self, call: Call, unchecked: int, events: list[Event]) -> None:
        """Take DATA of a unary call that was received straight into its message's memory, and noted in ``held``.

        Args:
            call: whose message may be whole now.
            unchecked: by how many bytes what is held of the call has grown.
            events: where CallCancelled goes.
        """
        if isinstance(call, PlainCall):
            self.plain.landed(call, unchecked, events)
            return
        assert call.assembler is not None
        message = call.assembler.take_whole()
        if message:
            call.messages += 1
            call.buffer = message
        try:
            if unchecked > 0:
                self._held.check()
        except LimitExceeded as error:
            self.refuse(call, error)
            tell_handler(call, events)

    def count(self, call: Call) -> None:
        """Count what is kept of a streaming call: messages that its handler has not taken, and answers that it keeps.

        Raises:
            LimitExceeded: the connection, or the server, holds too much.
        """
        self._held.hold(call, _kept_bytes(call))

    def hold(self, call: Call, size: int) -> None:
        """Set the bytes that are kept of a unary call's request, which its handler has.

        Raises:
            LimitExceeded: the connection, or the server, holds too much.
        """
        self._held.hold(call, size)

    def message_read(self, call: Call, size: int) -> None:
        """Count a message of ``size`` bytes as read: a streaming call's handler has taken it."""
        call.unread_bytes -= size + PREFIX_SIZE
        call.messages -= 1
        if call.held_bytes:
            self._held.note(call, _kept_bytes(call))

    def half_close(self, call: Call) -> None:
        """Apply the peer's END_STREAM."""
        if call.head.content_length is not None and call.head.content_length != call.received:
            raise StreamFault(call.stream_id, ErrorCodes.PROTOCOL_ERROR, "DATA is less than content-length")
        call.state = TRANSITIONS[call.state][Input.RECV_END_STREAM][1]

    def complete(self, call: Call, events: list[Event]) -> None:
        """Check a request that has ended, and make an event of it or refuse it."""
        head = call.head
        if not call.open:
            return
        if isinstance(call, PlainCall):
            self.plain.complete(call, events)
        elif head.not_grpc:
            self._responder.refuse_plain_http(call)
        elif head.error is not None:
            self.refuse(call, head.error)
        elif call.assembler is not None and call.assembler.pending_bytes:
            call.fail(Status.INTERNAL, "the request ended in the middle of a message")
            tell_handler(call, events)
        elif call.is_streaming:
            events.append(RequestEnded(call))
        elif call.messages != 1:
            call.fail(Status.INTERNAL, "a unary call takes one message, got none")
        else:
            self._inflate_request(call, events)

    def inflated(self, call: Call, outcome: bytes | GrpcError) -> list[Event]:
        """Take the outcome of an InflationDue: the decompressed message, or the error that its call ends with."""
        events: list[Event] = []
        if call.open and isinstance(outcome, GrpcError):
            self.refuse(call, outcome)
        elif call.open and isinstance(outcome, bytes):
            call.buffer = outcome
            self._hand_on(call, events)
        return events

    def refuse(self, call: Call, error: GrpcError) -> None:
        """End a call with an error, and count the limit that it met."""
        if isinstance(error, LimitExceeded):
            self._limit_hits[error.limit] += 1
        call.fail(error.status, error.text, error.metadata)

    def assembler(self, call: Call) -> MessageAssembler:
        """A new assembler for a call's messages."""
        encoding, most, max_messages = call.head.encoding, self._limits.max_message_size, self._limits.max_messages
        method = call.head.method
        if not call.is_streaming or method is None:
            return MessageAssembler(encoding, most, partial(_inflate_later, call), max_messages, self._pool)
        most_inflated = self._most_inflated
        if method.half_close is not None:
            # Clients write what has waited for window into one frame: as many messages as of LEAST_MESSAGE_BYTES each.
            max_messages = max(max_messages, self._limits.max_frame_size // LEAST_MESSAGE_BYTES)
        if method.max_message_size is not None:
            most = min(most, method.max_message_size)
            most_inflated = min(most_inflated, most)
        return MessageAssembler(encoding, most, partial(self._inflate, encoding, most_inflated), max_messages)

    def _inflate(self, encoding: str, most: int, data: bytes) -> bytes:
        self._held.check()
        return self._inflater.inflate(data, encoding, most, self.now_ns, self._budget)

    def _inflate_request(self, call: Call, events: list[Event]) -> None:
        """Make an event of a complete unary request, decompressed if it is compressed and small."""
        if call.compressed:
            encoding = call.head.encoding
            try:
                message = self._inflater.inflate_small(call.buffer, encoding, self._most_inflated, self.now_ns)
            except GrpcError as error:
                self.refuse(call, error)
                return
            if message is None:
                events.append(InflationDue(call, call.buffer, encoding, self._most_inflated, self._budget))
                return
            call.buffer = message
        self._hand_on(call, events)

    @property
    def _most_inflated(self) -> int:
        """The largest size of a decompressed message, bytes."""
        return min(self._limits.max_message_size, self._limits.max_decompressed_size)

    def _hand_on(self, call: Call, events: list[Event]) -> None:
        buffer: object = call.buffer
        if isinstance(buffer, MessageMemory):
            call.start = buffer.start
            call.end = buffer.start + buffer.length
            events.append(LargeRequest(call))
        else:
            call.end = len(call.buffer)
            events.append(call)
        self._held.release(call)  # from here on its handler has it


def _kept_bytes(call: Call) -> int:
    pending = 0 if call.assembler is None else call.assembler.pending_bytes
    return pending + call.unread_bytes + MESSAGE_BYTES * call.messages + call.kept_bytes


def _inflate_later(call: Stream, data: bytes) -> bytes:
    call.compressed = True
    return data
