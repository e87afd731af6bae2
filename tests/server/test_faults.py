"""Faults of the server's own: what clients see of them, what the operator does, and that nothing is left of them."""

from __future__ import annotations

import errno
import json
import logging
import os
import resource
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from tests.e2e.http import get, peer_of
from tests.e2e.models import add_model, greedy_model
from tests.e2e.process import ServerProcess, command, environment, running
from tests.e2e.wire import PLAIN, Answer, Client, client_of, framed
from tests.ports import free_port
from tests.server.inside import Inside, serve
from tests.waiting import wait_until
from toutates.access.callers import Caller
from toutates.access.gate import Gate
from toutates.backends.onnx import loader
from toutates.backends.onnx.session import ModelSession
from toutates.engine import executor_threads as threads_module
from toutates.engine.lane import Batch
from toutates.engine.pool import ExecutorPool
from toutates.engine.submitter import Submitter
from toutates.h2grpc import Call
from toutates.h2grpc.responder import Responder
from toutates.infer.plan import Plan
from toutates.protocol.grpc_service_pb2 import (
    ModelInferRequest,
    ModelInferResponse,
    ModelReadyRequest,
    ModelReadyResponse,
    ModelStatisticsRequest,
    RepositoryIndexResponse,
    ServerReadyResponse,
)
from toutates.system.address import Address

SERVICE: Final = "/inference.GRPCInferenceService/"
INFER: Final = SERVICE + "ModelInfer"
SERVING, NOT_SERVING = b"\x08\x01", b"\x08\x02"
#: A row of the model "versions" that the faults below are waiting for.
FATAL: Final = -666


def versions(number: int, version: str = "") -> bytes:
    """A request to a model that adds the version's number."""
    message = ModelInferRequest(model_name="versions", model_version=version)
    message.inputs.add(name="INPUT", datatype="INT32", shape=[1, 4])
    message.raw_input_contents.append(np.full(4, number, np.int32).tobytes())
    return message.SerializeToString()


def added(answer: Answer) -> int:
    """What the model answered."""
    assert answer.status == ("0", ""), answer.status
    response = ModelInferResponse.FromString(answer.data[5:])
    return int(np.frombuffer(response.raw_output_contents[0], np.int32)[0])


@pytest.fixture
def few(repository: Path, tmp_path: Path) -> Path:
    """A repository of one model of three versions, 1, 2 and 10."""
    (tmp_path / "few").mkdir()
    os.symlink(repository / "versions", tmp_path / "few" / "versions")
    return tmp_path / "few"


# --- requests that cannot be judged


