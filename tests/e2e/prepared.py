"""A connection that sends one request, prepared as bytes, over and over: tens of thousands of calls within seconds."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from hpack import Encoder, NeverIndexedHeaderTuple

from tests.e2e.wire import framed

__all__ = ["PreparedConnection", "prepared_connection"]

_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _SETTINGS, _GOAWAY, _WINDOW_UPDATE = 0, 1, 4, 7, 8
_END_STREAM, _END_HEADERS = 1, 4
_SECONDS: Final = 30.0


def _frame(kind: int, flags: int, stream_id: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream_id.to_bytes(4, "big") + payload


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
        self._received += data
        while len(self._received) >= 9:
            length = int.from_bytes(self._received[:3], "big")
            if len(self._received) < 9 + length:
                return
            kind, flags = self._received[3], self._received[4]
            payload, self._received = self._received[9 : 9 + length], self._received[9 + length :]
            yield kind, flags, payload


@contextmanager
def prepared_connection(port: int, path: str, message: bytes) -> Iterator[PreparedConnection]:
    """A connection to a port of this machine."""
    with socket.create_connection(("127.0.0.1", port), timeout=_SECONDS) as sock:
        yield PreparedConnection(sock, path, message)
