"""Requests over HTTP/2 that are no gRPC: the handler of HTTP/1.1's gets them, and its answers go out on streams."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from toutates.h2grpc.frames import ErrorCodes
from toutates.h2grpc.header_field import HeaderField
from toutates.h2grpc.headers import ResponseBlock
from toutates.h2grpc.plain import PlainCall
from toutates.h2grpc.status import LimitExceeded
from toutates.h2grpc.stream import Buffer
from toutates.http1 import Head, Limits, Refused
from toutates.http1.coding import STATE_BYTES, Inflater
from toutates.http1.head import admit_head
from toutates.net.http1.call import HttpCall
from toutates.net.http1.service import Handler, admission, fail_call, http_limits, refusals
from toutates.net.http2.blocks import Blocks
from toutates.net.http2.heads import read_head, unread_head
from toutates.net.side_thread import outcome_of
from toutates.net.worker import Worker
from toutates.system.errors import CallerLeft, Overloaded, RequestError

__all__ = ["PlainHttp", "StreamAnswers"]

#: For how many reset streams a refusal counts with which a connection of HTTP/1.1 ends: the allowance of resets is ten
#: of them at once, and two in a second.
COST_OF_END: Final = 100


#: The status of a body that there is no memory for.
_NO_ROOM: Final = 503


class PlainHttp:
    """What the connections of one worker do with such requests.

    Args:
        worker: whose connections these are.
        handler: answers the requests.
    """

    def __init__(self, worker: Worker, handler: Handler) -> None:
        self.worker = worker
        self.handler = handler
        self.blocks = Blocks(worker.date)
        self.write_refusal = refusals(worker, handler)
        self._admit = admission(worker, handler)
        self._limits: Limits | None = None

    def admit(self, fields: Sequence[HeaderField], size: int) -> tuple[Head, int]:
        """Judge a header list (``h2grpc.plain.Admit``)."""
        if self._limits is None:
            self._limits = http_limits(self.worker)  # on the worker's thread, from its own copy
        try:
            head = read_head(fields, size, self._limits)
        except Refused as refusal:
            return unread_head(fields, refusal), 0
        admit_head(head, self._admit)
        head.max_body_size = min(head.max_body_size, self._limits.max_body_size)
        head.plain = head.refusal is None and not head.coding
        head.in_memory = head.in_memory and head.plain
        if head.refusal is None:
            return head, 0
        # What costs nothing is remembered; a bug of the server's own is not.
        return head, COST_OF_END if head.refusal.ends else int(head.refusal.status == 500)

    def handle(self, link: Any, call: PlainCall) -> None:
        """Have the first such request of a connection answered; the others go to its ``StreamAnswers`` at once."""
        connection = link.connection
        connection.carrier = StreamAnswers(self, connection)
        connection.carrier.handle(link, call)


class StreamAnswers:
    """Brings the answers of one connection to their streams; an ``http1.Responder`` and a ``net.http1.call.Carrier``.

    Args:
        plain: of the worker.
        connection: an ``h2grpc.ServerConnection``.
    """

    def __init__(self, plain: PlainHttp, connection: Any) -> None:
        self._plain = plain
        self._worker = plain.worker
        self._blocks = plain.blocks
        self._known = plain.blocks.known
        self._call_class = plain.handler.call_class
        self._most_queued = plain.worker.limits.max_queued_bytes
        self._queue = connection.queue
        self._responder = connection.responder
        self.write_refusal = plain.write_refusal

    #: See ``Carrier``.
    waiting = 0

    def before(self, request: HttpCall) -> int:
        """See ``Carrier``: streams do not wait for each other."""
        return 0

    # --- requests ----------------------------------------------------------------------------------------------------

    def handle(self, link: Any, call: PlainCall) -> None:
        """Hand a request to its handler."""
        head: Any = call.head.plain
        if self._queue.bytes_waiting + link.unsent_bytes > self._most_queued:
            self._worker.limit_hits["unread_responses"] += 1
            self._responder.abort(call, ErrorCodes.REFUSED_STREAM)
            return
        request = self._call_class(head, call.buffer, self)
        request.stream = call
        call.context = request
        call.buffer = b""
        if call.problem is not None or not head.plain:
            self._handle_rest(request, call)
            return
        try:
            head.purpose.handle(request)
        except Exception as error:
            fail_call(self._worker, self._plain.handler, request, error)
        request.body = b""  # a request that waits must not keep what it was asked with

    def _handle_rest(self, request: HttpCall, call: PlainCall) -> None:
        """Refuse a request, or have it handled once its body is decompressed."""
        problem = call.problem
        if problem is None:
            refusal = request.head.refusal
            if refusal is None:
                self._inflate(
                    request, Inflater(request.head.coding, request.head.max_body_size, self._worker.budget.has_room)
                )
            else:
                request.refuse(refusal)
        elif problem.limit == "message_size":
            request.refuse(Refused(413, problem.text))  # which counts it
        else:
            self._worker.limit_hits[problem.limit] += 1
            fail_call(self._worker, self._plain.handler, request, Overloaded(problem.text))

    def _inflate(self, request: HttpCall, inflater: Inflater) -> None:
        """Decompress a body: its first step here, some 0.1 ms, and what takes more beside the worker."""
        inflater.put(request.body)
        request.body = b""
        try:
            if not inflater.step():
                self._go_on(request, inflater.finish())
                return
        except Refused as refusal:
            request.refuse(refusal)
            return
        size = inflater.size + STATE_BYTES
        request.hold(size)
        inflater.counted = inflater.body.size
        if not request.open:
            return

        def work() -> bytearray | Refused:
            try:
                while inflater.step():
                    if not request.open:
                        raise CallerLeft("the client has left")
                return inflater.finish()
            except Refused as refusal:
                return refusal.anew()

        def job() -> Callable[[], None]:
            return partial(self._inflated, request, size, outcome_of(work, "decompressing a body"))

        try:
            self._worker.side.put(self, job)
        except RuntimeError:
            request.hold(-size)
            error = Overloaded("the server has no thread for this request")
            fail_call(self._worker, self._plain.handler, request, error)

    def _inflated(self, request: HttpCall, size: int, outcome: bytearray | Refused | RequestError) -> None:
        request.hold(-size)
        if not request.open:
            return
        if isinstance(outcome, Refused):
            if outcome.status == _NO_ROOM:
                self._worker.limit_hits["server_buffer"] += 1
            request.refuse(outcome)
        elif isinstance(outcome, RequestError):
            fail_call(self._worker, self._plain.handler, request, outcome)
        else:
            self._go_on(request, outcome)

    def _go_on(self, request: HttpCall, body: bytearray) -> None:
        request.body = body
        try:
            request.head.purpose.handle(request)
        except Exception as error:
            fail_call(self._worker, self._plain.handler, request, error)
        request.body = b""

    # --- for requests ------------------------------------------------------------------------------------------------

    @property
    def link(self) -> Any:
        """What the connection is bound to; None once it is gone."""
        return self._responder.output.link

    @property
    def owner(self) -> StreamAnswers:
        """See ``http1.Responder``."""
        return self

    def keep(self, request: HttpCall, size: int) -> None:
        """See ``Carrier``; where the connection, or the server, keeps too much, the request ends."""
        call = request.stream
        if not call.open:
            return  # nothing of it is counted any more
        try:
            self._responder.hold(call, max(call.held_bytes + size, 0))
        except LimitExceeded as error:
            self._worker.limit_hits[error.limit] += 1
            fail_call(self._worker, self._plain.handler, request, Overloaded(error.text))

    def unread_bytes(self, request: HttpCall) -> int:
        """See ``Carrier``: what waits for the window of the stream, and for the socket."""
        link = self.link
        return 0 if link is None else int(link.unsent_bytes + request.stream.outbox_bytes)

    def give_up(self, request: HttpCall, reason: str, limit: str) -> None:
        """See ``Carrier``: the stream is reset, and the others go on."""
        if limit:
            self._worker.limit_hits[limit] += 1
        code = ErrorCodes.ENHANCE_YOUR_CALM if limit else ErrorCodes.INTERNAL_ERROR
        self._responder.abort(request.stream, code)

    def leave_if_ended(self) -> None:
        """See ``Carrier``: the worker closes a connection that leaves when its last stream is closed."""

    # --- answers -----------------------------------------------------------------------------------------------------

    def reply(self, request: HttpCall, parts: Sequence[Buffer], length: int) -> None:
        """See ``http1.Responder``. ``_respond`` and ``Blocks.of`` are written out for what nearly always comes."""
        if not request.open:
            return
        request.open = False
        call = request.stream
        call.context = None
        head: Any = parts[0]
        block = self._known.get(head) if self._worker.now_ns < self._blocks.until_ns else None
        self._responder.respond(call, self._blocks.of(head) if block is None else block, parts[1:], length)

    def respond(self, request: HttpCall, status: int, fields: bytes, body: bytes) -> None:
        """See ``http1.Responder``."""
        self._respond(request, self._blocks.of(fields, status), (body,), len(body))

    def respond_in_parts(self, request: HttpCall, fields: bytes, parts: Sequence[bytes], length: int) -> None:
        """See ``http1.Responder``."""
        self._respond(request, self._blocks.of(fields), parts, length)

    def _respond(self, request: HttpCall, block: ResponseBlock, parts: Sequence[Buffer], length: int) -> None:
        request.open = False
        call = request.stream
        call.context = None  # which would keep one another
        self._responder.respond(call, block, parts, length)

    def begin(self, request: HttpCall, status: int, fields: bytes) -> None:
        """See ``http1.Responder``."""
        self._responder.begin(request.stream, self._blocks.of(fields, status))

    def send(self, request: HttpCall, piece: bytes) -> None:
        """See ``http1.Responder``."""
        self._responder.send_piece(request.stream, piece)

    def finish(self, request: HttpCall) -> None:
        """See ``http1.Responder``."""
        request.open = False
        call = request.stream
        call.context = None
        self._responder.end_pieces(call)
