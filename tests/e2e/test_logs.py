"""The log of a running server, as operators read it and change it."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.process import ServerProcess, command, environment, run, running
from tests.e2e.support import pb
from tests.e2e.wire import client_of
from tests.ports import free_port
from tests.waiting import wait_until

pytestmark = pytest.mark.long

SERVICE = "/inference.GRPCInferenceService/"


def slow(identifier: str = "", model: str = "slow") -> bytes:
    message = pb.ModelInferRequest(model_name=model, id=identifier)
    message.inputs.add(name="INPUT", datatype="INT64", shape=[1, 1])
    message.raw_input_contents.append((1).to_bytes(8, "little"))
    return bytes(message.SerializeToString())


def change(port: int, **levels: str | bool | int) -> Any:
    """LogSettings; a double underscore stands for a dot."""
    request = pb.LogSettingsRequest()
    for key, value in levels.items():
        setting = request.settings[key.replace("__", ".")]
        if isinstance(value, bool):
            setting.bool_param = value
        elif isinstance(value, int):
            setting.uint32_param = value
        else:
            setting.string_param = value
    with client_of(port) as client:
        answer = client.call(SERVICE + "LogSettings", request.SerializeToString())
    assert answer.status == ("0", ""), answer.status
    return pb.LogSettingsResponse.FromString(answer.data[5:])


def test_what_has_no_effect_is_said_once(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    message = pb.ModelInferRequest.FromString(slow())
    message.parameters["timeout"].int64_param = 1_000_000
    with running(repository, tmp_path, ["--load-models", "slow"]) as process:
        assert (
            "nothing can be traced: OTEL_EXPORTER_OTLP_PROTOCOL: traces are sent by http/protobuf only" in process.log
        )
        for value in (1, 1, 2):
            message.parameters["own"].int64_param = value
            with client_of(process.port) as client:
                answer = client.call(SERVICE + "ModelInfer", message.SerializeToString())
                assert answer.status == ("0", "")
                request = pb.TraceSettingRequest()
                request.settings["trace_level"].value.append("TIMESTAMP")
                refused = client.call(SERVICE + "TraceSetting", request.SerializeToString())
                assert refused.status == (
                    "3",
                    "there is no trace level 'TIMESTAMP', choose from OFF, TIMESTAMPS, TENSORS",
                )
        wait_until(lambda: "the parameter 'own', which has no effect" in process.log)
        assert process.stop() == 0
        for name in ("timeout", "own"):
            assert process.log.count(f"requests for model 'slow' have the parameter '{name}', which has no effect") == 1


def break_connection(port: int) -> None:
    """A connection that ends early, which the worker logs at level info."""
    with socket.create_connection(("127.0.0.1", port), 30) as connection:
        connection.sendall(b"\x16\x03\x01\x00\x05hello")
        while connection.recv(65_536):
            pass


def ends(process: ServerProcess) -> list[str]:
    return [line for line in process.log.splitlines() if " ended: TLS handshake on a plaintext port" in line]


def access_lines(process: ServerProcess) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in process.log.splitlines() if line.startswith("{")]
    return [line for line in lines if line["area"] == "access"]


def with_broken_model(repository: Path, tmp_path: Path) -> Path:
    """A repository with the model "slow", and one with several mistakes."""
    root = tmp_path / "models"
    root.mkdir()
    (root / "slow").symlink_to(repository / "slow")
    (root / "broken" / "1").mkdir(parents=True)
    (root / "broken" / "1" / "model.onnx").write_bytes(b"")
    mistakes = "backend: supertensor\nbatch_size: 0\ncapacity: 2\nnum_executors: 1\nallocator: cpu\nother: 1\n"
    (root / "broken" / "1" / "config.yaml").write_text(mistakes)
    return root


def test_tables_and_lines_do_not_run_into_each_other(repository: Path, tmp_path: Path) -> None:
    # Both streams are one file here.
    with running(with_broken_model(repository, tmp_path), tmp_path) as process:
        lines = process.log.splitlines()
        start = next(at for at, line in enumerate(lines) if line.startswith("MODEL "))
        reasons = [line for line in lines if "ERROR" in line]
        assert [line.partition("config.yaml: ")[2].partition(":")[0] for line in reasons] == ["batch_size", "other"]
        assert all("model 'broken' version 1 cannot be served: " in line for line in reasons)
        table = lines[start - 1 : start + 5]
        assert "; onnxruntime " in table[0]
        assert table[2].startswith("broken 1       UNAVAILABLE Internal: ")
        at = table[2].index("Internal: ")
        assert table[3][:at].isspace()
        assert "other: unknown key" in table[3]
        assert table[4].startswith("slow   1       READY ")
        assert "threads are not pinned" in table[5]
        dated = re.compile(r"\d{4}-\d\d-\d\d ")
        assert all(dated.match(line) for line in lines[: start - 1] + lines[start + 5 :])
        # What has failed is not said to be loaded.
        assert [line.partition("server: ")[2] for line in lines if "loaded " in line and dated.match(line)] == [
            "loaded 1 of 2: slow 1"
        ]


def test_every_line_of_a_json_log_is_an_object(repository: Path, tmp_path: Path) -> None:
    root = with_broken_model(repository, tmp_path)
    flags = ["--model-repository", str(root), "--grpc-addr", "127.0.0.1:0"]
    log_path = tmp_path / "log"
    with log_path.open("wb") as log, (tmp_path / "out").open("wb") as out:
        process = subprocess.Popen(
            command(*flags, "--log-format", "json", "--log-level", "debug"), stdout=out, stderr=log, env=environment()
        )
    try:
        wait_until(lambda: "serving gRPC" in log_path.read_text() or process.poll() is not None)
        port = int(re.findall(r"serving gRPC on 127\.0\.0\.1:(\d+)", log_path.read_text())[0])
        break_connection(port)
        with client_of(port) as client:
            assert client.call(SERVICE + "ModelInfer", slow()).status == ("0", "")
        process.terminate()
        assert process.wait(120) == 0
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
    lines = [json.loads(line) for line in log_path.read_text().splitlines()]
    for line in lines:
        assert list(line)[:4] == ["timestamp", "level", "area", "event"]
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", line["timestamp"])
        assert abs(datetime.fromisoformat(line["timestamp"]).timestamp() - time.time()) < 300
        assert line["level"] in ("debug", "info", "warning", "error")
    records = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    assert all(list(line)[:4] == ["timestamp", "level", "area", "event"] for line in records)
    assert [(line["model"], line["state"]) for line in records if line["event"] == "model version"] == [
        ("broken", "UNAVAILABLE"),
        ("broken", "UNAVAILABLE"),
        ("slow", "READY"),
    ]
    assert len([line for line in lines if line["level"] == "error"]) == 2
    [serving] = [line for line in lines if "serving gRPC" in line["event"]]
    assert (serving["area"], serving["port"], serving["workers"] > 0) == ("server", port, True)
    [ended] = [line for line in lines if " ended: TLS handshake " in line["event"]]
    assert ended["area"] == "h2grpc"
    assert re.match(rf"worker-\d: connection from {re.escape(ended['peer'])} ended: ", ended["event"])
    # The end writes what it has to say.
    assert lines[-1]["event"] == "SIGTERM: stopping"


def test_levels_change_by_request_while_the_server_runs(repository: Path, tmp_path: Path) -> None:
    with running(repository, tmp_path, ["--load-models", "slow", "--log-level", "info,h2grpc=warning"]) as process:
        break_connection(process.port)
        assert change(process.port).settings["log_level.h2grpc"].string_param == "warning"
        answer = change(process.port, log_level__h2grpc="info", log_info=False)
        assert answer.settings["log_level.h2grpc"].string_param == "info"
        assert not answer.settings["log_info"].bool_param
        wait_until(lambda: "log settings: log_info=False, log_level.h2grpc=info" in process.log)
        assert not ends(process)
        break_connection(process.port)
        wait_until(lambda: len(ends(process)) == 1)
        change(process.port, log_level__h2grpc="")
        break_connection(process.port)
        assert process.stop() == 0
        assert len(ends(process)) == 1
        assert "SIGTERM" not in process.log, "which is of level info"


@pytest.mark.quick
def test_a_signal_has_everything_logged_until_the_next(repository: Path, tmp_path: Path) -> None:
    with running(repository, tmp_path, ["--load-models", "slow", "--log-level", "info,h2grpc=error"]) as process:
        break_connection(process.port)
        process.process.send_signal(signal.SIGUSR1)
        wait_until(lambda: "SIGUSR1: everything is logged" in process.log)
        assert change(process.port).settings["log_verbose_level"].uint32_param == 1
        break_connection(process.port)
        wait_until(lambda: len(ends(process)) == 1)
        process.process.send_signal(signal.SIGUSR1)
        wait_until(lambda: "SIGUSR1: the log is as it was before" in process.log)
        assert change(process.port).settings["log_level.h2grpc"].string_param == "error"
        break_connection(process.port)
        assert process.stop() == 0
        assert len(ends(process)) == 1


def test_a_flood_of_broken_connections_leaves_few_lines(repository: Path, tmp_path: Path) -> None:
    with running(repository, tmp_path, ["--load-models", "slow"]) as process:
        before = len(process.log)
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda _: break_connection(process.port), range(2_000)))
        assert process.stop() == 0
        added = process.log[before:]
        assert len(added.splitlines()) < 500
        counted = len(ends(process)) + sum(
            int(number) for number in re.findall(r"and (\d+) more connections that ended early", process.log)
        )
        assert counted == 2_000


@pytest.mark.quick
def test_all_requests_are_in_the_access_log_where_that_is_asked_for(repository: Path, tmp_path: Path) -> None:
    flags = ["--load-models", "slow", "--log-format", "json", "--access-log-rate", "1"]
    with running(repository, tmp_path, flags) as process:
        with client_of(process.port) as client:
            for number in range(20):
                assert client.call(SERVICE + "ModelInfer", slow(f"request {number}")).status == ("0", "")
            assert client.call(SERVICE + "ModelInfer", slow("r", "nobody\nknows")).status[0] == "5"
        assert process.stop() == 0
        *answered, refused = access_lines(process)
    assert [line["request_id"] for line in answered] == [f"request {number}" for number in range(20)]
    for line in answered:
        assert (line["event"], line["level"], line["model"], line["version"]) == ("ModelInfer", "info", "slow", 1)
        assert (line["rows"], line["batch_rows"], line["status"]) == (1, 1, "OK")
        assert 0 < line["queue_ms"] + line["compute_ms"] <= line["total_ms"]
        assert re.fullmatch(r"127\.0\.0\.1:\d+", line["peer"])
    assert refused["status"] == "NOT_FOUND"
    assert "nobody\\nknows" in refused["error"]
    assert "model" not in refused, "there is none"


def test_some_requests_are_in_the_access_log_where_that_is_asked_for(repository: Path, tmp_path: Path) -> None:
    flags = ["--load-models", "slow", "--log-format", "json", "--access-log-rate", "0.1", "--processing-cores", "1"]
    with running(repository, tmp_path, flags) as process:
        with client_of(process.port) as client:
            for number in range(100):
                client.call(SERVICE + "ModelInfer", slow(str(number)))
        assert process.stop() == 0
        assert [line["request_id"] for line in access_lines(process)] == [str(number) for number in range(0, 100, 10)]


def test_no_request_is_in_the_log_otherwise(repository: Path, tmp_path: Path) -> None:
    with running(repository, tmp_path, ["--load-models", "slow", "--log-level", "debug"]) as process:
        with client_of(process.port) as client:
            for number in range(20):
                client.call(SERVICE + "ModelInfer", slow(f"request {number}"))
        assert process.stop() == 0
        assert "request 1" not in process.log


def test_a_log_that_nobody_reads_holds_up_nobody(repository: Path, tmp_path: Path) -> None:
    """Its pipe is full after some hundred lines; what comes later is lost."""
    port = free_port()
    flags = ["--model-repository", str(repository), "--load-models", "slow", "--grpc-addr", f"127.0.0.1:{port}"]
    process = subprocess.Popen(
        command(*flags, "--access-log-rate", "1"), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment()
    )
    try:
        assert process.stderr is not None
        wait_until(lambda: _accepts(port) or process.poll() is not None)
        with client_of(port) as client:
            # Half a kilobyte each, and a pipe holds 64.
            for _ in range(400):
                assert client.call(SERVICE + "ModelInfer", slow("x" * 400)).status == ("0", "")
        process.terminate()
        assert process.wait(120) == 0
        read = process.stderr.read()
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        if process.stderr is not None:
            process.stderr.close()
    assert 32_768 < len(read) < 131_072
    assert b"serving gRPC" in read


def _accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


@pytest.mark.quick
@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--log-level", "loud"], ["--log-level", "'loud' is not a level", "warning"]),
        (["--log-level", "h3grpc=debug"], ["--log-level", "'h3grpc' is not an area", "h2grpc"]),
        (["--log-format", "xml"], ["--log-format", "xml", "json"]),
        (["--access-log-rate", "1.5"], ["--access-log-rate", "'1.5' is not a number from 0 to 1"]),
        (["--access-log-rate", "nan"], ["--access-log-rate", "'nan'"]),
    ],
)
def test_flags_that_cannot_be_used_are_named(repository: Path, flags: list[str], words: list[str]) -> None:
    ended = run("--model-repository", str(repository), *flags)
    assert ended.returncode == 2
    for word in words:
        assert word in ended.stderr
