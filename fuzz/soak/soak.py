"""The soak itself: rounds of everything at once, and after each a look at what it left behind."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from fuzz.attacks.experiment import AttackProcess
from fuzz.attacks.models import build_repository
from fuzz.attacks.registry import ATTACKS
from fuzz.soak.account import Account, Entry, Sample, take_sample
from fuzz.soak.cache_clients import CACHED
from fuzz.soak.clients import clients
from fuzz.soak.demand_clients import FLAGS as DEMAND_FLAGS
from fuzz.soak.demand_clients import ON_DEMAND, build_demand_models, files_left_behind, judge_memory
from fuzz.soak.length_clients import ENCODER, build_encoder
from fuzz.soak.python_clients import PYTHON_MODELS, build_python_models
from fuzz.soak.questions import MODELS, Questions
from fuzz.soak.round import Round
from fuzz.soak.sequence_clients import SEQUENCES, build_sequences
from fuzz.soak.text_clients import TEXTS, build_text_model
from tests.e2e import stress
from tests.e2e.process import FRESH, ServerProcess, command, environment, running

__all__ = ["Plan", "soak"]

#: Rounds are so long, or as long as makes two of them.
_ROUND_S: Final = 20.0
_LEAST_ROUNDS: Final = 2
#: Attackers meet timers within a round.
_FLAGS: Final = (
    *("--handshake-timeout", "2"),
    *("--stall-timeout", "3"),
    *("--keepalive-time", "5"),
    *("--keepalive-timeout", "10"),
    *("--response-cache-byte-size", "4194304"),
    "--allow-client-shm",
)
#: Not among the attackers. Two make the server keep memory, up to a bound that they reach in their own time: spare
#: batches of 256 MiB, and ONNX Runtime's arena as large as all answers that ever waited at once. One needs a process
#: suspended.
_LEFT_OUT: Final = {"shape-pollution", "deaf-reader", "vanished-peer"}
#: Attacks on the HTTP side are for a server that has one.
_ATTACKS: Final = tuple(name for name in ATTACKS if name not in _LEFT_OUT and not ATTACKS[name].on_http)
#: Between two connections of an attacker, so that honest clients are what the soak is about.
_ATTACK_PAUSE_S: Final = 0.3
#: What is started when it is first needed, and stays: of each worker `side` and `objects`; of the server `regions`, and
#: the reader of the one process that the decoupled Python model has (docs/architecture.md has the table).
_LATE_THREADS_OF_WORKER: Final = 2
_LATE_THREADS_OF_SERVER: Final = 2
#: Of each worker: its own stage for copies to shared memory, and that of the thread beside it.
_LATE_FILES: Final = 2
#: How long threads and files of the server may take to be as few as at the start.
_SETTLE_S: Final = 15.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do.

    Attributes:
        seconds: in all, without the pauses between rounds.
        workers: of the server.
        storm_clients: connections of the storm (``tests.e2e.stress``), half as many again of which are rude.
        only: the sort of clients that comes alone, without storm, attackers and SIGHUPs; "" for all of it.
    """

    seconds: float
    workers: int
    storm_clients: int
    seed: int
    only: str = ""


