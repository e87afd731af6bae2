"""Limits repeated lines, so that the log grows slowly whatever happens.

Lines are alike if one logger made them of one template. Lines about peers are limited before, by each worker
(``net.quiet_log``), which saves it the work of making them. This limit is for all other lines, and for what many
workers log together.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import RLock
from typing import Final

from toutates.system.logs.levels import ANYWAY
from toutates.system.logs.limit import PERIOD_NS, LineLimit

__all__ = ["FEW_PER_PERIOD", "LINES_PER_PERIOD", "MAX_KINDS", "Repeats"]

#: Lines of a kind in a period: enough for the models of a repository, of which each has a line at the start.
LINES_PER_PERIOD: Final = 50
#: Lines with a traceback, which are larger, in a period; and lines that nobody can switch off.
FEW_PER_PERIOD: Final = 5
#: Kinds that are counted apart. A library that writes values into its templates makes a kind of every line.
MAX_KINDS: Final = 1_000

_Kind = tuple[str, int, str]


class Repeats:
    """Decides which lines are written. Any thread may use it.

    Args:
        report: takes a record that says how many lines were left out. Called without the lock.
        wake: called when ``flush`` will have something to report.
    """

    def __init__(self, report: Callable[[logging.LogRecord], None], wake: Callable[[], None]) -> None:
        self._report = report
        self._wake = wake
        self._lock = RLock()  # a finalizer may log at any time, in here too
        self._limit: LineLimit[_Kind] = LineLimit(self._end, max_kinds=MAX_KINDS)
        #: of each kind, a line that was left out
        self._examples: dict[_Kind, str] = {}
        #: reports to be made once the lock is free
        self._ended: list[logging.LogRecord] = []

    @property
    def left_out(self) -> int:
        """Number of lines since the start that were not admitted."""
        return self._limit.left_out

    def admit(self, record: logging.LogRecord, now_ns: int) -> bool:
        """Whether a line is to be written.

        Args:
            record: the line's.
            now_ns: monotonic.
        """
        kind = (record.name, record.levelno, str(record.msg))
        anyway = hasattr(record, ANYWAY)
        most = FEW_PER_PERIOD if record.exc_info or anyway else LINES_PER_PERIOD
        with self._lock:
            if not self._limit.has_room(kind, now_ns):
                kind = (record.name, record.levelno, ANYWAY if anyway else "")
            left_out = self._limit.count(kind, now_ns, most)
            if left_out == 1:
                self._examples[kind] = _message(record)
            ended, self._ended = self._ended, []
        for report in ended:
            self._report(report)
        if left_out == 1:
            self._wake()
        return not left_out

    def flush(self, now_ns: int) -> int | None:
        """Report the lines that were left out in periods that are over.

        Returns:
            After how many nanoseconds there may be more to report; None if nothing was left out.
        """
        with self._lock:
            self._limit.flush(now_ns)
            next_ns = self._limit.next_ns
            ended, self._ended = self._ended, []
        for report in ended:
            self._report(report)
        return None if next_ns is None else next_ns - now_ns

    def _end(self, kind: _Kind, left_out: int) -> None:
        name, level, _ = kind
        arguments = (left_out, PERIOD_NS // 1_000_000_000, self._examples.pop(kind, ""))
        self._ended.append(logging.LogRecord(name, level, "", 0, "and %d more lines in %d s like: %s", arguments, None))


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:
        return str(record.msg)
