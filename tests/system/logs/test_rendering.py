from __future__ import annotations

import json
import logging
import re
import sys
from typing import Any

import pytest

from toutates.system.logs.levels import LogLevels
from toutates.system.logs.rendering import MAX_EVENT, MAX_FIELD, MAX_TRACEBACK, LogFormat, LogFormatter
from toutates.system.text import printable


def formatter(log_format: LogFormat = "text", *, iso8601: bool = False, colours: bool = False) -> LogFormatter:
    return LogFormatter(log_format, lambda: LogLevels(iso8601=iso8601), colours=colours)


def record(text: str, *arguments: object, level: int = logging.INFO, error: bool = False, **extra: object) -> Any:
    """Made as ``logging`` does."""
    logger = logging.getLogger("toutates.net.worker")
    made = logger.makeRecord(
        logger.name, level, "", 0, text, arguments, sys.exc_info() if error else None, extra=extra or None
    )
    made.created = 1_700_000_000.123456
    return made


def failing(text: str) -> logging.LogRecord:
    try:
        raise ValueError(text)
    except ValueError:
        made: logging.LogRecord = record("it failed", level=logging.ERROR, error=True)
        return made


def test_text_has_time_level_area_and_what_happened() -> None:
    line = formatter().of_record(record("connection from %s ended", "10.0.0.1:5"))
    assert re.fullmatch(r"2023-11-1\d \d\d:\d\d:20\.123 INFO    h2grpc: connection from 10\.0\.0\.1:5 ended\n", line)
    line = formatter(iso8601=True).of_record(record("x", level=logging.WARNING))
    assert line == "2023-11-14T22:13:20.123456Z WARNING h2grpc: x\n"


def test_json_has_the_same_under_fixed_keys_and_fields_beside_them() -> None:
    line = formatter("json").of_record(record("connection from %s ended", "10.0.0.1:5", peer="10.0.0.1:5", rows=3))
    assert line.endswith("}\n")
    assert list(json.loads(line).items()) == [
        ("timestamp", "2023-11-14T22:13:20.123456Z"),
        ("level", "info"),
        ("area", "h2grpc"),
        ("event", "connection from 10.0.0.1:5 ended"),
        ("peer", "10.0.0.1:5"),
        ("rows", 3),
    ]


def test_people_do_not_read_twice_what_the_sentence_says() -> None:
    line = formatter().of_record(record("model '%s' is gone", "m", model="m", request_id="a b"))
    assert line.endswith("model 'm' is gone request_id=\"a b\"\n")


def test_a_traceback_is_below_its_line_and_indented() -> None:
    lines = formatter().of_record(failing("bad\n2026-01-01 00:00:00.000 ERROR   server: forged")).splitlines()
    assert lines[0].endswith("ERROR   h2grpc: it failed")
    assert lines[1] == "    Traceback (most recent call last):"
    assert "    2026-01-01 00:00:00.000 ERROR   server: forged" in lines
    assert all(line.startswith("    ") for line in lines[1:])


def test_a_traceback_is_text_under_a_key_in_json() -> None:
    line = json.loads(formatter("json").of_record(failing("why")))
    assert line["event"] == "it failed"
    assert line["exception"].startswith("Traceback (most recent call last):\n")
    assert line["exception"].endswith("ValueError: why")


@pytest.mark.parametrize("log_format", ["text", "json"])
@pytest.mark.parametrize(
    "evil",
    ["a\nb", "a\r\nb", "\x1b[2J\x1b[31mred", "\x9b31m", "\x00", "\u2028line", "\u202eright to left", "\ud800", "\x7f"],
)
def test_what_clients_write_is_one_line_that_moves_nothing(log_format: LogFormat, evil: str) -> None:
    for line in (
        formatter(log_format).of_record(record("model '%s'", evil, name_of_it=evil)),
        formatter(log_format).of_fields(time_s=1.0, level=logging.INFO, area="access", event=evil, request_id=evil),
    ):
        assert line.endswith("\n")
        assert line[:-1].isprintable()
        line.encode("utf-8")
    shown = formatter(log_format).of_record(failing(evil))
    assert all(one.isprintable() for one in shown.split("\n"))


def test_other_scripts_are_shown_as_they_are() -> None:
    assert printable("Größe 模型 😀") == "Größe 模型 😀"


def test_what_is_long_is_cut() -> None:
    line = json.loads(formatter("json").of_record(record("%s", "x" * 100_000, model="m" * 100_000)))
    assert len(line["event"]) < MAX_EVENT + 50
    assert line["event"].endswith("... (91808 more characters)")
    assert len(line["model"]) < MAX_FIELD + 50
    shown = formatter("json").of_record(failing("e" * 100_000))
    assert len(json.loads(shown)["exception"]) < MAX_TRACEBACK + 50


def test_colours_are_for_terminals() -> None:
    plain = formatter().of_record(record("x", level=logging.ERROR))
    coloured = formatter(colours=True).of_record(record("x", level=logging.ERROR))
    assert "\x1b[31mERROR" in coloured
    assert re.sub("\x1b\\[[0-9;]*m", "", coloured) == plain


def test_a_line_that_cannot_be_made_says_so() -> None:
    class Bad:
        def __str__(self) -> str:
            raise RuntimeError

    for made in (record("%d rows", "three"), record("%s", Bad()), record("%s", "x", field=Bad())):
        assert "a line of the log could not be made" in formatter().of_record(made)


def test_values_behind_keys_are_one_word_each() -> None:
    line = formatter().of_fields(
        time_s=0.0, level=logging.INFO, area="access", event="ModelInfer", rows=2, queue_ms=0.25, error="a=b", id=""
    )
    assert line.endswith('access: ModelInfer rows=2 queue_ms=0.250 error="a=b" id=""\n')
