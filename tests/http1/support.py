"""What a connection makes of bytes, cut in whatever way."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from types import SimpleNamespace
from typing import Any, Final, cast

from toutates.h2grpc import Limits as NetLimits
from toutates.h2grpc.budget import MemoryBudget
from toutates.h2grpc.message_memory import MemoryPool, MessageMemory
from toutates.http1 import Connection, Head, Limits, Receiving, Request, encode_fields
from toutates.http1.exchange import write_text
from toutates.net.http1.call import HttpCall, LargeRequest
from toutates.net.http1.connection import HttpConnection
from toutates.net.http1.large_bodies import begin_body

__all__ = [
    "FIELDS",
    "Driven",
    "answer",
    "body_of",
    "conversation",
    "cuts",
    "hand_in",
    "head_of",
    "in_memory",
    "request",
    "statuses",
]

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
    connection: Connection | Driven | None = None,
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
                found.append((one.head.method, one.head.target, body_of(one)))
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


def body_of(one: Request) -> bytes:
    """The body of a request, which may be a part of its memory."""
    start = getattr(one.body, "start", 0)
    return bytes(memoryview(one.body)[start : start + len(one.body)])


def hand_in(connection: Connection | Driven, piece: bytes, *, direct: bool) -> list[Request]:
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
        if count:
            found += connection.take_direct(count)
    return found + connection.receive(piece) if piece else found


def in_memory(pool: MemoryPool, limits: Limits) -> Connection:
    """A connection whose large bodies have memory of their own."""

    return Connection(limits, partial(_admit, limits), make_memory=partial(begin_body, pool))


def _admit(limits: Limits, head: Head) -> int:
    head.in_memory = True
    head.aligned_at = len(head.target)  # any place
    return limits.max_body_size


class Driven:
    """A connection as a worker has it, which foresees large requests, with the face of ``http1.Connection``.

    Args:
        pool: the memory's. What a request was received into is given back at once, and its body copied.
        limits: the connection's.

    Attributes:
        memory: what the last large request was received into.
        foreseen: how many requests came whole as they were foreseen.
    """

    def __init__(self, pool: MemoryPool, limits: Limits) -> None:
        self._pool = pool
        worker: Any = SimpleNamespace(
            dirty=[],
            limits=NetLimits(),
            limit_hits=Counter(),
            budget=MemoryBudget(2**40),
            go_on=lambda link: None,
            leave=lambda link, reason: None,
        )
        self.driver = HttpConnection(worker, limits, partial(_admit, limits), write_text, HttpCall, pool)
        self.http: Connection = self.driver._http
        self.memory: MessageMemory | None = None
        self.foreseen = 0

    def receive(self, data: bytes) -> list[Request]:
        return self._requests(self.driver.receive_data(data, 0))

    @property
    def direct(self) -> bool:
        return self.driver.direct

    def views(self) -> list[memoryview]:
        return self.driver.views()

    def take_direct(self, count: int) -> list[Request]:
        foreseen = not self.http.direct
        found = self._requests(self.driver.take_direct(count, 0))
        self.foreseen += foreseen and bool(found)
        return found

    def go_on(self) -> list[Request]:
        return self._requests(self.driver.go_on(0))

    def receive_end(self) -> None:
        self.driver.receive_end(answered=True, unsent=False)

    def take_output(self) -> list[Any]:
        return self.http.take_output()

    @property
    def behind(self) -> bool:
        return self.http.behind

    @property
    def receiving(self) -> Receiving:
        return self.http.receiving

    @property
    def finished(self) -> bool:
        return self.driver.drained

    @property
    def held_bytes(self) -> int:
        return self.driver.held_bytes

    def _requests(self, events: list[Any]) -> list[Request]:
        found: list[Request] = []
        for event in events:
            if isinstance(event, LargeRequest):
                self.memory = cast(Any, event.call.body)
                event.call.body = body_of(event.call)
                self._pool.give_back(self.memory)
            call = event.call if isinstance(event, LargeRequest) else event
            if isinstance(call, HttpCall):
                found.append(call)
        return found


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