@dataclass(slots=True)
class _Soak:
    plan: Plan
    server: ServerProcess
    demand: ServerProcess
    questions: Questions
    storm: stress.Storm
    reloads: bool
    account: Account = field(default_factory=Account)
    #: of the server that loads models on demand
    demand_samples: list[Sample] = field(default_factory=list)
    #: attacks that have not been made since all were last made
    _to_come: list[str] = field(default_factory=list)
    _attacks: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self) -> None:
        began = time.monotonic()
        rounds = max(_LEAST_ROUNDS, round(self.plan.seconds / _ROUND_S))
        self.account.samples.append(take_sample(self.server.process.pid, 0.0))
        self.demand_samples.append(take_sample(self.demand.process.pid, 0.0))
        for number in range(rounds):
            self._run_round(number, self.plan.seconds / rounds)
            self._settle()
            sample = take_sample(self.server.process.pid, time.monotonic() - began)
            self.account.samples.append(sample)
            self.demand_samples.append(take_sample(self.demand.process.pid, sample.seconds))
            print(f"{sample.seconds:.0f} s: {sample.anonymous_mib:.1f} MiB anonymous", file=sys.stderr, flush=True)
            warm = number + 1 >= rounds // 2 if self.plan.only else self._attacks >= len(_ATTACKS)
            if self.account.warm_up is None and warm:
                self.account.warm_up = number + 1
            if self.account.problems:
                break

    def _run_round(self, number: int, seconds: float) -> None:
        until = time.monotonic() + seconds
        parties: list[Callable[[], None]] = []
        for name, run in clients().items():
            if self.plan.only not in ("", name):
                continue
            rng = random.Random(f"{self.plan.seed} {name} {number}")
            around = Round(self.server.port, self.questions, until, rng, self.demand.port)
            parties.append(lambda name=name, run=run, around=around: self._add(name, run(around)))  # type: ignore[misc]
        if not self.plan.only:
            parties.append(lambda: self._attack(until, random.Random(f"{self.plan.seed} attacks {number}")))
            if self.reloads:
                parties.append(lambda: self._reload(until))
        threads = [threading.Thread(target=self._guard, args=(party,)) for party in parties]
        for thread in threads:
            thread.start()
        if not self.plan.only:
            self._guard(lambda: self.storm.rage(seconds))
        for thread in threads:
            thread.join()
        self._guard(self.storm.check_calm)
        for process in (self.server.process, self.demand.process):
            if process.poll() is not None:
                self.account.problems.append(f"the server ended with {process.returncode}")

    def _guard(self, party: Callable[[], None]) -> None:
        try:
            party()
        except Exception as error:
            with self._lock:
                where = traceback.extract_tb(error.__traceback__)[-1]
                place = f"{Path(where.filename).name}:{where.lineno}, {where.line}"
                self.account.problems.append(f"{type(error).__name__}: {error} ({place})")

    def _add(self, name: str, entry: Entry) -> None:
        with self._lock:
            self.account.add(name, entry)

    def _attack(self, until: float, rng: random.Random) -> None:
        while (left := until - time.monotonic()) > 0:
            if not self._to_come:
                self._to_come = list(_ATTACKS)
                rng.shuffle(self._to_come)
            seconds = min(left, rng.uniform(0.5, 4))
            with AttackProcess(self._to_come.pop(), self.server.port, seconds, _ATTACK_PAUSE_S) as attacker:
                attacker.wait_ready()
                time.sleep(seconds)
                report = attacker.end()
            self._attacks += 1
            with self._lock:
                self.account.attacks.update(report.endings)

    def _reload(self, until: float) -> None:
        while time.monotonic() < until:
            self.server.process.send_signal(signal.SIGHUP)
            with self._lock:
                self.account.reloads += 1
            time.sleep(3)

    def _settle(self) -> None:
        deadline = time.monotonic() + _SETTLE_S
        while time.monotonic() < deadline and self.server.process.poll() is None:
            left = bool(self.account.left_behind(take_sample(self.server.process.pid, 0.0)))
            if self.demand.process.poll() is None:
                left |= files_left_behind(self.demand_samples[0], take_sample(self.demand.process.pid, 0.0))
            if not left:
                return
            time.sleep(0.1)


def soak(plan: Plan, folder: Path) -> Account:
    """Run a server and the soak; returns its account.

    Args:
        folder: an empty one, for models and the server's log.
    """
    models = folder / "models"
    models.mkdir()
    kinds = stress.build_kinds(models, plan.seed)
    build_repository(models)
    build_python_models(models)
    build_encoder(models)
    build_text_model(models)
    build_sequences(models)
    own = (*stress.MODELS, *MODELS, *PYTHON_MODELS, ENCODER, TEXTS, *SEQUENCES)
    names = [*own, "victim", "shapes", "generator", "sums", CACHED]
    flags = ["--load-models", ",".join(names), "--processing-cores", str(plan.workers), *_FLAGS]
    many, many_log = folder / "many", folder / "many_log"
    many.mkdir()
    many_log.mkdir()
    build_demand_models(many)
    with (
        running(models, folder, flags, FRESH) as server,
        running(many, many_log, ("--processing-cores", str(plan.workers), *DEMAND_FLAGS), FRESH) as demand,
    ):
        storm = stress.Storm(server, kinds, plan.seed, plan.storm_clients)
        running_soak = _Soak(plan, server, demand, Questions(models, plan.seed), storm, _server_reloads())
        account = running_soak.account
        if plan.only:
            account.warm_up_name = "half of the time"
        account.late_threads = _LATE_THREADS_OF_WORKER * plan.workers + _LATE_THREADS_OF_SERVER
        account.late_files = _LATE_FILES * plan.workers
        running_soak.run()
        account.add("tritonclient with callbacks, and clients that drop their connection", _entry_of(storm))
        if demand.process.poll() is None and plan.only in ("", ON_DEMAND):
            judge_memory(account, running_soak.demand_samples, demand.http_port)
        for one in (server, demand):
            if one.process.poll() is None and (code := one.stop()):
                account.problems.append(f"the server ended with {code}")
            if "Traceback" in one.log:
                account.problems.append("the server logged a failure:\n" + one.log[-4000:])
    return account


def _entry_of(storm: stress.Storm) -> Entry:
    """What the storm, which judges its answers itself, has counted."""
    entry = Entry()
    for tally in storm.tallies.values():
        entry.sent += tally.sent
        entry.right += tally.ok
        entry.given_up += tally.left
        entry.refused["INTERNAL (a row that cannot be run)"] += tally.poisoned
        entry.refused["RESOURCE_EXHAUSTED"] += tally.refused
    return entry


def _server_reloads() -> bool:
    """Whether the server takes SIGHUP for what it is sent here: reloading, if there is anything to reload."""
    shown = subprocess.run(command("--help"), env=environment(), capture_output=True, text=True, timeout=60, check=True)
    return "--tls-cert" in shown.stdout
