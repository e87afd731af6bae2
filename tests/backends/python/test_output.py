"""What models print: how much of it is looked at, and what is kept."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable

import pytest

from tests.waiting import wait_until
from toutates.backends.python import output as module
from toutates.backends.python.output import MAX_LINES, OutputReader, PrintedOutput
from toutates.system.logs.limit import LineLimit


def counted(monkeypatch: pytest.MonkeyPatch) -> tuple[PrintedOutput, list[bytes]]:
    """What a process prints, and the lines of it that are looked at."""
    seen: list[bytes] = []
    really_take: Callable[[PrintedOutput, bytes], None] = PrintedOutput._line

    def take(self: PrintedOutput, data: bytes) -> None:
        seen.append(data)
        really_take(self, data)

    monkeypatch.setattr(PrintedOutput, "_line", take)
    return PrintedOutput("m", "m_0", LineLimit()), seen


def test_short_lines_are_not_all_looked_at_and_the_last_are_kept(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    printed, seen = counted(monkeypatch)
    many = b"".join(b"%d\n" % number for number in range(5_000))
    printed.feed(many + b"be")
    assert seen[:MAX_LINES] == [b"%d" % number for number in range(MAX_LINES)]
    assert seen[-1] == b"4999"
    assert len(seen) == MAX_LINES + module._KEPT_LINES
    seen.clear()
    printed.feed(b"gun\n" + many + b"the end")
    assert len(seen) == module._KEPT_LINES
    printed.end()
    assert printed.last == "the end"
    assert sum("model 'm' (m_0): " in record.getMessage() for record in caplog.records) == MAX_LINES
    assert sum("prints more than 200 lines" in record.getMessage() for record in caplog.records) == 1


@pytest.mark.parametrize("pieces", [1, 2, 7, 400])
def test_lines_are_the_same_however_they_come(monkeypatch: pytest.MonkeyPatch, pieces: int) -> None:
    printed, seen = counted(monkeypatch)
    text = b"".join(b"line %d\n" % number for number in range(MAX_LINES)) + b"\nlast"
    for at in range(0, len(text), pieces):
        printed.feed(text[at : at + pieces])
    printed.end()
    assert seen == text.split(b"\n")


def test_what_is_printed_while_the_reader_pauses_is_read_together() -> None:
    reader, fed = OutputReader(), list[int]()

    class Noting(PrintedOutput):
        def feed(self, data: bytes) -> None:
            fed.append(data.count(b"\n"))
            super().feed(data)

    printed = Noting("m", "m_0", LineLimit())
    reading, writing = os.pipe()
    reader.add(reading, printed)

    def print_lines() -> None:
        for _ in range(2_000):
            os.write(writing, b"x\n")
        os.close(writing)

    thread = threading.Thread(target=print_lines)
    thread.start()
    thread.join()
    wait_until(printed.ended.is_set)
    assert sum(fed) == 2_000
    assert max(fed) > 1
