"""Sequences of requests to a stateful model: each has an id, a first and a last request (Triton's extension)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

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
    """The next request of each of some sequences.

    Args:
        sequences: how they are made.
        order: which contents are sent, in turn.
        make: a request of contents, a sequence's id, and whether it is the first and the last.
        seed: of the lengths.
    """

    def __init__(
        self,
        sequences: Sequences,
        order: Sequence[int],
        make: Callable[[int, int, bool, bool], Any],
        seed: int,
    ) -> None:
        self._sequences = sequences
        self._order = order
        self._make = make
        self._rng = np.random.default_rng(seed)
        self._next_id = sequences.first_id
        self._sent = 0
        #: Of each place: the sequence's id, how many requests were sent, and its length.
        self._open: dict[int, tuple[int, int, int]] = {}

    def is_open(self, slot: int) -> bool:
        """Whether the sequence of a place has been begun and not been ended."""
        return slot in self._open

    def give_up(self, slot: int) -> None:
        """A request failed: the next one of the place begins another sequence."""
        self._open.pop(slot, None)

    def next(self, slot: int) -> tuple[int, Any]:
        """The next request of a place, and which contents it has."""
        if slot not in self._open:
            self._open[slot] = self._next_id, 0, self._length()
            self._next_id += 1
        number, step, length = self._open[slot]
        choice = self._order[self._sent % len(self._order)]
        self._sent += 1
        last = step + 1 == length
        if last:
            del self._open[slot]
        else:
            self._open[slot] = number, step + 1, length
        return choice, self._make(choice, number, step == 0, last)

    def _length(self) -> int:
        least, most = (self._sequences.length * (1 + sign * self._sequences.variation) for sign in (-1, 1))
        return max(1, round(self._rng.uniform(least, most)))
