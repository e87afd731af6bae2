"""Two protocols beside gRPC for a worker: lines of text, and HTTP/1.1. The first bytes of a peer choose among them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import trio

from toutates.http1 import Connection as Http1
from toutates.http1 import Limits, Receiving, Request
from toutates.net import GrpcService, Worker
from toutates.net.connection import Connection, Service

__all__ = ["ByFirstBytes", "HttpService", "LineService"]

MAX_LINE = 1_000
#: Bytes of an answer to a line that begins with "large".
LARGE = 65_536


@dataclass
class Over:
    """A connection has ended itself."""

    why: str


class Leaving:
    """A connection ends once its last answer is out."""


class Plain(Connection):
    """What both connections have in common."""

    closed = False
    open_calls = calls_begun = held_bytes = 0
    awaits_request = drained = False
    bulky = False

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.link: Any = None
        self.output: list[bytes | memoryview] = []

    def bind(self, link: Any) -> None:
        self.link = link

    def write(self, *pieces: bytes | memoryview) -> None:
        if pieces and not self.output and self.link is not None:
            self.worker.dirty.append(self.link)
        self.output += pieces
        self.bulky = self.bulky or any(len(piece) > 65_536 for piece in pieces)

    @property
    def has_output(self) -> bool:
        return bool(self.output)

    def take_output(self) -> Sequence[bytes | memoryview]:
        self.bulky = False
        output, self.output = self.output, []
        return output

    def go_on(self, now_ns: int) -> list[Any]:
        self.behind = False
        return []

    def refuse(self, reason: str) -> None:
        self.worker.limit_hits["connections"] += 1
        self.closed = True

    def end(self, reason: str, limit: str) -> list[Any]:
        if limit:
            self.worker.limit_hits[limit] += 1
        self.closed = True
        return [Over(reason)]

    def connection_lost(self) -> list[Any]:
        self.closed = True
        return []


# --- lines -----------------------------------------------------------------------------------------------------------


class LineConnection(Plain):
    """A line is a request, and a line is its answer."""

    def __init__(self, worker: Worker) -> None:
        super().__init__(worker)
        self._unread = b""
        self._leaving = False

    def receive_data(self, data: bytes, now_ns: int) -> list[Any]:
        *lines, self._unread = (self._unread + data).split(b"\n")
        if b"bug" in lines:
            raise RuntimeError("a bug of the line protocol")
        if len(self._unread) > MAX_LINE:
            return self.end("the line is too long", "")
        self.calls_begun += len(lines)
        self.open_calls += len(lines)
        return [(self, line) for line in lines]

    def answer(self, text: bytes) -> None:
        self.open_calls -= 1
        self.write(text + b"\n")

    def begin_shutdown(self, reason: str) -> None:
        if not self._leaving:
            self.write(b"leave: %b\n" % reason.encode())
        self._leaving = True

    @property
    def drained(self) -> bool:  # type: ignore[override]
        return self._leaving and not self.open_calls

    @property
    def awaits_request(self) -> bool:  # type: ignore[override]
        return bool(self._unread)


class LineService(Service):
    """Answers in capitals; ``hold`` is answered by the test, and ``large`` with LARGE bytes."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self.held: list[LineConnection] = []

    def connect(self) -> Connection:
        return LineConnection(self._worker)

    def handle(self, link: Any, event: Any) -> None:
        if isinstance(event, Over):
            self._worker.connection_over(link, event.why)
            return
        connection, line = event
        if line == b"hold":
            self.held.append(connection)
        else:
            connection.answer(bytes(LARGE) if line.startswith(b"large") else line.upper())


# --- HTTP/1.1 --------------------------------------------------------------------------------------------------------


class HttpConnection(Plain):
    """The protocol's connection of the product, on a worker."""

    def __init__(self, worker: Worker) -> None:
        super().__init__(worker)
        self.http = Http1(Limits(max_pipelined=4))

    def receive_data(self, data: bytes, now_ns: int) -> list[Any]:
        return self._events(self.http.receive(data))

    def go_on(self, now_ns: int) -> list[Any]:
        return self._events(self.http.go_on())

    def _events(self, requests: list[Request]) -> list[Any]:
        self.behind = self.http.behind
        self.calls_begun += len(requests)
        self.write(*self.http.take_output())
        last = [Leaving()] if self.http.receiving is Receiving.ENDED else []
        return [*((self, one) for one in requests), *last]

    def sent(self) -> None:
        """An answer is complete."""
        self.write(*self.http.take_output())
        if self.http.receiving is Receiving.PAUSED:
            self.worker.go_on(self.link)

    def begin_shutdown(self, reason: str) -> None:
        self.http.drain()

    def end(self, reason: str, limit: str) -> list[Any]:
        self.http.time_out()
        self.write(*self.http.take_output())
        return super().end(reason, limit)

    @property
    def drained(self) -> bool:  # type: ignore[override]
        return self.http.finished

    @property
    def open_calls(self) -> int:  # type: ignore[override]
        return self.http.unanswered

    @property
    def awaits_request(self) -> bool:  # type: ignore[override]
        return self.http.receiving in (Receiving.HEAD, Receiving.BODY)

    @property
    def held_bytes(self) -> int:  # type: ignore[override]
        return self.http.held_bytes


class HttpService(Service):
    """Answers each request with its body, or with its path where it has none."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def connect(self) -> Connection:
        return HttpConnection(self._worker)

    def handle(self, link: Any, event: Any) -> None:
        if isinstance(event, Over):
            self._worker.connection_over(link, event.why)
        elif isinstance(event, Leaving):
            self._worker.leave(link, "")
        else:
            connection, request = event
            request.respond(200, body=bytes(request.body) or request.head.path.encode())
            connection.sent()


# --- which one -------------------------------------------------------------------------------------------------------


class Undecided(Plain):
    """Waits for the first bytes, and then gives its place to a connection of their protocol."""

    established = False
    drained = True

    def __init__(self, worker: Worker, services: ByFirstBytes) -> None:
        super().__init__(worker)
        self._services = services
        self._seen = b""

    def receive_data(self, data: bytes, now_ns: int) -> list[Any]:
        self._seen += data
        if len(self._seen) < 4:
            return []
        self.link.speak(self._services.choose(self._seen))
        events: list[Any] = self.link.connection.receive_data(self._seen, now_ns)
        return events

    def begin_shutdown(self, reason: str) -> None:
        pass


class ByFirstBytes(Service):
    """Three protocols on one port."""

    def __init__(self, worker: Worker, grpc: GrpcService) -> None:
        self._worker = worker
        self.grpc, self.lines, self.http = grpc, LineService(worker), HttpService(worker)
        self._all: tuple[Service, ...] = (self.grpc, self.lines, self.http)

    def choose(self, start: bytes) -> Service:
        if start.startswith(b"PRI "):
            return self.grpc
        return self.http if re.match(rb"[A-Z]+ /", start) else self.lines

    def start(self, nursery: trio.Nursery) -> None:
        for service in self._all:
            service.start(nursery)

    def stop(self) -> None:
        for service in self._all:
            service.stop()

    def connect(self) -> Connection:
        return Undecided(self._worker, self)

    def handle(self, link: Any, event: Any) -> None:
        assert isinstance(event, Over)
        self._worker.connection_over(link, event.why)
