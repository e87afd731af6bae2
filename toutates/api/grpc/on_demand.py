"""RPCs about one model, which wait until it is loaded where models are loaded on demand."""

from __future__ import annotations

from functools import partial

from toutates.api.grpc.statuses import STATUSES
from toutates.api.waiting_call import WaitingCall
from toutates.h2grpc import Call, UnaryHandler
from toutates.infer.parking import Parking
from toutates.net import Worker
from toutates.system.errors import NotLoaded, RequestError

__all__ = ["waiting_for_model"]


def waiting_for_model(handler: UnaryHandler, parking: Parking | None, worker: Worker) -> UnaryHandler:
    """``handler``, called again once the model is loaded that it has found not to be.

    Args:
        handler: of the RPC; it raises NotLoaded. Its request has a name or two, and counts as that much.
        parking: where calls wait; None where no model is loaded on demand.
        worker: whose calls these are.
    """
    if parking is None:
        return handler

    def handle_or_wait(call: Call) -> None:
        try:
            handler(call)
        except NotLoaded as missing:
            message = call.message
            parking.check(missing.model, len(message))
            waiting = WaitingCall(call, partial(go_on, call, message), worker, partial(_refuse, call))
            parking.park(missing.model, waiting, len(message))
            _hold(call, len(message))

    def go_on(call: Call, message: bytes) -> None:
        _hold(call, 0)
        call.buffer, call.start, call.end = message, 0, len(message)
        try:
            handle_or_wait(call)
        finally:
            call.buffer = b""

    return handle_or_wait


def _hold(call: Call, size: int) -> None:
    """Count the bytes that are kept of a call with what its connection holds. Those of one that has ended are not."""
    if call.link is not None:
        call.link.connection.hold(call, size)


def _refuse(call: Call, error: RequestError) -> None:
    _hold(call, 0)
    call.fail(STATUSES[type(error)], str(error))