def test_a_request_that_cannot_be_judged_fails_alone_on_its_connection(
    few: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rules = {
        "keys": [
            {
                "name": "one",
                "sha256": sha256(b"good").hexdigest(),
                "groups": ["inference", "metadata", "model-config", "metrics"],
            }
        ]
    }
    (tmp_path / "access.yaml").write_text(json.dumps(rules))  # JSON is YAML
    find = Gate.caller_of

    def fail_or_find(self: Gate, field: bytes | None) -> Caller:
        if field == b"Bearer bug":
            raise OverflowError("a bug")
        return find(self, field)

    monkeypatch.setattr(Gate, "caller_of", fail_or_find)
    bug, good = ("authorization", "Bearer bug"), ("authorization", "Bearer good")
    metadata = ModelReadyRequest(name="versions").SerializeToString()

    def visit(inside: Inside) -> None:
        with client_of(inside.port) as client:
            for path, message in ((INFER, versions(7)), (SERVICE + "ModelMetadata", metadata)):
                for _ in range(2):
                    assert client.call(path, message, [bug]).status == ("13", "internal error")
                    assert client.call(path, message, [good]).status[0] == "0"
            for path in ("/v2/models/versions", "/v2/models/versions/config"):
                for caller, status in ((bug, "500"), (good, "200"), (bug, "500"), (good, "200")):
                    get_it = [*PLAIN, (":method", "GET"), caller]
                    assert client.answer(client.start(path, get_it, end=True)).headers[":status"] == status
            assert client.terminated is None
        assert inside.server.http_address is not None
        for port in (inside.port, inside.server.http_address[1]):
            with peer_of(port) as peer:
                for caller, code in ((bug, 500), (good, 200), (bug, 500), (good, 200)):
                    path = "/metrics" if port != inside.port else "/v2/models/versions"
                    assert peer.ask(get(path, ": ".join(caller))).status == code

    metrics_addr = Address("127.0.0.1", 0)
    assert serve(few, visit, access_file=tmp_path / "access.yaml", metrics_addr=metrics_addr) == 0
    assert "OverflowError: a bug" in caplog.text


# --- executors whose threads die


class Ended(BaseException):
    """No Exception: it ends the thread."""


def make_fatal(patch: pytest.MonkeyPatch) -> None:
    """Rows of FATAL end the thread that runs them; nothing is run inline."""
    run = ModelSession.run

    def run_or_die(self: ModelSession, batch: Batch, *more: Any) -> Any:
        if (batch.arrays[0][: batch.rows] == FATAL).any():
            raise Ended
        return run(self, batch, *more)

    patch.setattr(ModelSession, "run", run_or_die)
    for name in ("QUICK_NS", "_QUICK_ON_ONE_CORE_NS"):
        assert getattr(loader, name) > 0
        patch.setattr(loader, name, 0)


def is_ready(client: Client, model: str, version: str = "") -> bool:
    answer = client.call(SERVICE + "ModelReady", ModelReadyRequest(name=model, version=version).SerializeToString())
    return ModelReadyResponse.FromString(answer.data[5:]).ready


def test_a_model_whose_executor_died_is_not_ready_until_it_is_replaced(
    few: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    make_fatal(monkeypatch)
    # The first replacement comes at once, the second never.
    monkeypatch.setattr(threads_module, "FIRST_PAUSE_S", 1e9)
    monkeypatch.setattr(threads_module, "MAX_PAUSE_S", 1e9)

    def visit(inside: Inside) -> None:
        with client_of(inside.port) as client, client_of(inside.port) as watcher:
            watch = watcher.start("/grpc.health.v1.Health/Watch")
            watcher.send(watch, framed(b""))
            assert added(client.call(INFER, versions(1))) == 11
            for _ in range(2):
                # It waits for a batch: that it is ready could still be said of the thread that has died.
                wait_until(lambda: inside.supertensor("versions").occupancy().idle_executors == 1)
                assert is_ready(client, "versions")
                dead = client.call(INFER, versions(FATAL))
                assert dead.status == ("13", "running the batch failed: Ended")
            while not watcher.answers[watch].data.endswith(framed(NOT_SERVING)):
                assert watcher.receive()
            assert not is_ready(client, "versions")
            assert not is_ready(client, "versions", "10")
            assert is_ready(client, "versions", "2")
            assert not ServerReadyResponse.FromString(client.call(SERVICE + "ServerReady", b"").data[5:]).ready
            assert client.call("/grpc.health.v1.Health/Check", b"").data[5:] == NOT_SERVING
            # No older version takes its place; who asks for one gets it.
            text = "Request for unknown model: 'versions' version 10 is not at ready state"
            assert client.call(INFER, versions(1)).status == ("14", text)
            assert client.call(INFER, versions(1, "10")).status == ("14", text)
            assert added(client.call(INFER, versions(1, "2"))) == 3
            index = client.call(SERVICE + "RepositoryIndex", b"").data[5:]
            states = {model.version: model for model in RepositoryIndexResponse.FromString(index).models}
            assert [states[version].state for version in ("1", "2", "10")] == ["READY", "READY", "UNAVAILABLE"]
            assert states["10"].reason == "Internal: its executors died and are replaced"
            statistics = ModelStatisticsRequest(name="versions", version="10").SerializeToString()
            assert client.call(SERVICE + "ModelStatistics", statistics).status == ("0", "")
            assert inside.supertensor("versions").occupancy().in_flight == 0

    assert serve(few, visit) == 0
    assert "executor-0 versions of version 10 died (1 in a row); it is replaced at once" in caplog.text
    assert "died (2 in a row); it is replaced in 1e+09 s" in caplog.text


def test_executors_that_die_again_and_again_are_replaced_and_nothing_is_lost(
    few: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    make_fatal(monkeypatch)
    monkeypatch.setattr(threads_module, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(threads_module, "MAX_PAUSE_S", 0.05)

    def visit(inside: Inside) -> None:
        with client_of(inside.port) as client:
            deaths = 0
            while deaths < 8:
                streams = [client.start(INFER) for _ in range(5)]
                numbers = [deaths, deaths + 1, FATAL, deaths + 2, deaths + 3]
                for stream, number in zip(streams, numbers, strict=True):
                    client.send(stream, framed(versions(number)))
                for stream, number in zip(streams, numbers, strict=True):
                    # Those who shared the batch share its end; those who came after it wait for the next thread, or
                    # are told that there is none.
                    status = client.answer(stream).status[0]
                    assert status in ("13", "14") if number == FATAL else status in ("0", "13", "14")
                    deaths += number == FATAL and status == "13"
                    if status == "0":
                        assert added(client.answers[stream]) == number + 10

            def is_served() -> bool:
                stream = client.start(INFER)
                client.send(stream, framed(versions(5)))
                return client.answer(stream).status[0] == "0" and added(client.answers[stream]) == 15

            wait_until(is_served)  # the news of the last death may come after its answer
            inside.wait_quiet()
            wait_until(lambda: inside.supertensor("versions").occupancy().idle_executors == 1)
            assert inside.manager.counters.executor_deaths == deaths

    assert serve(few, visit) == 0
    assert "died (8 in a row); it is replaced in 0.05 s" in caplog.text


def test_requests_that_wait_while_an_executor_is_replaced_are_answered(
    few: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_fatal(monkeypatch)
    deaths = []

    def visit(inside: Inside) -> None:
        with client_of(inside.port) as client, client_of(inside.port) as other:
            waiting: list[int] = []

            class Between(logging.Handler):
                """In the main thread, between the death and the news of it: requests still go the usual way."""

                def emit(self, record: logging.LogRecord) -> None:
                    if "died" in record.msg:
                        waiting.append(other.start(INFER))
                        other.send(waiting[-1], framed(versions(1)))
                        wait_until(lambda: inside.supertensor("versions").occupancy().in_flight == 1)
                        deaths.append(record)

            handler = Between()
            threads_module.logger.addHandler(handler)
            assert added(client.call(INFER, versions(1))) == 11
            assert client.call(INFER, versions(FATAL)).status[0] == "13"
            wait_until(lambda: deaths)
            threads_module.logger.removeHandler(handler)
            assert added(other.answer(waiting[0])) == 11

    assert serve(few, visit) == 0
    assert len(deaths) == 1


def test_one_of_two_executors_that_dies_leaves_the_model_ready(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    make_fatal(monkeypatch)
    monkeypatch.setattr(threads_module, "FIRST_PAUSE_S", 1e9)
    monkeypatch.setattr(threads_module, "MAX_PAUSE_S", 1e9)
    folder = tmp_path / "versions" / "1"
    folder.mkdir(parents=True)
    (folder / "model.onnx").write_bytes((repository / "versions" / "1" / "model.onnx").read_bytes())
    (folder / "config.yaml").write_text(
        "backend: supertensor\nbatch_size: 8\ncapacity: 4\nnum_executors: 2\nallocator: cpu\n"
    )

    def visit(inside: Inside) -> None:
        supertensor = inside.supertensor("versions")
        with client_of(inside.port) as client:
            # Of three deaths of two executors, two at least are of one, which then stays dead.
            while "(2 in a row)" not in caplog.text:
                assert client.call(INFER, versions(FATAL)).status[0] == "13"
                wait_until(
                    lambda: (
                        supertensor.occupancy().idle_executors == 2
                        or ("(2 in a row)" in caplog.text and supertensor.occupancy().idle_executors == 1)
                    )
                )
            assert is_ready(client, "versions")
            for number in range(8):
                assert added(client.call(INFER, versions(number))) == number + 1

    assert serve(tmp_path, visit) == 0


def test_a_system_without_threads_is_asked_again(few: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refusals = [RuntimeError("can't start new thread")] * 3
    really_start = ExecutorPool.start_thread

    def start(thread: threading.Thread) -> None:
        if refusals:
            raise refusals.pop()
        really_start(thread)

    monkeypatch.setattr(ExecutorPool, "start_thread", staticmethod(start))

    def visit(inside: Inside) -> None:
        with client_of(inside.port) as client:
            wait_until(lambda: is_ready(client, "versions"))
            assert added(client.call(INFER, versions(1))) == 11

    assert serve(few, visit) == 0
    assert not refusals


# --- errors of our own on the way of a request


def test_an_error_while_a_batch_is_answered_fails_its_requests_and_no_others(
    few: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*arguments: object) -> Any:
        raise RuntimeError("a bug")

    def visit(inside: Inside) -> None:
        with client_of(inside.port) as client, client_of(inside.port) as other:
            with monkeypatch.context() as patch:
                patch.setattr(Plan, "template_for", fail)
                streams = [client.start(INFER) for _ in range(4)]
                for stream in streams:
                    client.send(stream, framed(versions(1)))
                assert [client.answer(stream).status for stream in streams] == [("13", "internal error")] * 4
            assert added(client.call(INFER, versions(2))) == 12
            assert added(other.call(INFER, versions(3))) == 13
            inside.wait_quiet()
            counters = inside.version("versions").servable.counters.requests()
            assert (counters.success, counters.fail, counters.cancel) == (2, 4, 0)

    assert serve(few, visit) == 0
    assert "answering a call failed" in caplog.text


@pytest.mark.parametrize("broken", [("reply",), ("reply", "fail")])
def test_a_connection_that_cannot_be_answered_costs_those_who_share_its_batch_nothing(
    few: Path, broken: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def visit(inside: Inside) -> None:
        with client_of(inside.port) as victim, client_of(inside.port) as other:
            assert added(victim.call(INFER, versions(1))) == 11
            seen: list[Responder] = []
            with monkeypatch.context() as patch:
                for name in broken:
                    original = getattr(Responder, name)

                    def answer(self: Responder, call: Call, *arguments: Any, original: Any = original) -> None:
                        seen.append(self)
                        if self is seen[0]:
                            raise RuntimeError("a bug")
                        original(self, call, *arguments)

                    patch.setattr(Responder, name, answer)
                stream = victim.start(INFER)
                victim.send(stream, framed(versions(1)))
                shared = [other.start(INFER) for _ in range(3)]
                wait_until(lambda: bool(seen))
                for one in shared:
                    other.send(one, framed(versions(2)))
                answer_of_victim = victim.answer(stream)
                if broken == ("reply",):
                    assert answer_of_victim.status == ("13", "internal error")
                else:
                    assert not answer_of_victim.ended
                assert [added(other.answer(one)) for one in shared] == [12, 12, 12]

    assert serve(few, visit) == 0


def test_a_request_for_which_there_is_no_memory_is_turned_away_without_a_word_in_the_log(
    few: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*arguments: object) -> Any:
        raise MemoryError

    def visit(inside: Inside) -> None:
        with client_of(inside.port) as client:
            with monkeypatch.context() as patch:
                patch.setattr(Submitter, "add_packed", fail)
                assert client.call(INFER, versions(1)).status == ("8", "the server is out of memory")
            assert added(client.call(INFER, versions(2))) == 12
            inside.wait_quiet()

    assert serve(few, visit) == 0
    assert "Traceback" not in caplog.text


def test_a_run_that_asks_for_more_memory_than_there_is_fails_alone(tmp_path: Path) -> None:
    add_model(tmp_path / "models", "greedy", greedy_model())
    (tmp_path / "log").mkdir()

    def greedy(number: int) -> bytes:
        message = ModelInferRequest(model_name="greedy")
        message.inputs.add(name="INPUT", datatype="INT64", shape=[1, 1])
        message.raw_input_contents.append(number.to_bytes(8, "little"))
        return message.SerializeToString()

    with running(tmp_path / "models", tmp_path / "log") as process:
        with client_of(process.port) as client:
            streams = [client.start(INFER) for _ in range(200)]
            numbers = [2**62 if at % 9 == 4 else 2**50 if at % 9 == 0 else at for at in range(200)]
            for stream, number in zip(streams, numbers, strict=True):
                client.send(stream, framed(greedy(number)))
            for stream, number in zip(streams, numbers, strict=True):
                answer = client.answer(stream)
                if number >= 2**50:
                    assert answer.status[0] == "13"
                    assert answer.status[1].startswith("onnx runtime error 1: ")
                else:
                    response = ModelInferResponse.FromString(answer.data[5:])
                    assert int.from_bytes(response.raw_output_contents[0], "little") == number
        assert process.stop() == 0
        # ONNX Runtime has a line for each allocation that overflows, which clients ask for.
        assert "overflow" not in process.log


# --- processes that are killed, or fail

#: A worker, the manager or the main thread meets a bug once a request says so.
CRASHING: Final = """
import sys
from toutates.command.main import main
from toutates.engine import batched
from toutates.infer import service as infer
from toutates.net import worker
from toutates.system.logs import control

class Fatal(BaseException):
    pass

kind = sys.argv.pop(1)
asked = []
real_infer, real_tick = infer.InferService.infer, worker.Worker._tick

def ask(self, call):
    if b"crash" in call.buffer:
        asked.append(call)  # its deadline makes the worker do what is due by time
    else:
        real_infer(self, call)

def tick(self, now_ns):
    if asked and kind == "error":
        raise RuntimeError("a bug")
    if asked and kind == "no error":
        raise Fatal("a bug")
    return real_tick(self, now_ns)

async def fail_when_asked(self, *arguments):
    import trio
    while not asked:
        await trio.sleep(0.01)
    raise RuntimeError("a bug")

def fail(self):
    raise RuntimeError("a bug")

infer.InferService.infer, worker.Worker._tick = ask, tick
if kind == "manager":
    batched.BatchedServable.start = lambda *_: False  # so that the version has a task from the start
    batched.BatchedServable.run = fail_when_asked
if kind == "main":
    control.LogControl.toggle_debug = fail
sys.exit(main())
"""


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("kind", ["error", "no error", "manager", "main"])
def test_a_server_that_meets_a_bug_of_its_own_ends_with_1_and_says_so(
    few: Path, tmp_path: Path, kind: str, workers: int
) -> None:
    flags = ["--processing-cores", str(workers)]
    with running(few, tmp_path, flags, module=("tests.e2e.coded", CRASHING, kind)) as process:
        with client_of(process.port) as client:
            if kind not in ("manager",):
                assert added(client.call(INFER, versions(1))) == 11
            if kind == "main":
                process.process.send_signal(signal.SIGUSR1)
            else:
                stream = client.start(INFER, [("grpc-timeout", "300m")])
                client.send(stream, framed(ModelInferRequest(model_name="crash").SerializeToString()))
            while client.sock.recv(65_536):
                pass  # GOAWAY, where there was time for it, and the end
            assert process.process.wait(120) == 1
        assert "a bug" in process.log
        if kind in ("error", "no error"):
            assert "CRITICAL server: worker-" in process.log
            assert "failed; the server stops" in process.log


def test_a_server_that_was_killed_is_started_again_on_its_port_at_once(few: Path, tmp_path: Path) -> None:
    grpc = pytest.importorskip("grpc")
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    with running(few, tmp_path / "one", ["--processing-cores", "2"], port=free_port()) as process:
        options = [("grpc.initial_reconnect_backoff_ms", 50), ("grpc.max_reconnect_backoff_ms", 100)]
        with grpc.insecure_channel(process.address, options=options) as channel, client_of(process.port) as client:
            method = channel.unary_unary(INFER)
            assert method(versions(1), timeout=120)
            assert added(client.call(INFER, versions(1))) == 11
            open_call = channel.unary_unary(INFER).future(versions(1), timeout=120)
            open_call.result()
            process.process.send_signal(signal.SIGKILL)
            assert process.process.wait(120) == -signal.SIGKILL
            with pytest.raises(grpc.RpcError) as caught:
                method(versions(1), timeout=120)
            assert caught.value.code().name == "UNAVAILABLE"
            # Connections that were open when it was killed linger in the kernel, and must not keep the port.
            with running(few, tmp_path / "two", ["--processing-cores", "2"], port=process.port) as again:
                assert again.port == process.port
                response = method(versions(2), timeout=120, wait_for_ready=True)
                assert ModelInferResponse.FromString(response).model_version == "10"
                assert again.stop() == 0


# --- streams and disks that fail


@contextmanager
def deaf_server(
    repository: Path, *, stdout: Any = None, stderr: Any = None, shell: str = ""
) -> Iterator[ServerProcess]:
    """A server whose log nobody can read."""
    port = free_port()
    words = command("--model-repository", str(repository), "--grpc-addr", f"127.0.0.1:{port}")
    if shell:
        words = ["sh", "-c", f'exec "$@" {shell}', "sh", *words]
    # As its users have it: what a stream has not taken is kept, and tried again.
    buffered = {name: value for name, value in environment().items() if name != "PYTHONUNBUFFERED"}
    process = subprocess.Popen(words, stdout=stdout, stderr=stderr, env=buffered)
    try:
        yield ServerProcess(process, port, Path(os.devnull))
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(120)


def wait_listening(process: ServerProcess) -> None:
    def listens() -> bool:
        assert process.process.poll() is None, f"the server ended with {process.process.returncode}"
        try:
            socket.create_connection(("127.0.0.1", process.port), timeout=120).close()
        except ConnectionRefusedError:
            return False
        return True

    wait_until(listens)


def cpu_seconds(process: ServerProcess) -> float:
    fields = Path(f"/proc/{process.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("fault", ["full disk", "closed", "broken pipe"])
def test_a_server_whose_streams_cannot_be_written_serves_and_ends_as_ever(few: Path, fault: str) -> None:
    full = open("/dev/full", "wb")  # noqa: SIM115, closed below
    read_end, write_end = os.pipe()
    os.close(read_end)
    choices: dict[str, dict[str, Any]] = {
        "full disk": {"stdout": full, "stderr": full},
        "closed": {"shell": "<&- >&- 2>&-"},
        "broken pipe": {"stdout": write_end, "stderr": write_end},
    }
    streams = choices[fault]
    try:
        with deaf_server(few, **streams) as process:
            wait_listening(process)
            with client_of(process.port) as client:
                assert added(client.call(INFER, versions(1))) == 11
                for _ in range(50):  # each is a line in the log
                    with socket.create_connection(("127.0.0.1", process.port), timeout=120) as broken:
                        broken.sendall(b"nonsense\r\n" * 10)
                        while broken.recv(1_000):
                            pass
                assert added(client.call(INFER, versions(2))) == 12
                before = cpu_seconds(process)
                time.sleep(0.5)
                assert cpu_seconds(process) - before < 0.2, "the server spins"
            assert process.stop() == 0
    finally:
        full.close()
        os.close(write_end)


def test_a_disk_that_is_full_while_profiles_are_written_takes_no_request_down(repository: Path, tmp_path: Path) -> None:
    add_model(
        tmp_path / "models",
        "versions",
        (repository / "versions" / "1" / "model.onnx").read_bytes(),
        config="backend: supertensor\nbatch_size: 8\ncapacity: 16\nnum_executors: 1\nallocator: cpu\n"
        f"profiling: {{file_prefix: {tmp_path / 'profile'}, stop_after_batches: 300}}\n",
    )
    (tmp_path / "log").mkdir()
    with running(tmp_path / "models", tmp_path / "log") as process:
        # The disk takes 32 KiB of a file and no more: EFBIG, and SIGXFSZ for who does not ignore it.
        resource.prlimit(process.process.pid, resource.RLIMIT_FSIZE, (32_768, 32_768))
        with client_of(process.port) as client:
            for number in range(400):
                assert added(client.call(INFER, versions(number))) == number + 1
        assert process.stop() == 0
        assert process.log.count("the profile of model 'versions' could not be written: ") == 1
        assert "is cut short" in process.log
    [profile] = tmp_path.glob("profile_*.json")
    assert profile.stat().st_size == 32_768


@pytest.mark.skipif(not os.path.isfile("/proc/self/mem"), reason="nothing here fails to be read")
def test_a_repository_on_a_disk_with_errors_is_served_as_far_as_it_can_be_read(
    broken_repository: Path, tmp_path: Path
) -> None:
    # Reading one's own memory at 0 is what a bad block is: an input/output error.
    with open("/proc/self/mem", "rb") as memory, pytest.raises(OSError, match=os.strerror(errno.EIO)):
        memory.read(1)
    models = tmp_path / "models"
    good = (broken_repository / "good" / "1" / "model.onnx").read_bytes()
    add_model(models, "good", good)
    add_model(models, "no_config", good)
    os.symlink("/proc/self/mem", models / "no_config" / "1" / "config.yaml")
    (models / "no_graph" / "1").mkdir(parents=True)
    os.symlink("/proc/self/mem", models / "no_graph" / "1" / "model.onnx")
    (tmp_path / "log").mkdir()
    with running(models, tmp_path / "log") as process:
        with client_of(process.port) as client:
            assert is_ready(client, "good")
            assert not is_ready(client, "no_config")
            assert not is_ready(client, "no_graph")
        assert "config.yaml: cannot be read: Input/output error" in process.log
        assert "model 'no_graph' version 1 cannot be served: onnxruntime cannot load 'model.onnx'" in process.log
        assert process.stop() == 0


def test_the_tests_of_this_module_leave_no_threads() -> None:
    wait_until(lambda: not [thread for thread in threading.enumerate() if thread.name.startswith("executor-")])
