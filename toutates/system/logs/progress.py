"""How far a long job is, as lines of the log."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

__all__ = ["ProgressLine"]


class ProgressLine:
    """Logs how much of a job is done: at each step, or every few seconds. Calls must not overlap.

    Args:
        logger: that gets the lines.
        text: with a place each for what is done, the whole, and the name of the step.
        period_s: seconds until the first line, and between two lines; 0 for a line at each step.
        clock: seconds.
    """

    def __init__(
        self, logger: logging.Logger, text: str, period_s: float = 0.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._logger = logger
        self._text = text
        self._period_s = period_s
        self._clock = clock
        self._next_s = clock() + period_s

    def show(self, done: float, total: float, step: str) -> None:
        """Note a step. One without a name is not logged."""
        now_s = self._clock()
        if step and now_s >= self._next_s:
            self._next_s = now_s + self._period_s
            self._logger.info(self._text, done, total, step)
