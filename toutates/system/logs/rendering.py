"""Renders lines of the log: text for people, or JSON for programs.

    2026-11-21 12:00:00.123 INFO    server: triton: toutates 0.1.0 on CPython ... serving gRPC on 0.0.0.0:8001
    {"timestamp": "2026-11-21T11:00:00.123456Z", "level": "info", "area": "server", "event": "triton: toutates ..."}

Where there are several processes, a line carries the number of its own: ``server[1]:``, or ``"process": 1``.

Parts of a line may come from a client: model names, reasons of connections that ended, texts of errors. So that they
cannot begin a new line or move a terminal's cursor, what cannot be printed is escaped; what is long is cut. A traceback
has lines of its own, which are indented in text.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, Literal

from toutates.system.logs.levels import ANYWAY, LogLevels, area_of, level_name
from toutates.system.text import printable

__all__ = ["LogFormat", "LogFormatter", "LogLine"]

#: Forms of the log; ISO8601 is text that begins with times in ISO 8601 and UTC.
LogFormat = Literal["text", "ISO8601", "json"]
#: One line before it is rendered. Keys that are always there: time_s, level, area, event; then its fields, and the
#: traceback under ``exception``.
LogLine = Mapping[str, Any]

MAX_EVENT: Final = 8_192
MAX_FIELD: Final = 1_024
MAX_TRACEBACK: Final = 32_768

_RESET: Final = "\x1b[0m"
_COLOURS: Final = {
    "debug": "\x1b[2m",
    "warning": "\x1b[33m",
    "error": "\x1b[31m",
    "critical": "\x1b[1;31m",
}
_DIM: Final = "\x1b[2m"
#: Keys that every line has, and that of the traceback; the other keys are fields.
_OWN_KEYS: Final = frozenset({"time_s", "level", "area", "event", "exception"})
#: Attributes of a record that are not fields: those that every record has, or formatters of other handlers add.
_NOT_FIELDS: Final = _OWN_KEYS | {ANYWAY} | vars(logging.makeLogRecord({})).keys() | {"message", "asctime"}
_TRACEBACKS: Final = logging.Formatter()


class LogFormatter:
    """Makes lines out of records of ``logging``, and out of fields.

    Args:
        log_format: the form of the lines. Whether text has times in ISO 8601, the levels say.
        levels: returns the levels in force, which set the form of the time in text.
        colours: whether levels and areas are coloured. Text only.
        process: number of the process, which each line then carries; None where there is but one.
    """

    def __init__(
        self,
        log_format: LogFormat,
        levels: Callable[[], LogLevels],
        *,
        colours: bool = False,
        process: int | None = None,
    ) -> None:
        self.log_format: LogFormat = log_format
        self._render: Callable[[LogLine, str | None], str] = (
            _Json(process) if log_format == "json" else _Text(levels, colours, process)
        )

    def of_record(self, record: logging.LogRecord) -> str:
        """A record's line, which ends with a newline. Never fails."""
        try:
            line = _cleaned(_described(record))
            # In text, fields whose values are part of the sentence are left out.
            return self._render(line, line["event"])
        except Exception as error:  # arguments that do not fit, a __str__ that raises
            text = f"a line of the log could not be made ({type(error).__name__}): {record.msg!r}"
            return self.of_fields(time_s=record.created, level=record.levelno, area=area_of(record.name), event=text)

    def of_fields(self, *, time_s: float, level: int, area: str, event: str, **fields: object) -> str:
        """The line of these fields, which ends with a newline.

        Args:
            time_s: seconds of the Unix epoch.
            level: of ``logging``.
            area: see ``levels``.
            event: what happened.
            fields: further ones.
        """
        line = {"time_s": time_s, "level": level_name(level), "area": area, "event": event, **fields}
        return self._render(_cleaned(line), None)


def _described(record: logging.LogRecord) -> LogLine:
    """A record as a line: its sentence, the fields of ``extra``, and its traceback."""
    line = {
        "time_s": record.created,
        "level": level_name(record.levelno),
        "area": area_of(record.name),
        "event": record.getMessage(),
    }
    line |= {key: value for key, value in vars(record).items() if key not in _NOT_FIELDS}
    if record.exc_info and record.exc_info[0] is not None:
        line["exception"] = _TRACEBACKS.formatException(record.exc_info)
    return line


def _cleaned(line: LogLine) -> LogLine:
    """The line with values that are safe to show, wherever they come from."""
    cleaned: dict[str, Any] = {}
    for key, value in line.items():
        if key == "exception":
            text = str(value)
            cut = len(text) - MAX_TRACEBACK
            # The end is kept, which names the exception.
            text = text if cut <= 0 else f"({cut} characters left out)\n{text[cut:]}"
            cleaned[key] = "\n".join(printable(one, MAX_EVENT) for one in text.split("\n"))
        elif isinstance(value, bool | int | float) or value is None:
            cleaned[key] = value
        else:
            cleaned[key] = printable(str(value), MAX_EVENT if key == "event" else MAX_FIELD)
    return cleaned


class _Json:
    """Renders JSON: an object per line, with the process where there are several."""

    def __init__(self, process: int | None) -> None:
        self._process = {} if process is None else {"process": process}

    def __call__(self, line: LogLine, said: str | None) -> str:
        stamp = datetime.fromtimestamp(line["time_s"], UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        fields = {key: value for key, value in line.items() if key != "time_s"}
        return json.dumps({"timestamp": stamp, **self._process, **fields}) + "\n"


class _Text:
    """Renders text: one line, and the traceback below it; without fields whose values are part of ``said``."""

    def __init__(self, levels: Callable[[], LogLevels], colours: bool, process: int | None) -> None:
        self._levels = levels
        self._colours = colours
        self._process = "" if process is None else f"[{process}]"

    def __call__(self, line: LogLine, said: str | None) -> str:
        level, area = line["level"], line["area"]
        level_text, area_text = f"{level.upper():<7}", area + self._process
        if self._colours:
            level_text = f"{_COLOURS.get(level, '')}{level_text}{_RESET}"
            area_text = f"{_DIM}{area_text}{_RESET}"
        parts = [f"{self._time(line['time_s'])} {level_text} {area_text}: {line['event']}"]
        for key, value in line.items():
            if key not in _OWN_KEYS and (said is None or str(value) not in said):
                parts.append(f"{key}={_word(value)}")
        text = " ".join(parts) + "\n"
        if "exception" in line:
            text += "".join(f"    {below}\n" for below in line["exception"].split("\n"))
        return text

    def _time(self, time_s: float) -> str:
        if self._levels().iso8601:
            return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        milliseconds = int(time_s * 1_000)
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(milliseconds // 1_000))
        return f"{stamp}.{milliseconds % 1_000:03d}"


def _word(value: Any) -> str:
    """The value of a field, in quotes if it would not be one word."""
    if isinstance(value, float):
        return f"{value:.3f}"
    text = str(value)
    return json.dumps(text, ensure_ascii=False) if not text or " " in text or '"' in text or "=" in text else text
