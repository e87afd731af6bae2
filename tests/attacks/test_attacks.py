"""Whoever attacks, honest clients are served rightly; the attacker meets the limit that is there for it.

That honest requests are all answered, ``run_experiment`` sees to: one that is not fails the test. How long they take
and what memory is left, `make attacks` measures and holds to ``fuzz/attacks/bounds.py``.
"""

from __future__ import annotations

import re
import resource
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from fuzz.attacks.dear_loads import VICTIM
from fuzz.attacks.experiment import AttackProcess
from fuzz.attacks.honest import Crowd, HonestError, RawClient
from fuzz.attacks.models import build_repository
from fuzz.attacks.registry import ATTACKS
from tests.attacks.support import (
    SECONDS,
    assert_stopped,
    assert_survived,
    attacked,
    attacked_by_all,
)
from tests.e2e.process import ServerProcess, running
from tests.waiting import wait_until

#: Seconds under each attack, one after the other.
pytestmark = pytest.mark.long

#: These need a server with other limits, below.
_ELSEWHERE: Final = {
    "hold-connections",
    "vanished-peer",
    "ensemble-reloads",
    "wrong-tokens",
    "unknown-models",
    "first-requests",
    "split-ids",
    "shadow-bulk",
    "warm-up-counts",
    "unknown-loads",
    "hostile-environments",
    "blank-handlers",
    "lying-tables",
    "outside-urls",
    "dripping-downloads",
    "tls-key-changes",
    "tls-empty-records",
    "tls-one-byte-records",
}
#: These wait for timers, and so for each other.
_SLOW: Final = (
    "silent-connections",
    "slow-preface",
    "slow-headers",
    "slow-body",
    "tiny-window",
    "closed-window",
    "open-streams",
    "kept-reads",
    "rest-slow-head",
    "rest-slow-body",
    "rest-promises",
    "rest-unfinished-gzip",
    "rest-uploads",
    "rest-announced-lengths",
)


@pytest.mark.parametrize("name", [name for name in ATTACKS if name not in _ELSEWHERE and name not in _SLOW])
def test_honest_clients_are_served_while_somebody_attacks(target: ServerProcess, name: str) -> None:
    attack = ATTACKS[name]
    outcome = attacked(target, attack)
    assert_survived(outcome)
    assert_stopped(outcome.report, attack)


def test_peers_that_take_their_time_are_sent_away(target: ServerProcess) -> None:
    attacks = [ATTACKS[name] for name in _SLOW]
    seen, reports = attacked_by_all(target, attacks)
    assert seen.requests
    for attack, report in zip(attacks, reports, strict=True):
        assert_stopped(report, attack)


def test_connections_of_a_peer_that_vanished_are_closed(models: Path, tmp_path: Path) -> None:
    attack = ATTACKS["vanished-peer"]
    flags = ["--load-models", "victim", "--keepalive-time", "0.5", "--keepalive-timeout", "1"]
    with running(models, tmp_path, flags) as process:
        outcome = attacked(process, attack, SECONDS)
        assert_survived(outcome)
        assert_stopped(outcome.report, attack)
        endings = outcome.report.endings
        assert endings.get("closed", 0) + endings.get("reset", 0) >= attack.connections, outcome.report
        assert process.stop() == 0


def test_members_of_ensembles_that_come_and_go_keep_nothing(models: Path, tmp_path: Path) -> None:
    attack = ATTACKS["ensemble-reloads"]
    flags = ["--model-control-mode", "explicit", "--load-models", "victim,flow", "--metrics-addr", "127.0.0.1:0"]
    with running(models, tmp_path, flags) as process:
        outcome = attacked(process, attack, SECONDS)
        assert_survived(outcome)
        assert_stopped(outcome.report, attack)
        assert outcome.report.answers["grpc-status 0"], outcome.report  # by members that were there
        _wait_answered(process)
        assert process.stop() == 0
        assert "Traceback" not in process.log


