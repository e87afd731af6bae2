"""A client of the h2 package over a socket, for what no gRPC client would send or show; it runs on every Python."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
)

__all__ = ["PLAIN", "Answer", "Client", "client_of", "framed"]

_HEADERS: Final = {
    ":method": "POST",
    ":scheme": "http",
    ":authority": "test",
    "te": "trailers",
    "content-type": "application/grpc",
}
#: Headers in the place of the usual ones, for a request that is no gRPC.
PLAIN: Final = (("te", ""), ("content-type", ""))
_SECONDS: Final = 120.0
_DEFAULT_FRAME_SIZE: Final = 16_384


def framed(message: bytes, flag: int = 0) -> bytes:
    """A message with gRPC's prefix."""
    return bytes([flag]) + len(message).to_bytes(4, "big") + message


@dataclass(slots=True)
class Answer:
    """What came back on one stream."""

    headers: dict[str, str] = field(default_factory=dict)
    data: bytes = b""
    ended: bool = False
    reset: int | None = None

    @property
    def status(self) -> tuple[str, str]:
        """grpc-status and grpc-message."""
        return self.headers.get("grpc-status", ""), self.headers.get("grpc-message", "")


class Client:
    """One connection.

    Args:
        sock: connected to the server.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.connection = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self.connection.initiate_connection()
        self.answers: dict[int, Answer] = {}
        self.terminated: ConnectionTerminated | None = None
        #: whether what comes is given back to the windows
        self.credits = True
        self.flush()
        while self.connection.max_outbound_frame_size == _DEFAULT_FRAME_SIZE:  # until the server's SETTINGS are here
            assert self.receive()

    def flush(self) -> None:
        """Send what is due."""
        self.sock.sendall(self.connection.data_to_send())

    def start(self, path: str, headers: Sequence[tuple[str, str]] = (), *, end: bool = False) -> int:
        """Send a request's headers; returns its stream.

        Args:
            path: of the method.
            headers: beside the usual ones or in their place; one that is empty is left out. ``PLAIN`` leaves out
                what makes it a call of gRPC.
            end: whether the request ends with them.
        """
        stream_id = self.connection.get_next_available_stream_id()
        usual = {**_HEADERS, ":path": path}
        fields = [pair for pair in usual.items() if pair[0] not in dict(headers)] + list(headers)
        ordered = sorted(fields, key=lambda pair: not pair[0].startswith(":"))
        self.connection.send_headers(stream_id, [(name, value) for name, value in ordered if value], end_stream=end)
        self.answers[stream_id] = Answer()
        self.flush()
        return stream_id

    def send(self, stream_id: int, data: bytes, end: bool = True) -> None:
        """Send DATA, in as many frames as it takes."""
        size = self.connection.max_outbound_frame_size
        for at in range(0, max(len(data), 1), size):
            part = data[at : at + size]
            while self.connection.local_flow_control_window(stream_id) < len(part):
                self.flush()
                assert self.receive()
            self.connection.send_data(stream_id, part, end_stream=end and at + size >= len(data))
        self.flush()

    def call(self, path: str, message: bytes, headers: Sequence[tuple[str, str]] = (), flag: int = 0) -> Answer:
        """A whole unary call."""
        stream_id = self.start(path, headers)
        self.send(stream_id, framed(message, flag))
        return self.answer(stream_id)

    def answer(self, stream_id: int) -> Answer:
        """Read until a stream has ended, or the connection."""
        answer = self.answers[stream_id]
        while not answer.ended and self.receive():
            pass
        return answer

    def receive(self) -> bool:
        """Read once; returns whether the connection is still there."""
        self.sock.settimeout(_SECONDS)
        data = self.sock.recv(65_536)
        if not data:
            return False
        for event in self.connection.receive_data(data):
            self._take(event)
        self.flush()
        return True

    def _take(self, event: Event) -> None:
        if isinstance(event, ConnectionTerminated):
            self.terminated = event
            return
        answer = self.answers.get(getattr(event, "stream_id", 0) or 0)
        if answer is None:
            return
        if isinstance(event, ResponseReceived | TrailersReceived):
            answer.headers.update({str(name): str(value) for name, value in event.headers or ()})
        elif isinstance(event, DataReceived):
            answer.data += event.data or b""
            if self.credits:
                self.connection.acknowledge_received_data(event.flow_controlled_length or 0, event.stream_id or 0)
        elif isinstance(event, StreamReset):
            answer.reset = event.error_code
            answer.ended = True
        elif isinstance(event, StreamEnded):
            answer.ended = True


@contextmanager
def client_of(port: int) -> Iterator[Client]:
    """A client connected to a port of this machine."""
    with socket.create_connection(("127.0.0.1", port), timeout=_SECONDS) as sock:
        # Headers and data are sent apart: without it, the second waits for what the server takes its time to confirm.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield Client(sock)
