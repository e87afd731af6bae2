"""grpc.health.v1.Health: Check, and Watch as a stream of changes.

A Watch call takes 30 bytes of its peer's, and may stay open for ever. So a watcher has no task: it is a call and an
entry of a dict. Watchers are told of a change in slices of SLICE_NS, between which the worker serves others.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Final

from toutates.api.dataplane.plane import DataPlane, health_response
from toutates.api.dataplane.readiness import Readiness
from toutates.api.grpc.unary import check_size, unary
from toutates.h2grpc import Call, Method, Status
from toutates.protocol.health_pb2 import HealthCheckRequest

__all__ = ["health_methods"]

_CHECK: Final = "/grpc.health.v1.Health/Check"
_WATCH: Final = "/grpc.health.v1.Health/Watch"

#: How long a worker tells watchers of a change before it serves other calls.
SLICE_NS: Final = 2_000_000
#: Watchers told between two looks at the clock.
TOLD_AT_ONCE: Final = 16


def health_methods(plane: DataPlane, call_soon: Callable[[Callable[[], None]], None]) -> list[Method]:
    """The methods of the service.

    Args:
        plane: the worker's data plane; it answers Check.
        call_soon: runs a callback on the worker's thread, soon.
    """
    return [
        Method(_CHECK, unary=unary(HealthCheckRequest, plane.health_check)),
        Method(_WATCH, unary=_Watchers(plane.readiness, call_soon).add),
    ]


class _Watchers:
    """The open Watch calls of one worker. A watcher that reads slowly is told the latest state only.

    Args:
        readiness: the worker's view of the server's readiness.
        call_soon: runs a callback on the worker's thread, soon.
    """

    def __init__(self, readiness: Readiness, call_soon: Callable[[Callable[[], None]], None]) -> None:
        self._readiness = readiness
        self._call_soon = call_soon
        #: the state that each watcher was told last
        self._told: dict[Call, bool] = {}
        #: watchers that may have to be told of the last change; not empty while ``_tell_some`` is due
        self._to_tell: list[Call] = []
        self._messages = {serving: health_response(serving=serving).SerializeToString() for serving in (False, True)}
        #: made once, because each of many thousand calls refers to it
        self._forget: Callable[[Call], None] = self._drop
        readiness.on_change.append(self._tell_all)

    def add(self, call: Call) -> None:
        """Answer a Watch call with the present state, and with its changes later."""
        check_size(HealthCheckRequest, call)
        self._told[call] = self._readiness.serving
        call.on_closed = self._forget
        call.send(self._messages[self._readiness.serving])
        if self._readiness.exiting:
            _end(call)

    def _drop(self, call: Call) -> None:
        self._told.pop(call, None)

    def _tell_all(self) -> None:
        is_due = bool(self._to_tell)
        self._to_tell = list(self._told)
        if self._to_tell and not is_due:
            self._call_soon(self._tell_some)

    def _tell_some(self) -> None:
        to_tell = self._to_tell
        until_ns = time.monotonic_ns() + SLICE_NS
        while to_tell:
            for _ in range(min(TOLD_AT_ONCE, len(to_tell))):
                self._tell(to_tell.pop())
            if to_tell and time.monotonic_ns() > until_ns:
                self._call_soon(self._tell_some)
                return

    def _tell(self, call: Call) -> None:
        serving, exiting = self._readiness.serving, self._readiness.exiting
        told = self._told.get(call)
        if told is None:
            return  # the call is over
        if told is not serving:
            if call.outbox and not exiting:
                # The last message still waits for the peer's window, and the server keeps one message per watcher.
                call.on_drained = partial(self._note_drained, call)
                return
            self._told[call] = serving
            call.send(self._messages[serving])
        if exiting:
            _end(call)

    def _note_drained(self, call: Call) -> None:
        call.on_drained = None
        self._call_soon(partial(self._tell, call))


def _end(call: Call) -> None:
    call.fail(Status.UNAVAILABLE, "server is shutting down")
