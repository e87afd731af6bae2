"""The client's side of gRPC over HTTP/2 for unary calls, as cheap as Python can be: bytes in, bytes and answers out.

Sources: RFC 9113 (HTTP/2), RFC 7541 (HPACK), and the gRPC-over-HTTP/2 specification.

A request's header block refers to no table, so that it is the same bytes in every call. The server is told that its
own table has no room, so that its blocks mean the same each time too, and each is decoded once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from struct import Struct
from typing import Final

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


class ClientConnection:
    """A connection, from its preface on.

    Attributes:
        greeted: whether the server's SETTINGS are here.
        ended: why no call can begin any more, or "".
        under_way: calls without an answer.
        texts: the first ``grpc-message`` of each status.
    """

    def __init__(self) -> None:
        self.greeted = False
        self.ended = ""
        self.under_way = 0
        self.texts: dict[int, str] = {}
        self._next_id = 1
        self._received = bytearray()
        self._messages: dict[int, bytes | bytearray] = {}
        self._statuses: dict[bytes, int | None] = {}
        self._block: tuple[int, int, bytes] | None = None
        self._max_streams = 100  # until the server says; RFC 9113 section 6.5.2 recommends no less
        self._max_frame = _DEFAULT_FRAME
        self._initial_window = _DEFAULT_WINDOW
        self._window = _DEFAULT_WINDOW
        self._unsent: deque[int] = deque()
        self._bodies: dict[int, tuple[bytes, int]] = {}
        self._windows: dict[int, int] = {}
        self._taken = 0
        settings = {_HEADER_TABLE_SIZE: 0, _ENABLE_PUSH: 0, _INITIAL_WINDOW: _LARGEST_WINDOW}
        self._out: list[bytes] = [
            _PREFACE,
            _frame(_SETTINGS, 0, 0, b"".join(_SETTING.pack(*one) for one in settings.items())),
            _frame(_WINDOW_UPDATE, 0, 0, (_LARGEST_WINDOW - _DEFAULT_WINDOW).to_bytes(4, "big")),
        ]

    @property
    def has_room(self) -> bool:
        """Whether a call can begin now."""
        return self.under_way < self._max_streams and not self.ended

    def begin(self, request: Request) -> int:
        """Begin a call, where ``has_room``; returns its stream's number."""
        stream_id = self._next_id
        self._next_id = stream_id + 2
        if self._next_id > _LARGEST_STREAM:
            self.ended = "its numbers of streams are used up"
        self.under_way += 1
        stream = stream_id.to_bytes(4, "big")
        body = request.body
        size = len(body)
        if size <= self._window and size <= self._initial_window and size <= self._max_frame and not self._unsent:
            self._window -= size
            self._out += (request.headers_head, stream, request.headers, request.data_head, stream, body)
        else:
            self._out += (request.headers_head, stream, request.headers)
            self._unsent.append(stream_id)
            self._bodies[stream_id] = body, 0
            self._windows[stream_id] = self._initial_window
            self._send_bodies()
        return stream_id

    def data_to_send(self) -> bytes:
        """What is to be sent now."""
        if not self._out:
            return b""
        out = b"".join(self._out)
        self._out.clear()
        return out

    def receive(self, data: bytes) -> Sequence[Answer]:
        """Take bytes; returns the calls that they end.

        Raises:
            ConnectionFailed: the bytes are not those of an HTTP/2 server. All calls under way are lost.
        """
        received = self._received
        received += data
        size = len(received)
        answers: list[Answer] = []
        messages, statuses = self._messages, self._statuses
        at = 0
        while size >= at + _HEAD_SIZE:
            word, flags, stream_id = _HEAD.unpack_from(received, at)
            start = at + _HEAD_SIZE
            end = start + (word >> 8)
            kind = word & 255
            if size < end:
                if end - start > 2**20 or (not self.greeted and kind != _SETTINGS):
                    raise ConnectionFailed(_not_http2(received, at))
                break
            at = end
            if kind == _HEADERS and flags & ~_END_STREAM == _END_HEADERS:
                if flags & _END_STREAM:
                    block = bytes(received[start:end])
                    status = statuses[block] if block in statuses else self._status(block)
                    self._end(answers, stream_id, _UNKNOWN if status is None else status)
            elif kind == _DATA:
                payload = bytes(received[start:end])
                self._taken += end - start
                if flags & _PADDED:
                    payload = payload[1 : len(payload) - payload[0]]
                earlier = messages.get(stream_id)
                if earlier is None:
                    messages[stream_id] = payload
                elif isinstance(earlier, bytearray):
                    earlier += payload
                else:
                    messages[stream_id] = bytearray(earlier + payload)
                if flags & _END_STREAM:
                    self._end(answers, stream_id, _UNKNOWN)
            else:
                self._take_other(kind, flags, stream_id, bytes(received[start:end]), answers)
        del received[:at]
        if self._taken >= _GIVEN_BACK:
            self._out.append(_frame(_WINDOW_UPDATE, 0, 0, self._taken.to_bytes(4, "big")))
            self._taken = 0
        return answers

    def receive_end(self) -> Sequence[Answer]:
        """The server has closed the connection, which ends no call as it should."""
        self.ended = self.ended or "the server closed the connection"
        return ()

    def _end(self, answers: list[Answer], stream_id: int, status: int) -> None:
        if not stream_id & 1 or not 0 < stream_id < self._next_id:
            raise ConnectionFailed(f"the server answers on stream {stream_id}, where nothing was asked")
        message = self._messages.pop(stream_id, b"")
        if stream_id in self._bodies:  # answered before it was sent to its end
            del self._bodies[stream_id], self._windows[stream_id]
            self._unsent.remove(stream_id)
            self._out.append(_frame(_RST_STREAM, 0, stream_id, b"\0\0\0\x08"))
        self.under_way -= 1
        answers.append(Answer(stream_id, status, message))

    def _status(self, block: bytes) -> int | None:
        """grpc-status of a header block, or None."""
        try:
            fields = {_text(name): _text(value) for name, value in Decoder().decode(block)}
        except HPACKError as error:
            raise ConnectionFailed(f"a header block of the server cannot be read: {error}") from error
        given = fields.get("grpc-status", "")
        status = int(given) if given.isdecimal() and len(given) < 4 else None
        if len(self._statuses) < 1_024:
            self._statuses[block] = status
        text = fields.get("grpc-message") or (f"HTTP status {fields[':status']}" if ":status" in fields else "")
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
            self._out.append(_frame(_PING, _ACK, 0, payload))
        elif kind == _RST_STREAM:
            self.texts.setdefault(LOST, f"the server reset a call with HTTP/2 error {int.from_bytes(payload, 'big')}")
            self._end(answers, stream_id, LOST)
        elif kind == _GOAWAY:
            text = payload[8:].decode(errors="replace")
            self.ended = f"the server sent GOAWAY {int.from_bytes(payload[4:8], 'big')} {text}".rstrip()
        elif kind == _HEADERS:
            if flags & _PADDED:
                payload = payload[1 : len(payload) - payload[0]]
            self._block = stream_id, flags, payload[5:] if flags & _PRIORITY else payload
            self._end_block(flags, answers)
        elif kind == _CONTINUATION:
            if self._block is None:
                raise ConnectionFailed("the server sent CONTINUATION without HEADERS")
            self._block = *self._block[:2], self._block[2] + payload
            self._end_block(flags, answers)

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
                for stream_id in self._windows:
                    self._windows[stream_id] += value - self._initial_window
                self._initial_window = value
            elif code == _MAX_FRAME:
                self._max_frame = value
        self._out.append(_frame(_SETTINGS, _ACK, 0, b""))
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
                self._unsent.remove(stream_id)
                del self._bodies[stream_id], self._windows[stream_id]
            else:
                self._bodies[stream_id] = body, stop


def _not_http2(received: bytes | bytearray, at: int) -> str:
    if received[at : at + 5] == b"HTTP/":
        return "the server speaks HTTP/1.1, and no gRPC; write http:// instead of grpc:// for REST"
    return "the server does not speak HTTP/2"


def _frame(kind: int, flags: int, stream_id: int, payload: bytes) -> bytes:
    return _HEAD.pack(len(payload) << 8 | kind, flags, stream_id) + payload


def _text(value: bytes | str) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else value
