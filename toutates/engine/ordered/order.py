"""Answers that leave in the order in which their requests came, whatever instance and batch has made them.

    a request comes ──▶ the last place ──(its outcome is there, and no place is before it)──▶ its consumer

An outcome that is early is held. What is held counts, so that one slow request cannot make the others fill the memory:
as many rows have a place as may, and none gets one while too many bytes are held.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import Any

from toutates.engine.cache.cutting import size_of
from toutates.engine.drain import Drain
from toutates.engine.result import BatchResult, PendingRequest, Split
from toutates.engine.servable import Consumer
from toutates.system.errors import Overloaded

__all__ = ["Order", "Place"]

logger = logging.getLogger(__name__)


class _Source:
    """A result as it has come, for several requests.

    Attributes:
        result: as given.
        size: bytes of its outputs.
        left: its requests that are held.
    """

    __slots__ = ("left", "result", "size")

    def __init__(self, result: BatchResult) -> None:
        outputs = result.shared_outputs
        self.result = result
        self.size = size_of(outputs) if outputs is not None else 0
        self.left = 0


class Place:
    """A request's place, which goes on to the version as its context.

    Attributes:
        consumer: whose request it is.
        context: of the request, as the consumer has given it.
        rows: of the request.
        parts: of it that have come back, where its rows were in several batches.
        is_over: whether nothing more will come.
        held: what has come and could not leave: the result, first row, rows and part.
    """

    __slots__ = ("consumer", "context", "held", "is_over", "parts", "rows")

    def __init__(self, consumer: Consumer, context: Any, rows: int) -> None:
        self.consumer = consumer
        self.context = context
        self.rows = rows
        self.parts = 0
        self.is_over = False
        self.held: list[tuple[_Source, int, int, tuple[Split, int] | None]] = []


class Order:
    """The places of all requests of one version. Any thread may use it.

    Args:
        model: its name, for errors.
        most_rows: that may have a place.
        most_bytes: above so many bytes of outputs that are held, no request gets a place.
    """

    def __init__(self, model: str, most_rows: int, most_bytes: int) -> None:
        self._model = model
        self._most_rows = most_rows
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._places: deque[Place] = deque()
        self._rows = self._left = 0
        self._bytes = 0
        self._drain = Drain()
        #: what leaves next, for the thread that hands it over
        self._leaving: list[tuple[Consumer, BatchResult]] = []
        self._is_handing_over = False

    def begin(self, consumer: Consumer, context: Any, rows: int) -> Place:
        """Give a request the last place.

        Raises:
            Overloaded: too many have one, or too much is held.
        """
        place = Place(consumer, context, rows or 1)
        with self._lock:
            # One request may have more rows than that, if it is alone.
            if (self._rows and self._rows + place.rows > self._most_rows) or self._bytes > self._most_bytes:
                raise Overloaded(
                    f"model '{self._model}' answers in order, and {self._rows} rows are under way or wait for their "
                    f"turn, with {self._bytes} bytes of outputs; try again later, or raise its 'capacity'",
                    self._most_rows,
                    place.rows,
                ).after(self._drain.wait_s(self._rows, self._left, more=place.rows))
            self._places.append(place)
            self._rows += place.rows
        return place

    def withdraw(self, place: Place) -> None:
        """A request was refused that has a place."""
        with self._lock:
            place.is_over = True
        self._hand_over()

    def take(self, result: BatchResult) -> None:
        """Take a result whose contexts are places, and hand over what can leave now."""
        source = _Source(result)
        with self._lock:
            for place, first, rows, part in result.pending:
                place.held.append((source, first, rows, part))
                source.left += 1
                if part is not None:
                    place.parts += 1
                    place.is_over = place.parts == len(part[0].parts)
                else:
                    place.is_over = not result.more
            self._bytes += source.size
        self._hand_over()

    def statistics(self) -> tuple[int, int, int]:
        """Places, their rows, and bytes of outputs that are held."""
        with self._lock:
            return len(self._places), self._rows, self._bytes

    def _hand_over(self) -> None:
        """Hand over what can leave. One thread does at a time: with two, what leaves later might arrive first."""
        while True:
            with self._lock:
                if self._is_handing_over:
                    return
                self._let_leave()
                leaving, self._leaving = self._leaving, []
                if not leaving:
                    return
                self._is_handing_over = True
            for consumer, result in leaving:
                try:
                    consumer.finish(result)
                except Exception:
                    text = "handing over an outcome of model '%s' failed; %d requests wait for nothing"
                    logger.exception(text, self._model, len(result.pending))
            with self._lock:
                self._is_handing_over = False

    def _let_leave(self) -> None:
        """Find what can leave: everything of the places before the first that is not over, and what that one has."""
        places = self._places
        last: _Source | None = None
        while places:
            place = places[0]
            for source, first, rows, part in place.held:
                request: PendingRequest = (place.context, first, rows, part)
                if source is last and self._leaving[-1][0] is place.consumer:
                    self._leaving[-1][1].pending.append(request)
                else:
                    self._leaving.append((place.consumer, _alone(source.result, request)))
                last = source
                source.left -= 1
                if not source.left:
                    self._bytes -= source.size
            place.held.clear()
            if not place.is_over:
                return
            places.popleft()
            self._rows -= place.rows
            self._left += place.rows


def _alone(result: BatchResult, request: PendingRequest) -> BatchResult:
    """A result for one of its requests."""
    own = BatchResult([request], result.shared_outputs, result.error, result.timing)
    own.more = result.more
    own.taken = result.taken
    return own
