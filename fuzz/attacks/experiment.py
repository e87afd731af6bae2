"""One attack on a live server: honest clients before, during and after it, and what it cost everyone."""

from __future__ import annotations

import math
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from bench.process import cpu_time, open_files, peak_mib, reset_peak, resident_mib
from fuzz.attacks.attack import Attack
from fuzz.attacks.honest import Crowd, Phase
from fuzz.attacks.runner import READY, STOPPED, Report

__all__ = ["AttackProcess", "Outcome", "run_experiment", "wait_settled"]

_ROOT: Final = Path(__file__).resolve().parents[2]
#: An attacker that needs longer to begin, or to end once it was told to, is stuck.
_PATIENCE_S: Final = 120.0
#: How long the server may take to look as it did before, on a machine that is busy otherwise.
_SETTLE_S: Final = 120.0
#: How long it may take to give memory back.
_FREED_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was seen. CPU is in processors' worth of time: 1.0 is one processor all the time.

    Attributes:
        before, during, after: of honest clients.
        report: the attacker's.
        idle_cpu: of the server before the attack, with honest clients alone.
        server_cpu: of the server during the attack.
        attacker_cpu: of the attacker.
        before_mib, peak_mib, after_mib: resident memory of the server.
        files_before, files_after: of the server.
    """

    before: Phase
    during: Phase
    after: Phase
    report: Report
    idle_cpu: float
    server_cpu: float
    attacker_cpu: float
    before_mib: float
    peak_mib: float
    after_mib: float
    files_before: int
    files_after: int

    @property
    def amplification(self) -> float:
        """Seconds of CPU that the attack cost the server for each of the attacker's."""
        return max(0.0, self.server_cpu - self.idle_cpu) / max(self.attacker_cpu, 1e-3)