def test_callers_whom_nobody_knows_hold_up_nobody(models: Path, tmp_path: Path) -> None:
    attack = ATTACKS["wrong-tokens"]
    flags = ["--load-models", "victim", *attack.flags(tmp_path)]
    with running(models, tmp_path, flags) as process:
        outcome = attacked(process, attack)
        assert_survived(outcome)
        assert_stopped(outcome.report, attack)
        answers = outcome.report.answers
        assert answers["grpc-status 16"], outcome.report
        assert answers["HTTP/1.1 401"], outcome.report
        assert not answers.get("grpc-status 0"), outcome.report
        assert process.stop() == 0
        assert "Traceback" not in process.log
        assert process.log.count("\n") < 100, process.log


@contextmanager
def _attacked_alone(folder: Path, name: str, *, answer: str) -> Iterator[ServerProcess]:
    """A server with the attack's flags and a repository of its own, once all it has answered the attacker is this."""
    attack = ATTACKS[name]
    root = folder / "models"
    root.mkdir()
    build_repository(root)
    with running(root, folder, [*attack.flags(folder), "--metrics-addr", "127.0.0.1:0"]) as process:
        outcome = attacked(process, attack)
        assert_survived(outcome)
        assert_stopped(outcome.report, attack)
        assert set(outcome.report.answers) <= {answer}, outcome.report  # none yet, where the machine is busy
        yield process
        assert process.stop() == 0
        assert "Traceback" not in process.log
        assert process.log.count("\n") < 100, process.log[-4000:]


def _metrics(process: ServerProcess) -> str:
    page: bytes = urllib.request.urlopen(f"http://127.0.0.1:{process.http_port}/metrics", timeout=120).read()
    return page.decode()


@pytest.mark.parametrize("name", ["unknown-models", "first-requests"])
def test_models_on_demand_are_there_for_honest_clients(tmp_path: Path, name: str) -> None:
    answer = "grpc-status 5" if name == "unknown-models" else "grpc-status 0"
    with _attacked_alone(tmp_path, name, answer=answer) as process:
        figures = _on_demand(process)
        assert figures["memory_bytes"] <= figures["memory_capacity_bytes"]
        if name == "unknown-models":
            assert figures["misses_total"] < 100, "requests for names that nobody has do not wait"
        else:
            wait_until(lambda: _on_demand(process)["evictions_total"])  # those that wait still are loaded


def _on_demand(process: ServerProcess) -> dict[str, float]:
    found = re.findall(r"^toutates_on_demand_(\w+) (\S+)$", _metrics(process), re.MULTILINE)
    return {name: float(value) for name, value in found}


@pytest.mark.parametrize("name", ["split-ids", "shadow-bulk"])
def test_names_with_traffic_and_shadows_cost_others_nothing(tmp_path: Path, name: str) -> None:
    with _attacked_alone(tmp_path, name, answer="grpc-status 0") as process:

        def compared() -> float:
            page = _metrics(process)
            found = re.findall(r'^toutates_shadow_requests_total{.*outcome="(\w+)".*} (\S+)$', page, re.MULTILINE)
            assert found, page
            return sum(float(count) for what, count in found if what in ("equal", "different"))

        wait_until(compared, pause_s=0.1)


def test_a_warm_up_that_wants_a_million_runs_is_ready_soon(tmp_path: Path) -> None:
    with _attacked_alone(tmp_path, "warm-up-counts", answer="grpc-status 0") as process:
        assert " warm-up runs were made: 1000 at most" in process.log


def test_whoever_loads_unknown_names_costs_honest_clients_nothing(tmp_path: Path) -> None:
    attack, root = ATTACKS["unknown-loads"], tmp_path / "models"
    root.mkdir()
    build_repository(root)
    with running(root, tmp_path, attack.flags(tmp_path)) as process:
        outcome = attacked(process, attack)
        assert_survived(outcome)
        assert_stopped(outcome.report, attack)
        # Unloads of what is not loaded are no errors.
        assert set(outcome.report.answers) <= {"grpc-status 13", "HTTP/1.1 500", "grpc-status 0", "HTTP/1.1 200"}
        assert process.stop() == 0
        assert "Traceback" not in process.log


