"""Requests over HTTP that wait until a model is loaded, where models are loaded on demand."""

from __future__ import annotations

from collections.abc import Callable

from toutates.api.rest.calls import RestHttpCall
from toutates.infer.parking import Parking
from toutates.net import Worker
from toutates.system.errors import NotLoaded, RequestError

__all__ = ["WaitingCall", "waiting_for_model"]


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
            parking.park(missing.model, WaitingCall(call, lambda: handle_or_wait(call), worker, call.fail), 0)

    return handle_or_wait


class WaitingCall:
    """A request that waits (``infer.parking.Parked``).

    Args:
        call: the request.
        again: handles it.
        worker: whose it is.
        refuse: answers it with an error.
        leave: called if the client has left.
    """

    __slots__ = ("_again", "_call", "_leave", "_refuse", "_worker")

    def __init__(
        self,
        call: RestHttpCall,
        again: Callable[[], None],
        worker: Worker,
        refuse: Callable[[RequestError], object],
        leave: Callable[[], object] = lambda: None,
    ) -> None:
        self._call = call
        self._again = again
        self._worker = worker
        self._refuse = refuse
        self._leave = leave

    @property
    def is_open(self) -> bool:
        return self._call.open

    def go_on(self) -> None:
        try:
            self._again()
        except RequestError as error:
            self._refuse(error)
        except Exception as error:
            self._worker.connection_failed(self._call, error)

    def fail(self, error: RequestError) -> None:
        self._refuse(error)

    def leave(self) -> None:
        self._leave()
