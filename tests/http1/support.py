"""What a connection makes of bytes, cut in whatever way."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from toutates.h2grpc.message_memory import LargeMessage, MemoryPool
from toutates.http1 import Connection, Head, Limits, Receiving, Request, encode_fields

__all__ = ["FIELDS", "answer", "conversation", "cuts", "hand_in", "head_of", "in_memory", "request", "statuses"]

FIELDS: Final = encode_fields({"content-type": "text/plain"})


def request(method: str = "GET", target: str = "/", body: bytes = b"", *, version: str = "1.1", **fields: str) -> bytes:
    """A request; a body comes with its length. ``content_type`` is the field Content-Type."""
    named = {"host": "x", **{name.replace("_", "-"): value for name, value in fields.items()}}
    if body and "transfer-encoding" not in named:
        named.setdefault("content-length", str(len(body)))
    lines = [f"{method} {target} HTTP/{version}", *(f"{name}: {value}" for name, value in named.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def answer(one: Request) -> None:
    """Answer with the method, the target and the body's length."""
    one.respond(200, FIELDS, f"{one.head.method} {one.head.target} {len(one.body)}".encode())


def conversation(
    pieces: Iterable[bytes],
    connection: Connection | None = None,
    *,
    respond: Callable[[Request], None] = answer,
    end: bool = False,
    direct: bool = False,
) -> tuple[list[tuple[str, str, bytes]], bytes]:
    """Hand pieces to a connection and answer its requests at once.

    Args:
        pieces: of what a peer sends.
        connection: a new one by default.
        respond: answers a request.
        end: whether the peer sends no more then.
        direct: whether pieces are put where the connection wants them.

    Returns:
        method, target and body of each request; and what was sent.
    """
    connection = connection or Connection(Limits())
    found: list[tuple[str, str, bytes]] = []
    sent = bytearray()

    def take(requests: list[Request]) -> None:
        while True:
            for one in requests:
                found.append((one.head.method, one.head.target, bytes(one.body[: len(one.body)])))
                respond(one)
            sent.extend(b"".join(connection.take_output()))
            if not requests and not connection.behind:
                return
            requests = connection.go_on()

    for piece in pieces:
        take(hand_in(connection, piece, direct=direct))
    if end:
        connection.receive_end()
        take(connection.go_on())
    assert connection.receiving is not Receiving.PAUSED
    return found, bytes(sent)


def hand_in(connection: Connection, piece: bytes, *, direct: bool) -> list[Request]:
    """Hand a piece to a connection, or put it into its views; returns the requests that are whole."""
    found: list[Request] = []
    while piece and direct and connection.direct:
        count = 0
        for view in connection.views():
            part = piece[count : count + len(view)]
            view[: len(part)] = part
            count += len(part)
            del view  # or the memory could not be moved
        piece = piece[count:]
        found += connection.take_direct(count)
    return found + connection.receive(piece) if piece else found


def in_memory(pool: MemoryPool, limits: Limits) -> Connection:
    """A connection whose large bodies have memory of their own."""

    def admit(head: Head) -> int:
        head.in_memory = True
        return limits.max_body_size

    return Connection(limits, admit, make_memory=partial(LargeMessage.begin, pool))


def cuts(data: bytes) -> Iterable[list[bytes]]:
    """The bytes whole, one by one, and in two pieces of every size."""
    yield [data]
    yield [data[at : at + 1] for at in range(len(data))]
    for at in range(1, len(data)):
        yield [data[:at], data[at:]]


def head_of(octets: bytes) -> Head:
    """The head of one request without a body."""
    [one] = Connection(Limits()).receive(octets)
    return one.head


def statuses(sent: bytes) -> list[int]:
    """The statuses of the answers, none of whose bodies has a status line in it."""
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) [A-Z]", sent)]
