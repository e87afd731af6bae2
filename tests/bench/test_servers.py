"""Servers are real ones here: what they answer, use and hold is looked at from outside."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tritonclient.grpc")

from bench import models, process, servers
from bench.environments import Environments, debian_program, missing_library
from bench.errors import NoFigure, Unavailable
from bench.h2load import H2load
from bench.idle import idle_connections
from bench.measure import Measurer, counts
from bench.protocols import FORMS, GRPC
from bench.question import Question
from bench.rest_question import RestRequest
from bench.results import Results
from bench.round_robin import RoundRobin
from bench.servers import Server, running
from bench.start import Starter
from bench.stream_load import StreamLoad
from bench.sweeps import sweep_connections
from tests.waiting import wait_until
from toutates.protocol.grpc_service_pb2 import ModelInferRequest

pytestmark = pytest.mark.long

#: Of the environment that the benchmark makes on first use.
FASTAPI = models.ROOT / ".bench-venvs" / "fastapi" / "bin" / "python"
WRONG_SERVER = Path(__file__).parent / "wrong_server.py"
CHILD = "import subprocess, sys; subprocess.run([sys.executable, '-c', {!r}]); input()"
BUSY = "import os\\nwhile sum(os.times()[:2]) < 0.2: pass\\nprint('used', flush=True)\\n{}"


@pytest.fixture(scope="module")
def mlps(tmp_path_factory: pytest.TempPathFactory) -> list[models.Model]:
    return models.numbered_mlps(tmp_path_factory.mktemp("models"), 12)


@pytest.fixture(scope="module")
def toutates(mlps: list[models.Model], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    kind = servers.toutates("toutates", "", sys.executable, ["--processing-cores", "1"])
    with running(kind, mlps, tmp_path_factory.mktemp("toutates") / "run") as server:
        yield server


@pytest.mark.quick
def test_right_answers_are_accepted_and_tell_their_length(toutates: Server, mlps: list[models.Model]) -> None:
    question = Question(mlps[0])
    assert question.check(toutates.address) == len(question.plain_answer())


@pytest.mark.parametrize("form", FORMS)
def test_right_answers_over_rest_are_accepted_and_loads_find_them_to_be_as_long(
    toutates: Server, mlps: list[models.Model], form: str
) -> None:
    question = Question(mlps[1])
    address = toutates.address_of(form)
    size = question.check(address, form)
    assert 32 <= size < 500
    if shutil.which("h2load"):
        outcome = H2load("h2load", 4, 1, form).run(address, question, 40, size)
        assert (outcome.requests, outcome.p50_us > 0) == (40, True)


def test_streams_count_every_answer(toutates: Server, mlps: list[models.Model]) -> None:
    question = Question(mlps[0])
    size = question.check(toutates.address)
    outcome = StreamLoad(2, 3).run(toutates.address, question, 40, size)
    assert (outcome.requests, outcome.p50_us > 0) == (40, True)
    unknown = Question(replace(mlps[0], name="nosuch"))
    with pytest.raises(NoFigure, match=r"ended with \['UNKNOWN'\].*nosuch"):
        StreamLoad(2, 3).run(toutates.address, unknown, 40, size)
    other = Question(mlps[0])
    request = ModelInferRequest.FromString(other.message)
    request.raw_input_contents[0] = bytes(len(request.raw_input_contents[0]))
    other.message = request.SerializeToString()
    with pytest.raises(NoFigure, match="a sampled answer is wrong"):
        StreamLoad(2, 3).run(toutates.address, other, 40, size)


@pytest.mark.parametrize("form", FORMS)
def test_wrong_answers_over_rest_are_refused(toutates: Server, mlps: list[models.Model], form: str) -> None:
    question = Question(mlps[1])
    question.rest(form).path = "/v2/models/nowhere/infer"
    with pytest.raises(NoFigure, match="a sampled request failed with status 404"):
        question.check(toutates.address_of(form), form)
    other = Question(mlps[1])
    other.rest(form).body = RestRequest(mlps[1], np.ones((1, 64), np.float32), form).body
    with pytest.raises(NoFigure, match="a sampled answer is wrong"):
        other.check(toutates.address_of(form), form)


@pytest.mark.skipif(not FASTAPI.exists(), reason="its environment is not made: tests/peers.sh")
def test_the_server_on_fastapi_answers_rightly_in_both_forms(mlps: list[models.Model], tmp_path: Path) -> None:
    with running(servers.fastapi(FASTAPI), mlps[:2], tmp_path / "run") as server:
        for form in FORMS:
            assert server.speaks(form)
            assert Question(mlps[1]).check(server.address_of(form), form) > 32
        assert not server.speaks(GRPC)


def test_wrong_answers_are_refused(mlps: list[models.Model], tmp_path: Path) -> None:
    def command(site: servers.Site) -> list[str]:
        where = ["--model-repository", str(site.repository), "--grpc-addr", f"127.0.0.1:{site.port}"]
        return [sys.executable, str(WRONG_SERVER), "-m", "toutates", *where]

    with running(servers.Kind("wrong", "", command), mlps, tmp_path / "run") as server:
        question = Question(mlps[0])
        with pytest.raises(NoFigure, match="a sampled answer is wrong"):
            question.check(server.address)
        with pytest.raises(NoFigure, match="a sampled answer is wrong"):
            RoundRobin([question], 1).run(server.address, question, 2, 67)


def test_answers_to_an_unknown_model_are_refused(toutates: Server, tmp_path: Path) -> None:
    unknown = Question(models.mlp(tmp_path))
    with pytest.raises(NoFigure, match="a sampled request failed"):
        unknown.check(toutates.address)
    with pytest.raises(NoFigure, match="NOT_FOUND"):
        RoundRobin([unknown], 1).run(toutates.address, unknown, 2, 67)


def test_round_robin_asks_the_models_in_turn_and_takes_every_answer(toutates: Server, mlps: list[models.Model]) -> None:
    questions = [Question(model) for model in mlps]
    answer_bytes = questions[0].check(toutates.address)
    before = [counts(toutates, question)[0] for question in questions]
    outcome = RoundRobin(questions, 5).run(toutates.address, questions[0], 240, answer_bytes)
    after = [counts(toutates, question)[0] for question in questions]
    assert outcome.requests == 240
    assert 0 < outcome.p50_us <= outcome.p99_us
    assert [late - early for early, late in zip(before, after, strict=True)] == [20] * len(questions)


def test_idle_connections_are_open_on_the_servers_side_too_while_the_block_runs(toutates: Server) -> None:
    with idle_connections(toutates.address, 30):
        held = process.open_files(toutates.pid)
    # Connections of earlier tests may be closing still, but not 30.
    wait_until(lambda: process.open_files(toutates.pid) <= held - 30)


def test_idle_connections_that_the_server_ends_are_noticed(mlps: list[models.Model], tmp_path: Path) -> None:
    kind = servers.grpc_baseline("grpc.aio", "", "baseline_grpc_aio")
    with running(kind, mlps, tmp_path / "run") as server:
        idle = idle_connections(server.address, 3)
        idle.__enter__()
        server.process.kill()
        server.process.wait()
        with pytest.raises(NoFigure):
            idle.__exit__(None, None, None)


def test_idle_connections_beyond_the_limit_of_open_files_are_left_out(tmp_path: Path) -> None:
    results = Results("name", "now")
    load = H2load("h2load", 16, 1)
    sweep_connections(tmp_path, Starter([], results), Measurer(results, tmp_path / "x", 1), load, 1, results, 2000)
    assert [(entry.what, "ulimit -Hn 10500" in entry.why) for entry in results.left_out] == [
        ("10,000 idle connections", True)
    ]


def test_a_server_that_does_not_start_is_unavailable_with_its_last_words(
    mlps: list[models.Model], tmp_path: Path
) -> None:
    kind = servers.Kind("broken", "", lambda site: [sys.executable, "-c", "raise SystemExit('no such flag')"])
    with pytest.raises(Unavailable, match="did not become ready: no such flag"), running(kind, mlps, tmp_path / "run"):
        pass


def test_an_ended_server_gives_no_figure(mlps: list[models.Model], tmp_path: Path) -> None:
    kind = servers.toutates("toutates", "", sys.executable, [])
    with running(kind, mlps[:1], tmp_path / "run") as server:
        server.check_alive()
        server.process.kill()
        server.process.wait()
        with pytest.raises(NoFigure, match="ended with status -9"):
            server.check_alive()


@pytest.mark.parametrize("state", ["living", "ended"])
def test_cpu_time_includes_children(state: str) -> None:
    busy = BUSY.replace("\\n", "\n").format("import time; time.sleep(600)" if state == "living" else "")
    parent = subprocess.Popen(
        [sys.executable, "-c", CHILD.format(busy)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"used\n"
        if state == "ended":
            while len(process.tree(parent.pid)) > 1:
                pass
        assert len(process.tree(parent.pid)) == (2 if state == "living" else 1)
        assert process.cpu_time(parent.pid).total >= 0.2
        assert process.peak_mib(parent.pid) >= process.resident_mib(parent.pid) * 0.9 > 1
    finally:
        for member in process.tree(parent.pid):
            subprocess.run(["kill", "-9", str(member)], check=False)
        parent.communicate()


def test_a_peak_counts_from_where_it_was_reset() -> None:
    program = "a = bytearray(200 << 20); del a; print('freed', flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert process.peak_mib(child.pid) > 200
        process.reset_peak(child.pid)
        assert process.peak_mib(child.pid) < 100
        child.communicate(b"\n")


@pytest.mark.quick
def test_a_missing_program_is_unavailable_with_its_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unavailable, match="apt-get install nghttp2-client"):
        debian_program("h2load", "nghttp2-client")


@pytest.mark.quick
def test_a_missing_library_is_told_with_its_package() -> None:
    loader = "perf_analyzer: error while loading shared libraries: {}: cannot open shared object file: No such file"
    assert missing_library(loader.format("libb64.so.0d")) == (
        "it lacks libb64.so.0d; Debian brings it: apt-get install libb64-0d"
    )
    assert missing_library(loader.format("libz.so.1")) == "it lacks libz.so.1"
    assert missing_library("Illegal instruction") == "Illegal instruction"


def test_a_missing_free_threaded_python_is_unavailable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    environments = Environments(tmp_path / "environments")
    with pytest.raises(Unavailable, match="no free-threaded Python"):
        environments.free_threaded("/nonexistent/python3.14t")


def test_packages_that_cannot_be_installed_make_a_server_unavailable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # pip finds nothing anywhere, as without a network.
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(Unavailable, match=r"PyPI brings it \(pip install mlserver .*Could not find a version"):
        Environments(tmp_path / "environments").mlserver()
