"""A request over REST: what its head asks for, and how it is answered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from toutates.api.rest.answers import refusal
from toutates.engine import open_request
from toutates.http1 import Deflater, Refused
from toutates.infer.rest.call import Asks
from toutates.net.http1.call import HttpCall
from toutates.protocol.rest.generate import server_sent_event
from toutates.protocol.rest.response import InferResponse, head_of
from toutates.system.errors import RequestError

__all__ = ["Purpose", "RestHttpCall"]

#: Shorter answers are not compressed: they fit into one packet anyway.
MIN_COMPRESSED: Final = 1_024

#: Responses of decoupled models that a reader of ``generate_stream`` may leave unread, bytes; models stop before.
MAX_UNREAD_BYTES: Final = open_request.MAX_UNREAD_BYTES + open_request.MAX_HANDED_OVER

_JSON: Final = b"content-type: application/json\r\n"
_EVENTS: Final = b"content-type: text/event-stream; charset=utf-8\r\n"


@dataclass(frozen=True, slots=True)
class Purpose:
    """What a request that is no inference is for, by its head (``Head.purpose``).

    Attributes:
        handle: answers it.
        refusal: makes status, header fields and body of an error's answer; None for REST's own.
    """

    handle: Callable[[Any], None]
    refusal: Callable[[RequestError], tuple[int, bytes, bytes]] | None = None


class RestHttpCall(HttpCall):
    """A request; an ``infer.rest.call.RestCall`` where it is an inference."""

    __slots__ = ()

    def coded(self, response: InferResponse) -> InferResponse:
        """The answer as it is sent, compressed where the client asks for it."""
        if response.length < MIN_COMPRESSED or not self.head.purpose.is_coded:
            return response
        coding = self.head.answer_coding
        body = Deflater(coding).finish(b"".join(response.pieces))
        return InferResponse(b"%bcontent-encoding: %b\r\n" % (response.fields, coding.encode()), [body], len(body))

    def refuse(self, refusal: Refused) -> None:
        """Answer a request that HTTP refuses, in the form of the API that it is for."""
        write = getattr(self.head.purpose, "refused", None)
        if write is None:
            super().refuse(refusal)
            return
        self.responder.write_refusal(refusal)  # which counts it
        status, fields, body = write(refusal)
        self.respond(status, fields + refusal.fields, body)

    def fail(self, error: RequestError) -> None:
        """Answer with an error. Does nothing once the request is no longer open."""
        write = self.head.purpose.refusal or refusal
        self.reply(*write(error))

    def send_event(self, document: bytes, *, is_first: bool, status: int = 200) -> None:
        """Send one of several responses of ``generate_stream``.

        A reader who leaves too much unread is given up: the model cannot be stopped.
        """
        if not self.open:
            return
        if is_first:
            self.begin(status, _EVENTS)
        self.send(server_sent_event(document))
        if self.unread_bytes > MAX_UNREAD_BYTES:
            self.give_up("too many responses are left unread", "unread_responses")

    def send_error_event(self, error: RequestError, *, is_first: bool) -> None:
        """The same, of an error. Its status is seen if it is the first response."""
        answer = refusal(error)
        self.send_event(answer.body, is_first=is_first, status=answer.status)

    def end_events(self, *, is_first: bool) -> None:
        """End a stream of events: there are no further responses."""
        if not self.open:
            return
        if is_first:
            self.begin(200, _EVENTS)
        self.end()
        self.connection.leave_if_ended()

    def reply_document(self, document: bytes) -> None:
        """The answer of ``generate``."""
        self.reply_in_chunks(200, _JSON, [document])

    def answer(self, response: InferResponse) -> None:
        """Answer an inference that succeeded. Does nothing once the request is no longer open."""
        asks = self.head.purpose.asks
        if asks is Asks.INFER:
            head = head_of(response.fields, response.length)
            self.responder.reply(self, (head, *response.pieces), response.length)
        elif asks is Asks.GENERATE:
            self.reply_in_chunks(200, _JSON, [b"".join(response.pieces)])
        elif asks is Asks.BODY:
            result_head, result = response.pieces
            self.reply(*self.head.purpose.tensors.write(result_head, result))
        else:
            self.reply_in_chunks(200, _EVENTS, [server_sent_event(b"".join(response.pieces))])
