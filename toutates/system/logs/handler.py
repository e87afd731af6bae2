"""The handler that ``logging`` gives every record to."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection

from toutates.system.logs.control import LogControl
from toutates.system.logs.levels import ANYWAY, area_of, level_name
from toutates.system.logs.recent import MAX_CHARACTERS, RecentWarning, RecentWarnings
from toutates.system.logs.rendering import LogFormatter
from toutates.system.logs.repeats import Repeats
from toutates.system.text import described, printable

__all__ = ["LogHandler"]


class LogHandler(logging.Handler):
    """Makes a line of a record in the thread that logs, and never waits, because another thread writes the line.

    Args:
        control: has the levels.
        formatter: makes lines.
        recent: gets warnings, errors and critical lines.
        put: takes lines.
        wake: called when there will be something to ``flush_repeats``.

    Attributes:
        known: while it is set, only warnings and errors are written whose text it does not have.
    """

    def __init__(
        self,
        control: LogControl,
        formatter: LogFormatter,
        recent: RecentWarnings,
        put: Callable[[str], None],
        wake: Callable[[], None],
    ) -> None:
        super().__init__()
        self.known: Collection[str] | None = None
        self._control = control
        self._lines = formatter
        self._recent = recent
        self._put = put
        self._repeats = Repeats(self.emit, wake)

    def handle(self, record: logging.LogRecord) -> bool:
        """Do as ``logging.Handler`` does, without its lock: each part has a lock of its own or needs none."""
        if not (hasattr(record, ANYWAY) or self._control.levels.shows(area_of(record.name), record.levelno)):
            return False
        if self.known is not None and (
            record.levelno < logging.WARNING or printable(_event(record), MAX_CHARACTERS) in self.known
        ):
            return False
        if not self._repeats.admit(record, time.monotonic_ns()):
            return False
        self.emit(record)
        return True

    def emit(self, record: logging.LogRecord) -> None:
        """Have a line written, without asking for levels and repetitions."""
        if record.levelno >= logging.WARNING:
            self._recent.add(
                RecentWarning(
                    record.created,
                    level_name(record.levelno),
                    area_of(record.name),
                    printable(_event(record), MAX_CHARACTERS),
                )
            )
        self._put(self._lines.of_record(record))

    @property
    def left_out(self) -> int:
        """Number of lines that were not written because they came too often."""
        return self._repeats.left_out

    def flush_repeats(self, now_ns: int) -> int | None:
        """See ``Repeats.flush``."""
        return self._repeats.flush(now_ns)


def _event(record: logging.LogRecord) -> str:
    """The text of a record, with its exception behind it."""
    try:
        text = record.getMessage()
    except Exception:
        text = str(record.msg)
    error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
    if error is None:
        return text
    try:
        return f"{text}: {described(error)}"
    except Exception:
        return f"{text}: {type(error).__name__}"
