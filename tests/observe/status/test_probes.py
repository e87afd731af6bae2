"""Probes of a real server are answered whatever others ask of its HTTP side."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from fuzz.attacks.experiment import AttackProcess
from fuzz.attacks.honest import Prober
from fuzz.attacks.models import build_repository
from tests.e2e.process import ServerProcess, running
from tests.observe.status.support import get

#: Times are measured; that all are answered whatever is attacked, `tests/attacks` holds too.
pytestmark = pytest.mark.alone

#: How long each flood lasts, and how long probes go on after it.
FLOOD_S: Final = 8.0
AFTER_S: Final = 4.0
PAUSE_S: Final = 0.2
#: A probe has a second by default (Kubernetes' timeoutSeconds). One of them may meet whatever else the machine does.
MOST_MEDIAN_S: Final = 0.5
MOST_S: Final = 2.5


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    root = tmp_path_factory.mktemp("models")
    build_repository(root)
    flags = ["--metrics-addr", "127.0.0.1:0"]
    with running(root, tmp_path_factory.mktemp("server"), flags) as process:
        yield process
        assert process.stop() == 0
        assert "Traceback" not in process.log


@contextmanager
def probed(port: int) -> Iterator[list[float]]:
    """Probes for the block; the list gets how long each took."""
    took: list[float] = []
    failures: list[Exception] = []
    over = threading.Event()

    def probe() -> None:
        prober = Prober(port)
        try:
            while not over.is_set():
                began = time.monotonic()
                prober.call(len(took))
                took.append(time.monotonic() - began)
                over.wait(PAUSE_S)
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=probe)
    thread.start()
    try:
        yield took
    finally:
        over.set()
        thread.join()
    assert not failures


def cpu_s(server: ServerProcess) -> float:
    """Seconds of CPU that the server has used."""
    fields = Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


@pytest.mark.parametrize("attack", ["http-pipelining", "http-probes", "http-left-behind"])
def test_probes_are_answered_during_a_flood_and_after_it(server: ServerProcess, attack: str) -> None:
    with probed(server.http_port) as took:
        began, used_s = time.monotonic(), cpu_s(server)
        with AttackProcess(attack, server.http_port, FLOOD_S) as attacker:
            attacker.wait_ready()
            time.sleep(FLOOD_S)
            share = (cpu_s(server) - used_s) / (time.monotonic() - began)
            report = attacker.end()
        assert report.bytes_sent > 100_000
        time.sleep(AFTER_S)
    assert len(took) > (FLOOD_S + AFTER_S) / 2
    assert statistics.median(took) < MOST_MEDIAN_S
    assert max(took) < MOST_S
    # A tenth for probes and a tenth for the rest, and what may be used at once after a quiet time.
    assert share < 0.2 + 2.5 / FLOOD_S + 0.15


def test_everything_else_is_answered_soon_after_a_flood(server: ServerProcess) -> None:
    with AttackProcess("http-pipelining", server.http_port, FLOOD_S) as attacker:
        attacker.wait_ready()
        time.sleep(FLOOD_S)
        attacker.end()
    began = time.monotonic()
    assert get(server.http_port, "/status.json").status == 200
    assert time.monotonic() - began < 15  # what is owed is paid back in five
