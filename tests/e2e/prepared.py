"""A connection that sends one request, prepared as bytes, over and over: tens of thousands of calls within seconds."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from hpack import Encoder, NeverIndexedHeaderTuple

from tests.e2e.wire import framed

__all__ = ["Goodbye", "PreparedConnection", "prepared_connection"]

_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0, 1, 4, 6, 7, 8
#: The number in a first GOAWAY, which takes back nothing yet.
_ALL_STREAMS: Final = 2**31 - 1
_END_STREAM, _END_HEADERS = 1, 4
_SECONDS: Final = 120.0


def _frame(kind: int, flags: int, stream_id: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream_id.to_bytes(4, "big") + payload


@dataclass(frozen=True, slots=True)
class Goodbye:
    """What became of the calls of a connection that the server ended.

    Attributes:
        sent: the calls' streams.
        answered: the message of each that was answered with status OK, framed; "" for another status.
        last: the highest stream that the server said it would answer.
        reset: whether the connection ended with a reset.
    """

    sent: set[int]
    answered: dict[int, bytes]
    last: int
    reset: bool


class PreparedConnection:
    """One connection.

    Args:
        sock: connected to the server.
        path: of the method.
        message: the request.
    """

    def __init__(self, sock: socket.socket, path: str, message: bytes) -> None:
        self._sock = sock
        names = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "test", "te": "trailers"}
        fields = {**names, "content-type": "application/grpc"}
        # Never indexed, so that the block is the same bytes in every request.
        self._block = Encoder().encode([NeverIndexedHeaderTuple(*field) for field in fields.items()])
        self._body = framed(message)
        self._next_stream_id = 1
        self._received = b""
        #: of calls whose trailers have not come yet
        self._messages: dict[int, bytes] = {}
        window = struct.pack(">I", 2**31 - 65_536)
        sock.sendall(_PREFACE + _frame(_SETTINGS, 0, 0, b"") + _frame(_WINDOW_UPDATE, 0, 0, window))

    def call(self, count: int) -> None:
        """Send the request ``count`` times at once, and read until each has its answer; its status has to be OK."""
        self.send(count)
        answered = messages = 0
        while answered < count:
            for kind, flags, payload in self._receive():
                assert kind != _GOAWAY, payload
                answered += kind == _HEADERS and flags & _END_STREAM
                messages += kind == _DATA
        assert messages == count, "not every call was answered with a message"

    def call_until_goodbye(self, at_once: int, on_answer: Callable[[], None]) -> Goodbye:
        """Keep so many calls under way until the server says which is the last it takes, and read to the end.

        Args:
            at_once: calls.
            on_answer: called for each that was answered.
        """
        answered: dict[int, bytes] = {}
        sent: set[int] = set()
        last = _ALL_STREAMS
        self._sock.settimeout(_SECONDS)
        while True:
            try:
                while last == _ALL_STREAMS and len(sent) - len(answered) < at_once:
                    sent.add(self._next_stream_id)
                    self.send(1)
                data = self._sock.recv(1_048_576)
            except (ConnectionResetError, BrokenPipeError):
                return Goodbye(sent, answered, last, reset=True)
            if not data:
                return Goodbye(sent, answered, last, reset=False)
            for kind, flags, stream_id, content in self._frames(data):
                if kind == _GOAWAY:
                    assert content[4:8] == bytes(4), content  # NO_ERROR
                    last = int.from_bytes(content[:4], "big")
                elif kind == _PING and not flags & 1:
                    self._sock.sendall(_frame(_PING, 1, 0, content))
                elif kind == _DATA:
                    self._messages[stream_id] = content
                elif kind == _HEADERS and flags & _END_STREAM:
                    answered[stream_id] = self._messages.pop(stream_id, b"")
                    on_answer()

    def send(self, count: int) -> None:
        """Send the request ``count`` times at once."""
        requests = []
        for _ in range(count):
            requests.append(_frame(_HEADERS, _END_HEADERS, self._next_stream_id, self._block))
            requests.append(_frame(_DATA, _END_STREAM, self._next_stream_id, self._body))
            self._next_stream_id += 2
        self._sock.sendall(b"".join(requests))

    def _receive(self) -> Iterator[tuple[int, int, bytes]]:
        """Kind, flags and payload of the frames that have come whole."""
        data = self._sock.recv(1_048_576)
        assert data, "the server closed the connection"
        for kind, flags, _, payload in self._frames(data):
            yield kind, flags, payload

    def _frames(self, data: bytes) -> Iterator[tuple[int, int, int, bytes]]:
        """Kind, flags, stream and payload of the frames that are whole with these bytes."""
        self._received += data
        while len(self._received) >= 9:
            length = int.from_bytes(self._received[:3], "big")
            if len(self._received) < 9 + length:
                return
            kind, flags = self._received[3], self._received[4]
            stream_id = int.from_bytes(self._received[5:9], "big") & _ALL_STREAMS
            payload, self._received = self._received[9 : 9 + length], self._received[9 + length :]
            yield kind, flags, stream_id, payload


@contextmanager
def prepared_connection(port: int, path: str, message: bytes) -> Iterator[PreparedConnection]:
    """A connection to a port of this machine."""
    with socket.create_connection(("127.0.0.1", port), timeout=_SECONDS) as sock:
        yield PreparedConnection(sock, path, message)
