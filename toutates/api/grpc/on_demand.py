"""RPCs about one model, which wait until it is loaded where models are loaded on demand."""

from __future__ import annotations

from collections.abc import Callable

from toutates.api.grpc.statuses import STATUSES
from toutates.h2grpc import Call, UnaryHandler
from toutates.infer.parking import Parking
from toutates.net import Worker
from toutates.system.errors import NotLoaded, RequestError

__all__ = ["waiting_for_model"]


def waiting_for_model(handler: UnaryHandler, parking: Parking | None, worker: Worker) -> UnaryHandler:
    """``handler``, called again once the model is loaded that it has found not to be.

    Args:
        handler: of the RPC; it raises NotLoaded.
        parking: where calls wait; None where no model is loaded on demand.
        worker: whose calls these are.
    """
    if parking is None:
        return handler

    def handle(call: Call) -> None:
        try:
            handler(call)
        except NotLoaded as missing:
            message = call.message
            parking.check(missing.model, len(message))
            parking.park(missing.model, _Waiting(call, message, handle, worker), len(message))

    return handle


class _Waiting:
    """A call that waits (``infer.parking.Parked``). Its request has a name or two, and counts as that much."""

    __slots__ = ("_call", "_handler", "_message", "_worker")

    def __init__(self, call: Call, message: bytes, handler: Callable[[Call], None], worker: Worker) -> None:
        self._call = call
        self._message = message
        self._handler = handler
        self._worker = worker

    @property
    def is_open(self) -> bool:
        return self._call.open

    def go_on(self) -> None:
        call = self._call
        call.buffer, call.start, call.end = self._message, 0, len(self._message)
        try:
            self._handler(call)
        except RequestError as error:
            self.fail(error)
        except Exception as error:
            self._worker.connection_failed(call, error)
        call.buffer = b""

    def fail(self, error: RequestError) -> None:
        self._call.fail(STATUSES[type(error)], str(error))

    def leave(self) -> None:
        pass
