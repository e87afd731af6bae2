"""Requests that wait for their model to be loaded (``--model-control-mode on-demand``).

A worker does not wait. A request whose model is not in memory leaves its bytes here, the main thread is told of the
model once, however many requests want it, and all of them are handled again when it is there, in their order. One whose
caller leaves, or whose deadline passes, is answered by its transport as any other, and is passed over then.

What waits is counted: its bytes with what its connection holds, bytes and requests of the whole worker here. Nothing
is remembered of models for which nobody waits.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from toutates.models.demand import Loader
from toutates.net import Worker
from toutates.system.errors import Overloaded, RequestError, anew

__all__ = ["Parked", "Parking"]

logger = logging.getLogger(__name__)

#: Requests of a worker that may wait for models, and bytes of them.
MOST_REQUESTS: Final = 16_384
MOST_BYTES: Final = 268_435_456
#: What a request takes beside its bytes.
REQUEST_BYTES: Final = 1_024
#: How long requests are handled again at once before the worker does something else.
SLICE_NS: Final = 2_000_000


class Parked(Protocol):
    """A request that waits. Its methods are called on the worker's thread, one of them, once. They raise nothing.

    Attributes:
        is_open: whether its caller still waits.
    """

    @property
    def is_open(self) -> bool: ...

    def go_on(self) -> None:
        """The model is there."""
        ...

    def fail(self, error: RequestError) -> None:
        """It cannot be loaded."""
        ...

    def leave(self) -> None:
        """The caller has left."""
        ...


class Parking:
    """The requests of one worker that wait for models. Used by that worker's thread.

    Args:
        worker: whose requests these are.
        loader: has models loaded.

    Attributes:
        waited: requests that have waited so far; any thread may read it.
    """

    def __init__(self, worker: Worker, loader: Loader) -> None:
        self.waited = 0
        self._worker = worker
        self._loader = loader
        self._waiting: dict[str, deque[tuple[Parked, int]]] = {}
        #: requests whose model is there, and which have not had their turn
        self._due: dict[str, deque[tuple[Parked, int]]] = {}
        self._requests = 0
        self._bytes = 0

    @property
    def requests(self) -> int:
        """How many wait."""
        return self._requests

    def has(self, model: str) -> bool:
        """Whether requests for a model wait, so that a later one has to wait behind them."""
        return model in self._waiting or model in self._due

    def fails(self, model: str) -> bool:
        """Whether a model could not be loaded a short while ago, so that it is not tried now."""
        return self._loader.failure_of(model) is not None

    def check(self, model: str, size: int) -> None:
        """See that a request may wait.

        Args:
            model: that it wants.
            size: bytes of it.

        Raises:
            RequestError: the model could not be loaded a short while ago.
            Overloaded: too much waits already.
        """
        failure = self._loader.failure_of(model)
        if failure is not None:
            raise anew(failure)
        if self._requests >= MOST_REQUESTS or (self._bytes and self._bytes + size > MOST_BYTES):
            raise Overloaded(
                f"{self._requests} requests of {self._bytes} bytes wait for models to be loaded, and {MOST_REQUESTS} "
                f"requests of {MOST_BYTES} bytes are the most; try again later"
            )

    def park(self, model: str, parked: Parked, size: int) -> None:
        """Have a request wait for its model. Call ``check`` before."""
        size += REQUEST_BYTES
        self.waited += 1
        self._requests += 1
        self._bytes += size
        waiting = self._waiting.get(model)
        if waiting is None:
            self._waiting[model] = deque([(parked, size)])
            self._loader.want(model, partial(self._loaded_soon, model))
        else:
            waiting.append((parked, size))

    def _loaded_soon(self, model: str, error: RequestError | None) -> None:
        """In any thread: a model is there, or cannot be loaded."""
        self._worker.call_soon(partial(self._loaded, model, error))

    def _loaded(self, model: str, error: RequestError | None) -> None:
        waiting = self._waiting.pop(model, None)
        if waiting is None:
            return
        due = self._due.get(model)
        if due is not None and error is None:
            due += waiting  # behind those that have not had their turn
            return
        if error is None:
            self._due[model] = waiting
        self._handle(model, waiting, error)

    def _handle(self, model: str, waiting: deque[tuple[Parked, int]], error: RequestError | None) -> None:
        until_ns = time.monotonic_ns() + SLICE_NS
        while waiting:
            parked, size = waiting.popleft()
            self._requests -= 1
            self._bytes -= size
            _handle_one(parked, error)
            if time.monotonic_ns() >= until_ns and waiting:
                self._worker.call_soon(partial(self._handle, model, waiting, error))
                return
        if self._due.get(model) is waiting:
            del self._due[model]


def _handle_one(parked: Parked, error: RequestError | None) -> None:
    act: Callable[[], None]
    if not parked.is_open:
        act = parked.leave
    elif error is None:
        act = parked.go_on
    else:
        act = partial(parked.fail, error)
    try:
        act()
    except Exception:
        logger.exception("a request that waited for its model failed")
