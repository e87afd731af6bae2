"""What a closed loop sends: ``Rotation`` the same requests over and over; ``sequences`` has another one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from toutates.bench.answer import Answer

__all__ = ["Rotation", "Source", "in_turn"]


class Source(Protocol):
    """The next requests of a closed loop, which are numbered from 0 in their order."""

    def take(self, most: int, *, over: bool) -> Sequence[Any]:
        """The next requests, none where none can be sent now.

        Args:
            most: how many.
            over: whether the load's time is, so that only what was begun may be ended.
        """

    def answered(self, answers: Sequence[Answer]) -> None:
        """These requests have ended."""

    def choices(self, first: int, count: int) -> npt.NDArray[np.int64]:
        """Which contents so many requests had, from a number on, as indexes."""


class Rotation:
    """Requests in an order, over and over.

    Args:
        requests: what can be sent.
        order: which of them are sent, in turn.
        most: after which there are no more; None for no such end.
    """

    def __init__(self, requests: Sequence[Any], order: Sequence[int], most: int | None = None) -> None:
        self._order = np.array(order, np.int64)
        self._left = most
        self._at = 0
        # Twice, so that what is taken together is one slice.
        self._turns = [requests[choice] for choice in order] * 2

    def take(self, most: int, *, over: bool) -> Sequence[Any]:
        """See ``Source``."""
        if over:
            return ()
        size = len(self._order)
        most = min(most, size)
        if self._left is not None:
            most = min(most, self._left)
            self._left -= most
        at = self._at
        self._at = (at + most) % size
        return self._turns[at : at + most]

    def answered(self, answers: Sequence[Answer]) -> None:
        """See ``Source``."""

    def choices(self, first: int, count: int) -> npt.NDArray[np.int64]:
        """See ``Source``."""
        return in_turn(self._order, first, count)


def in_turn(order: npt.NDArray[np.int64], first: int, count: int) -> npt.NDArray[np.int64]:
    """So many of what comes in an order over and over, from a place on."""
    return order[np.arange(first, first + count) % len(order)]
