"""What was found for a key, for as long as there is room: the oldest goes first. Any thread may use it."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from typing import Generic, TypeVar

__all__ = ["Remembered"]

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Remembered(Generic[K, V]):
    """Values by key. Two threads may find the same out at the same time; then one of both is kept.

    Args:
        most: how many are kept.
    """

    __slots__ = ("_lock", "_most", "_values")

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: dict[K, V] = {}
        self._lock = threading.Lock()

    def get(self, key: K) -> V | None:
        """The value of a key; None where nothing is known."""
        return self._values.get(key)

    def put(self, key: K, value: V) -> None:
        """Remember a value, which nobody changes any more."""
        with self._lock:
            while len(self._values) >= self._most and key not in self._values:
                del self._values[next(iter(self._values))]
            self._values[key] = value

    def clear(self) -> None:
        """Forget all of them."""
        with self._lock:
            self._values.clear()

    def __len__(self) -> int:
        return len(self._values)
