"""The levels of the log while the server runs. LogSettings and SIGUSR1 change them, and ``logging`` follows."""

from __future__ import annotations

import logging
from dataclasses import replace
from threading import RLock

from toutates.system.logs.levels import AREAS, PACKAGE, PARTS, LogLevels

__all__ = ["LogControl"]

logger = logging.getLogger(__name__)


class LogControl:
    """Holds the levels. Any thread may use it. There is one per process, because ``logging`` is one per process.

    Args:
        levels: the first ones, which ``apply`` puts into force.
    """

    def __init__(self, levels: LogLevels) -> None:
        self._lock = RLock()
        self._levels = levels
        #: the levels before SIGUSR1, until the next one
        self._before: LogLevels | None = None

    @property
    def levels(self) -> LogLevels:
        """The levels in force."""
        return self._levels

    def apply(self) -> None:
        """Set the levels of ``logging``, so that its loggers make no records that would not be shown."""
        with self._lock:
            self._apply(self._levels)

    def change(self, levels: LogLevels, text: str) -> LogLevels:
        """Put other levels into force, also in place of those of SIGUSR1.

        Args:
            levels: the new ones.
            text: for the log, what has changed.

        Returns:
            The levels in force.
        """
        with self._lock:
            self._before = None
            # Before or after, wherever it is shown: the log then has who switched it off, and who switched it on.
            seen_before = self._levels.shows("logs", logging.INFO)
            if seen_before:
                logger.info("log settings: %s", text)
            self._apply(levels)
            if not seen_before:
                logger.info("log settings: %s", text)
            return levels

    def toggle_debug(self) -> None:
        """Show every line; the next call restores the levels."""
        with self._lock:
            before, self._before = self._before, None
            if before is None:
                self._before = self._levels
                self._apply(replace(self._levels, info=True, warning=True, error=True, verbose=1, areas={}))
                logger.info("SIGUSR1: everything is logged, until the next one")
            else:
                logger.info("SIGUSR1: the log is as it was before the last one")
                self._apply(before)

    def _apply(self, levels: LogLevels) -> None:
        self._levels = levels
        logging.getLogger().setLevel(levels.lowest(""))  # of other libraries, which "" stands for
        # An area without a level of its own has the package's.
        logging.getLogger(PACKAGE).setLevel(replace(levels, areas={}).lowest(AREAS[0]))
        for area, parts in PARTS.items():
            for part in parts:
                logging.getLogger(f"{PACKAGE}.{part}").setLevel(levels.areas.get(area, logging.NOTSET))
