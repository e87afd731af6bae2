"""Requests of HTTP/1.1 that find their model full of earlier requests of the same connection, and wait for these."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from toutates.api.rest.calls import RestHttpCall
from toutates.infer.rest.call import start_of
from toutates.net import Worker

__all__ = ["Pipelined"]

#: What a request takes beside its body.
REQUEST_BYTES: Final = 1_024


class Pipelined:
    """The requests of one worker that wait so. There are at most as many of a connection as it may pipeline.

    Args:
        worker: it.
        handle: answers a request, or has it wait again; raises nothing.
    """

    def __init__(self, worker: Worker, handle: Callable[[Any], None]) -> None:
        self._worker = worker
        self._handle = handle
        #: of each connection: the requests and their bodies, in their order
        self._waiting: dict[Any, deque[tuple[RestHttpCall, bytes]]] = {}

    def keep(self, call: RestHttpCall) -> None:
        """Have a request wait, whose handler has been called; its body is counted for its connection."""
        body: Any = call.body
        if not isinstance(body, bytes):
            start = start_of(body)
            body = bytes(memoryview(body)[start : start + len(body)])
        connection: Any = call.connection
        waiting = self._waiting.get(connection)
        if waiting is None:
            waiting = self._waiting[connection] = deque()
        waiting.append((call, body))
        connection.waiting += 1
        call.hold(len(body) + REQUEST_BYTES)
        if len(waiting) == 1:
            self._look_later(connection, connection.before(call))

    def _look_later(self, connection: Any, before: int) -> None:
        self._worker.call_later(partial(self._look, connection, before))

    def _look(self, connection: Any, before: int) -> None:
        """Have the waiting requests of a connection handled, once an earlier request of it was answered.

        Args:
            connection: it.
            before: how many earlier requests the first one waited for at the last look.
        """
        waiting = self._waiting[connection]
        first = waiting[0][0]
        if first.open and connection.before(first) >= before:
            self._look_later(connection, before)
            return
        del self._waiting[connection]
        connection.waiting -= len(waiting)
        for call, body in waiting:
            call.hold(-len(body) - REQUEST_BYTES)
            if call.open:
                call.body = body
                self._handle(call)
                call.body = b""
