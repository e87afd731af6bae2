"""What ``make steady`` writes down, and that its busy loops end with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import steady
from tests.waiting import wait_until

REPORT = """<testsuites><testsuite>
<testcase classname="tests.e2e.test_a" name="test_one[x]"><failure message="no"/></testcase>
<testcase classname="tests.e2e.test_a" name="test_two"/>
<testcase classname="tests.test_b" name="test_three"><error message="no"/></testcase>
</testsuite></testsuites>"""


def test_failed_tests_are_named_and_a_run_that_broke_is_told(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    assert steady.failures(report, 0) == []
    assert steady.failures(report, 2) == ["the run itself ended with 2"]
    report.write_text(REPORT)
    assert steady.failures(report, 1) == ["tests/e2e/test_a.py::test_one[x]", "tests/test_b.py::test_three"]


def test_the_sum_counts_the_runs_since_each_test_failed() -> None:
    lines = [
        "2026-11-28 08:00:00 a run 1 of 2: nothing failed",
        "2026-11-28 08:05:00 a run 2 of 2: tests/a.py::one",
        "2026-11-28 08:05:00 a run 2 of 2: tests/a.py::two",
        "2026-11-28 09:00:00 b+ run 1 of 3: tests/a.py::two",
        "2026-11-28 09:05:00 b+ run 2 of 3: nothing failed",
        "2026-11-28 09:10:00 b+ run 3 of 3: nothing failed",
        "2026-11-28 11:00:00 b+ run 1 of 1: nothing failed",
    ]
    assert steady.account(lines).splitlines() == [
        "6 runs, 2 of them with failures; 3 since the last",
        "tests/a.py::one: 1 times, 4 runs since",
        "tests/a.py::two: 2 times, 3 runs since",
    ]
    assert steady.account([]) == "0 runs, 0 of them with failures; 0 since the last"


def test_a_run_is_noted_and_its_failure_is_the_exit_status(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runner = tmp_path / "runner.py"
    runner.write_text(
        f"import sys\nopen(sys.argv[1].removeprefix('ARGS=--junitxml='), 'w').write({REPORT!r})\nsys.exit(1)\n"
    )
    record = tmp_path / "record.txt"
    given = ["--runs", "1", "--record", str(record), "--", sys.executable]
    before = {number: signal.getsignal(number) for number in steady.ENDING}
    try:
        assert steady.main(["--runs", "2", "--record", str(tmp_path / "none.txt"), "--", "true"]) == 0
        assert steady.main([*given, str(runner)]) == 1
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert (tmp_path / "none.txt").read_text().count(f": {steady.NOTHING}\n") == 2
    whats = [line.partition(": ")[2] for line in record.read_text().splitlines()]
    assert whats == ["tests/e2e/test_a.py::test_one[x]", "tests/test_b.py::test_three"]
    assert "1 runs, 1 of them with failures; 0 since the last" in capsys.readouterr().out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=["INT", "TERM", "KILL"])
def test_busy_loops_end_with_the_script_however_it_ends(number: signal.Signals, tmp_path: Path) -> None:
    # A run that lasts, and says which process it is; the script is started as a shell starts what runs beside it.
    lasting = "import os; print(os.getpid(), flush=True); import time; time.sleep(1_000)"
    code = (
        "import signal, sys; from tests import steady\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        f"given = ['--record', {str(tmp_path / 'record.txt')!r}, '--', sys.executable, '-c', {lasting!r}]\n"
        "sys.exit(steady.main(given))"
    )
    environment = {**os.environ, "PYTHONPATH": str(steady.ROOT)}
    command = [sys.executable, "-c", code]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as script:
        assert script.stdout is not None
        run = int(script.stdout.readline())
        pids = [int(pid) for pid in Path(f"/proc/{script.pid}/task/{script.pid}/children").read_text().split()]
        assert run in pids
        assert len(pids) == steady.LOOPS + 1
        begun = {pid: _began(pid) for pid in pids}
        assert None not in begun.values()
        script.send_signal(number)
        assert script.wait(120) == (-number if number == signal.SIGKILL else 130)
        if number == signal.SIGKILL:  # which nobody can catch: what runs the tests is left
            os.kill(run, number)
        wait_until(lambda: not any(_began(pid) == began for pid, began in begun.items()))


def _began(pid: int) -> int | None:
    """When a process that computes began, in ticks since the start of the machine; None where it has ended.

    The number of one that has ended may be that of another, which began later.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else int(fields[19])
