"""The client's side of HTTP/1.1 for requests that are made again and again: bytes in, bytes and answers out.

Source: RFC 9112. One request is under way at a time: a server may answer pipelined requests one after another, and the
latency would be that of the ones before.

Servers give alike answers heads of the same bytes, so that each head is read once.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

from toutates.bench.answer import Answer, ConnectionFailed

__all__ = ["HttpConnection", "HttpRequest"]

#: A head, and the line of a chunk's size: more is no answer of a server of models.
_MOST_HEAD: Final = 65_536
_MOST_LINE: Final = 256
_MOST_KEPT: Final = 1_024
_STATUS_LINE: Final = re.compile(rb"HTTP/1\.([01]) (\d{3})(?: |$)")
#: What is kept of the body of an error.
_MOST_TEXT: Final = 300

#: Of an answer: a server that never ends one does not take all memory.
_MOST_BODY: Final = 2**30
_TOO_LONG: Final = f"an answer has more than {_MOST_BODY >> 20} MiB"

_SPEAKS_HTTP2: Final = "the server speaks HTTP/2, as gRPC does; write grpc:// instead of http://"


class HttpRequest:
    """A request that is made again and again.

    Args:
        method: such as POST.
        path: with the query.
        authority: host:port.
        body: its octets.
        fields: further header fields.
    """

    __slots__ = ("octets",)

    def __init__(
        self, method: str, path: str, authority: str, body: bytes, fields: Mapping[str, str] | None = None
    ) -> None:
        lines = [f"{method} {path} HTTP/1.1", f"Host: {authority}", f"Content-Length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in (fields or {}).items()]
        if any("\r" in line or "\n" in line for line in lines):
            raise ValueError("a header field has a line break")
        self.octets = "\r\n".join([*lines, "\r\n"]).encode() + body


class _Head(NamedTuple):
    status: int
    size: int  # -1 for chunks, -2 for all until the connection closes
    keeps: bool


_CHUNKED: Final = -1
_UNTIL_END: Final = -2
#: What is read of an answer in chunks: the line with a chunk's size, the trailers, the line break behind a chunk.
_SIZE_LINE, _TRAILERS, _BREAK = -1, -2, -3


class HttpConnection:
    """A connection; see ``ClientSide``."""

    def __init__(self) -> None:
        self.greeted = True
        self.ended = ""
        self.texts: dict[int, str] = {}
        self._calls: list[int] = []
        self._received = bytearray()
        self._out: list[bytes] = []
        self._heads: dict[bytes, _Head] = {}
        self._head: _Head | None = None
        self._chunks = bytearray()
        #: Octets left of the chunk that is being read, or one of the three below.
        self._chunk = _SIZE_LINE

    @property
    def room(self) -> int:
        """How many calls can begin now: one or none."""
        return 0 if self._calls or self.ended else 1

    @property
    def under_way(self) -> Collection[int]:
        """The number of the call without an answer."""
        return self._calls

    def begin(self, request: HttpRequest, number: int) -> None:
        """Begin a call, where there is room; see ``ClientSide``."""
        self._calls.append(number)
        self._out.append(request.octets)

    def data_to_send(self) -> bytes:
        """What is to be sent now."""
        if not self._out:
            return b""
        out = self._out[0] if len(self._out) == 1 else b"".join(self._out)
        self._out.clear()
        return out

    def receive(self, data: bytes) -> Sequence[Answer]:
        """Take bytes; returns the calls that they end.

        Raises:
            ConnectionFailed: they are no answer in HTTP/1.1.
        """
        received = self._received
        received += data
        answers: list[Answer] = []
        while received or self._head is not None:
            if self._head is None and not self._read_head():
                break
            body = self._read_body()
            if body is None:
                break
            self._end(answers, body)
        if len(received) + len(self._chunks) > _MOST_BODY:
            raise ConnectionFailed(_TOO_LONG)
        return answers

    def receive_end(self) -> Sequence[Answer]:
        """The server has closed the connection; returns the call that this ends as it should."""
        self.ended = self.ended or "the server closed the connection"
        answers: list[Answer] = []
        if self._head is not None and self._head.size == _UNTIL_END and self._calls:
            self._end(answers, bytes(self._received))
        return answers

    def _read_head(self) -> bool:
        received = self._received
        while True:
            end = received.find(b"\r\n\r\n")
            if end < 0:
                if len(received) > 4 and not received.startswith(b"HTTP/"):
                    raise ConnectionFailed(_not_http1(received))
                if len(received) > _MOST_HEAD:
                    raise ConnectionFailed(f"the head of an answer is longer than {_MOST_HEAD} bytes")
                return False
            octets = bytes(received[:end])
            head = self._heads.get(octets)
            if head is None:
                head = _read_head(octets)
                if len(self._heads) < _MOST_KEPT:
                    self._heads[octets] = head
            del received[: end + 4]
            if 100 <= head.status < 200:  # the answer itself is still to come
                continue
            if not self._calls:
                raise ConnectionFailed("the server answers where nothing was asked")
            self._head = head
            return True

    def _read_body(self) -> bytes | bytearray | None:
        head, received = self._head, self._received
        assert head is not None
        if head.size >= 0:
            if len(received) < head.size:
                return None
            body = bytes(received[: head.size])
            del received[: head.size]
            return body
        return self._read_chunks() if head.size == _CHUNKED else None

    def _read_chunks(self) -> bytearray | None:
        received = self._received
        while True:
            if self._chunk > 0:
                taken = min(self._chunk, len(received))
                self._chunks += received[:taken]
                del received[:taken]
                self._chunk -= taken
                if self._chunk:
                    return None
                self._chunk = _BREAK
            end = received.find(b"\r\n")
            if end < 0:
                if len(received) > _MOST_LINE:
                    raise ConnectionFailed("an answer in chunks cannot be read")
                return None
            line = bytes(received[:end])
            del received[: end + 2]
            if self._chunk == _BREAK:
                self._chunk = _SIZE_LINE
            elif self._chunk == _TRAILERS:
                if not line:
                    body, self._chunks, self._chunk = self._chunks, bytearray(), _SIZE_LINE
                    return body
            else:
                try:
                    self._chunk = int(line.partition(b";")[0], 16) or _TRAILERS
                except ValueError:
                    raise ConnectionFailed("an answer in chunks cannot be read") from None

    def _end(self, answers: list[Answer], body: bytes | bytearray) -> None:
        head = self._head
        assert head is not None
        self._head = None
        status = 0 if head.status == 200 else head.status
        if status:
            self.texts.setdefault(status, bytes(body[:_MOST_TEXT]).decode(errors="replace"))
        if not head.keeps:
            self.ended = "the server closes the connection after its answer"
        answers.append((self._calls.pop(), status, body))


def _not_http1(octets: bytes | bytearray) -> str:
    # SETTINGS begin with three octets of length, type 4 and no flags.
    return _SPEAKS_HTTP2 if octets[3] == 4 and octets[0] == 0 else "the server does not speak HTTP/1.1"


def _read_head(octets: bytes) -> _Head:
    first, *lines = octets.split(b"\r\n")
    match = _STATUS_LINE.match(first)
    if match is None:
        raise ConnectionFailed("the server does not speak HTTP/1.1")
    fields = {}
    for line in lines:
        name, _, value = line.partition(b":")
        fields[name.strip().lower()] = value.strip().lower()
    status = int(match[2])
    tokens = [token.strip() for token in fields.get(b"connection", b"").split(b",")]
    keeps = b"close" not in tokens and (match[1] == b"1" or b"keep-alive" in tokens)
    size = fields.get(b"content-length", b"")
    if b"chunked" in fields.get(b"transfer-encoding", b""):
        return _Head(status, _CHUNKED, keeps)
    if status in (204, 304) or status < 200:
        return _Head(status, 0, keeps)
    if not size:
        return _Head(status, _UNTIL_END, False)
    if not size.isdigit() or len(size) > 12:
        raise ConnectionFailed(f"an answer has {size.decode(errors='replace')!r} as its content-length")
    if int(size) > _MOST_BODY:
        raise ConnectionFailed(_TOO_LONG)
    return _Head(status, int(size), keeps)
