"""Sequences of requests to a stateful model: each has an id, a first and a last request (Triton's extension)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from toutates.bench.answer import Answer
from toutates.bench.source import in_turn

__all__ = ["SequenceSource", "Sequences"]


@dataclass(frozen=True, slots=True)
class Sequences:
    """How sequences are made.

    Attributes:
        length: requests of each, on average.
        variation: share by which a length may be shorter or longer.
        first_id: of the first sequence; each has the next one.
    """

    length: int = 20
    variation: float = 0.2
    first_id: int = 1


class SequenceSource:
    """What a closed loop of sequences sends: in each place, the next request of a sequence once the last is answered.

    Args:
        sequences: how they are made.
        order: which contents are sent, in turn.
        make: a request of contents, a sequence's id, and whether it is the first and the last.
        seed: of the lengths.
        places: sequences at a time.
    """

    def __init__(
        self,
        sequences: Sequences,
        order: Sequence[int],
        make: Callable[[int, int, bool, bool], Any],
        seed: int,
        places: int,
    ) -> None:
        self._sequences = sequences
        self._order = np.array(order, np.int64)
        self._make = make
        self._rng = np.random.default_rng(seed)
        self._next_id = sequences.first_id
        #: Places whose last request is answered.
        self._ready = deque(range(places))
        self._count = 0
        #: Of each request without an answer.
        self._places: dict[int, int] = {}
        #: Of each place: the sequence's id, how many requests were sent, and its length.
        self._open: dict[int, tuple[int, int, int]] = {}

    def take(self, most: int, *, over: bool) -> Sequence[Any]:
        """The next requests; see ``Source``. Once the load is over, those of sequences that have been begun."""
        taken: list[Any] = []
        for _ in range(len(self._ready)):
            if len(taken) == most:
                break
            place = self._ready.popleft()
            if place in self._open or not over:
                taken.append(self._next(place))
        return taken

    def answered(self, answers: Sequence[Answer]) -> None:
        """These requests have ended. Where one failed, the place begins another sequence."""
        for number, status, _ in answers:
            place = self._places.pop(number)
            if status:
                self._open.pop(place, None)
            self._ready.append(place)

    def choices(self, first: int, count: int) -> npt.NDArray[np.int64]:
        """See ``Source``."""
        return in_turn(self._order, first, count)

    def _next(self, place: int) -> Any:
        if place not in self._open:
            self._open[place] = self._next_id, 0, self._length()
            self._next_id += 1
        number, step, length = self._open[place]
        choice = int(self._order[self._count % len(self._order)])
        self._places[self._count] = place
        self._count += 1
        last = step + 1 == length
        if last:
            del self._open[place]
        else:
            self._open[place] = number, step + 1, length
        return self._make(choice, number, step == 0, last)

    def _length(self) -> int:
        least, most = (self._sequences.length * (1 + sign * self._sequences.variation) for sign in (-1, 1))
        return max(1, round(self._rng.uniform(least, most)))
