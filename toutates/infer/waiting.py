"""The requests of one service that wait for their model to be loaded: what becomes of them before and after.

``parking`` has the requests of a whole worker, in their order. What belongs to one service is here: a request's bytes,
which its buffer holds only until its handler returns, are kept, and it is handled or refused later.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from toutates.infer.call import Handler, Transport
from toutates.infer.parking import Parking
from toutates.system.errors import CallerLeft, ExecutionFailed, NotLoaded, RequestError

__all__ = ["LateHandling", "WaitingRequests"]


class LateHandling(Protocol):
    """What a service does with requests whose handler has returned."""

    def infer(self, call: Any) -> None:
        """Handle a request."""
        ...

    def message_of(self, call: Any) -> bytes:
        """The bytes of a request, to be kept."""
        ...

    def put_back(self, call: Any, message: bytes) -> None:
        """Give a request its bytes back."""
        ...

    def for_its_caller(self, again: Callable[[], None]) -> Callable[[], None]:
        """``again``, on behalf of the caller whose request is being handled now."""
        ...

    def let_go(self) -> None:
        """Look at the model table now."""
        ...

    def note_refusal(self, call: Any, error: RequestError) -> None:
        """Count a request that may not wait, and note the error where the request is observed."""
        ...

    def refuse_late(self, call: Any, error: RequestError) -> None:
        """Refuse a request that is counted already."""
        ...

    def give_up(self, call: Any, error: RequestError, *, has_left: bool) -> None:
        """Count and refuse a request that has waited in vain.

        Args:
            call: the request.
            error: why.
            has_left: whether its caller has left, so that nobody is told.
        """
        ...


class WaitingRequests:
    """The requests of one service that wait for their model. Used by the worker's thread.

    Args:
        parking: where they wait.
        transport: by which they came; counts what is kept of them.
        service: handles and refuses them.

    Attributes:
        goes_on: whether the request that is being handled has waited, so that it comes before those that still do.
    """

    def __init__(self, parking: Parking, transport: Transport, service: LateHandling) -> None:
        self._parking = parking
        self._transport = transport
        self._service = service
        self.goes_on = False

    def wait_for(self, infer: Handler) -> Handler:
        """``infer``, with requests that wait where their model is not in memory. Others pay for a ``try``: nothing."""

        def infer_or_wait(call: Any) -> None:
            try:
                infer(call)
            except NotLoaded as missing:
                self.wait(missing.model, call, self._service.message_of(call), partial(self._service.infer, call))

        return infer_or_wait

    def keep_order(self, model: str) -> None:
        """See that no request for a model is handled before those that wait for it.

        Raises:
            NotLoaded: some do, so that this one has to wait behind them.
        """
        if not self.goes_on and self._parking.has(model):
            raise NotLoaded(model)

    def fails(self, model: str) -> bool:
        """Whether a model could not be loaded a short while ago, so that it is not tried now."""
        return self._parking.fails(model)

    def wait(self, model: str, call: Any, message: bytes, again: Callable[[], None], size: int | None = None) -> None:
        """Have the request that is being handled wait for its model.

        Args:
            model: its name.
            call: the request.
            message: its bytes, which it is given back.
            again: handles it.
            size: bytes that are kept of it; None for those of ``message``.

        Raises:
            RequestError: the model could not be loaded a short while ago, or too much waits.
        """
        size = len(message) if size is None else size
        self._park(model, call, message, self._service.for_its_caller(again), size)

    def _park(self, model: str, call: Any, message: bytes, again: Callable[[], None], size: int) -> None:
        try:
            self._parking.check(model, size)
        except RequestError as error:
            self._service.note_refusal(call, error)
            raise
        self._parking.park(model, _Waiting(self, call, message, again, size), size)
        self._transport.hold(call, size)

    def handle_again(self, call: Any, message: bytes, again: Callable[[], None], size: int) -> None:
        """Handle a request whose model is there."""
        service = self._service
        self._transport.hold(call, -size)
        service.let_go()
        service.put_back(call, message)
        self.goes_on = True
        try:
            again()
        except NotLoaded as missing:  # it has left again meanwhile
            try:
                self._park(missing.model, call, message, again, size)  # ``again`` knows its caller already
            except RequestError as error:
                service.refuse_late(call, error)
        except RequestError as error:
            service.refuse_late(call, error)
        except Exception as error:
            service.refuse_late(call, ExecutionFailed("internal error"))
            self._transport.end_connection(call, error)
        finally:
            self.goes_on = False
            service.put_back(call, b"")

    def give_up(self, call: Any, message: bytes, error: RequestError, size: int, *, has_left: bool) -> None:
        """Refuse a request that has waited in vain."""
        service = self._service
        self._transport.hold(call, -size)
        service.put_back(call, message)
        service.give_up(call, error, has_left=has_left)
        service.put_back(call, b"")


class _Waiting:
    """A request that waits for its model (``parking.Parked``)."""

    __slots__ = ("_again", "_call", "_message", "_requests", "_size")

    def __init__(
        self, requests: WaitingRequests, call: Any, message: bytes, again: Callable[[], None], size: int
    ) -> None:
        self._requests = requests
        self._call = call
        self._message = message
        self._again = again
        self._size = size

    @property
    def is_open(self) -> bool:
        return bool(self._call.open)

    def go_on(self) -> None:
        self._requests.handle_again(self._call, self._message, self._again, self._size)

    def fail(self, error: RequestError) -> None:
        self._requests.give_up(self._call, self._message, error, self._size, has_left=False)

    def leave(self) -> None:
        error = CallerLeft("the client has left")
        self._requests.give_up(self._call, self._message, error, self._size, has_left=True)