def test_archives_of_environments_write_nowhere_else_and_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    with _attacked_alone(tmp_path, "hostile-environments", answer="grpc-status 3") as process:
        assert "cannot be used" in process.log
        assert not list(tmp_path.rglob(VICTIM))
        wait_until(lambda: not [path for path in scratch.rglob("*") if path.is_file()])


@pytest.mark.parametrize(
    ("name", "answers"),
    [
        ("blank-handlers", {"HTTP/1.1 200"}),
        ("lying-tables", {"HTTP/1.1 400"}),
        ("outside-urls", {"HTTP/1.1 404", "HTTP/1.1 400"}),
        ("dripping-downloads", {"HTTP/1.1 503"}),
    ],
)
def test_who_lists_models_is_answered_whatever_archives_are_registered(
    models: Path, tmp_path: Path, name: str, answers: set[str]
) -> None:
    attack = ATTACKS[name]
    with running(models, tmp_path, attack.flags(tmp_path)) as process:
        outcome = attacked(process, attack)
        assert_survived(outcome)
        assert_stopped(outcome.report, attack)
        assert set(outcome.report.answers) <= answers, outcome.report
        assert process.stop() == 0
        assert "Traceback" not in process.log


@pytest.mark.parametrize("name", ["tls-key-changes", "tls-empty-records", "tls-one-byte-records"])
def test_honest_clients_are_served_with_tls_whatever_records_others_send(
    models: Path, tmp_path: Path, name: str
) -> None:
    attack = ATTACKS[name]
    with running(models, tmp_path, ["--load-models", "victim", *attack.flags(tmp_path)]) as process:
        outcome = attacked(process, attack)
        assert_survived(outcome)
        assert_stopped(outcome.report, attack)
        assert outcome.report.strikes, outcome.report
        assert process.stop() == 0
        assert "Traceback" not in process.log


# --- too many connections


def test_connections_above_the_limit_are_turned_away_and_the_others_served(models: Path, tmp_path: Path) -> None:
    attack = ATTACKS["hold-connections"]
    flags = ["--load-models", "victim", "--max-concurrent-connections", "50"]
    with running(models, tmp_path, flags) as process:
        outcome = attacked(process, attack)
        assert_survived(outcome)
        assert outcome.report.endings["GOAWAY NO_ERROR"] > attack.connections - 50
        with Crowd(process.port):  # there is room again
            _wait_answered(process)
        assert process.stop() == 0
        assert "Traceback" not in process.log


def test_accepting_pauses_without_file_descriptors_and_goes_on_with_them(models: Path, tmp_path: Path) -> None:
    attack = ATTACKS["hold-connections"]
    with running(models, tmp_path, ["--load-models", "victim"]) as process:
        pid = process.process.pid
        _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (process.open_files() + 60, hard))
        outcome = attacked(process, attack)
        assert_survived(outcome)
        assert "accepting pauses" in process.log
        assert process.log.count("accepting pauses") < 20
        _wait_answered(process)
        assert process.stop() == 0
        assert "Traceback" not in process.log


def _wait_answered(process: ServerProcess) -> None:
    """A new client is answered, soon."""

    def is_answered() -> bool:
        client = RawClient(process.port)
        try:
            client.call(1)
        except HonestError:
            return False
        finally:
            client.close()
        return True

    wait_until(is_answered, pause_s=0.05)


# --- the attackers themselves


def test_an_attacker_runs_until_it_is_told_to_stop(target: ServerProcess) -> None:
    with AttackProcess("port-scan", target.port, pause_s=0.05) as attacker:
        attacker.wait_ready()
        assert attacker.wait_stopped()
        report = attacker.end()
    assert report.connections
    assert report.bytes_sent
    assert report.cpu_seconds > 0
