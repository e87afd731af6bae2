"""A client's HTTP/2 connection with as little to it as a load needs: one call at a time, headers not decoded."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
from collections.abc import Iterator

from bench.errors import NoFigure

__all__ = ["RawConnection", "idle_connections"]

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
# Length in 16 and 8 bits, type, flags, stream (RFC 9113 §4.1).
_HEAD = struct.Struct(">HBBBL")
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
_END_STREAM, _ACK, _END_HEADERS = 1, 1, 4
_DEFAULT_WINDOW = 65_535
_LARGEST_WINDOW = 2**31 - 1
# SETTINGS_INITIAL_WINDOW_SIZE, and as much for the connection: answers shall never wait for this client.
_OUR_SETTINGS = struct.pack(">HL", 4, _LARGEST_WINDOW)
_OUR_WINDOW = struct.pack(">L", _LARGEST_WINDOW - _DEFAULT_WINDOW)
# For a greeting or an answer; a server that needs longer counts as stuck.
_SILENCE_SECONDS = 30.0


class RawConnection:
    """A connection, from its preface on.

    Args:
        address: host:port.

    Raises:
        NoFigure: the server does not accept it.

    Attributes:
        socket: blocking, to be waited for by whoever holds several.
    """

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        try:
            self.socket = socket.create_connection((host, int(port)), timeout=_SILENCE_SECONDS)
        except OSError as error:
            raise NoFigure(f"a connection was not accepted: {error}") from error
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received = bytearray()
        self._send_window = _DEFAULT_WINDOW
        self._next_stream_id = 1
        self._answer_bytes = 0
        self._greeted = False
        self._send(_PREFACE + _frame(_SETTINGS, 0, 0, _OUR_SETTINGS) + _frame(_WINDOW_UPDATE, 0, 0, _OUR_WINDOW))

    def wait_greeted(self) -> None:
        """Wait for the server's SETTINGS and acknowledge them.

        Raises:
            NoFigure: there are none.
        """
        while not self._greeted:
            self.receive()

    def send_request(self, block: bytes, body: bytes) -> None:
        """Send a unary request.

        Args:
            block: the header block.
            body: the length-prefixed message, shorter than 16 KiB.

        Raises:
            NoFigure: the server's window stays too small for it.
        """
        while self._send_window < len(body):
            self.receive()
        self._send_window -= len(body)
        stream_id, self._next_stream_id = self._next_stream_id, self._next_stream_id + 2
        self._send(_frame(_HEADERS, _END_HEADERS, stream_id, block) + _frame(_DATA, _END_STREAM, stream_id, body))

    def receive(self) -> int | None:
        """Read once; returns the bytes of DATA of the answer, if it is complete now.

        Raises:
            NoFigure: the server says nothing, or ended the call or the connection.
        """
        try:
            data = self.socket.recv(1 << 16)
        except OSError as error:
            raise NoFigure(f"the connection broke: {error}") from error
        if not data:
            raise NoFigure("the server closed the connection")
        self._received += data
        answer: int | None = None
        at = 0
        while len(self._received) >= at + _HEAD.size:
            high, low, kind, flags, stream_id = _HEAD.unpack_from(self._received, at)
            start = at + _HEAD.size
            at = start + (high << 8 | low)
            if len(self._received) < at:
                at = start - _HEAD.size
                break
            payload = bytes(self._received[start:at])
            if kind == _DATA:
                self._answer_bytes += len(payload)
            if kind in (_DATA, _HEADERS):
                if flags & _END_STREAM:
                    answer, self._answer_bytes = self._answer_bytes, 0
            else:
                self._receive_control(kind, flags, stream_id, payload)
        del self._received[:at]
        return answer

    def _send(self, data: bytes) -> None:
        try:
            self.socket.sendall(data)
        except OSError as error:
            raise NoFigure(f"the connection broke: {error}") from error

    def _receive_control(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if kind == _SETTINGS and not flags & _ACK:
            self._greeted = True
            self._send(_frame(_SETTINGS, _ACK, 0, b""))
        elif kind == _PING and not flags & _ACK:
            self._send(_frame(_PING, _ACK, 0, payload))
        elif kind == _WINDOW_UPDATE and stream_id == 0:
            self._send_window += int.from_bytes(payload, "big")
        elif kind == _RST_STREAM:
            raise NoFigure("the server reset a call")
        elif kind == _GOAWAY:
            raise NoFigure("the server sent GOAWAY")

    def drain(self) -> None:
        """Read what has come.

        Raises:
            NoFigure: the server has ended the connection.
        """
        poll = select.poll()
        poll.register(self.socket, select.POLLIN)
        while poll.poll(0):
            self.receive()


@contextlib.contextmanager
def idle_connections(address: str, count: int) -> Iterator[None]:
    """Open ``count`` connections, exchange greetings on each, and keep them open without a call for the block.

    Raises:
        NoFigure: the server did not accept them all, or ended one before the block was left.
    """
    with contextlib.ExitStack() as stack:
        connections = []
        for _ in range(count):
            connection = RawConnection(address)
            stack.callback(connection.socket.close)
            connection.wait_greeted()
            connections.append(connection)
        yield
        for connection in connections:
            connection.drain()


def _frame(kind: int, flags: int, stream_id: int, payload: bytes) -> bytes:
    size = len(payload)
    return _HEAD.pack(size >> 8, size & 0xFF, kind, flags, stream_id) + payload
