"""The last of the bounds on repeated lines: whatever happens how often, the log grows slowly.

Lines are alike if one logger made them of one template. What comes from peers is cut shorter still where it is made
(``h2grpc.quiet_log``), because a worker has better things to do than to make lines for nobody; here is everything else,
and what many workers say together.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from threading import RLock
from typing import Final

__all__ = ["FEW_PER_PERIOD", "LINES_PER_PERIOD", "MAX_KINDS", "PERIOD_NS", "Repeats"]

PERIOD_NS: Final = 10_000_000_000
#: Enough for the models of a repository, each of which is a line at the start.
LINES_PER_PERIOD: Final = 50
#: Of lines with a traceback, which is most of their size.
FEW_PER_PERIOD: Final = 5
#: Kinds that are told apart; a library that writes values into its templates makes a kind of every line.
MAX_KINDS: Final = 1_000

_Key = tuple[str, int, str]


@dataclass(slots=True)
class _Kind:
    end_ns: int
    lines: int = 0
    left_out: int = 0
    #: one that was left out
    last: str = ""


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
        self._kinds: dict[_Key, _Kind] = {}
        #: lines of all times that were not admitted
        self.left_out = 0

    def admit(self, record: logging.LogRecord, now_ns: int) -> bool:
        """Whether a line is to be written.

        Args:
            record: it.
            now_ns: monotonic.
        """
        key = (record.name, record.levelno, _template(record))
        limit = FEW_PER_PERIOD if _has_traceback(record) else LINES_PER_PERIOD
        report: logging.LogRecord | None = None
        with self._lock:
            kind = self._kinds.get(key)
            if kind is None and len(self._kinds) >= MAX_KINDS:
                self._forget(now_ns)
                if len(self._kinds) >= MAX_KINDS:
                    key = (record.name, record.levelno, "")
                    kind = self._kinds.get(key)
            if kind is None or now_ns >= kind.end_ns:
                if kind is not None:
                    report = _report_of(key, kind)
                kind = self._kinds[key] = _Kind(now_ns + PERIOD_NS)
            kind.lines += 1
            admitted = kind.lines <= limit
            first_left_out = False
            if not admitted:
                first_left_out = not kind.left_out
                kind.left_out += 1
                self.left_out += 1
                if first_left_out:
                    kind.last = _message(record)
        if report is not None:
            self._report(report)
        if first_left_out:
            self._wake()
        return admitted

    def flush(self, now_ns: int) -> int | None:
        """Tell what was left out in the periods that are over.

        Returns:
            How many nanoseconds later there may be more to tell; None if nothing was left out.
        """
        reports: list[logging.LogRecord] = []
        with self._lock:
            for key, kind in list(self._kinds.items()):
                if now_ns >= kind.end_ns:
                    del self._kinds[key]
                    report = _report_of(key, kind)
                    if report is not None:
                        reports.append(report)
            next_ns = min((kind.end_ns for kind in self._kinds.values() if kind.left_out), default=None)
        for report in reports:
            self._report(report)
        return None if next_ns is None else next_ns - now_ns

    def _forget(self, now_ns: int) -> None:
        """Make room; what was left out waits for ``flush``."""
        for key in [key for key, kind in self._kinds.items() if now_ns >= kind.end_ns and not kind.left_out]:
            del self._kinds[key]


def _report_of(key: _Key, kind: _Kind) -> logging.LogRecord | None:
    if not kind.left_out:
        return None
    name, level, _ = key
    text = "and %d more lines in %d s like: %s"
    return logging.LogRecord(name, level, "", 0, text, (kind.left_out, PERIOD_NS // 1_000_000_000, kind.last), None)


def _template(record: logging.LogRecord) -> str:
    """What lines of a kind have in common; those of structlog's loggers are dicts."""
    return str(record.msg.get("event") if isinstance(record.msg, dict) else record.msg)


def _has_traceback(record: logging.LogRecord) -> bool:
    return bool(record.msg.get("exc_info") if isinstance(record.msg, dict) else record.exc_info)


def _message(record: logging.LogRecord) -> str:
    try:
        return _template(record) if isinstance(record.msg, dict) else record.getMessage()
    except Exception:
        return str(record.msg)
