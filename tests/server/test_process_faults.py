"""Faults of a server, its machine and its disks, seen from outside."""

from __future__ import annotations

import errno
import os
import resource
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from tests.e2e.models import add_model, greedy_model
from tests.e2e.process import ServerProcess, command, environment, running
from tests.e2e.wire import client_of, framed
from tests.ports import free_port
from tests.server.asking import INFER, added, is_ready, versions
from tests.waiting import wait_until
from toutates.protocol.grpc_service_pb2 import ModelInferRequest, ModelInferResponse


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
