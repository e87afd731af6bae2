"""Requests in bytes over one connection, and answers read strictly, with nothing of ours."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import h11

__all__ = ["Answer", "Peer", "get", "peer_of", "post", "read_answer"]

_SECONDS: Final = 120.0


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer; fields by lower-case name."""

    status: int
    fields: dict[str, str]
    body: bytes

    @property
    def document(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


def get(path: str, *fields: str) -> bytes:
    """A request without a body."""
    return "\r\n".join((f"GET {path} HTTP/1.1", "Host: localhost", *fields, "", "")).encode()


def post(path: str, body: bytes | str, *fields: str) -> bytes:
    """A request with a body."""
    octets = body.encode() if isinstance(body, str) else body
    lines = (f"POST {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(octets)}", *fields, "", "")
    return "\r\n".join(lines).encode() + octets


def read_answer(connection: h11.Connection, receive: Callable[[], bytes]) -> Answer:
    """The next answer.

    Args:
        connection: of a client, whose turn it is.
        receive: the next bytes.
    """
    # What was really sent h11 need not know; answers have no bodies only where it is a HEAD.
    connection.send(h11.Request(method="GET", target="/", headers=[("host", "here")]))
    connection.send(h11.EndOfMessage())
    head: Any = None
    body = b""
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(receive())
        elif isinstance(event, h11.Response):
            head = event
        elif isinstance(event, h11.Data):
            body += event.data
        elif isinstance(event, h11.EndOfMessage):
            fields = {name.decode(): value.decode() for name, value in head.headers}
            return Answer(head.status_code, fields, body)


class Peer:
    """A connection of a client."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._h11 = h11.Connection(h11.CLIENT)

    def ask(self, octets: bytes) -> Answer:
        """Send a request, and read its answer."""
        self.sock.sendall(octets)
        return self.read()

    def read(self) -> Answer:
        """The next answer."""
        if self._h11.our_state is h11.DONE:
            self._h11.start_next_cycle()
        return read_answer(self._h11, lambda: self.sock.recv(65_536))

    def ended(self) -> bool:
        """Wait for the server to end the connection; returns whether it had nothing more to say."""
        return self.sock.recv(65_536) == b""


@contextmanager
def peer_of(port: int) -> Iterator[Peer]:
    """A connection to a port of this machine."""
    with socket.create_connection(("127.0.0.1", port), _SECONDS) as sock:
        yield Peer(sock)
