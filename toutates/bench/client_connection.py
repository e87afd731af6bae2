"""The client's side of gRPC over HTTP/2 for unary calls, as cheap as Python can be: bytes in, bytes and answers out.

Sources: RFC 9113 (HTTP/2), RFC 7541 (HPACK), and the gRPC-over-HTTP/2 specification.

A request's header block refers to no table, so that it is the same bytes in every call. The server is told that its
own table has no room, so that its blocks mean the same each time too, and each is decoded once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from struct import Struct
from typing import Final, NamedTuple
from urllib.parse import unquote

from hpack import Decoder, HPACKError

from toutates.bench.answer import LOST, Answer, ConnectionFailed

__all__ = ["ClientConnection", "Request"]

_UNKNOWN: Final = 2

_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
#: Length (24 bits) and type (8), flags, stream.
_HEAD: Final = Struct(">IBI")
_HEAD_SIZE: Final = 9
_SETTING: Final = Struct(">HI")
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE, _CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
_ACK = _END_STREAM = 1
_END_HEADERS, _PADDED, _PRIORITY = 4, 8, 32
_HEADER_TABLE_SIZE, _ENABLE_PUSH, _MAX_STREAMS, _INITIAL_WINDOW, _MAX_FRAME = 1, 2, 3, 4, 5
_DEFAULT_WINDOW: Final = 65_535
_LARGEST_WINDOW: Final = 2**31 - 1
_LARGEST_STREAM: Final = 2**31 - 1
_DEFAULT_FRAME: Final = 16_384
#: Of DATA, after which the connection's window is given back.
_GIVEN_BACK: Final = 2**29
#: Of answers that are not whole, of one connection: a server that never ends one does not take all memory.
_MOST_HELD: Final = 2**30
#: Of a header block in pieces, for the same reason; servers' own limits are far lower.
_MOST_BLOCK: Final = 2**20
#: Answers to PING and SETTINGS that wait for a server which does not read.
_MOST_REPLIES: Final = 10_000
#: The longest block of trailers that is remembered, and of a status's text what is kept.
_LONGEST_REMEMBERED: Final = 4_096
_MOST_TEXT: Final = 4_096
#: The longest answer whose form is remembered; of longer ones the copying costs more than the reading.
_LONGEST_FORM: Final = _DEFAULT_FRAME


class Request:
    """A call that is made again and again.

    Args:
        path: of the method, as ``/inference.GRPCInferenceService/ModelInfer``.
        authority: host:port.
        message: without gRPC's prefix.
        metadata: further header fields, names in lower case.
        secure: whether it goes by TLS.
    """

    __slots__ = ("body", "data_head", "headers", "headers_head")

    def __init__(
        self,
        path: str,
        authority: str,
        message: bytes,
        metadata: Mapping[str, str] | None = None,
        *,
        secure: bool = False,
    ) -> None:
        scheme = "https" if secure else "http"
        fields = {":method": "POST", ":scheme": scheme, ":path": path, ":authority": authority, "te": "trailers"}
        fields |= {"content-type": "application/grpc", **(metadata or {})}
        block = b"".join(_literal(name) + _literal(value, first=b"") for name, value in fields.items())
        if len(block) > _DEFAULT_FRAME:
            raise ValueError(f"{len(block)} bytes of header fields; a frame has room for {_DEFAULT_FRAME}")
        self.body = b"\0" + len(message).to_bytes(4, "big") + message
        # The heads of both frames up to the stream's number.
        self.headers_head = _HEAD.pack(len(block) << 8 | _HEADERS, _END_HEADERS, 0)[:5]
        self.data_head = _HEAD.pack((len(self.body) & 0xFFFFFF) << 8 | _DATA, _END_STREAM, 0)[:5]
        self.headers = block


def _literal(text: str, first: bytes = b"\0") -> bytes:
    """A string of HPACK, without Huffman's code; before a name, that the field goes into no table."""
    octets = text.encode()
    size = len(octets)
    if size < 127:
        return first + bytes([size]) + octets
    prefix, size = b"\x7f", size - 127
    while size >= 128:
        prefix, size = prefix + bytes([size & 127 | 128]), size >> 7
    return first + prefix + bytes([size]) + octets


