"""Requests and their answers, which go out in the order in which the requests came."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from toutates.http1.coding import Deflater
from toutates.http1.head import Head
from toutates.http1.responses import LAST_CHUNK, Refused, chunk, encode_fields, has_no_body, status_line

__all__ = ["Answers", "Buffer", "Request", "write_text"]

Buffer = bytes | memoryview

#: Bodies up to so many bytes are put into one piece with their head; a copy costs less than a second piece.
JOINED_BYTES: Final = 65_536
#: Shorter bodies are not compressed: they fit into one packet anyway.
MIN_COMPRESSED: Final = 1_024

_TEXT: Final = encode_fields({"content-type": "text/plain; charset=utf-8"})


def write_text(refusal: Refused) -> tuple[bytes, bytes]:
    """The fields and the body of a refusal, as plain text."""
    return _TEXT, f"{refusal.text}\n".encode()


class Request:
    """A whole request, which waits for its answer: ``respond``, or ``begin``, ``send`` and ``end``.

    Attributes:
        head: the request line and the fields.
        body: decompressed.
        open: whether the answer is not complete, and can still reach the client.
    """

    __slots__ = ("_answers", "_chunked", "_deflater", "_silent", "body", "head", "held", "open")

    def __init__(self, head: Head, body: bytes | bytearray, answers: Answers) -> None:
        self.head = head
        self.body = body
        self._answers = answers
        self.open = True
        #: what waits for the answers before this one; None for nothing
        self.held: list[Buffer] | None = None

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

    def respond_in_pieces(self, fields: bytes, pieces: Sequence[Buffer], length: int) -> None:
        """Give the whole answer to a request that succeeded and is no HEAD, without joining its body.

        Args:
            fields: as for ``respond``.
            pieces: of the body; they must not change until they are sent.
            length: bytes of all of them.
        """
        self._answers.write_whole(self, fields, pieces, length)

    def respond_in_parts(self, fields: bytes, parts: Sequence[bytes], length: int) -> None:
        """Give the whole answer to a request that succeeded, without copying its body, whatever it waits for.

        Args:
            fields: as for ``respond``.
            parts: of the body; many requests may be answered with the same ones.
            length: bytes of all of them.
        """
        self._answers.write(self, self._answers.head_of(self, 200, fields + b"content-length: %d\r\n" % length))
        if self.head.method != "HEAD":
            for part in parts:
                self._answers.write(self, part)
        self._answers.end(self)

    def refuse(self, refusal: Refused) -> None:
        """Answer with an error."""
        fields, body = self._answers.write_refusal(refusal)
        self.respond(refusal.status, fields + refusal.fields, body)

    def begin(self, status: int, fields: bytes = b"", *, compress: bool = False) -> None:
        """Begin an answer whose length is not known. Its body follows by ``send``; arguments as for ``respond``."""
        self._deflater: Deflater | None = None
        self._chunked = False
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
        write_refusal: gives the fields and the body of a refusal.

    Attributes:
        complete: whether no further requests come, so that the last answer ends the connection.
        size: bytes to send.
    """

    __slots__ = ("_common", "_out", "_queue", "complete", "size", "write_refusal")

    def __init__(
        self, common: Callable[[], bytes], write_refusal: Callable[[Refused], tuple[bytes, bytes]] = write_text
    ) -> None:
        self._common = common
        self.write_refusal = write_refusal
        self._queue: deque[Request] = deque()
        self._out: list[Buffer] = []
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
            self._queue.pop().open = False
        self.complete = True

    def drop(self) -> None:
        """The client gets no answer any more, but for what ``take`` gives."""
        for request in self._queue:
            request.open = False
            request.held = None
        self._queue.clear()
        self.complete = True

    def head_of(self, request: Request, status: int, fields: bytes) -> bytes:
        """The head of an answer, up to and with its empty line."""
        return b"".join((status_line(status), self._common(), fields, self._end_of_head(request)))

    def _end_of_head(self, request: Request) -> bytes:
        if self.complete and self._queue[-1] is request:
            return b"connection: close\r\n\r\n"
        return b"connection: keep-alive\r\n\r\n" if request.head.http_1_0 else b"\r\n"

    def write(self, request: Request, data: bytes) -> None:
        """A piece of an answer; what is written behind the last answer's end is dropped."""
        if not request.open:
            return
        self.size += len(data)
        if self._queue[0] is request:
            self._out.append(data)
        else:
            self._hold(request, data)

    def _hold(self, request: Request, data: bytes) -> None:
        """Keep a piece until the answers before this one are complete."""
        if request.held is None:
            request.held = []
        request.held.append(data)

    def write_whole(self, request: Request, fields: bytes, pieces: Sequence[Buffer], length: int) -> None:
        """A whole answer with status 200, whose body of ``length`` bytes is in pieces."""
        if not request.open:
            return
        end = b"\r\n" if not (self.complete or request.head.http_1_0) else self._end_of_head(request)
        head = b"HTTP/1.1 200 OK\r\n%b%bcontent-length: %d\r\n%b" % (self._common(), fields, length, end)
        self.size += len(head) + length
        queue = self._queue
        if queue[0] is not request:
            self._hold(request, b"".join((head, *pieces)))  # a piece may be a small part of something large
            request.open = False
            return
        self._out.append(head)
        self._out += pieces
        request.open = False
        queue.popleft()
        if queue:
            self._release()

    def interim(self, data: bytes) -> None:
        """Send an interim response, such as 100 Continue, while no answer is being sent."""
        self.size += len(data)
        self._out.append(data)

    def end(self, request: Request) -> None:
        """Note that an answer is complete; the next ones may be sent then."""
        request.open = False
        self._release()

    def _release(self) -> None:
        """Send what has waited for answers that are complete."""
        queue = self._queue
        while queue:
            first = queue[0]
            if first.held is not None:
                self._out += first.held
                first.held = None
            if first.open:
                return
            queue.popleft()

    @property
    def has_output(self) -> bool:
        """Whether ``take`` would return anything."""
        return bool(self._out)

    def take(self) -> list[Buffer]:
        """Remove and return what is to be sent, in pieces."""
        out, self._out = self._out, []
        self.size = 0
        if self._queue:
            held = [request.held for request in self._queue if request.held is not None]
            self.size = sum(len(piece) for pieces in held for piece in pieces)
        return out
