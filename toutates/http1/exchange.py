"""Requests and their answers, which go out in the order in which the requests came."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from toutates.http1.coding import Deflater
from toutates.http1.head import Head
from toutates.http1.responses import LAST_CHUNK, Refused, chunk, encode_fields, has_no_body, status_line

__all__ = ["Answers", "Buffer", "Request", "Responder", "write_text"]

Buffer = bytes | memoryview

#: Bodies up to so many bytes are put into one piece with their head; a copy costs less than a second piece.
JOINED_BYTES: Final = 65_536
#: Shorter bodies are not compressed: they fit into one packet anyway.
MIN_COMPRESSED: Final = 1_024

_OK: Final = status_line(200)
_TEXT: Final = encode_fields({"content-type": "text/plain; charset=utf-8"})


def write_text(refusal: Refused) -> tuple[bytes, bytes]:
    """The fields and the body of a refusal, as plain text."""
    return _TEXT, f"{refusal.text}\n".encode()


class Responder(Protocol):
    """What brings the answers of one connection to its client. ``Answers`` is HTTP/1's; a driver may have others.

    Attributes:
        link: the driver's own object for the connection; None once that is gone.
        owner: the driver's connection, which requests belong to; None for none.
        write_refusal: gives the fields and the body of a refusal.
    """

    write_refusal: Callable[[Refused], tuple[bytes, bytes]]

    @property
    def link(self) -> Any: ...

    @property
    def owner(self) -> Any: ...

    def reply(self, request: Any, parts: Sequence[Buffer], length: int, /) -> None:
        """Give the whole answer to a request that succeeded and is no HEAD. Does nothing once it is no longer open.

        Args:
            request: of this connection.
            parts: first the fields of ``encode_fields`` that are this answer's own, with the empty line after them;
                then the body. They must not change until they are sent.
            length: bytes of the body.
        """
        ...

    def respond(self, request: Any, status: int, fields: bytes, body: bytes, /) -> None:
        """Give the whole answer; ``body`` is what is sent of it."""
        ...

    def respond_in_parts(self, request: Any, fields: bytes, parts: Sequence[bytes], length: int, /) -> None:
        """Give the whole answer to a request that succeeded, without copying its body, which has ``length`` bytes."""
        ...

    def begin(self, request: Any, status: int, fields: bytes, /) -> None:
        """Begin an answer whose length is not known."""
        ...

    def send(self, request: Any, piece: bytes, /) -> None:
        """The next piece of its body, which is not empty."""
        ...

    def finish(self, request: Any, /) -> None:
        """It is complete."""
        ...


class Request:
    """A whole request, which waits for its answer: ``respond``, or ``begin``, ``send`` and ``end``.

    Attributes:
        head: the request line and the fields.
        body: decompressed.
        responder: brings its answer to the client.
        open: whether the answer is not complete, and can still reach the client.
        context: for whoever answers it; None until that sets it.
        silent: of an answer that has begun: whether it has no body, whatever is sent.
        chunked: whether its body is in chunks, which is for the responder.
        stream: for the responder's own use.
    """

    __slots__ = (
        "_deflater",
        "body",
        "chunked",
        "context",
        "head",
        "held",
        "open",
        "responder",
        "silent",
        "stream",
    )

    chunked: bool
    stream: Any

    def __init__(self, head: Head, body: bytes | bytearray, responder: Responder) -> None:
        self.head = head
        self.body = body
        self.responder = responder
        self.open = True
        self.context: Any = None
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
        if has_no_body(status):
            body = b""
        else:
            fields += b"content-length: %d\r\n" % len(body)
        self.responder.respond(self, status, fields, b"" if self.head.method == "HEAD" else body)

    def respond_in_parts(self, fields: bytes, parts: Sequence[bytes], length: int) -> None:
        """Give the whole answer to a request that succeeded, without copying its body, whatever it waits for.

        Args:
            fields: as for ``respond``.
            parts: of the body; many requests may be answered with the same ones.
            length: bytes of all of them.
        """
        fields += b"content-length: %d\r\n" % length
        if self.head.method == "HEAD":
            parts, length = (), 0
        self.responder.respond_in_parts(self, fields, parts, length)

    def refuse(self, refusal: Refused) -> None:
        """Answer with an error."""
        fields, body = self.responder.write_refusal(refusal)
        self.respond(refusal.status, fields + refusal.fields, body)

    def begin(self, status: int, fields: bytes = b"", *, compress: bool = False) -> None:
        """Begin an answer whose length is not known. Its body follows by ``send``; arguments as for ``respond``."""
        self._deflater: Deflater | None = None
        self.silent = self.head.method == "HEAD" or has_no_body(status)
        if compress:
            fields += b"vary: accept-encoding\r\n"
            if self.head.answer_coding:
                fields += b"content-encoding: %b\r\n" % self.head.answer_coding.encode("ascii")
                self._deflater = Deflater(self.head.answer_coding)
        self.responder.begin(self, status, fields)

    @property
    def begun(self) -> bool:
        """Whether its answer was begun by ``begin``, which alone says what it is without a body."""
        return hasattr(self, "silent")

    def send(self, piece: bytes) -> None:
        """The next piece of the body."""
        if self._deflater is not None:
            piece = self._deflater.put(piece)
        self._send(piece)

    def end(self) -> None:
        """The body is complete."""
        if self._deflater is not None:
            self._send(self._deflater.finish())
        self.responder.finish(self)

    def _send(self, piece: bytes) -> None:
        if piece and not self.silent:
            self.responder.send(self, piece)


class Answers:
    """The answers of one connection.

    Args:
        common: gives the fields that every answer has, of ``encode_fields``; None for none.
        write_refusal: gives the fields and the body of a refusal.
        keep_alive: fields of answers behind which the connection goes on.

    Attributes:
        queue: requests whose answers are not complete, or wait for others.
        out: what is to be sent, in pieces.
        bulky: whether it is worth sending piece by piece instead of joined.
        complete: whether no further requests come, so that the last answer ends the connection.
        dirty: the driver's list, to which ``link`` is appended when there is something to send.
        link: the driver's own object for the connection.
        owner: the driver's connection, which calls belong to; None for none.
    """

    __slots__ = (
        "_common",
        "_keep_alive",
        "_start",
        "bulky",
        "complete",
        "dirty",
        "link",
        "out",
        "owner",
        "queue",
        "write_refusal",
    )

    def __init__(
        self,
        common: Callable[[], bytes] | None,
        write_refusal: Callable[[Refused], tuple[bytes, bytes]] = write_text,
        keep_alive: bytes = b"",
    ) -> None:
        self._common: Callable[[], bytes] = common or bytes
        self.write_refusal = write_refusal
        self._keep_alive = keep_alive
        self._start = status_line(200) + keep_alive
        self.queue: deque[Request] = deque()
        self.out: list[Buffer] = []
        self.bulky = False
        self.complete = False
        self.dirty: list[Any] | deque[Any] = deque(maxlen=0)
        self.link: Any = None
        self.owner: Any = None

    def reply(self, request: Request, parts: Sequence[Buffer], length: int) -> None:
        """See ``Responder``."""
        if not request.open:
            return
        queue = self.queue
        if queue[0] is not request or self.complete or request.head.http_1_0:
            self._reply_the_long_way(request, parts, length)
            return
        out = self.out
        if not out:
            self.dirty.append(self.link)
        out += (self._start, self._common())
        out += parts
        if length > JOINED_BYTES:
            self.bulky = True
        request.open = False
        queue.popleft()
        if queue:
            self._release()

    def _reply_the_long_way(self, request: Request, parts: Sequence[Buffer], length: int) -> None:
        head = b"".join((_OK, self._common(), parts[0][:-2], self._connection_field(request), b"\r\n"))
        if length > JOINED_BYTES and self.queue[0] is request:
            self._send([head, *parts[1:]])
            self.bulky = True
        else:
            # Joined: it may wait, and a part may be a small piece of something large.
            self.write(request, b"".join((head, *parts[1:])))
        self.end(request)

    def respond(self, request: Request, status: int, fields: bytes, body: bytes) -> None:
        """See ``Responder``."""
        head = self._head_of(request, status, fields)
        if len(body) > JOINED_BYTES:
            self.write(request, head)
            self.write(request, body)
        else:
            self.write(request, head + body)
        self.end(request)

    def respond_in_parts(self, request: Request, fields: bytes, parts: Sequence[bytes], length: int) -> None:
        """See ``Responder``."""
        self.write(request, self._head_of(request, 200, fields))
        for part in parts:
            self.write(request, part)
        self.bulky = self.bulky or length > JOINED_BYTES
        self.end(request)

    def begin(self, request: Request, status: int, fields: bytes) -> None:
        """See ``Responder``."""
        request.chunked = False
        if request.head.http_1_0:  # which knows no chunks: the end of the connection ends the body
            self.close_after(request)
        elif not has_no_body(status):
            request.chunked = True
            fields += b"transfer-encoding: chunked\r\n"
        self.write(request, self._head_of(request, status, fields))

    def send(self, request: Request, piece: bytes) -> None:
        """See ``Responder``."""
        self.write(request, chunk(piece) if request.chunked else piece)

    def finish(self, request: Request) -> None:
        """See ``Responder``."""
        if request.chunked and not request.silent:
            self.write(request, LAST_CHUNK)
        self.end(request)

    def close_after(self, request: Request) -> None:
        """The connection ends with the answer to ``request``; later requests get none."""
        while self.queue[-1] is not request:
            self.queue.pop().open = False
        self.complete = True

    def drop(self) -> None:
        """The client gets no answer any more, but for what ``take`` gives."""
        for request in self.queue:
            request.open = False
            request.held = None
        self.queue.clear()
        self.complete = True

    @property
    def last_waits(self) -> bool:
        """Whether the answer to the last request can still say that the connection ends with it."""
        queue = self.queue
        return bool(queue) and queue[-1].open and not queue[-1].begun

    def _head_of(self, request: Request, status: int, fields: bytes) -> bytes:
        """The head of an answer, up to and with its empty line."""
        return b"".join((status_line(status), self._common(), fields, self._connection_field(request), b"\r\n"))

    def _connection_field(self, request: Request) -> bytes:
        if self.complete and self.queue[-1] is request:
            return b"connection: close\r\n"
        return b"connection: keep-alive\r\n" + self._keep_alive if request.head.http_1_0 else self._keep_alive

    def write(self, request: Request, data: bytes) -> None:
        """A piece of an answer; what is written behind the last answer's end is dropped."""
        if not request.open:
            return
        if self.queue[0] is request:
            self._send([data])
            return
        if request.held is None:
            request.held = []
        request.held.append(data)

    def interim(self, data: bytes) -> None:
        """Send an interim response, such as 100 Continue, while no answer is being sent."""
        self._send([data])

    def end(self, request: Request) -> None:
        """Note that an answer is complete; the next ones may be sent then."""
        request.open = False
        self._release()

    def _release(self) -> None:
        """Send what has waited for answers that are complete."""
        queue = self.queue
        while queue:
            first = queue[0]
            if first.held is not None:
                self._send(first.held)
                first.held = None
            if first.open:
                return
            queue.popleft()

    def _send(self, pieces: list[Buffer]) -> None:
        if not self.out:
            self.dirty.append(self.link)
        self.out += pieces
        for piece in pieces:
            if len(piece) > JOINED_BYTES:
                self.bulky = True

    @property
    def size(self) -> int:
        """Bytes to send, those of answers that wait included."""
        held = [piece for request in self.queue if request.held is not None for piece in request.held]
        return sum(map(len, self.out)) + sum(map(len, held))

    def take(self) -> list[Buffer]:
        """Remove and return what is to be sent, in pieces."""
        out, self.out = self.out, []
        self.bulky = False
        return out
