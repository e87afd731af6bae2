"""Connections that are open and idle."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from bench.errors import NoFigure
from toutates.bench.answer import ConnectionFailed
from toutates.bench.client_connection import ClientConnection
from toutates.bench.endpoint import parse_endpoint
from toutates.bench.link import CHUNK, Link, Unreachable, connect

__all__ = ["idle_connections"]


@contextlib.contextmanager
def idle_connections(address: str, count: int) -> Iterator[None]:
    """Open ``count`` connections, exchange greetings on each, and keep them open without a call for the block.

    Raises:
        NoFigure: the server did not accept them all, or ended one before the block was left.
    """
    try:
        links = connect(parse_endpoint(address), ClientConnection, None, count)
    except Unreachable as error:
        raise NoFigure(f"a connection was not accepted: {error}") from error
    try:
        yield
        for link in links:
            _drain(link)
    finally:
        for link in links:
            link.sock.close()


def _drain(link: Link) -> None:
    """Read what has come."""
    link.sock.setblocking(False)
    try:
        while True:
            data = link.sock.recv(CHUNK)
            if not data:
                raise NoFigure("the server closed the connection")
            link.protocol.receive(data)
            if link.protocol.ended:
                raise NoFigure(link.protocol.ended)
    except BlockingIOError:
        pass
    except (OSError, ConnectionFailed) as error:
        raise NoFigure(f"the connection broke: {error}") from error
