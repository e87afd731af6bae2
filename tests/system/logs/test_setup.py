"""All of it together, as the server sets it up."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import wait_until
from toutates.system.logs import setup as logs_setup
from toutates.system.logs.limit import LineLimit
from toutates.system.logs.recent import KEPT, MAX_CHARACTERS
from toutates.system.logs.rendering import LogFormat
from toutates.system.logs.repeats import FEW_PER_PERIOD, LINES_PER_PERIOD
from toutates.system.logs.setup import Logs, start_logs

logger = logging.getLogger("toutates.models.manager")


@contextmanager
def logging_to(path: Path, levels: str = "info", log_format: LogFormat = "json") -> Iterator[Logs]:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        with start_logs(levels, log_format, fd=fd) as logs:
            yield logs
    finally:
        os.close(fd)


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_what_was_said_is_in_the_log_once_the_block_ends(tmp_path: Path) -> None:
    with logging_to(tmp_path / "log", "info,models=debug") as logs:
        logger.debug("seen")
        logging.getLogger("toutates.server.server").debug("unseen")
        logging.getLogger("toutates.server.server").info("a sentence", extra={"port": 8001})
    assert [(line["area"], line["level"], line["event"]) for line in lines_of(tmp_path / "log")] == [
        ("models", "debug", "seen"),
        ("server", "info", "a sentence"),
    ]
    assert lines_of(tmp_path / "log")[1]["port"] == 8001
    assert logs.lost == 0
    assert not any(type(handler).__module__.startswith("toutates") for handler in logging.getLogger().handlers)


def test_text_may_have_times_in_utc_until_a_request_changes_them(tmp_path: Path) -> None:
    with logging_to(tmp_path / "log", log_format="ISO8601") as logs:
        logger.info("one")
        assert logs.control.levels.iso8601
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z INFO +models: one$", (tmp_path / "log").read_text())


def test_it_is_written_when_the_block_fails_too(tmp_path: Path) -> None:
    def fail() -> None:
        with logging_to(tmp_path / "log"):
            for number in range(40):
                logger.info("before the crash: %d", number)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert len(lines_of(tmp_path / "log")) == 40


def test_a_flood_leaves_few_lines_and_a_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    defaults = LineLimit.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "period_ns", 3_600 * 10**9)  # or a slow machine would take more than one
    with logging_to(tmp_path / "log"):
        for number in range(5_000):
            logger.info("a broken client does this: %d", number)
        for _ in range(100):
            try:
                raise ValueError("again")
            except ValueError:
                logger.exception("it failed")
    events = [line["event"] for line in lines_of(tmp_path / "log")]
    assert len(events) == LINES_PER_PERIOD + FEW_PER_PERIOD + 2
    assert {event for event in events if event.startswith("and ")} == {
        f"and {5_000 - LINES_PER_PERIOD} more lines in 10 s like: a broken client does this: {LINES_PER_PERIOD}",
        f"and {100 - FEW_PER_PERIOD} more lines in 10 s like: it failed",
    }


def test_the_last_warnings_are_kept(tmp_path: Path) -> None:
    with logging_to(tmp_path / "log") as logs:
        logger.info("nothing special")
        for number in range(KEPT + 10):
            logging.getLogger(f"toutates.h2grpc.n{number}").warning("warning %d\n\x1b[31m", number)
        try:
            raise ValueError("x" * 2 * MAX_CHARACTERS)
        except ValueError:
            logger.exception("it failed")
        logging.getLogger("toutates.server.server").error("structured", extra={"port": 1})
        latest = logs.recent.latest()
    assert len(latest) == KEPT
    assert [(one.level, one.area) for one in latest[-3:]] == [
        ("warning", "h2grpc"),
        ("error", "models"),
        ("error", "server"),
    ]
    assert latest[-3].text == f"warning {KEPT + 9}\\n\\x1b[31m"
    assert latest[-2].text.startswith("it failed: ValueError: xxx")
    assert latest[-2].text.endswith("more characters)")
    assert latest[-1].text == "structured"
    assert latest[0].time_s <= latest[-1].time_s


def test_switches_of_single_levels_are_followed(tmp_path: Path) -> None:
    with logging_to(tmp_path / "log") as logs:
        control = logs.control
        control.change(replace(control.levels, warning=False), "no warnings")
        logger.warning("unseen")
        logger.info("seen")
        logger.error("seen too")
    assert [line["event"] for line in lines_of(tmp_path / "log")] == [
        "log settings: no warnings",
        "seen",
        "seen too",
    ]


def test_a_pipe_that_nobody_reads_holds_up_neither_the_work_nor_for_long_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("toutates.system.logs.setup.CLOSE_S", 0.2)
    reader, writer = os.pipe()
    others = threading.enumerate()
    with start_logs("info", "text", fd=writer) as logs:
        for number in range(2_000):
            # Loggers of their own, so that not the limit on repeats is what is tested.
            logging.getLogger(f"toutates.models.n{number % 500}").info("x" * 8_000)
        assert logs.lost > 0
    # Until then it uses the descriptor.
    wait_until(lambda: not [one for one in threading.enumerate() if one.name == "log" and one not in others])
    os.close(writer)
    os.close(reader)


def test_what_native_code_writes_is_a_line_of_a_json_log_like_any_other(tmp_path: Path) -> None:
    path = tmp_path / "log"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with start_logs("info", "json", fd=fd):
        os.write(fd, b"\x1b[0;93m2026-11-22 01:02:03.4 [W:onnxruntime:Default, device.cc:164 Find] no GPU\x1b[m\n")
        os.write(fd, b"[E:onnxruntime:, session.cc:1 Run] bad\ntwo\xff lines\n\nand an end")
    os.write(fd, b"after\n")
    os.close(fd)
    *said, after = path.read_text().splitlines()
    assert after == "after"
    assert [(line["level"], line["area"], line["event"]) for line in map(json.loads, said)] == [
        ("warning", "onnxruntime", "2026-11-22 01:02:03.4 [W:onnxruntime:Default, device.cc:164 Find] no GPU"),
        ("error", "onnxruntime", "[E:onnxruntime:, session.cc:1 Run] bad"),
        ("warning", "stderr", "two\\xff lines"),
        ("warning", "stderr", "and an end"),
    ]


def test_a_flood_of_native_code_is_bounded_and_holds_up_nobody(tmp_path: Path) -> None:
    path = tmp_path / "log"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with start_logs("info", "json", fd=fd):
        for _ in range(2_000):
            try:
                os.write(fd, b"x" * 999 + b"\n")
            except BlockingIOError:
                continue  # the pipe is full, which is told at once
    os.close(fd)
    assert len(lines_of(path)) < 2 * LINES_PER_PERIOD


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_what_python_says_by_itself_is_in_the_log(tmp_path: Path, log_format: LogFormat) -> None:
    class Bad:
        def __del__(self) -> None:
            raise ValueError("unraisable")

    def fail() -> None:
        raise ValueError("of a thread")

    hooks = threading.excepthook, sys.unraisablehook
    with logging_to(tmp_path / "log", log_format=log_format):
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn("take care", stacklevel=1)
        thread = threading.Thread(target=fail, name="worker-7")
        thread.start()
        thread.join()
        Bad()
    text = (tmp_path / "log").read_text()
    for words in ("UserWarning: take care", "worker-7 failed", "ValueError: of a thread", "ValueError: unraisable"):
        assert words in text
    if log_format == "json":
        assert [line["level"] for line in lines_of(tmp_path / "log")] == ["warning", "error", "error"]
    assert (threading.excepthook, sys.unraisablehook) == hooks


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_tables_go_to_standard_output_in_the_order_of_the_log(
    tmp_path: Path, log_format: LogFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log"
    both = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    monkeypatch.setattr(logs_setup, "STANDARD_OUTPUT", both)
    with logging_to(path, log_format=log_format) as logs:
        logger.info("before")
        logs.show("A B\n1 2", [{"event": "row", "a": 1, "b": "2"}])
        logger.info("after")
    os.close(both)
    before, *table, after = path.read_text().splitlines()
    assert ("before" in before, "after" in after) == (True, True)
    if log_format == "text":
        assert table == ["A B", "1 2"]
    else:
        [row] = map(json.loads, table)
        assert (row["level"], row["area"], row["event"], row["a"], row["b"]) == ("info", "server", "row", 1, "2")