class _Form(NamedTuple):
    """How a call was answered: one with the same lengths and heads is read by one ``unpack``, in a fifth of the time.

    Attributes:
        layout: head and stream of HEADERS, those of DATA and its payload, those of HEADERS, and its block.
        heads: of the three frames up to the stream's number.
        block: of the trailers, which say OK.
    """

    layout: Struct
    heads: tuple[bytes, bytes, bytes]
    block: bytes


class ClientConnection:
    """A connection, from its preface on; see ``ClientSide``."""

    def __init__(self) -> None:
        self.greeted = False
        self.ended = ""
        self.texts: dict[int, str] = {}
        self._next_id = 1
        self._rest = b""
        #: Of calls under way, by their streams: their numbers, and what has come of messages.
        self._calls: dict[int, int] = {}
        self._messages: dict[int, bytes | bytearray] = {}
        self._held = 0
        self._form: _Form | None = None
        self._statuses: dict[bytes, int | None] = {}
        self._block: tuple[int, int, bytes] | None = None
        self._max_streams = 100  # until the server says; RFC 9113 section 6.5.2 recommends no less
        self._max_frame = _DEFAULT_FRAME
        self._initial_window = _DEFAULT_WINDOW
        self._window = _DEFAULT_WINDOW
        #: The longest body that can be sent in one frame, as far as the connection's window lets.
        self._at_once = _DEFAULT_FRAME
        self._unsent: deque[int] = deque()
        self._bodies: dict[int, tuple[bytes, int]] = {}
        self._windows: dict[int, int] = {}
        self._taken = 0
        self._replies = 0
        settings = {_HEADER_TABLE_SIZE: 0, _ENABLE_PUSH: 0, _INITIAL_WINDOW: _LARGEST_WINDOW}
        self._out: list[bytes] = [
            _PREFACE,
            _frame(_SETTINGS, 0, 0, b"".join(_SETTING.pack(*one) for one in settings.items())),
            _frame(_WINDOW_UPDATE, 0, 0, (_LARGEST_WINDOW - _DEFAULT_WINDOW).to_bytes(4, "big")),
        ]

    @property
    def room(self) -> int:
        """How many calls can begin now."""
        return 0 if self.ended else max(0, self._max_streams - len(self._calls))

    @property
    def under_way(self) -> Collection[int]:
        """The numbers of calls without an answer."""
        return self._calls.values()

    def begin(self, request: Request, number: int) -> None:
        """Begin a call, where there is room; see ``ClientSide``."""
        stream_id = self._next_id
        self._next_id = stream_id + 2
        if stream_id + 2 > _LARGEST_STREAM:
            self.ended = "its numbers of streams are used up"
        self._calls[stream_id] = number
        stream = stream_id.to_bytes(4, "big")
        body = request.body
        size = len(body)
        if size <= self._at_once and size <= self._window:
            self._window -= size
            self._out += (request.headers_head, stream, request.headers, request.data_head, stream, body)
        else:
            self._out += (request.headers_head, stream, request.headers)
            self._unsent.append(stream_id)
            self._bodies[stream_id] = body, 0
            self._windows[stream_id] = self._initial_window
            self._send_bodies()

    def data_to_send(self) -> bytes:
        """What is to be sent now."""
        if not self._out:
            return b""
        out = b"".join(self._out)
        self._out.clear()
        self._replies = 0
        return out

    def receive(self, data: bytes) -> Sequence[Answer]:
        """Take bytes; returns the calls that they end.

        Raises:
            ConnectionFailed: the bytes are not those of an HTTP/2 server. All calls under way are lost.
        """
        if self._rest:
            data = self._rest + data
        size = len(data)
        answers: list[Answer] = []
        statuses = self._statuses
        at = 0
        opened = -1  # where the last response began
        while size >= at + _HEAD_SIZE:
            if self._form is not None and not self._bodies:
                at = self._receive_alike(self._form, data, at, answers)
                if size < at + _HEAD_SIZE:
                    break
            word, flags, stream_id = _HEAD.unpack_from(data, at)
            start = at + _HEAD_SIZE
            end = start + (word >> 8)
            kind = word & 255
            if end - start > _DEFAULT_FRAME or not self.greeted:
                self._check_head(data[at:], end - start, kind)
            if size < end:
                break
            if kind == _HEADERS and flags & ~_END_STREAM == _END_HEADERS:
                if flags & _END_STREAM:
                    block = data[start:end]
                    status = statuses[block] if block in statuses else self._status(block)
                    if status == 0 and opened >= 0 and end - opened <= _LONGEST_FORM:
                        self._form = _form(data[opened:end], start - opened) or self._form
                    self._end(answers, stream_id, _UNKNOWN if status is None else status)
                else:
                    opened = at
            elif kind == _DATA:
                self._take_data(stream_id, flags, data[start:end])
                if flags & _END_STREAM:
                    self._end(answers, stream_id, _UNKNOWN)
            else:
                self._take_other(kind, flags, stream_id, data[start:end], answers)
            at = end
        self._rest = data[at:]
        if self._held > _MOST_HELD:
            raise ConnectionFailed(f"the server's answers under way have more than {_MOST_HELD >> 20} MiB")
        if self._taken >= _GIVEN_BACK:
            self._out.append(_frame(_WINDOW_UPDATE, 0, 0, self._taken.to_bytes(4, "big")))
            self._taken = 0
        return answers

    def _receive_alike(self, form: _Form, data: bytes, at: int, answers: list[Answer]) -> int:
        """Read calls that are answered in the same form, up to the first that is not; returns where that is."""
        unpack_from, size = form.layout.unpack_from, form.layout.size
        (first_head, data_head, last_head), ok = form.heads, form.block
        calls, begin, last = self._calls, at, len(data) - size
        while at <= last:
            head1, stream1, head2, stream2, message, head3, stream3, block = unpack_from(data, at)
            if (
                block != ok
                or head3 != last_head
                or head2 != data_head
                or head1 != first_head
                or not stream1 == stream2 == stream3
                or stream1 not in calls
                or stream1 in self._messages
            ):
                break
            answers.append((calls.pop(stream1), 0, message))
            at += size
        if at > begin:
            self._taken += (at - begin) // size * (int.from_bytes(data_head[:3], "big"))
        return at

    def _check_head(self, begin: bytes, length: int, kind: int) -> None:
        """What is longer than was allowed, or comes first and is no SETTINGS, is not HTTP/2."""
        if begin.startswith(b"HTTP/"):
            raise ConnectionFailed("the server speaks HTTP/1.1, and no gRPC; write http:// instead of grpc:// for REST")
        if not self.greeted and (kind != _SETTINGS or length > _DEFAULT_FRAME):
            raise ConnectionFailed("the server does not speak HTTP/2")
        if length > _DEFAULT_FRAME:
            raise ConnectionFailed(f"the server sent a frame of {length} bytes, and {_DEFAULT_FRAME} are allowed")

    def _take_data(self, stream_id: int, flags: int, payload: bytes) -> None:
        self._taken += len(payload)
        if stream_id not in self._calls:
            raise ConnectionFailed(f"the server answers on stream {stream_id}, where nothing is asked")
        if flags & _PADDED:
            payload = _without_padding(payload)
        self._held += len(payload)
        earlier = self._messages.get(stream_id)
        if earlier is None:
            self._messages[stream_id] = payload
        elif isinstance(earlier, bytearray):
            earlier += payload
        else:
            self._messages[stream_id] = bytearray(earlier + payload)

    def receive_end(self) -> Sequence[Answer]:
        """The server has closed the connection, which ends no call as it should."""
        self.ended = self.ended or "the server closed the connection"
        return ()

    def _end(self, answers: list[Answer], stream_id: int, status: int) -> None:
        number = self._calls.pop(stream_id, None)
        if number is None:
            raise ConnectionFailed(f"the server answers on stream {stream_id}, where nothing is asked")
        message = self._messages.pop(stream_id, b"")
        self._held -= len(message)
        if stream_id in self._bodies:  # answered before it was sent to its end
            self._forget_body(stream_id)
            self._out.append(_frame(_RST_STREAM, 0, stream_id, b"\0\0\0\x08"))
        answers.append((number, status, message))

    def _status(self, block: bytes) -> int | None:
        """grpc-status of a header block, or None."""
        try:
            fields = {_text(name): _text(value) for name, value in Decoder().decode(block)}
        except HPACKError as error:
            raise ConnectionFailed(f"a header block of the server cannot be read: {error}") from error
        given = fields.get("grpc-status", "")
        status = int(given) if given.isdecimal() and len(given) < 4 else None
        if len(self._statuses) < 1_024 and len(block) <= _LONGEST_REMEMBERED:
            self._statuses[block] = status
        text = unquote(fields.get("grpc-message", "")[:_MOST_TEXT])
        if status is None:
            http = f" (HTTP status {fields[':status']})" if ":status" in fields else ""
            text = f"an answer without a grpc-status{http}{': ' if text else ''}{text}"
        self.texts.setdefault(_UNKNOWN if status is None else status, text)
        return status

    def _take_other(self, kind: int, flags: int, stream_id: int, payload: bytes, answers: list[Answer]) -> None:
        if kind == _SETTINGS and not flags & _ACK:
            self._take_settings(payload)
        elif kind == _WINDOW_UPDATE and len(payload) == 4:
            if stream_id == 0:
                self._window += int.from_bytes(payload, "big")
            elif stream_id in self._windows:
                self._windows[stream_id] += int.from_bytes(payload, "big")
            self._send_bodies()
        elif kind == _PING and not flags & _ACK:
            self._reply(_frame(_PING, _ACK, 0, payload))
        elif kind == _RST_STREAM:
            if stream_id in self._calls:  # it may cross our own
                code = int.from_bytes(payload, "big")
                self.texts.setdefault(LOST, f"the server reset a call with HTTP/2 error {code}")
                self._end(answers, stream_id, LOST)
        elif kind == _GOAWAY:
            self._take_goaway(payload, answers)
        elif kind == _HEADERS:
            if flags & _PADDED:
                payload = _without_padding(payload)
            self._block = stream_id, flags, payload[5:] if flags & _PRIORITY else payload
            self._end_block(flags, answers)
        elif kind == _CONTINUATION:
            if self._block is None:
                raise ConnectionFailed("the server sent CONTINUATION without HEADERS")
            self._block = *self._block[:2], self._block[2] + payload
            if len(self._block[2]) > _MOST_BLOCK:
                raise ConnectionFailed(f"the server sent more than {_MOST_BLOCK} bytes of header fields")
            self._end_block(flags, answers)

    def _reply(self, frame: bytes) -> None:
        """Answer the server itself, which may not ask on and on without reading."""
        self._replies += 1
        if self._replies > _MOST_REPLIES:
            raise ConnectionFailed("the server sends PING or SETTINGS on and on, and does not read what they ask for")
        self._out.append(frame)

    def _take_goaway(self, payload: bytes, answers: list[Answer]) -> None:
        text = payload[8:].decode(errors="replace")
        self.ended = f"the server sent GOAWAY {int.from_bytes(payload[4:8], 'big')} {text}".rstrip()
        last = int.from_bytes(payload[:4], "big") & _LARGEST_STREAM
        for stream_id in [one for one in self._calls if one > last]:  # which the server has not looked at
            self.texts.setdefault(LOST, self.ended)
            self._end(answers, stream_id, LOST)

    def _end_block(self, flags: int, answers: list[Answer]) -> None:
        if flags & _END_HEADERS and self._block:
            stream_id, first_flags, block = self._block
            self._block = None
            if first_flags & _END_STREAM:
                status = self._status(block)
                self._end(answers, stream_id, _UNKNOWN if status is None else status)

    def _take_settings(self, payload: bytes) -> None:
        self.greeted = True
        for code, value in _SETTING.iter_unpack(payload[: len(payload) // 6 * 6]):
            if code == _MAX_STREAMS:
                self._max_streams = value
            elif code == _INITIAL_WINDOW:
                if value > _LARGEST_WINDOW:
                    raise ConnectionFailed(f"the server's initial window is {value}, and {_LARGEST_WINDOW} is the most")
                for stream_id in self._windows:
                    self._windows[stream_id] += value - self._initial_window
                self._initial_window = value
            elif code == _MAX_FRAME:
                if not _DEFAULT_FRAME <= value < 1 << 24:
                    raise ConnectionFailed(f"the server's longest frame is {value} bytes, which is not allowed")
                self._max_frame = value
        self._reply(_frame(_SETTINGS, _ACK, 0, b""))
        self._send_bodies()

    def _send_bodies(self) -> None:
        """Send of large bodies what the windows let."""
        for stream_id in list(self._unsent):
            body, at = self._bodies[stream_id]
            stop = at + min(self._window, self._windows[stream_id], len(body) - at)
            if stop <= at:
                continue
            self._window -= stop - at
            self._windows[stream_id] -= stop - at
            for begin in range(at, stop, self._max_frame):
                piece = body[begin : min(begin + self._max_frame, stop)]
                self._out.append(_frame(_DATA, begin + len(piece) == len(body), stream_id, piece))
            if stop == len(body):
                self._forget_body(stream_id)
            else:
                self._bodies[stream_id] = body, stop
        # While one waits, none overtakes it.
        self._at_once = -1 if self._unsent else min(self._max_frame, self._initial_window)

    def _forget_body(self, stream_id: int) -> None:
        self._unsent.remove(stream_id)
        del self._bodies[stream_id], self._windows[stream_id]


def _form(answer: bytes, trailers_at: int) -> _Form | None:
    """The form of a call's answer, from its response HEADERS to its trailers; None if it has other parts."""
    first, _, stream_id = _HEAD.unpack_from(answer)
    data_at = _HEAD_SIZE + (first >> 8)
    if trailers_at < data_at + _HEAD_SIZE:
        return None
    word, flags, data_stream = _HEAD.unpack_from(answer, data_at)
    message_bytes, block_bytes = word >> 8, len(answer) - trailers_at - _HEAD_SIZE
    if word & 255 != _DATA or flags or data_at + _HEAD_SIZE + message_bytes != trailers_at:
        return None
    if not stream_id == data_stream == int.from_bytes(answer[trailers_at + 5 : trailers_at + 9], "big"):
        return None
    layout = Struct(f">5sI{first >> 8}x5sI{message_bytes}s5sI{block_bytes}s")
    head1, _, head2, _, _, head3, _, block = layout.unpack(answer)
    return _Form(layout, (head1, head2, head3), block)


def _without_padding(payload: bytes) -> bytes:
    if not payload or payload[0] >= len(payload):
        raise ConnectionFailed("the server sent a frame with more padding than it has room for")
    return payload[1 : len(payload) - payload[0]]


def _frame(kind: int, flags: int, stream_id: int, payload: bytes) -> bytes:
    return _HEAD.pack(len(payload) << 8 | kind, flags, stream_id) + payload


def _text(value: bytes | str) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else value
