"""grpc.health.v1.Health: Check, and Watch as a stream of changes.

The empty name, those of the services that are here, and those that probes carry stand for the server; a model's name
for the model.

A Watch call takes 30 bytes of its peer's, and may stay open for ever. So a watcher has no task: it is a call and an
entry of a dict. Watchers are told of a change in slices of SLICE_NS, between which the worker serves others. The main
thread tells of changes of models only while somebody watches one (``Readiness.models_watched``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from functools import partial
from typing import Final

from toutates.access.callers import Caller
from toutates.api.dataplane.plane import DataPlane
from toutates.api.grpc.unary import check_size, unary
from toutates.h2grpc import Call, Method, Status, UnaryHandler
from toutates.protocol import grpc_service_pb2 as pb
from toutates.protocol.health_pb2 import HealthCheckRequest, HealthCheckResponse
from toutates.protocol.parsing import parse
from toutates.system.errors import RequestError, UnknownModel

__all__ = ["CHECK", "WATCH", "Health"]

CHECK: Final = "/grpc.health.v1.Health/Check"
WATCH: Final = "/grpc.health.v1.Health/Watch"

#: Names that probes carry for the server: Kubernetes' ``grpc.service``, and what charts write there.
_PROBES: Final = frozenset({"liveness", "live", "readiness", "ready"})
#: Characters of a name that errors show; no model's name is longer than a folder's can be.
_MAX_SHOWN: Final = 64
_MAX_NAME: Final = 255

_SERVING: Final = HealthCheckResponse.SERVING
_NOT_SERVING: Final = HealthCheckResponse.NOT_SERVING
_UNKNOWN: Final = HealthCheckResponse.SERVICE_UNKNOWN

#: How long a worker tells watchers of a change before it serves other calls.
SLICE_NS: Final = 2_000_000
#: Watchers told between two looks at the clock.
TOLD_AT_ONCE: Final = 16


class Health:
    """The service as one worker serves it.

    Args:
        plane: the worker's data plane.
        call_soon: runs a callback on the worker's thread, soon.
        services: full names of the services that the worker has.
    """

    def __init__(
        self, plane: DataPlane, call_soon: Callable[[Callable[[], None]], None], services: Collection[str] = ()
    ) -> None:
        self._plane = plane
        self._of_server = frozenset({"", *_PROBES, *services})
        self._watchers = _Watchers(self, plane, call_soon)

    @property
    def methods(self) -> list[Method]:
        """The methods of the service."""
        return [Method(CHECK, unary=self.check()), Method(WATCH, unary=self.watch())]

    def check(self, caller: Caller | None = None) -> UnaryHandler:
        """The handler of Check for callers who may see all models, or for one who may see some."""

        def answer(request: HealthCheckRequest) -> HealthCheckResponse:
            status = self.status(self.watched(request.service, caller))
            if status == _UNKNOWN:
                name = request.service[:_MAX_SHOWN]
                raise UnknownModel(f"'{name}' is neither a service of this server nor a model; '' is the server")
            return HealthCheckResponse(status=status)

        return unary(HealthCheckRequest, answer)

    def watch(self, caller: Caller | None = None) -> UnaryHandler:
        """The handler of Watch; see ``check``."""
        return partial(self._watchers.add, caller)

    def watched(self, name: str, caller: Caller | None = None) -> str | None:
        """What a name stands for: "" for the server, a model's name, None for nothing that there will ever be."""
        if name in self._of_server:
            return ""
        if len(name) > _MAX_NAME:
            return None
        table = self._plane.get_table()
        if caller is not None and not (caller.may_use(name) and all(map(caller.may_use, table.traffic.leads_to(name)))):
            return None
        return name

    def status(self, watched: str | None) -> HealthCheckResponse.ServingStatus:
        """The status of what a name stands for (``watched``)."""
        if watched is None:
            return _UNKNOWN
        plane = self._plane
        if not watched:
            return _SERVING if plane.readiness.serving else _NOT_SERVING
        table = plane.get_table()
        if not table.has_name(table.spelling(watched)):
            return _UNKNOWN
        try:
            plane.refuse_unless_model_ready(pb.ModelReadyRequest(name=watched))
        except RequestError:
            return _NOT_SERVING
        return _NOT_SERVING if plane.readiness.exiting else _SERVING


class _Watchers:
    """The open Watch calls of one worker. A watcher that reads slowly is told the latest state only.

    Args:
        health: says how a service is.
        plane: the worker's.
        call_soon: runs a callback on the worker's thread, soon.
    """

    def __init__(self, health: Health, plane: DataPlane, call_soon: Callable[[Callable[[], None]], None]) -> None:
        self._health = health
        self._readiness = plane.readiness
        self._call_soon = call_soon
        #: the status that each watcher was told last
        self._told: dict[Call, HealthCheckResponse.ServingStatus] = {}
        #: what is watched, where that is not the server
        self._watched: dict[Call, str | None] = {}
        #: watchers that may have to be told of the last change; not empty while ``_tell_some`` is due
        self._to_tell: list[Call] = []
        #: whether models have changed again since some watchers of them were looked at
        self._again = False
        self._messages = {
            status: HealthCheckResponse(status=status).SerializeToString()
            for status in (_SERVING, _NOT_SERVING, _UNKNOWN)
        }
        #: made once, because each of many thousand calls refers to it
        self._forget: Callable[[Call], None] = self._drop
        self._readiness.on_change.append(self._tell_all)
        self._readiness.on_models.append(self._tell_of_models)

    def add(self, caller: Caller | None, call: Call) -> None:
        """Answer a Watch call with the present status, and with its changes later.

        Args:
            caller: who may see some models only; None for all.
            call: it.
        """
        check_size(HealthCheckRequest, call)
        name = parse(HealthCheckRequest, call.message).service if call.end > call.start else ""
        watched = self._health.watched(name, caller) if name else ""
        if watched != "":
            self._watched[call] = watched
            self._readiness.models_watched = True  # before the models are looked at: no change is missed
        status = self._told[call] = self._health.status(watched)
        call.on_closed = self._forget
        call.send(self._messages[status])
        if self._readiness.exiting:
            _end(call)

    def _drop(self, call: Call) -> None:
        self._told.pop(call, None)
        if self._watched:
            self._watched.pop(call, None)
            self._readiness.models_watched = bool(self._watched)

    def _tell_all(self) -> None:
        is_due = bool(self._to_tell)
        self._to_tell = list(self._told)
        if self._to_tell and not is_due:
            self._call_soon(self._tell_some)

    def _tell_of_models(self) -> None:
        if self._to_tell:
            self._again = True
        elif self._watched:
            self._to_tell = list(self._watched)
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
        if self._again:
            self._again = False
            self._tell_of_models()

    def _tell(self, call: Call) -> None:
        exiting = self._readiness.exiting
        told = self._told.get(call)
        if told is None:
            return  # the call is over
        status = self._health.status(self._watched.get(call, ""))
        if told != status:
            if call.outbox and not exiting:
                # The last message still waits for the peer's window, and the server keeps one message per watcher.
                call.on_drained = partial(self._note_drained, call)
                return
            self._told[call] = status
            call.send(self._messages[status])
        if exiting:
            _end(call)

    def _note_drained(self, call: Call) -> None:
        call.on_drained = None
        self._call_soon(partial(self._tell, call))


def _end(call: Call) -> None:
    call.fail(Status.UNAVAILABLE, "server is shutting down")
