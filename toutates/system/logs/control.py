"""Levels while the server runs: changed by the LogSettings RPC and SIGUSR1, heeded by ``logging``."""

from __future__ import annotations

import logging
from dataclasses import replace
from threading import RLock

from toutates.system.logs.levels import AREAS, PACKAGE, PARTS, LogLevels

__all__ = ["LogControl"]

logger = logging.getLogger(__name__)


class LogControl:
    """Any thread may use it. One per process, because the levels of ``logging`` are.

    Args:
        levels: what is shown at first, from ``apply`` on.
    """

    def __init__(self, levels: LogLevels) -> None:
        self._lock = RLock()
        self._levels = levels
        #: what was shown before SIGUSR1, while that lasts
        self._before: LogLevels | None = None

    @property
    def levels(self) -> LogLevels:
        """What is shown now."""
        return self._levels

    def apply(self) -> None:
        """Tell ``logging``, whose loggers then make no lines that would not be shown."""
        with self._lock:
            self._apply(self._levels)

    def change(self, levels: LogLevels, text: str) -> LogLevels:
        """Show something else from now on; ends what SIGUSR1 began.

        Args:
            levels: what.
            text: for the log, what has changed.

        Returns:
            What is shown now.
        """
        with self._lock:
            self._before = None
            # Where the line is seen: whoever turns the log off is in it, and who turns it on too.
            seen_before = self._levels.shows("logs", logging.INFO)
            if seen_before:
                logger.info("log settings: %s", text)
            self._apply(levels)
            if not seen_before:
                logger.info("log settings: %s", text)
            return levels

    def toggle_debug(self) -> None:
        """Show everything, or what was shown before that."""
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
        logging.getLogger().setLevel(levels.lowest(""))  # which is no area: other libraries
        # An area without a level of its own has the package's.
        logging.getLogger(PACKAGE).setLevel(replace(levels, areas={}).lowest(AREAS[0]))
        for area, parts in PARTS.items():
            for part in parts:
                logging.getLogger(f"{PACKAGE}.{part}").setLevel(levels.areas.get(area, logging.NOTSET))
