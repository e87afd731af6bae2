"""A line on a terminal that says how far a load is."""

from __future__ import annotations

from typing import TextIO

from toutates.bench.load import Watcher

__all__ = ["Progress"]


class Progress(Watcher):
    """Writes one line again and again, and nothing where the output is no terminal.

    Args:
        output: for people, such as standard error.
        seconds: that a load takes.
    """

    def __init__(self, output: TextIO, seconds: float) -> None:
        self._output = output
        self._seconds = seconds
        self._shows = output.isatty()
        self._last = (0.0, 0)
        self._label = ""

    def says(self, label: str) -> None:
        """What is measured now, such as "repeat 2 of 3"."""
        self._label = label

    def begins(self) -> None:
        """See ``Watcher``."""
        self._last = (0.0, 0)

    def goes_on(self, seconds: float, answered: int, failed: int) -> None:
        """See ``Watcher``."""
        if not self._shows:
            return
        earlier, before = self._last
        if seconds - earlier < 0.2:
            return
        rate = (answered - before) / (seconds - earlier)
        self._last = (seconds, answered)
        filled = round(20 * min(1.0, seconds / self._seconds))
        bar = "#" * filled + "." * (20 - filled)
        wrong = f", {failed:,} failed" if failed else ""
        self._output.write(f"\r\x1b[K{self._label} [{bar}] {rate:,.0f} requests/s{wrong}")
        self._output.flush()

    def ends(self) -> None:
        """See ``Watcher``."""
        if self._shows:
            self._output.write("\r\x1b[K")
            self._output.flush()
