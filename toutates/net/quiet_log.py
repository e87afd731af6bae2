"""A log that one bad peer cannot fill: the first lines of a kind in a period, then how many more there were."""

from __future__ import annotations

import logging
from typing import Final

from toutates.system.logs.limit import PERIOD_NS, LineLimit

__all__ = ["QuietLog"]

LINES_PER_PERIOD: Final = 5


class QuietLog:
    """Leaves lines out before they are made, because a worker has better things to do. Used by one thread.

    Args:
        logger: where lines go.
        name: begins every line.
    """

    def __init__(self, logger: logging.Logger, name: str) -> None:
        self._logger = logger
        self._name = name
        self._limit: LineLimit[tuple[int, str]] = LineLimit(self._report)
        self._failed = 0

    @property
    def dropped(self) -> int:
        """Lines left out so far; other threads may read it."""
        return self._limit.left_out + self._failed

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
            self._failed += 1

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
        if not self._limit.count((level, kind), now_ns, LINES_PER_PERIOD):
            fields = {"peer": peer} if peer else None
            self._logger.log(level, "%s: " + text, self._name, *arguments, exc_info=error, extra=fields)

    def flush(self, now_ns: int) -> None:
        """Say what was left out in the periods that are over."""
        self._limit.flush(now_ns)

    @property
    def next_ns(self) -> int | None:
        """When ``flush`` will next have something to say; None if nothing was left out."""
        return self._limit.next_ns

    def _report(self, kind: tuple[int, str], left_out: int) -> None:
        level, name = kind
        self._logger.log(level, "%s: and %d more %s in %d s", self._name, left_out, name, PERIOD_NS // 1_000_000_000)
