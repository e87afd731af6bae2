"""The requests of one instance of a decoupled model that are not answered fully, and when these are too many."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Final

from toutates.backends.rows import rows_of
from toutates.engine.lane import Batch
from toutates.engine.open_request import OpenRequest, Patience
from toutates.engine.result import Separate
from toutates.system.errors import Overloaded, RequestError

__all__ = ["DRAIN_S", "MAX_OPEN", "UNLOADED", "OpenRequests"]

#: Requests of one instance that are not answered fully, at most.
MAX_OPEN: Final = 65_536
#: How long an instance that is closed waits for the responses of open requests, and how often it looks.
DRAIN_S: Final = 30.0
_LOOK_S: Final = 0.02
#: What those are told that are open then.
UNLOADED: Final = "the model was unloaded before it had answered the request"


class OpenRequests:
    """The requests of one instance that are not answered fully, by number. Threads may use it at once.

    Attributes:
        patience: of the instance with callers that do not read.
    """

    def __init__(self) -> None:
        self.patience = Patience()
        self._open: dict[int, OpenRequest] = {}
        self._lock = threading.Lock()
        self._next = 0

    def begin(self, requests: list[OpenRequest]) -> int:
        """Add the requests of a batch; returns the number of the first. They are counted from 0."""
        with self._lock:
            first = self._next
            for request in requests:
                self._open[self._next] = request
                self._next = (self._next + 1) % 2**32
            return first

    def get(self, number: Any) -> OpenRequest | None:
        """The request of a number, if it is open."""
        return self._open.get(number)

    def ended(self, number: int) -> None:
        """A request is answered fully."""
        with self._lock:
            self._open.pop(number, None)

    def end(self, number: int, error: RequestError) -> None:
        """End a request, if it is open."""
        request = self._open.get(number)
        if request is not None:
            self.ended(number)
            request.respond(error, final=True)

    def fail(self, error: RequestError) -> None:
        """End all of them; numbers begin anew."""
        with self._lock:
            requests, self._open, self._next = list(self._open.values()), {}, 0
        for request in requests:
            request.respond(error, final=True)

    def refuse_above_limit(self, batch: Batch) -> Separate | None:
        """The outcome of a batch that does not begin, because too many requests are open; None for one that may."""
        rows = rows_of(batch)
        if len(self._open) + len(rows) <= MAX_OPEN:
            return None
        error = Overloaded(
            f"{len(self._open)} requests of this instance are not answered fully, and {MAX_OPEN} is the most"
        )
        return Separate([(port, request, error) for _, _, port, request in rows])

    def wait(self, until: Callable[[], bool]) -> None:
        """Wait until all of them are answered, or nobody wants the rest, or there is no time left."""
        while not until():
            with self._lock:
                requests = list(self._open.values())
            if not any(request.is_wanted for request in requests):
                break
            time.sleep(_LOOK_S)