class AttackProcess:
    """An attacker as a process of its own, from ``with`` to its end.

    Args:
        name: of the attack.
        port: of the server.
        seconds: it ends after these by itself.
        pause_s: between two connections.

    Raises:
        RuntimeError: by all methods: it has failed.
    """

    def __init__(self, name: str, port: int, seconds: float = 2 * _PATIENCE_S, pause_s: float = 0.0) -> None:
        self._command = [sys.executable, "-m", "fuzz.attacks", "run", name, "--port", str(port)]
        self._command += ["--seconds", str(seconds), "--pause", str(pause_s)]
        self._process: subprocess.Popen[str]
        self._reader: threading.Thread
        self._ready = threading.Event()
        self._stopped = threading.Event()
        self._report = ""

    def __enter__(self) -> Self:
        environment = {**os.environ, "PYTHONPATH": str(_ROOT)}
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True, env=environment)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as output:
            for line in output:
                if line.strip() == READY:
                    self._ready.set()
                elif line.strip() == STOPPED:
                    self._stopped.set()
                else:
                    self._report = line

    def wait_ready(self) -> None:
        """Wait until its connections stand."""
        if not self._ready.wait(_PATIENCE_S):
            raise RuntimeError("the attacker did not begin")

    def wait_stopped(self) -> bool:
        """Wait until the server has stopped it for the first time; returns whether it did, in some time."""
        return self._stopped.wait(_SETTLE_S)

    def freeze(self) -> None:
        """Suspend it: its sockets stay, and nobody is there."""
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        self._process.send_signal(signal.SIGCONT)

    def end(self) -> Report:
        """Tell it to stop if it has not; returns its report."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        code = self._process.wait(_PATIENCE_S)
        self._reader.join()
        if code or not self._report:
            raise RuntimeError(f"the attacker failed with {code}")
        return Report.from_json(self._report)


@contextmanager
def frozen(attacker: AttackProcess, attack: Attack) -> Iterator[None]:
    """The attacker is suspended for the block, if that is the attack."""
    if attack.freezes:
        attacker.freeze()
    try:
        yield
    finally:
        if attack.freezes:
            attacker.thaw()


@contextmanager
def little_memory(attack: Attack, pid: int) -> Iterator[None]:
    """The server has no more than ``attack.spare_mib`` left for the block, if that is the attack."""
    before = resource.prlimit(pid, resource.RLIMIT_AS)
    if attack.spare_mib:
        taken = int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()
        resource.prlimit(pid, resource.RLIMIT_AS, (taken + attack.spare_mib * 2**20, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_AS, before)


def run_experiment(
    attack: Attack,
    pid: int,
    port: int,
    http_port: int = 0,
    *,
    before_s: float,
    seconds: float,
    after_s: float,
    most_growth_mib: float = math.inf,
) -> Outcome:
    """Run one attack.

    Args:
        pid: of the server.
        port: of the server's gRPC.
        http_port: of the server's HTTP side, or of its management API; only attacks on these need it.
        before_s, after_s: how long honest clients are watched without it.
        seconds: how long it lasts.
        most_growth_mib: how much more memory may be left. Until it is no more than that, what is under way when the
            attack ends is waited for, as long as for connections.

    Raises:
        HonestError: an honest request failed.
        RuntimeError: the attacker failed.
    """
    path = "/models?limit=1" if attack.on_management else ""
    on_http = attack.on_http or attack.on_management
    asks = partial(
        Crowd, port, health_port=http_port if on_http else None, path=path, newcomer=attack.on_new_connections
    )
    with asks(key=attack.honest_key, model=attack.honest_model, authority=attack.authority) as crowd:
        crowd.wait_begun()  # its connections are not the attacker's, and first calls have the server learn
        files_before, before_mib = open_files(pid), resident_mib(pid)
        reset_peak(pid)
        begun, cpu_begun = time.monotonic(), cpu_time(pid).total
        time.sleep(before_s)
        watched, cpu_watched = time.monotonic(), cpu_time(pid).total
        target = http_port if on_http else port
        with little_memory(attack, pid), AttackProcess(attack.name, target) as attacker:
            attacker.wait_ready()
            struck, cpu_struck = time.monotonic(), cpu_time(pid).total
            with frozen(attacker, attack):
                time.sleep(seconds)
                cpu_ended, ended = cpu_time(pid).total, time.monotonic()
                if attack.freezes:
                    wait_settled(pid, files_before)  # before it can answer again
            if attack.stops:
                attacker.wait_stopped()
            report = attacker.end()
        peak = peak_mib(pid)
        over = time.monotonic()
        files_after = wait_settled(pid, files_before)
        if (left := over + after_s - time.monotonic()) > 0:
            time.sleep(left)
        before, during = crowd.phase(begun, watched), crowd.phase(struck, ended)
        after = crowd.phase(max(over, time.monotonic() - after_s), time.monotonic())
        return Outcome(
            before=before,
            during=during,
            after=after,
            report=report,
            idle_cpu=(cpu_watched - cpu_begun) / (watched - begun),
            server_cpu=(cpu_ended - cpu_struck) / (ended - struck),
            attacker_cpu=report.cpu_seconds / max(report.seconds, 1e-3),
            before_mib=before_mib,
            peak_mib=peak,
            after_mib=_wait_freed(pid, before_mib + most_growth_mib),
            files_before=files_before,
            files_after=files_after,
        )


def _wait_freed(pid: int, most_mib: float) -> float:
    """Wait until the server has no more memory than this, or has had time enough; returns what it has."""
    deadline = time.monotonic() + _FREED_S
    while (now := resident_mib(pid)) > most_mib and time.monotonic() < deadline:
        time.sleep(0.02)
    return now


def wait_settled(pid: int, files: int) -> int:
    """Wait until the server has closed what the attacker left, or has had time enough to.

    Returns:
        The file descriptors of the server when the wait ended. Honest clients may open another one a moment later.
    """
    deadline = time.monotonic() + _SETTLE_S
    while (now := open_files(pid)) > files and time.monotonic() < deadline:
        time.sleep(0.02)
    return now
