"""What every attack is held to: answers, files and how it was stopped. `make attacks` measures times and memory."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Final

from bench.process import open_files
from fuzz.attacks.attack import Attack
from fuzz.attacks.experiment import AttackProcess, Outcome, run_experiment, wait_settled
from fuzz.attacks.honest import Crowd, Phase
from fuzz.attacks.runner import Report
from tests.e2e.process import ServerProcess

__all__ = [
    "FLAGS",
    "SECONDS",
    "assert_stopped",
    "assert_survived",
    "attacked",
    "attacked_by_all",
]

#: Timers are shortened, so that attacks meet them soon, and honest clients on a busy machine do not; all other limits
#: are the defaults but one, which would take gigabytes to meet. What is off by default and can be attacked is on.
FLAGS: Final = (
    *("--handshake-timeout", "2"),
    *("--stall-timeout", "2"),
    *("--max-connection-buffered-bytes", "33554432"),
    *("--metrics-addr", "127.0.0.1:0"),
    *("--response-cache-byte-size", "16777216"),
    "--allow-client-shm",
)
SECONDS: Final = 0.6


def attacked(server: ServerProcess, attack: Attack, seconds: float = SECONDS) -> Outcome:
    """The outcome of an attack on a server; honest requests have all been answered rightly."""
    return run_experiment(
        attack,
        server.process.pid,
        server.port,
        server.http_port if attack.on_http else server.management_port if attack.on_management else 0,
        before_s=0.15,
        seconds=seconds,
        after_s=0.15,
    )


def attacked_by_all(server: ServerProcess, attacks: Sequence[Attack]) -> tuple[Phase, list[Report]]:
    """What honest clients saw while several attack at once, until each has been stopped, and the attackers' reports."""
    pid = server.process.pid
    files = open_files(pid)
    with Crowd(server.port) as crowd:
        with ExitStack() as stack:
            attackers = [stack.enter_context(AttackProcess(attack.name, server.port)) for attack in attacks]
            for attacker in attackers:
                attacker.wait_ready()
            struck = time.monotonic()
            for attacker in attackers:
                attacker.wait_stopped()
            ended = time.monotonic()
            reports = [attacker.end() for attacker in attackers]
        seen = crowd.phase(struck, ended)
    left = wait_settled(pid, files)
    assert left <= files, f"{left} files open, {files} before"
    return seen, reports


def assert_survived(outcome: Outcome) -> None:
    """Honest clients were served all the while, and nothing of the attack is left open."""
    for phase in (outcome.before, outcome.during, outcome.after):
        assert phase.requests, outcome
    assert outcome.files_after <= outcome.files_before, outcome


def assert_stopped(report: Report, attack: Attack) -> None:
    """The attacker met the limit that is there for it, if there is to be one."""
    assert report.connections, report
    assert not attack.stops or attack.times_stopped(report.answers, report.endings), report
