"""The last of the limits on repeated lines: whatever happens how often, the log grows slowly.

Lines are alike if one logger made them of one template. What comes from peers is cut shorter still where it is made
(``net.quiet_log``), because a worker has better things to do than to make lines for nobody; here is everything else,
and what many workers say together.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import RLock
from typing import Final

from toutates.system.logs.limit import PERIOD_NS, LineLimit

__all__ = ["FEW_PER_PERIOD", "LINES_PER_PERIOD", "MAX_KINDS", "Repeats"]

#: Enough for the models of a repository, each of which is a line at the start.
LINES_PER_PERIOD: Final = 50
#: Of lines with a traceback, which is most of their size.
FEW_PER_PERIOD: Final = 5
#: Kinds that are told apart; a library that writes values into its templates makes a kind of every line.
MAX_KINDS: Final = 1_000

_Kind = tuple[str, int, str]


class Repeats:
    """Any thread may use it.

    Args:
        report: takes a line that tells of others that were left out. Called without the lock.
        wake: called when there is something to ``flush`` later.
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
        """Lines of all times that were not admitted."""
        return self._limit.left_out

    def admit(self, record: logging.LogRecord, now_ns: int) -> bool:
        """Whether a line is to be written.

        Args:
            record: it.
            now_ns: monotonic.
        """
        kind = (record.name, record.levelno, str(record.msg))
        most = FEW_PER_PERIOD if record.exc_info else LINES_PER_PERIOD
        with self._lock:
            if not self._limit.has_room(kind, now_ns):
                kind = (record.name, record.levelno, "")
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
        """Tell what was left out in the periods that are over.

        Returns:
            How many nanoseconds later there may be more to tell; None if nothing was left out.
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
