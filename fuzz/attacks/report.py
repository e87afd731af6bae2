"""Runs the attacks one by one on a server of their own, and writes what they cost into docs/security.md."""

from __future__ import annotations

import datetime
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from bench.machine import describe_machine
from bench.page import replace_between
from fuzz.attacks.attack import Attack
from fuzz.attacks.bounds import kept_mib, shortcomings
from fuzz.attacks.experiment import Outcome, run_experiment
from fuzz.attacks.honest import HonestError
from fuzz.attacks.models import build_composed, build_repository
from fuzz.attacks.registry import ATTACKS
from tests.e2e.process import FRESH, PYTHON, running

__all__ = ["BEGIN", "END", "FLAGS", "HEAD", "PAGE", "row", "write_report", "write_table"]

#: Timers are shortened, so that what they end is seen to end; what is off by default and can be attacked is on; all
#: other limits are the defaults.
FLAGS: Final = (
    *("--handshake-timeout", "2"),
    *("--stall-timeout", "2"),
    *("--keepalive-time", "1"),
    *("--keepalive-timeout", "1"),
    *("--response-cache-byte-size", "16777216"),
    "--allow-client-shm",
)

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "security.md"
BEGIN: Final = "<!-- begin of what `make attacks` writes -->\n"
END: Final = "<!-- end of what `make attacks` writes -->\n"
_WATCH_S: Final = 1.0

HEAD: Final = """\
| attack | CVE | attacker: MB/s, connections/s, CPU | server: CPU more, memory more at its peak and after | honest \
ms: p99 before, during, after; worst during | stopped by |
|---|---|---|---|---|---|
"""


def write_report(names: Sequence[str], seconds: float, run: Callable[[Attack, float], Outcome] | None = None) -> int:
    """Run the named attacks; all of them are written into the page, some only printed.

    Returns the exit code: 1 where an honest request failed, or a figure is beyond ``fuzz/attacks/bounds.py``.

    Args:
        names: of the attacks.
        seconds: that each lasts.
        run: runs an attack for so many seconds; None for against a server of its own.
    """
    rows: dict[str, Outcome] = {}
    failed = worse = False
    for name in names:
        try:
            rows[name] = (run or _run)(ATTACKS[name], seconds)
        except HonestError as error:
            print(f"{name}: an honest request failed: {error}", file=sys.stderr, flush=True)
            failed = True
            continue
        print(row(ATTACKS[name], rows[name]), "\n    answers", rows[name].report.answers, flush=True)
        for shortcoming in shortcomings(name, rows[name]):
            print(f"{name}: {shortcoming}", file=sys.stderr, flush=True)
            worse = True
    if set(names) == set(ATTACKS) and not failed:
        write_table(rows, seconds)
        print(f"written to {PAGE}")
    return int(failed or worse)


def write_table(rows: Mapping[str, Outcome], seconds: float) -> None:
    """Replace the table in the page."""
    PAGE.write_text(replace_between(PAGE.read_text(), BEGIN, END, _section(rows, seconds)))


def _run(attack: Attack, seconds: float) -> Outcome:
    """A server for each attack, so that none starts with what another left."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "models").mkdir()
        build_repository(folder / "models")
        build_composed(folder / "models")
        flags = (*FLAGS, *attack.flags(folder), *(("--metrics-addr", "127.0.0.1:0") if attack.on_http else ()))
        with running(folder / "models", folder, flags, FRESH) as server:
            return run_experiment(
                attack,
                server.process.pid,
                server.port,
                server.http_port if attack.on_http else server.management_port if attack.on_management else 0,
                before_s=_WATCH_S,
                seconds=seconds,
                after_s=_WATCH_S,
                most_growth_mib=kept_mib(attack.name),
            )


def _section(rows: Mapping[str, Outcome], seconds: float) -> str:
    flags = " ".join(FLAGS)
    return (
        f"\nMeasured {datetime.date.today()} on {describe_machine()['cpu']} ({os.cpu_count()} CPUs), "
        f"Linux {platform.release()}, server on {_python_version()}, one worker, `{flags}`; each attack for "
        f"{seconds:g} s, from a process of its own on the same machine, whose CPU it shares with the server and the "
        "honest clients.\n\n"
        + HEAD
        + "".join(row(ATTACKS[name], outcome) + "\n" for name, outcome in rows.items())
        + "\n"
    )


def _python_version() -> str:
    return f"Python {platform.python_version()}" if sys.executable == PYTHON else f"`{Path(PYTHON).parents[1].name}`"


def row(attack: Attack, outcome: Outcome) -> str:
    """The table's row for an attack."""
    report = outcome.report
    per_second = 1 / max(report.seconds, 1e-3)
    attacker = (
        f"{report.bytes_sent * per_second / 1e6:.2f}, {report.connections * per_second:.0f}, {outcome.attacker_cpu:.0%}"
    )
    server = (
        f"{max(0.0, outcome.server_cpu - outcome.idle_cpu):.0%}, {outcome.peak_mib - outcome.before_mib:+.0f} MiB, "
        f"{outcome.after_mib - outcome.before_mib:+.0f} MiB"
    )
    honest = ", ".join(f"{phase.p99_ms:.1f}" for phase in (outcome.before, outcome.during, outcome.after))
    honest += f"; {outcome.during.worst_ms:.1f}"
    stopped = f"{attack.limit}: {_endings(report.endings, report.answers)}"
    return f"| {attack.name}: {attack.summary} | {attack.cve} | {attacker} | {server} | {honest} | {stopped} |"


def _endings(endings: Mapping[str, int], answers: Mapping[str, int]) -> str:
    """How most connections ended, or, where they did not, how most calls did."""
    ended = {name: count for name, count in endings.items() if name not in ("open", "left")}
    counted = ended or answers
    if not counted:
        return "nothing had to be"
    name = max(counted, key=lambda key: counted[key])
    return f"`{name}`"
