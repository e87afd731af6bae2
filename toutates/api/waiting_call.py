"""A request of any transport that waits until a model is loaded, where models are loaded on demand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from toutates.net import Worker
from toutates.net.connection import Exchange
from toutates.system.errors import RequestError

__all__ = ["WaitingCall"]


class _Call(Exchange, Protocol):
    """A request.

    Attributes:
        open: whether its caller still waits.
    """

    @property
    def open(self) -> bool: ...


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
        call: _Call,
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
