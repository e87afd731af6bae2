"""Counts the responses of a decoupled version by their place among those of their request."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

__all__ = ["Kind", "ResponseCounters", "ResponseStatistics"]

#: Places that are told apart; responses beyond count for the last one.
MAX_PLACES: Final = 1_000

Kind = Literal["success", "fail", "empty", "cancel"]


@dataclass(slots=True)
class ResponseStatistics:
    """Responses of one place: how many of each kind, and their times since the one before, nanoseconds.

    Attributes:
        success, fail: with outputs, and errors.
        empty: the news alone that there are no more.
        cancel: of any kind, whose caller had left.
    """

    success: int = 0
    success_ns: int = 0
    fail: int = 0
    fail_ns: int = 0
    empty: int = 0
    empty_ns: int = 0
    cancel: int = 0
    cancel_ns: int = 0


class ResponseCounters:
    """Of one version. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._places: list[ResponseStatistics] = []

    def add(self, place: int, kind: Kind, took_ns: int) -> None:
        """Count a response.

        Args:
            place: how many its request has had before.
            kind: of it.
            took_ns: since the one before, or since the batch was taken.
        """
        place = min(place, MAX_PLACES - 1)
        with self._lock:
            while len(self._places) <= place:
                self._places.append(ResponseStatistics())
            counters = self._places[place]
            setattr(counters, kind, getattr(counters, kind) + 1)
            setattr(counters, f"{kind}_ns", getattr(counters, f"{kind}_ns") + took_ns)

    def statistics(self) -> Mapping[int, ResponseStatistics]:
        """What was counted, by place."""
        with self._lock:
            return {place: replace(counters) for place, counters in enumerate(self._places)}
