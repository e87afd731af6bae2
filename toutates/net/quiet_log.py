"""A log that one bad peer cannot fill: the first lines of a kind in a period, then how many more there were."""

from __future__ import annotations

import logging
from typing import Final

__all__ = ["QuietLog"]

PERIOD_NS: Final = 10_000_000_000
LINES_PER_PERIOD: Final = 5


class QuietLog:
    """Used by one thread.

    Args:
        logger: where lines go.
        name: begins every line.

    Attributes:
        dropped: lines left out so far; other threads may read it.
    """

    def __init__(self, logger: logging.Logger, name: str) -> None:
        self._logger = logger
        self._name = name
        self.dropped = 0
        #: by kind: the level, when the period ends, and how many lines it has had
        self._kinds: dict[str, tuple[int, int, int]] = {}

    def log(
        self,
        level: int,
        kind: str,
        now_ns: int,
        text: str,
        *arguments: object,
        error: Exception | None = None,
        peer: str = "",
    ) -> None:
        """Log a line, unless its kind has had LINES_PER_PERIOD of them in this period.

        Args:
            level: of ``logging``.
            kind: what the lines have in common, in the plural; says what was left out.
            now_ns: monotonic.
            text, arguments: as for ``logging``.
            error: its traceback follows the line.
            peer: whom the line is about; a field of the record.
        """
        if not self._logger.isEnabledFor(level):
            return
        try:
            self._log(level, kind, now_ns, text, arguments, error, peer)
        except Exception:  # without memory for the line, for instance; whoever logs has a failure to deal with already
            self.dropped += 1

    def _log(
        self,
        level: int,
        kind: str,
        now_ns: int,
        text: str,
        arguments: tuple[object, ...],
        error: Exception | None,
        peer: str,
    ) -> None:
        _, end_ns, lines = self._kinds.get(kind, (level, 0, 0))
        if now_ns >= end_ns:
            self._report(kind)
            end_ns, lines = now_ns + PERIOD_NS, 0
        self._kinds[kind] = (level, end_ns, lines + 1)
        if lines < LINES_PER_PERIOD:
            fields = {"peer": peer} if peer else None
            self._logger.log(level, "%s: " + text, self._name, *arguments, exc_info=error, extra=fields)
        else:
            self.dropped += 1

    def flush(self, now_ns: int) -> None:
        """Say what was left out in the periods that are over."""
        for kind in [kind for kind, (_, end_ns, _) in self._kinds.items() if now_ns >= end_ns]:
            self._report(kind)

    @property
    def next_ns(self) -> int | None:
        """When ``flush`` will next have something to say; None if nothing was left out."""
        return min((end for _, end, lines in self._kinds.values() if lines > LINES_PER_PERIOD), default=None)

    def _report(self, kind: str) -> None:
        level, _, lines = self._kinds.pop(kind, (0, 0, 0))
        if lines > LINES_PER_PERIOD:
            self._logger.log(level, "%s: and %d more %s in 10 s", self._name, lines - LINES_PER_PERIOD, kind)
