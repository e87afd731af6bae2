"""The loads of Python models that are under way, so that the server's end can end their processes."""

from __future__ import annotations

import threading
import time

from toutates.backends.python.process import Closing

__all__ = ["LoadsUnderWay"]


class LoadsUnderWay:
    """Ends the processes of loads that do not end by themselves. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._closings: dict[int, Closing] = {}
        self._has_ended = False

    def begin(self, closing: Closing) -> None:
        """A load begins whose processes read this; they end at once where ``end`` was called before."""
        with self._lock:
            self._closings[id(closing)] = closing
            if self._has_ended:
                closing.at = time.monotonic()

    def done(self, closing: Closing) -> None:
        """A load is over; a second call changes nothing."""
        with self._lock:
            self._closings.pop(id(closing), None)

    def end(self) -> int:
        """Have the processes of all loads end, now and later; returns how many loads there are."""
        with self._lock:
            self._has_ended = True
            for closing in self._closings.values():
                closing.at = time.monotonic()
            return len(self._closings)
