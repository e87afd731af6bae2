"""Requests and their answers, which go out in the order in which the requests came."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from toutates.http1.coding import Deflater
from toutates.http1.head import Head
from toutates.http1.responses import LAST_CHUNK, Refused, chunk, encode_fields, has_no_body, status_line

__all__ = ["Answers", "Request"]

#: Bodies up to so many bytes are put into one piece with their head; a copy costs less than a second piece.
JOINED_BYTES: Final = 65_536
#: Shorter bodies are not compressed: they fit into one packet anyway.
MIN_COMPRESSED: Final = 1_024

_TEXT: Final = encode_fields({"content-type": "text/plain; charset=utf-8"})


class Request:
    """A whole request, which waits for its answer: ``respond``, or ``begin``, ``send`` and ``end``.

    Attributes:
        head: the request line and the fields.
        body: decompressed.
    """

    __slots__ = ("_answers", "_chunked", "_deflater", "_silent", "body", "ended", "head", "held")

    def __init__(self, head: Head, body: bytes | bytearray, answers: Answers) -> None:
        self.head = head
        self.body = body
        self._answers = answers
        #: whether the answer is complete
        self.ended = False
        #: what waits for the answers before this one
        self.held: list[bytes] = []
        self._deflater: Deflater | None = None
        self._chunked = False
        self._silent = False

    def respond(self, status: int, fields: bytes = b"", body: bytes = b"", *, compress: bool = False) -> None:
        """Give the whole answer.

        Args:
            status: 200 or above.
            fields: of ``encode_fields``, without those that say where the body ends.
            body: in full; it is left out where the request or the status wants none.
            compress: whether the body may be compressed as the client likes it.
        """
        if compress:
            fields += b"vary: accept-encoding\r\n"
            if self.head.answer_coding and len(body) >= MIN_COMPRESSED:
                body = Deflater(self.head.answer_coding).finish(body)
                fields += b"content-encoding: %b\r\n" % self.head.answer_coding.encode("ascii")
        framing = b"" if has_no_body(status) else b"content-length: %d\r\n" % len(body)
        head = self._answers.head_of(self, status, fields + framing)
        if self.head.method == "HEAD" or not framing:
            body = b""
        if len(body) > JOINED_BYTES:
            self._answers.write(self, head)
            self._answers.write(self, body)
        else:
            self._answers.write(self, head + body)
        self._answers.end(self)

    def refuse(self, refusal: Refused) -> None:
        """Answer with an error, as text."""
        self.respond(refusal.status, _TEXT + refusal.fields, f"{refusal.text}\n".encode())

    def begin(self, status: int, fields: bytes = b"", *, compress: bool = False) -> None:
        """Begin an answer whose length is not known. Its body follows by ``send``; arguments as for ``respond``."""
        self._silent = self.head.method == "HEAD" or has_no_body(status)
        if compress:
            fields += b"vary: accept-encoding\r\n"
            if self.head.answer_coding:
                fields += b"content-encoding: %b\r\n" % self.head.answer_coding.encode("ascii")
                self._deflater = Deflater(self.head.answer_coding)
        if self.head.http_1_0:  # which knows no chunks: the end of the connection ends the body
            self._answers.close_after(self)
        elif not has_no_body(status):
            self._chunked = True
            fields += b"transfer-encoding: chunked\r\n"
        self._answers.write(self, self._answers.head_of(self, status, fields))

    def send(self, piece: bytes) -> None:
        """The next piece of the body."""
        if self._deflater is not None:
            piece = self._deflater.put(piece)
        self._send(piece)

    def end(self) -> None:
        """The body is complete."""
        if self._deflater is not None:
            self._send(self._deflater.finish())
        if self._chunked and not self._silent:
            self._answers.write(self, LAST_CHUNK)
        self._answers.end(self)

    def _send(self, piece: bytes) -> None:
        if piece and not self._silent:
            self._answers.write(self, chunk(piece) if self._chunked else piece)


class Answers:
    """The answers of one connection.

    Args:
        common: gives the fields that every answer has, of ``encode_fields``.

    Attributes:
        complete: whether no further requests come, so that the last answer ends the connection.
        size: bytes to send.
    """

    __slots__ = ("_common", "_out", "_queue", "complete", "size")

    def __init__(self, common: Callable[[], bytes]) -> None:
        self._common = common
        self._queue: deque[Request] = deque()
        self._out: list[bytes] = []
        self.complete = False
        self.size = 0

    def __len__(self) -> int:
        """Requests whose answers are not complete, or wait for others."""
        return len(self._queue)

    def add(self, request: Request) -> None:
        """Add a request, which is to be answered after those before it."""
        self._queue.append(request)

    def close_after(self, request: Request) -> None:
        """The connection ends with the answer to ``request``; later requests get none."""
        while self._queue[-1] is not request:
            self._queue.pop().ended = True
        self.complete = True

    def head_of(self, request: Request, status: int, fields: bytes) -> bytes:
        """The head of an answer, up to and with its empty line."""
        last = b"\r\n"
        if self.complete and self._queue[-1] is request:
            last = b"connection: close\r\n\r\n"
        elif request.head.http_1_0:
            last = b"connection: keep-alive\r\n\r\n"
        return b"".join((status_line(status), self._common(), fields, last))

    def write(self, request: Request, data: bytes) -> None:
        """A piece of an answer; what is written behind the last answer's end is dropped."""
        if request.ended:
            return
        self.size += len(data)
        (self._out if self._queue[0] is request else request.held).append(data)

    def interim(self, data: bytes) -> None:
        """Send an interim response, such as 100 Continue, while no answer is being sent."""
        self.size += len(data)
        self._out.append(data)

    def end(self, request: Request) -> None:
        """Note that an answer is complete; the next ones may be sent then."""
        request.ended = True
        while self._queue and self._queue[0].ended:
            self._queue.popleft()
            if self._queue:
                self._out += self._queue[0].held
                self._queue[0].held = []

    def take(self) -> list[bytes]:
        """Remove and return what is to be sent, in pieces."""
        out, self._out = self._out, []
        self.size = sum(len(piece) for request in self._queue for piece in request.held)
        return out
