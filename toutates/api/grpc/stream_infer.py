"""ModelStreamInfer: requests and answers over one call.

A message takes the way of a unary request, with the stream as its responder. The answers leave in the order of the
requests. An error is an answer like others, and the stream goes on after it.

A stream takes messages as long as the caller reads: it has at most MAX_UNDER_WAY requests without an answer, and takes
none while more than MAX_UNSENT_BYTES of answers wait. Messages beyond that wait unread, so that their window is not
given back, and the caller has to stop writing, on this stream alone.

So do messages for a model that is full while the streams of their connection have their share of it under way. Half of
what the stream has under way then has to be answered before it goes on, so that there is room for others, and it may
have one more each time that it does.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Final

from toutates.api.dataplane.readiness import Readiness
from toutates.api.grpc.forwarding import Forward, forward_nothing
from toutates.api.grpc.statuses import STATUSES
from toutates.engine import open_request
from toutates.h2grpc import Buffer, Call, HeaderField, MessageReceived, Method, Responder, Status, texts_of
from toutates.infer.call import Handler
from toutates.infer.plan import Plan
from toutates.infer.streaming import StreamInferService
from toutates.infer.tracing.context import parse_traceparent
from toutates.infer.tracing.tracer import WorkerTraces
from toutates.net import Worker
from toutates.protocol.stream_response import bare_final, error_response, id_field_of, response_head
from toutates.system.errors import MalformedMessage, OwnRequestsFirst, RequestError

__all__ = ["InferStreams", "model_stream_infer"]

_PATH: Final = "/inference.GRPCInferenceService/ModelStreamInfer"

#: Requests of a stream that have no answer yet, at most.
MAX_UNDER_WAY: Final = 1_024
#: Streams of a connection whose requests are counted to see whether it has its share: 50 us.
MOST_STREAMS: Final = 1_024
#: Bytes of answers that may wait, for the caller's window or for those before them, while the stream takes messages.
MAX_UNSENT_BYTES: Final = 1_048_576
#: Bytes of responses of decoupled models that a caller may leave unread. Models stop before
#: (``engine.open_request``), but several that answer one call do not know of each other. So the call ends.
MAX_UNREAD_BYTES: Final = open_request.MAX_UNREAD_BYTES + open_request.MAX_HANDED_OVER
#: How long messages that have waited are handled before the worker does something else, and how many of them between
#: two looks at the clock.
SLICE_NS: Final = 2_000_000
AT_ONCE: Final = 16
#: Streams that are ended at once when the server exits, before the worker serves others.
ENDED_AT_ONCE: Final = 200

_EXITING: Final = "GRPC server is shutting down and has stopped accepting new requests."


def model_stream_infer(
    infer: StreamInferService,
    worker: Worker,
    readiness: Readiness,
    traces: WorkerTraces,
    forward: Forward = forward_nothing,
) -> Method:
    """The method of ModelStreamInfer.

    Args:
        infer: the worker's.
        worker: it.
        readiness: its view of the server's readiness.
        traces: the worker's. Streams whose ``traceparent`` says that the caller records the trace have their requests
            traced.
        forward: has metadata forwarded to models.
    """
    handler = forward(infer.handler)
    streams = InferStreams(worker, readiness, handler)
    plain = Method(_PATH, message=streams.take, half_close=streams.half_close, compressible=True)
    if not traces.possible:
        return plain
    observing, settings = forward(infer.observing_handler(traces.sampling)), traces.settings

    def handle(message: MessageReceived) -> None:
        (observing if settings.rules.on else handler)(message)

    observed_streams = InferStreams(worker, readiness, handle)  # type: ignore[arg-type]
    observed = replace(plain, message=observed_streams.take, half_close=observed_streams.half_close)

    def variant(fields: Sequence[HeaderField]) -> Method | None:
        values = texts_of(fields, b"traceparent")
        context = parse_traceparent(values[0].decode("latin-1")) if len(values) == 1 else None
        return observed if context is not None and context.sampled else None

    return replace(plain, variant=variant)


class InferStreams:
    """The streams of one worker.

    Args:
        worker: it.
        readiness: its view of the server's readiness.
        infer: puts a request's rows into a batch.

    Attributes:
        exiting: whether the server is shutting down: no further request is taken.
        worker: as given.
        infer: as given.
        head, head_length: what goes before a response, and of which length: most have the same as the last one.
    """

    def __init__(self, worker: Worker, readiness: Readiness, infer: Handler) -> None:
        self.worker = worker
        self.infer = infer
        self.exiting = readiness.exiting
        self._readiness = readiness
        self._open: dict[Call, InferStream] = {}
        self.head_length = -1
        self.head = b""
        #: below it the window of a stream is opened again
        self._low_window = worker.limits.stream_window >> 1
        self._forget: Callable[[Call], None] = self._drop
        readiness.on_change.append(self._note_change)

    def take(self, message: MessageReceived) -> None:
        """Handle a message of a stream. Nearly always nothing waits for anything, and it goes to ``infer`` at once."""
        call = message.call
        stream: InferStream | None = call.context
        if stream is None:
            if call.link is None:
                return  # the connection is gone
            stream = self._begin(call)
        order = stream.order
        if stream.unusual or len(order) >= stream.most or call.outbox or stream.link.unsent or self.exiting:
            stream.take(message)
            return
        message.responder = stream
        if stream.has_deadline:
            message.deadline_ns = call.deadline_ns
        order.append(message)
        try:
            self.infer(message)
        except MalformedMessage:
            raise  # as with gRPC's own servers, a message that cannot be read ends the call
        except OwnRequestsFirst:
            stream.keep_in_front(message)
            return
        except RequestError as error:
            stream.refuse(message, str(error))
        message.buffer = b""
        if message.is_counted or call.receive_window <= self._low_window:
            stream.link.connection.take_message(message)

    def half_close(self, call: Call) -> None:
        """The client of a stream sends no more."""
        stream: InferStream | None = call.context
        if stream is None:
            stream = self._begin(call)
        stream.half_close()

    def head_of(self, length: int) -> bytes:
        """What goes before a response of ``length`` bytes."""
        self.head_length, self.head = length, response_head(length, final=True)
        return self.head

    def _begin(self, call: Call) -> InferStream:
        stream = call.context = self._open[call] = InferStream(self, call)
        call.on_closed = self._forget
        call.on_drained = stream.go_on_soon
        return stream

    def _drop(self, call: Call) -> None:
        stream = self._open.pop(call, None)
        if stream is not None:
            stream.close()
            # They refer to each other, and no garbage collector should have to find out.
            call.context = call.on_drained = None

    def _note_change(self) -> None:
        self.exiting = self._readiness.exiting
        if self.exiting:
            self._end_some(list(self._open.values()))

    def _end_some(self, streams: list[InferStream]) -> None:
        """End streams that have nothing to do; the others end with their last answer."""
        for stream in islice(streams, ENDED_AT_ONCE):
            stream.end_if_idle()
        if len(streams) > ENDED_AT_ONCE:
            self.worker.call_soon(lambda: self._end_some(streams[ENDED_AT_ONCE:]))
        self.worker.flush()


class InferStream:
    """One call of ModelStreamInfer. It is the responder of its messages (``infer.streaming.StreamResponder``).

    Args:
        streams: of the worker.
        call: it.

    Attributes:
        order: requests without an answer, or whose answer waits for those before them, in their order. A deque would
            take more memory than the rest of an idle stream.
        unusual: whether something is to be looked at beside the next answer: messages or answers wait, requests are
            apart, or the call is about to end.
        has_deadline: whether the call has one.
        link: the connection's transport.
        most: requests that it may have without an answer now.
    """

    __slots__ = (
        "_apart",
        "_call",
        "_fails_as_a_whole",
        "_half_closed",
        "_kept_bytes",
        "_responder",
        "_scheduled",
        "_send",
        "_streams",
        "_waiting",
        "has_deadline",
        "link",
        "most",
        "order",
        "unusual",
    )

    def __init__(self, streams: InferStreams, call: Call) -> None:
        self._streams = streams
        self._call = call
        self._responder: Responder = call.responder
        self._send = call.responder.send
        self.link: Any = call.link
        self.has_deadline = call.head.timeout_ns is not None
        self.order: list[MessageReceived] = []
        self.most = MAX_UNDER_WAY
        #: requests of decoupled versions that may have further responses
        self._apart: dict[MessageReceived, None] = {}
        #: messages that were not taken yet; None for none
        self._waiting: deque[MessageReceived] | None = None
        #: bytes of answers that wait for those before them
        self._kept_bytes = 0
        self._half_closed = False
        self._scheduled = False
        self.unusual = False
        self._fails_as_a_whole = b"true" in texts_of(call.head.fields, b"triton_grpc_error")
        self._responder.send_headers(call)

    # --- requests ----------------------------------------------------------------------------------------------------

    def take(self, message: MessageReceived) -> None:
        """Handle the next message, or keep it until there is room for its answer."""
        if self._waiting or self._call.link is None or self._is_full:
            self._keep_unread(message).append(message)
        else:
            self._begin(message)

    def keep_in_front(self, message: MessageReceived) -> None:
        """Keep a message that was taken too early: others wait behind it until some of those before are answered."""
        if self._apart.pop(message, message) is message:
            self.order.remove(message)
        self._keep_unread(message).appendleft(message)
        self.most = max(1, self.under_way >> 1)
        if not self.order and not self._apart:  # it is for other streams to make room
            self._streams.worker.call_later(self.go_on_soon)

    def _keep_unread(self, message: MessageReceived) -> deque[MessageReceived]:
        """Keep a message's bytes, which count as unread; returns where it is to wait."""
        message.buffer = message.message
        message.start, message.end = 0, len(message.buffer)
        self.unusual = True
        if self._waiting is None:
            self._waiting = deque()
        if self._call.link is not None:
            self.link.connection.keep_message(message)
        return self._waiting

    @property
    def under_way(self) -> int:
        """Requests that were taken and have no answer."""
        return sum([message.open for message in self.order]) + len(self._apart)

    def has_its_share(self, message: MessageReceived, share: int) -> bool:
        """See ``infer.streaming.StreamResponder``."""
        call = self._call
        if call.link is None:
            return False
        under_way = self.under_way - 1
        for other in islice(self.link.connection.streams.values(), MOST_STREAMS):
            if under_way >= share:
                break
            if other is not call and isinstance(other.context, InferStream):
                under_way += other.context.under_way
        return under_way >= share

    def half_close(self) -> None:
        """The client sends no more: the call ends with its last answer."""
        self._half_closed = self.unusual = True
        self._end_if_done()

    @property
    def _is_full(self) -> bool:
        call = self._call
        return (
            len(self.order) + len(self._apart) >= self.most
            or self._kept_bytes + call.outbox_bytes > MAX_UNSENT_BYTES
            or self.link.congested
        )

    def _begin(self, message: MessageReceived) -> bool:
        """Handle a message; False if it is kept after all."""
        call = self._call
        message.responder = self
        message.deadline_ns = call.deadline_ns
        self.order.append(message)
        streams = self._streams
        try:
            if streams.exiting:
                self.refuse(message, _EXITING)
            else:
                streams.infer(message)
        except MalformedMessage:
            raise
        except OwnRequestsFirst:
            self.keep_in_front(message)
            return False
        except RequestError as error:
            self.refuse(message, str(error))
        message.buffer = b""
        if call.open and call.link is not None:
            self.link.connection.take_message(message)
        return True

    def go_on_soon(self) -> None:
        """Handle messages that wait, if there is room for them now, once what goes on at the moment is done."""
        if self.unusual and not self._scheduled:
            self._scheduled = True
            self._streams.worker.call_soon(self._go_on)

    def _go_on(self) -> None:
        """Handle messages that have waited."""
        self._scheduled = False
        waiting = self._waiting or deque()
        if not self._is_full:
            self.most = min(self.most + 1, MAX_UNDER_WAY)
        until_ns = time.monotonic_ns() + SLICE_NS
        try:
            while waiting:
                for _ in range(min(AT_ONCE, len(waiting))):
                    if not self._call.open or self._call.link is None or self._is_full:
                        return
                    if not self._begin(waiting.popleft()):
                        return
                if time.monotonic_ns() >= until_ns:
                    self.go_on_soon()
                    return
        except RequestError as error:
            self._call.fail(STATUSES[type(error)], str(error))
        except Exception as error:
            self._streams.worker.connection_failed(self._call, error)
        self._waiting = None
        self.most = MAX_UNDER_WAY
        self._go_through_order()

    # --- answers -----------------------------------------------------------------------------------------------------

    def reply(self, message: MessageReceived, parts: Sequence[Buffer], length: int) -> None:
        """Answer a request with a ModelInferResponse; see ``infer.call.Responder``."""
        if not message.open:
            return
        message.open = False
        order = self.order
        streams = self._streams
        head = streams.head if length == streams.head_length else streams.head_of(length)
        if order[0] is message:
            del order[0]
            self._send(self._call, head, parts, length + len(head))
            if self.unusual:
                self._go_through_order()
        else:
            self._keep_answer(message, b"".join((head, *parts)))

    def fail(self, message: MessageReceived, plan: Plan, id_field: bytes, error: RequestError) -> None:
        """Answer a request that was accepted with an error; see ``infer.streaming.StreamResponder``."""
        if self._fails_as_a_whole:
            self._call.fail(STATUSES[type(error)], str(error))
            return
        asked = plan.version.model, plan.request.asked_version
        self._answer(message, error_response(str(error), id_field, asked))

    def refuse(self, message: MessageReceived, text: str) -> None:
        """Answer a request that was not accepted."""
        self._answer(message, error_response(text, id_field_of(message.buffer, message.start, message.end)))

    def hold(self, size: int) -> None:
        """Count bytes of requests that wait for their model; negative ones when they are let go."""
        self._keep(size)
        self.unusual = True  # too many of them keep further messages back

    def _answer(self, message: MessageReceived, answer: bytes) -> None:
        """Answer a request, in its turn."""
        if not message.open:
            return
        if message in self._apart:
            self._write(answer)
            self._end_apart(message)
            return
        message.open = False
        if self.order[0] is message:
            del self.order[0]
            self._write(answer)
            self._go_through_order()
        else:
            self._keep_answer(message, answer)

    def _write(self, answer: bytes) -> None:
        self._send(self._call, answer, (), len(answer))

    def _keep_answer(self, message: MessageReceived, answer: bytes) -> None:
        """Keep an answer until those before it have gone. It is counted with what else is kept for slow peers."""
        message.answer = answer
        self.unusual = True
        self._keep(len(answer))

    def _keep(self, growth: int) -> None:
        """Count what is kept; the call ends if that is too much."""
        self._kept_bytes += growth
        call = self._call
        if call.open and call.link is not None:
            self.link.connection.keep(call, self._kept_bytes)

    def _go_through_order(self) -> None:
        """Send the answers whose turn has come, and see what else can go on."""
        order = self.order
        freed = 0
        while order and (answer := order[0].answer) is not None:
            del order[0]
            freed += len(answer)
            self._write(answer)
        if freed:
            self._keep(-freed)
        if self._waiting:
            self.go_on_soon()
            return
        self.unusual = bool(self._half_closed or self._apart or self._kept_bytes or self._streams.exiting)
        if self.unusual:
            self._end_if_done()

    # --- requests of decoupled versions ------------------------------------------------------------------------------

    def set_apart(self, message: MessageReceived) -> None:
        """See ``infer.streaming.StreamResponder``, here and below."""
        if message not in self._apart:
            self.order.remove(message)  # nearly always the last one, but it may have waited for its model
            self._apart[message] = None
            self.unusual = True

    def respond(self, message: MessageReceived, parts: Sequence[Buffer], length: int, *, more: bool) -> None:
        """Send a response as it comes."""
        if not message.open:
            return
        head = response_head(length, final=not more)
        self._send(self._call, head, parts, length + len(head))
        self._see_to(message, more=more)

    def respond_error(
        self, message: MessageReceived, plan: Plan, id_field: bytes, error: RequestError, *, more: bool
    ) -> None:
        """Send an error in place of a response."""
        if not message.open:
            return
        if self._fails_as_a_whole:
            self._call.fail(STATUSES[type(error)], str(error))
            return
        asked = plan.version.model, plan.request.asked_version
        self._write(error_response(str(error), id_field, asked, final=not more))
        self._see_to(message, more=more)

    def end(self, message: MessageReceived, plan: Plan, id_field: bytes) -> None:
        """Note that a request has no further responses, and tell its caller where that was asked for."""
        if not message.open:
            return
        if plan.request.parameters.get("triton_enable_empty_final_response"):
            self._write(bare_final(id_field, plan.version.model, plan.request.asked_version))
        self._end_apart(message)

    def _see_to(self, message: MessageReceived, *, more: bool) -> None:
        """After a response: the request may be over, and its caller may be too slow for what its model sends."""
        call = self._call
        if call.outbox_bytes > MAX_UNREAD_BYTES or (
            call.link is not None and call.link.unsent_bytes > MAX_UNREAD_BYTES
        ):
            self._streams.worker.limit_hits["unread_responses"] += 1
            call.fail(Status.RESOURCE_EXHAUSTED, "the caller leaves too many responses of this call unread")
        elif not more:
            self._end_apart(message)

    def _end_apart(self, message: MessageReceived) -> None:
        message.open = False
        self._apart.pop(message, None)
        self._go_through_order()

    # --- the end -----------------------------------------------------------------------------------------------------

    def _end_if_done(self) -> None:
        if self.order or self._apart or self._waiting or not self._call.open:
            return
        if self._half_closed:
            self._responder.finish(self._call)
        elif self._streams.exiting and not self._call.outbox:
            self._call.fail(Status.UNAVAILABLE, "server is shutting down")

    def end_if_idle(self) -> None:
        """The server is shutting down: end the call, now or with its last answer."""
        self.unusual = True
        self._end_if_done()

    def close(self) -> None:
        """The call is over: nobody waits for an answer any more."""
        for message in (*self.order, *self._apart):
            message.open = False
        self.order.clear()
        self._apart.clear()
        self._waiting = None
