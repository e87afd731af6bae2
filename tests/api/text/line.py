"""An HTTP connection without sockets, and as much of a worker as it needs, whose thread is the test's."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import h11

from tests.e2e.http import Answer, read_answer
from tests.waiting import wait_until
from toutates.api.rest.answers import error_answer
from toutates.api.rest.calls import RestHttpCall
from toutates.h2grpc.budget import MemoryBudget
from toutates.http1 import Limits, Refused
from toutates.net.http1.call import LargeRequest
from toutates.net.http1.connection import HttpConnection
from toutates.system.errors import RequestError

__all__ = ["Line", "RoundWorker", "request"]


class RoundWorker:
    """As much of a worker as connections and APIs need; its thread is the test's."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.soon: list[Callable[[], None]] = []
        self.call_soon = self.at_round_end = self.soon.append
        self.dirty: list[Any] = []
        self.limits = SimpleNamespace(max_unsent_bytes=2**22)
        self.budget = MemoryBudget(2**40)
        self.limit_hits = {"message_size": 0, "header_list_size": 0}
        self.bugs: list[Exception] = []
        self.incidents = SimpleNamespace(bug=lambda what, error, peer="": self.bugs.append(error))

    def connection_failed(self, call: Any, error: Exception) -> None:
        raise error

    def peer(self, call: Any) -> str:
        return "here"


class Line:
    """A connection by which a test asks, the next one after ``connect``.

    Args:
        worker: whose connection it is.
        admit: chooses what answers the request of a head, and how large its body may be; None for nothing.

    Attributes:
        connection: the latest.
    """

    def __init__(self, worker: RoundWorker, admit: Callable[[Any], int | None]) -> None:
        self.worker: Any = worker
        self._admit = admit
        self.connect()

    def connect(self) -> None:
        """Begin another connection."""
        self.connection = HttpConnection(self.worker, Limits(), self._take_head, self._refused, RestHttpCall)
        self.connection.bind(None)

    def _take_head(self, head: Any) -> int:
        most = self._admit(head)
        if most is None:
            raise Refused(404, "none of these APIs")
        return most

    def _refused(self, refusal: Refused) -> tuple[bytes, bytes]:
        _, fields, body = error_answer(refusal.status, refusal.text)
        return fields, body

    def send(self, octets: bytes) -> None:
        """Hand in bytes as a worker does."""
        calls = self.connection.receive_data(octets, 0)
        while True:
            for event in calls:
                call = event.call if isinstance(event, LargeRequest) else event
                if isinstance(call, RestHttpCall):
                    try:
                        call.head.purpose.handle(call)
                    except RequestError as error:
                        call.fail(error)
                    call.body = b""
            if not self.connection.behind:
                return
            calls = self.connection.go_on(0)

    def ask(self, path: str, document: Any = None, *, method: str = "", **fields: str) -> Answer:
        """A request and its answer; ``document`` is the body, as bytes or as what becomes JSON."""
        self.send(request(path, document, method=method, **fields))
        return self.read()

    def read(self) -> Answer:
        """The next answer."""
        return read_answer(h11.Connection(h11.CLIENT), self._next_output)

    def _next_output(self) -> bytes:
        soon = self.worker.soon

        def step() -> bool:
            while soon:
                soon.pop(0)()
            return bool(self.connection.has_output)

        wait_until(step)
        assert not self.worker.bugs, self.worker.bugs
        return b"".join(self.connection.take_output())


def request(path: str, document: Any = None, *, method: str = "", **fields: str) -> bytes:
    """The bytes of a request."""
    body = document if isinstance(document, bytes) else b"" if document is None else json.dumps(document).encode()
    has_body = document is not None
    lines = [f"{method or ('POST' if has_body else 'GET')} {path} HTTP/1.1", "host: here"]
    named = {"content_type": "application/json"} | fields if has_body else fields
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in named.items() if value]
    lines += [f"content-length: {len(body)}"] if has_body else []
    return "\r\n".join((*lines, "", "")).encode() + body
