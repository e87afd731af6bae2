"""Requests over HTTP that wait until a model is loaded, where models are loaded on demand."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from toutates.api.rest.calls import RestHttpCall
from toutates.api.waiting_call import WaitingCall
from toutates.infer.parking import Parking
from toutates.net import Worker
from toutates.system.errors import NotLoaded

__all__ = ["waiting_for_model"]


def waiting_for_model(
    handle: Callable[[RestHttpCall], None], parking: Parking | None, worker: Worker
) -> Callable[[RestHttpCall], None]:
    """``handle``, called again once the model is loaded that it has found not to be. For requests without a body.

    Args:
        handle: answers a request; it raises NotLoaded.
        parking: where requests wait; None where no model is loaded on demand.
        worker: whose requests these are.
    """
    if parking is None:
        return handle

    def handle_or_wait(call: RestHttpCall) -> None:
        try:
            handle(call)
        except NotLoaded as missing:
            parking.check(missing.model, 0)
            parking.park(missing.model, WaitingCall(call, partial(handle_or_wait, call), worker, call.fail), 0)

    return handle_or_wait
