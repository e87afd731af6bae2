"""Lines of text beside gRPC and HTTP/1.1 for a worker. The first bytes of a peer choose among them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from toutates.http1 import Head, Refused
from toutates.net import GrpcService, Worker
from toutates.net.connection import Connection, Service
from toutates.net.http1.call import HttpCall
from toutates.net.http1.service import HttpService
from toutates.system.errors import InvalidRequest, RequestError

__all__ = ["ByFirstBytes", "EchoHandler", "LineService", "view_of"]

MAX_LINE = 1_000
#: Bytes of an answer to a line that begins with "large".
LARGE = 65_536


@dataclass
class Over:
    """A connection has ended itself."""

    why: str


class Plain(Connection):
    """What connections of lines, and those of which nothing is known yet, have in common."""

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


def view_of(body: Any) -> memoryview:
    """A body, which may be a part of its memory."""
    start = getattr(body, "start", 0)
    return memoryview(body)[start : start + len(body)]


class EchoHandler:
    """Answers each request with its body, or with its path where it has none; ``/hold`` is answered by the test.

    The answer to ``/begun`` fails in the middle.
    """

    call_class = HttpCall

    def __init__(self) -> None:
        self.held: list[HttpCall] = []

    def admit(self, head: Head) -> int:
        if head.path == "/nothing":
            raise Refused(404, "nothing here")
        head.purpose = self
        head.in_memory = True
        return 4_194_304

    def handle(self, call: HttpCall) -> None:
        path = call.head.path
        if path == "/hold":
            self.held.append(call)
        elif path == "/bug":
            raise RuntimeError("a bug of the handler")
        elif path == "/begun":
            call.begin(200)
            call.send(b"a part")
            raise RuntimeError("a bug in the middle of an answer")
        elif path == "/refused":
            raise InvalidRequest("not so")
        elif path == "/memory":
            raise MemoryError
        else:
            call.reply(200, b"", bytes(view_of(call.body)) or path.encode())

    def fail(self, call: HttpCall, error: RequestError) -> None:
        call.reply(500, b"", str(error).encode())

    def write_refusal(self, refusal: Refused) -> tuple[bytes, bytes]:
        return b"content-type: text/x\r\n", refusal.text.encode()


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
        self.grpc, self.lines = grpc, LineService(worker)
        self.handler = EchoHandler()
        self.http = HttpService(worker, self.handler)

    @property
    def parts(self) -> Sequence[Service]:
        return self.grpc, self.lines, self.http

    def choose(self, start: bytes) -> Service:
        if start.startswith(b"PRI "):
            return self.grpc
        return self.http if re.match(rb"[A-Z]+ /", start) else self.lines

    def connect(self) -> Connection:
        return Undecided(self._worker, self)

    def handle(self, link: Any, event: Any) -> None:
        assert isinstance(event, Over)
        self._worker.connection_over(link, event.why)
