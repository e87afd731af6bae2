"""The process: its exit codes, mistakes on the command line, and ``toutates probe``."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.e2e.process import FRESH, ServerProcess, command, environment, run, running
from tests.e2e.support import pb
from tests.e2e.wire import client_of
from tests.waiting import wait_until

pytestmark = pytest.mark.long

INFER = "/inference.GRPCInferenceService/ModelInfer"


def slow() -> bytes:
    """A request that takes about a millisecond."""
    message = pb.ModelInferRequest(model_name="slow")
    message.inputs.add(name="INPUT", datatype="INT64", shape=[1, 1])
    message.raw_input_contents.append((1).to_bytes(8, "little"))
    return bytes(message.SerializeToString())


# --- the end


def test_an_idle_connection_does_not_hold_up_the_end(repository: Path, tmp_path: Path) -> None:
    with (
        running(repository, tmp_path, ["--load-models", "slow"]) as process,
        socket.create_connection(("127.0.0.1", process.port)),
        client_of(process.port) as client,
    ):
        assert client.call(INFER, slow()).status == ("0", "")
        assert process.stop() == 0


def test_onnx_runtime_keeps_no_records_of_what_the_server_does(repository: Path, tmp_path: Path) -> None:
    with running(repository, tmp_path, ["--load-models", "slow"], FRESH) as process:
        files = [os.path.realpath(f"/proc/{process.process.pid}/fd/{fd}") for fd in range(64)]
        assert not [name for name in files if "onnxruntime" in name]


def test_a_signal_while_models_load_ends_the_server(repository: Path, tmp_path: Path) -> None:
    arguments = ["--model-repository", str(repository), "--grpc-addr", "127.0.0.1:0"]
    log_path = tmp_path / "log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(command(*arguments), stdout=log, stderr=log, env=environment())
    try:
        wait_until(lambda: "loaded 1 of" in log_path.read_text())
        process.terminate()
        assert process.wait(120) == 0
        assert "Traceback" not in log_path.read_text()
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


# --- mistakes


@pytest.mark.quick
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["--model-repository"]),
        (
            ["--model-repository", "/nowhere/at/all", "--exit-on-error", "true"],
            ["--model-repository", "there is no such directory", "/nowhere"],
        ),
        (["--model-repository", "REPOSITORY", "--unknown"], ["unrecognized arguments: --unknown"]),
        (["--model-repository", "REPOSITORY", "stray"], ["unrecognized arguments: stray"]),
        (["--model-repository", "REPOSITORY", "--grpc-addr", "x"], ["--grpc-addr", "is not an address", "'x'"]),
        (["--model-repository", "REPOSITORY", "--grpc-addr", "127.0.0.1:70000"], ["--grpc-addr", "70000"]),
        (["--model-repository", "REPOSITORY", "--grpc-addr", "203.0.113.1:0"], ["--grpc-addr", "cannot listen"]),
        (["--model-repository", "REPOSITORY", "--load-models", "goood"], ["--load-models", "did you mean 'good'?"]),
        (
            ["--model-repository", "REPOSITORY", "--model-control-mode", "explicit", "--load-model", "goood"],
            ["--load-model: no such model in the repository (got 'goood'); did you mean 'good'?"],
        ),
        (["--model-repository", "REPOSITORY", "--load-models", "a,,b"], ["--load-models", "has an empty name"]),
        (["--model-repository", "REPOSITORY", "--max-frame-size", "1"], ["--max-frame-size", "16384"]),
        (
            ["--model-repository", "REPOSITORY", "--processing-cores", "0"],
            ["--processing-cores", "a whole number from 1 up"],
        ),
        (["--model-repository", "REPOSITORY", "--shutdown-grace", "-1"], ["--shutdown-grace"]),
        (["--model-repository", "REPOSITORY", "--execution-providers", "abacus"], ["--execution-providers", "abacus"]),
        (["--model-repository", "REPOSITORY", "--custom-op-libraries", "/x.so"], ["--custom-op-libraries", "/x.so"]),
        (["--model-repository", "REPOSITORY", "--grpc-compression", "zstd"], ["--grpc-compression", "zstd"]),
    ],
)
def test_a_mistake_on_the_command_line_is_named_and_the_exit_code_is_2(
    broken_repository: Path, arguments: list[str], words: list[str]
) -> None:
    ended = run(*[str(broken_repository) if word == "REPOSITORY" else word for word in arguments])
    assert ended.returncode == 2
    assert "Traceback" not in ended.stderr
    for word in words:
        assert word in ended.stderr


def test_a_port_in_use_is_named_and_the_exit_code_is_2(broken_repository: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        address = f"127.0.0.1:{other.getsockname()[1]}"
        words = command("--model-repository", str(broken_repository), "--grpc-addr", address)
        ended = subprocess.run(words, env=environment(), capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 2
    assert f"--grpc-addr: cannot listen: Address already in use (got '{address}')" in ended.stderr


def test_a_bad_config_is_named_with_its_file_key_and_value(broken_repository: Path, tmp_path: Path) -> None:
    with running(broken_repository, tmp_path) as process:
        path = broken_repository / "misspelt" / "1" / "config.yaml"
        assert f"{path}: capacities: unknown key" in process.log
        assert process.stop() == 0


@pytest.mark.quick
@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["probe", "--help"]])
def test_help_and_version_are_printed(arguments: list[str]) -> None:
    ended = run(*arguments)
    assert ended.returncode == 0
    assert "toutates" in ended.stdout
    assert not ended.stderr


# --- probe


def probe(process: ServerProcess | str, *arguments: str) -> subprocess.CompletedProcess[str]:
    address = process if isinstance(process, str) else process.address
    return run("probe", address, "--timeout", "60", *arguments)


@pytest.mark.quick
def test_probe_of_a_server_that_serves_is_0(server: ServerProcess) -> None:
    ended = probe(server)
    assert (ended.returncode, ended.stdout) == (0, f"{server.address}: SERVING\n")


def test_probe_of_a_server_that_is_not_ready_is_1(broken_repository: Path, tmp_path: Path) -> None:
    with running(broken_repository, tmp_path) as process:
        ended = probe(process)
        assert (ended.returncode, ended.stderr) == (1, f"{process.address}: NOT_SERVING\n")
        assert process.stop() == 0


def test_probe_where_nobody_listens_is_1() -> None:
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        ended = probe(f"127.0.0.1:{unheard.getsockname()[1]}")
    assert ended.returncode == 1
    assert "Connection refused" in ended.stderr


def test_probe_of_a_server_that_does_not_answer_is_1_after_its_timeout() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        ended = probe(f"127.0.0.1:{silent.getsockname()[1]}", "--timeout", "0.3")
    assert ended.returncode == 1
    assert "no answer within 0.3 s" in ended.stderr


@pytest.mark.parametrize("arguments", [[], ["nonsense"], ["127.0.0.1:1", "--timeout", "x"], ["a:1", "b:2"]])
def test_probe_with_a_mistake_is_2(arguments: Sequence[str]) -> None:
    ended = run("probe", *arguments)
    assert ended.returncode == 2
    assert "Traceback" not in ended.stderr
