"""Several processes on the same ports: clients see one server, whichever process their connection is of."""

from __future__ import annotations

import json
import os
import signal
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest

from tests.e2e.control import EXPLICIT, POLL, answer, fails, index
from tests.e2e.models import add_model, versioned_model
from tests.e2e.process import ServerProcess, is_alive, run, running
from tests.e2e.support import triton
from tests.repositories.s3_services import Proxy, S3Service
from tests.waiting import wait_until

#: The kernel spreads so many connections over two processes, but for one time in half a million.
CONNECTIONS: Final = 20
TWO: Final = ("--processes", "2", "--http-addr", "127.0.0.1:0", "--metrics-addr", "127.0.0.1:0")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    add_model(folder, "first", versioned_model(1))
    add_model(folder, "second", versioned_model(2))
    return folder


@pytest.fixture(scope="module")
def two(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server of two processes, whose models come and go by request."""
    flags = (*TWO, *EXPLICIT, "--load-model", "first")
    with running(root, tmp_path_factory.mktemp("log"), flags) as process:
        yield process
        pids = pids_of(process)
        assert process.stop() == 0
        assert not any(map(is_alive, pids))
        assert "Traceback" not in process.log


@pytest.fixture
def clients(two: ServerProcess) -> Iterator[Sequence[Any]]:
    """Clients with a connection each, some of each process."""
    with ExitStack() as stack:
        yield [stack.enter_context(new_client(two)) for _ in range(CONNECTIONS)]


def new_client(process: ServerProcess) -> Any:
    return triton.InferenceServerClient(process.address, channel_args=[("grpc.use_local_subchannel_pool", 1)])


def get(port: int, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=120) as response:
        return str(response.read().decode())


def metrics(process: ServerProcess, port: int | None = None) -> dict[str, float]:
    """The value of every series, by its name with its labels."""
    lines = get(port or process.http_port, "/metrics").splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[:1] != "#")}


def status(process: ServerProcess) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(get(process.http_port, "/status.json"))
    return found


def pids_of(process: ServerProcess) -> list[int]:
    """The identifiers of the processes, by number."""
    return [one["pid"] for one in status(process)["server"]["processes"][1:]]


def counted(client: Any, model: str) -> int:
    return int(client.get_inference_statistics(model).model_stats[0].inference_stats.success.count)


def test_connections_are_spread_and_counted_together(two: ServerProcess, clients: Sequence[Any]) -> None:
    before = counted(clients[0], "first")
    assert [answer(client, "first") for client in clients] == [1] * CONNECTIONS
    assert {counted(client, "first") for client in clients} == {before + CONNECTIONS}
    success = 'nv_inference_request_success{model="first",version="1"}'
    wait_until(lambda: metrics(two).get(success) == before + CONNECTIONS)
    connections = [metrics(two)[f'toutates_connections{{worker="{number}"}}'] for number in (0, 1)]
    assert sum(connections) >= CONNECTIONS
    assert all(connections)
    of_all = metrics(two, two.rest_port)
    assert of_all[success] == before + CONNECTIONS
    assert [of_all[f'toutates_process_up{{process="{number}"}}'] for number in (0, 1)] == [1, 1]
    memory = [of_all[f'toutates_process_resident_memory_bytes{{process="{name}"}}'] for name in ("parent", "0", "1")]
    assert sum(memory) == of_all["process_resident_memory_bytes"]
    assert of_all["loaded_models"] == of_all['toutates_model_versions{state="READY"}'] == 1
    assert of_all["toutates_ready"] == 1
    for port in (two.http_port, two.rest_port):
        assert get(port, "/health/ready") == "ready\n"
    assert [version["model"] for version in status(two)["versions"]] == ["first"]
    wait_until(lambda: [one["name"] for one in status(two)["workers"]] == ["0/worker-0", "1/worker-0"])


def test_a_load_by_any_connection_is_a_load_in_all_processes(clients: Sequence[Any]) -> None:
    for number, loader in enumerate(clients[:4]):
        files = {"file:1/model.onnx": versioned_model(10 + number)}
        loader.load_model("second", config=json.dumps({"backend": "onnxruntime"}), files=files)
        assert {answer(client, "second") for client in clients} == {10 + number}
        assert {tuple(index(client)) for client in clients} == {
            (("first", "1", "READY", ""), ("second", "1", "READY", ""))
        }
        clients[-number].unload_model("second")
        assert not any(client.is_model_ready("second") for client in clients)
        # An unload returns when no process takes requests for the model; its memory goes a moment later.
        gone = {(("first", "1", "READY", ""), ("second", "1", "UNAVAILABLE", "unloaded"))}
        wait_until(lambda gone=gone: {tuple(index(client)) for client in clients} == gone)  # type: ignore[misc]
    assert {fails(lambda client=client: client.load_model("third")) for client in clients} == {  # type: ignore[misc]
        (
            "INTERNAL",
            "failed to load 'third', failed to poll from model repository: no model repository has it",
        )
    }


def test_settings_of_log_and_traces_hold_in_all_processes(two: ServerProcess, clients: Sequence[Any]) -> None:
    for level, changer in enumerate(clients[:4], 1):
        changer.update_log_settings({"log_verbose_level": level})
        assert {client.get_log_settings().settings["log_verbose_level"].uint32_param for client in clients} == {level}
    clients[0].update_log_settings({"log_verbose_level": 0})

    def changed() -> list[str]:
        return [line for line in two.log.splitlines() if "log settings: log_verbose_level=2" in line]

    wait_until(lambda: len(changed()) >= 3)  # each process writes its own
    assert sorted(line.split()[3] for line in changed()) == ["logs:", "logs[0]:", "logs[1]:"]
    for rate, changer in enumerate(clients[:4], 5):
        changer.update_trace_settings(settings={"trace_rate": str(rate)})
        rates = {client.get_trace_settings().settings["trace_rate"].value[0] for client in clients}
        assert rates == {str(rate)}
    with urllib.request.urlopen(f"http://127.0.0.1:{two.rest_port}/v2/trace/setting", timeout=120) as response:
        assert json.loads(response.read())["trace_rate"] == "8"


def test_a_killed_process_costs_its_own_requests_and_comes_back_as_the_others_are(
    two: ServerProcess, clients: Sequence[Any]
) -> None:
    files = {"file:1/model.onnx": versioned_model(30)}
    clients[0].load_model("second", config=json.dumps({"backend": "onnxruntime"}), files=files)
    clients[1].update_log_settings({"log_level.h2grpc": True})
    for client in clients:
        answer(client, "second")
    success = 'nv_inference_request_success{model="second",version="1"}'
    wait_until(lambda: metrics(two).get(success, 0) >= CONNECTIONS)
    before = metrics(two)
    ended = threading.Event()
    errors: list[tuple[int, str]] = []
    answered = [0] * CONNECTIONS

    def ask(number: int) -> None:
        while not ended.is_set():
            try:
                assert answer(clients[number], "second") == 30
                answered[number] += 1
            except triton.InferenceServerException as error:
                errors.append((number, str(error.status())))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(CONNECTIONS)]
    for thread in threads:
        thread.start()
    restarts = 'toutates_process_restarts_total{process="1"}'
    killed = pids_of(two)[1]
    os.kill(killed, signal.SIGKILL)
    # They go on while it is away: those of the other process, and those that have connected to it again.
    seen = list(answered)
    wait_until(lambda: all(now > then for now, then in zip(answered, seen, strict=True)))
    wait_until(lambda: metrics(two)[restarts] == before[restarts] + 1 and get_ready(two))
    ended.set()
    for thread in threads:
        thread.join()
    assert {status for _, status in errors} <= {"StatusCode.UNAVAILABLE"}
    assert len({number for number, _ in errors}) < CONNECTIONS, "those of the other process saw nothing"
    told = [line for line in two.log.splitlines() if "was killed by SIGKILL" in line]
    assert len(told) == before[restarts] + 1
    assert "ERROR   server: process 1 was killed by SIGKILL; it is started again" in told[-1]
    assert metrics(two)[success] >= before[success]
    wait_until(lambda: killed not in pids_of(two))  # the text of the status may be a second old
    with ExitStack() as stack:
        new = [stack.enter_context(new_client(two)) for _ in range(CONNECTIONS)]
        assert {answer(client, "second") for client in new} == {30}
        levels = {client.get_log_settings().settings["log_level.h2grpc"].string_param for client in new}
        assert levels == {"debug"}
        new[0].update_log_settings({"log_level.h2grpc": False})
        new[0].unload_model("second")


def get_ready(process: ServerProcess) -> bool:
    return metrics(process)["toutates_ready"] == 1


@pytest.mark.usefixtures("s3_credentials")
def test_processes_poll_together_download_once_and_end_with_their_parent(
    moto_service: S3Service, proxy: Proxy, tmp_path: Path
) -> None:
    bucket = moto_service.bucket({"models/first/1/model.onnx": versioned_model(1)})
    s3 = ("--s3-endpoint", proxy.endpoint, "--model-cache-dir", str(tmp_path / "cache"))
    with running(f"s3://{bucket}/models", tmp_path, (*TWO, *POLL, *s3)) as process, ExitStack() as stack:
        clients = [stack.enter_context(new_client(process)) for _ in range(CONNECTIONS)]
        moto_service.put(bucket, "models/second/1/model.onnx", versioned_model(2))
        wait_until(lambda: all(client.is_model_ready("second") for client in clients))
        assert {answer(client, "second") for client in clients} == {2}
        for name in ("first", "second"):
            assert len([line for line in proxy.reads if f"/{name}/1/model.onnx" in line]) == 1
        pids = pids_of(process)
        assert len(pids) == 2
        process.process.kill()
        wait_until(lambda: not any(map(is_alive, pids)))


def test_what_is_wrong_at_the_start_is_said_once(tmp_path: Path) -> None:
    models = tmp_path / "models"
    add_model(models, "first", versioned_model(1))
    add_model(models, "broken", b"no model")
    address = ("--grpc-addr", "127.0.0.1:0", "--model-repository", str(models), "--processes", "2")

    few = run(*address, "--processing-cores", "1")
    assert few.returncode == 2
    assert few.stderr == (
        "toutates: error: --processing-cores: is divided among 2 processes, each of which needs one at least (got 1); "
        "raise it to 2 or more, or lower --processes\n"
    )
    unknown = run(*address, "--load-models", "nothing")
    assert unknown.returncode == 2
    assert unknown.stderr.count("toutates: error: --load-models") == 1
    broken = run(*address, "--exit-on-error", "true")
    assert broken.returncode == 1
    assert broken.stderr.count("ERROR") == 1
    assert broken.stderr.count("the server ends, as --exit-on-error says") == 1
    assert broken.stdout.count("UNAVAILABLE") == 1
