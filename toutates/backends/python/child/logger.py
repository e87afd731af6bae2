"""``Logger`` of ``triton_python_backend_utils``: lines for the server's log."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

__all__ = ["MARK", "Logger", "set_sink"]

#: Begins a line of standard error that carries its level, file and line.
MARK = "\x1e"


_whose = threading.local()


def set_sink(sink: Callable[[str, str], None]) -> None:
    """Have lines of this thread given to a function: the letter of the level, and the text. Else they are printed."""
    _whose.sink = sink


class _Level:
    def __init__(self, letter: str) -> None:
        self.letter = letter


class Logger:
    """Writes lines to the server's log, with the model's file and line."""

    INFO, WARNING, ERROR, VERBOSE = _Level("I"), _Level("W"), _Level("E"), _Level("V")

    @staticmethod
    def log(message: str, level: Any = INFO) -> None:
        """Write a line of a level."""
        _write(message, level)

    @staticmethod
    def log_info(message: str) -> None:
        """Write a line of level INFO."""
        _write(message, Logger.INFO)

    @staticmethod
    def log_warn(message: str) -> None:
        """Write a line of level WARNING."""
        _write(message, Logger.WARNING)

    @staticmethod
    def log_error(message: str) -> None:
        """Write a line of level ERROR."""
        _write(message, Logger.ERROR)

    @staticmethod
    def log_verbose(message: str) -> None:
        """Write a line of level VERBOSE."""
        _write(message, Logger.VERBOSE)


def _write(message: Any, level: Any) -> None:
    if not (isinstance(message, str) and isinstance(level, _Level)):
        raise TypeError("log(message: str, level: Logger.INFO, WARNING, ERROR or VERBOSE)")
    frame = sys._getframe(2)
    where = f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno}"
    lines = message.splitlines() or [""]
    sink = getattr(_whose, "sink", None)
    if sink is not None:
        for line in lines:
            sink(level.letter, f"{where}: {line}")
        return
    sys.stderr.write("".join(f"{MARK}{level.letter}{where}{MARK}{line}\n" for line in lines))
