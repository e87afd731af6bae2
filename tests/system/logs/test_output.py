from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.waiting import wait_until
from toutates.system.logs import output as output_module
from toutates.system.logs.output import LAST, LogOutput


def lost(count: int, why: str) -> str:
    return f"lost {count}: {why}\n"


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        try:
            os.close(end)
        except OSError:
            pass


def read_all(fd: int) -> bytes:
    data = b""
    while piece := os.read(fd, 65_536):
        data += piece
    return data


def test_lines_of_many_threads_arrive_whole_and_in_order(tmp_path: Path) -> None:
    fd = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT)
    output = LogOutput(fd, lost)
    output.start()

    def work(name: str) -> None:
        for number in range(1_000):
            output.put(f"{name} {number}\n")

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    output.close(30)
    os.close(fd)
    lines = (tmp_path / "log").read_text().splitlines()
    assert len(lines) == 4_000
    for name in "abcd":
        assert [line for line in lines if line[0] == name] == [f"{name} {number}" for number in range(1_000)]
    assert output.lost == 0


def test_a_pipe_that_nobody_reads_holds_up_nobody(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    output = LogOutput(writer, lost)
    output.start()
    line = "x" * 999 + "\n"
    count = output_module.MAX_BYTES // 1_000 + 2_000
    for _ in range(count):
        output.put(line)  # nothing is read before the end, so that one that waited would do so for ever
    assert output.lost > 1_000
    wait_until(lambda: output.close(0.2))  # it still uses the descriptor before
    os.close(writer)
    assert len(read_all(reader)) >= 4_096


def test_what_was_lost_is_told_once_somebody_reads(pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_module, "MAX_LINES", 100)
    reader, writer = pipe
    output = LogOutput(writer, lost)
    output.start()
    for _ in range(1_000):
        output.put("x" * 999 + "\n")
    told = output.lost
    assert told > 700
    got: list[bytes] = []
    thread = threading.Thread(target=lambda: got.append(read_all(reader)))
    thread.start()
    output.close(30)
    os.close(writer)
    thread.join()
    *lines, last = got[0].decode().splitlines()
    assert last == f"lost {told}: they came faster than they could be written"
    assert len(lines) == 1_000 - told
    assert set(lines) == {"x" * 999}


def test_a_full_disk_loses_lines_and_the_next_is_tried_again(tmp_path: Path) -> None:
    fd = os.open("/dev/full", os.O_WRONLY)
    output = LogOutput(fd, lost)
    output.start()
    output.put("one\n")
    wait_until(lambda: output.lost == 1)
    output.put("two\n")
    wait_until(lambda: output.lost == 2)
    healed = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT)
    os.dup2(healed, fd)
    output.put("three\n")
    output.close(30)
    assert (tmp_path / "log").read_text() == "three\nlost 2: No space left on device\n"
    os.close(fd)
    os.close(healed)


def test_a_reader_that_has_gone_is_no_error(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    os.close(reader)
    output = LogOutput(writer, lost)
    output.start()
    output.put("one\n")
    wait_until(lambda: output.lost == 1)
    output.close(30)
    assert output.lost == 1


def test_a_descriptor_that_is_closed_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    os.close(writer)
    output = LogOutput(writer, lost)
    output.start()
    output.put("one\n")
    output.close(30)
    assert output.lost == 1


def test_the_end_writes_what_is_left(tmp_path: Path) -> None:
    fd = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT)
    output = LogOutput(fd, lost)
    output.start()
    for number in range(10_000):
        output.put(f"{number}\n")
    output.close(30)
    os.close(fd)
    assert (tmp_path / "log").read_text().splitlines() == [str(number) for number in range(10_000)]


def test_chores_are_done_when_they_are_due_and_at_the_end(tmp_path: Path) -> None:
    fd = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT)
    output = LogOutput(fd, lost)
    calls: list[int] = []

    def chore(now_ns: int) -> int | None:
        calls.append(now_ns)
        return 1_000_000 if len(calls) < 5 else None

    output.add_chore(chore)
    output.start()
    wait_until(lambda: len(calls) == 5)
    time.sleep(0.05)
    assert len(calls) == 5
    output.wake()
    wait_until(lambda: len(calls) == 6)
    output.close(30)
    assert calls[-1] == LAST
    os.close(fd)


def test_the_thread_runs_where_it_is_told_to(tmp_path: Path) -> None:
    fd = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT)
    others = threading.enumerate()
    output = LogOutput(fd, lost)
    output.start()
    mine = os.sched_getaffinity(0)
    [thread] = [one for one in threading.enumerate() if one.name == "log" and one not in others]
    assert thread.native_id is not None
    output.place({min(mine)})
    assert os.sched_getaffinity(thread.native_id) == {min(mine)}
    output.place({100_000})  # which there is not
    assert os.sched_getaffinity(thread.native_id) == {min(mine)}
    assert os.sched_getaffinity(0) == mine
    output.close(30)
    os.close(fd)


def test_what_goes_to_two_destinations_keeps_its_order(tmp_path: Path) -> None:
    path = tmp_path / "both"
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    tables = os.open(path, os.O_WRONLY | os.O_APPEND)
    output = LogOutput(log, lost)
    output.start()
    table = "".join(f"row {number} {'x' * 200}\n" for number in range(1_000))
    expected = ""
    for number in range(20):
        output.put(f"before {number}\n")
        output.put(table, tables)
        output.put(f"after {number}\n")
        expected += f"before {number}\n{table}after {number}\n"
    output.close(30)
    assert path.read_text() == expected
    for fd in (log, tables):
        os.close(fd)


def test_a_table_that_nobody_reads_is_given_up_and_the_log_goes_on(tmp_path: Path, pipe: tuple[int, int]) -> None:
    fd = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT)
    output = LogOutput(fd, lost)
    output.start()
    output.put("one\n" * 100_000, pipe[1])
    output.put("two\n")
    wait_until(lambda: "two\n" in (tmp_path / "log").read_text())
    output.close(30)
    reason = "standard output cannot be written: nobody reads it"
    assert (tmp_path / "log").read_text() == f"two\nlost 100000: {reason}\n"
    os.close(fd)
