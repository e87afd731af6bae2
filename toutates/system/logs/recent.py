"""Keeps the last warnings and errors for the status page."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from threading import RLock
from typing import Final

__all__ = ["RecentWarning", "RecentWarnings"]

KEPT: Final = 50
MAX_CHARACTERS: Final = 1_000


@dataclass(frozen=True, slots=True)
class RecentWarning:
    """One line of the log.

    Attributes:
        time_s: Unix time, seconds.
        level: warning, error or critical.
        area: see ``toutates.system.logs.levels``.
        text: one line without control characters; of more than MAX_CHARACTERS the first, and how many more there were.
    """

    time_s: float
    level: str
    area: str
    text: str


class RecentWarnings:
    """The last KEPT warnings and errors. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = RLock()
        self._kept: deque[RecentWarning] = deque(maxlen=KEPT)

    def add(self, warning: RecentWarning) -> None:
        """Add one, in place of the oldest if there are too many."""
        with self._lock:
            self._kept.append(warning)

    def latest(self) -> tuple[RecentWarning, ...]:
        """All of them, the oldest first."""
        with self._lock:
            return tuple(self._kept)
