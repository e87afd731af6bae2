"""Sets up the log of the process, and takes it down at the end."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

from toutates.system.interpreter import watch_gil
from toutates.system.logs.captured import CapturedStream
from toutates.system.logs.control import LogControl
from toutates.system.logs.handler import LogHandler
from toutates.system.logs.levels import PACKAGE, parse_levels
from toutates.system.logs.output import LogOutput
from toutates.system.logs.recent import RecentWarnings
from toutates.system.logs.rendering import LogFormat, LogFormatter

__all__ = ["Logs", "start_logs"]

STANDARD_OUTPUT: Final = 1
STANDARD_ERROR: Final = 2
logger = logging.getLogger(__name__)

#: How long the end waits for the reader of the log.
CLOSE_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Logs:
    """The log as the rest of the server knows it.

    Attributes:
        control: has the levels.
        recent: has the last warnings.
        output: the thread that writes; None where the log belongs to somebody else, as in a test.
        formatter: makes its lines; None likewise.
        handler: takes records from ``logging``; None likewise.
        has_tables: whether ``show`` writes; not so in a process whose tables another one has shown.
    """

    control: LogControl
    recent: RecentWarnings
    output: LogOutput | None = None
    formatter: LogFormatter | None = None
    handler: LogHandler | None = None
    has_tables: bool = True

    @classmethod
    def without_output(cls, levels: str) -> Logs:
        """For a server in a process with a log of its own, which is left as it is until a request changes levels."""
        return cls(LogControl(parse_levels(levels)), RecentWarnings())

    def place(self, cpus: tuple[int, ...]) -> None:
        """Pin the log's thread to these CPUs, if there are any."""
        if self.output is not None and cpus:
            self.output.place(set(cpus))

    def show(self, table: str, records: Iterable[Mapping[str, Any]]) -> None:
        """Write a table to standard output; where the log is JSON, an object for each of its records.

        Args:
            table: lines for people.
            records: the same as fields; each has the key ``event``.
        """
        if not self.has_tables:
            return
        if self.output is None or self.formatter is None:
            print(table, flush=True)
            return
        if self.formatter.log_format == "json":
            fields: dict[str, Any] = {"time_s": time.time(), "level": logging.INFO, "area": "server"}
            table = "".join(self.formatter.of_fields(**fields, **record) for record in records)
        else:
            table += "\n"
        self.output.put(table, STANDARD_OUTPUT)

    def only_news(self, known: Collection[str] | None) -> None:
        """Write only warnings and errors that are not in ``known``, until this is called with None."""
        if self.handler is not None:
            self.handler.known = None if known is None else frozenset(known)

    def write(self, area: str, text: str) -> None:
        """Write all lines of a text that somebody has asked for, whatever the levels and however often."""
        for line in text.splitlines():
            if self.output is None or self.formatter is None:
                logging.getLogger(f"{PACKAGE}.{area}").info("%s", line)
            elif line:
                self.output.put(self.formatter.of_fields(time_s=time.time(), level=logging.INFO, area=area, event=line))

    @property
    def lost(self) -> int:
        """Number of lines since the start that were not written: they came too often, or could not be written."""
        return (self.output.lost if self.output else 0) + (self.handler.left_out if self.handler else 0)


@contextmanager
def start_logs(
    levels: str, log_format: LogFormat = "text", *, fd: int = STANDARD_ERROR, process: int | None = None
) -> Iterator[Logs]:
    """Set up the log of the process for the block, at whose end the rest of the lines is written.

    Args:
        levels: in the form of ``--log-level``.
        log_format: the form of the lines; LogSettings may change that of the times in text.
        fd: where the log goes.
        process: number of this process, which its lines carry; None where there is but one.

    Raises:
        ValueError: the levels are not of that form.
    """
    control = LogControl(replace(parse_levels(levels), iso8601=log_format == "ISO8601"))
    captured = CapturedStream(fd) if log_format == "json" else None
    if captured is not None:
        fd = captured.real
    recent = RecentWarnings()
    formatter = LogFormatter(log_format, lambda: control.levels, colours=_takes_colours(fd), process=process)

    def tell_loss(lines: int, why: str) -> str:
        text = f"{lines} lines of the log were lost: {why}"
        return formatter.of_fields(time_s=time.time(), level=logging.WARNING, area="logs", event=text, lines=lines)

    output = LogOutput(fd, tell_loss)
    handler = LogHandler(control, formatter, recent, output.put, output.wake)
    root = logging.getLogger()
    control.apply()
    root.addHandler(handler)
    output.add_chore(handler.flush_repeats)
    output.start()
    try:
        with _what_python_says():
            yield Logs(control, recent, output, formatter, handler)
    finally:
        if captured is not None:
            captured.end()
        # First what is left: from here on lines would only wait.
        has_ended = output.close(CLOSE_S)
        root.removeHandler(handler)
        if captured is not None and has_ended:
            captured.close()


@contextmanager
def _what_python_says() -> Iterator[None]:
    """Log Python's warnings, and exceptions that nobody catches, within the block."""

    def of_thread(said: threading.ExceptHookArgs) -> None:
        if said.exc_type is not SystemExit and said.exc_value is not None:
            name = said.thread.name if said.thread is not None else "a thread"
            logger.error("%s failed", name, exc_info=said.exc_value)

    def unraisable(said: sys.UnraisableHookArgs) -> None:
        text = said.err_msg or "Exception ignored in"
        logger.error("%s: %r", text, said.object, exc_info=said.exc_value)

    hooks = threading.excepthook, sys.unraisablehook
    threading.excepthook, sys.unraisablehook = of_thread, unraisable
    logging.captureWarnings(True)
    watch_gil()  # again: what noted the module before has just been replaced
    try:
        yield
    finally:
        logging.captureWarnings(False)
        threading.excepthook, sys.unraisablehook = hooks


def _takes_colours(fd: int) -> bool:
    """Whether the destination is a terminal whose user allows colours (https://no-color.org)."""
    try:
        return os.isatty(fd) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    except OSError:
        return False
