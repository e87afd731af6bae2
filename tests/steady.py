"""Runs the suite again and again on a busy machine, and keeps what failed: `make steady RUNS=5`.

Four loops that do nothing else take the machine from the tests. They look after each turn whether this process is still
there, and end with it however it ends. Each run appends its lines to ``tests/steady.txt``: one per test that failed, or
one that says that nothing did. A test that failed and was mended counts anew: its runs without a failure are those
after its last line.
"""

from __future__ import annotations

import argparse
import datetime
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Final
from xml.etree import ElementTree

__all__ = ["LOOPS", "NOTHING", "account", "busy", "failures", "main"]

ROOT: Final = Path(__file__).resolve().parents[1]
RECORD: Final = ROOT / "tests" / "steady.txt"
LOOPS: Final = 4
#: What ends it, and with it all that it has started.
ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: How long a run that is interrupted may take to end.
_ENDING_S: Final = 60.0
#: What stands in the place of a failed test.
NOTHING: Final = "nothing failed"
_LINE: Final = re.compile(r"^(?P<run>\S+ \S+) \S+ run \d+ of \d+: (?P<what>.*)$")
_LOOP: Final = """
import os
parent = int({parent!r})
while os.getppid() == parent:
    for _ in range(1_000_000):
        pass
"""


@contextmanager
def busy(loops: int = LOOPS) -> Iterator[list[int]]:
    """So many processes that compute for nobody, by their ids, until the block or this process ends."""
    code = _LOOP.format(parent=os.getpid())
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(loops):
            processes.append(subprocess.Popen([sys.executable, "-S", "-c", code], start_new_session=True))  # noqa: PERF401  # each is owned at once
        yield [process.pid for process in processes]
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()


def failures(report: Path, code: int) -> list[str]:
    """What failed in a run: the names of tests, from its JUnit report, or what there is instead.

    Args:
        report: the file, which may be missing.
        code: the exit status of the run.
    """
    found: list[str] = []
    with suppress(OSError, ElementTree.ParseError):
        found += [
            f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}"
            for case in ElementTree.parse(report).getroot().iter("testcase")
            if case.find("failure") is not None or case.find("error") is not None
        ]
    if code and not found:
        found.append(f"the run itself ended with {code}")
    return list(dict.fromkeys(found))


def account(lines: Sequence[str]) -> str:
    """The sum of a record: its runs, and for each test that ever failed, how often, and in how many runs since not."""
    by_time: dict[str, set[str]] = {}
    for line in lines:
        if (match := _LINE.match(line)) is not None:
            by_time.setdefault(match["run"], set()).add(match["what"])
    runs = [whats for _, whats in sorted(by_time.items())]
    failed = sorted({what for run in runs for what in run if what != NOTHING})
    steady = next((at for at, run in enumerate(reversed(runs)) if run != {NOTHING}), len(runs))
    told = [f"{len(runs)} runs, {sum(run != {NOTHING} for run in runs)} of them with failures; {steady} since the last"]
    for what in failed:
        times = [at for at, run in enumerate(runs) if what in run]
        told.append(f"{what}: {len(times)} times, {len(runs) - 1 - times[-1]} runs since")
    return "\n".join(told)


def _commit() -> str:
    """Of the checkout; with a plus sign where something is changed."""
    command = ["git", "describe", "--always", "--abbrev=8", "--exclude=*", "--dirty=+"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


@contextmanager
def _owned(command: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    """A command whose whole group of processes ends with the block."""
    with subprocess.Popen(command, cwd=ROOT, start_new_session=True) as process:
        try:
            yield process
        finally:
            try:
                if process.poll() is None:  # so that the tests end what they have started
                    os.killpg(process.pid, signal.SIGINT)
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(_ENDING_S)
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, note and tell; 1 where a test failed, 130 where the user ended it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--record", type=Path, default=RECORD)
    parser.add_argument("command", nargs="*", default=["make", "pytest"], help="what runs the tests; it is given ARGS=")
    given = parser.parse_args(arguments)
    for number in ENDING:  # a shell starts what runs beside it with SIGINT ignored
        signal.signal(number, _interrupt)
    has_failed = False
    try:
        with tempfile.TemporaryDirectory() as scratch, busy():
            for run in range(1, given.runs + 1):
                report = Path(scratch) / f"{run}.xml"
                began, commit = datetime.datetime.now().replace(microsecond=0), _commit()
                with _owned([*given.command, f"ARGS=--junitxml={report}"]) as process:
                    code = process.wait()
                found = failures(report, code)
                has_failed |= bool(found)
                head = f"{began} {commit} run {run} of {given.runs}"
                with given.record.open("a") as record:
                    record.writelines(f"{head}: {what}\n" for what in found or [NOTHING])
    except KeyboardInterrupt:
        return 130
    finally:
        if given.record.exists():
            print(account(given.record.read_text().splitlines()))
    return int(has_failed)


if __name__ == "__main__":
    sys.exit(main())
