"""The HTTP side of a server as its users start it."""

from __future__ import annotations

import json
import select
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.e2e.free_threading import assert_ran_without_gil
from tests.e2e.models import build_broken_repository, build_repository
from tests.e2e.process import ServerProcess, command, environment, running
from tests.observe.status.support import get
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    build_repository(root)
    return root


@pytest.fixture
def server(repository: Path, tmp_path: Path) -> Iterator[ServerProcess]:
    flags = ["--metrics-addr", "127.0.0.1:0", "--log-level", "error,server=info"]
    with running(repository, tmp_path, flags) as server:
        yield server


def port_of(server: ServerProcess) -> int:
    return int(server.log.partition("status page on http://127.0.0.1:")[2].partition("/")[0])


def test_it_is_there_with_the_server_and_ends_with_it(server: ServerProcess) -> None:
    port = port_of(server)
    assert get(port, "/health/ready").status == 200
    status = json.loads(get(port, "/status.json").text)
    assert {one["state"] for one in status["versions"]} == {"READY"}
    # Samples that were taken before there were workers have none.
    wait_until(lambda: json.loads(get(port, "/status.json").text)["workers"][:1])
    assert json.loads(get(port, "/status.json").text)["workers"][0]["name"] == "worker-0"
    assert get(port, "/debug/tasks").status == 200
    assert "\ntoutates_ready 1\n" in get(port, "/metrics").text.replace("1.0", "1")
    assert get(port, "/metrics", accept="application/openmetrics-text").text.endswith("# EOF\n")
    assert server.stop() == 0
    with pytest.raises(ConnectionRefusedError):
        get(port, "/health/live")
    assert "Traceback" not in server.log
    assert_ran_without_gil(server)


def test_scrapers_that_hold_on_do_not_hold_up_the_end(server: ServerProcess) -> None:
    port = port_of(server)
    peers = [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]
    for peer in peers[:10]:
        peer.sendall(b"GET /debug/profile?seconds=60 HTTP/1.1\r\nhost: localhost\r\n\r\n")
    # One profile is being taken, and the others are refused.
    wait_until(lambda: len(select.select(peers[:10], [], [], 1)[0]) == 9)
    refused = select.select(peers[:10], [], [], 0)[0]
    (profiled,) = [peer for peer in peers[:10] if peer not in refused]
    assert server.stop() == 0
    with suppress(ConnectionError):  # and nobody has waited for the minute of the profile
        assert b" 200 " not in profiled.recv(100)
    for peer in peers:
        peer.close()


def test_probes_hear_that_the_server_shuts_down(repository: Path, tmp_path: Path) -> None:
    with running(repository, tmp_path, ["--metrics-addr", "127.0.0.1:0", "--shutdown-grace", "20"]) as server:
        port = port_of(server)
        # A client that has begun a request keeps the server waiting.
        with socket.create_connection(("127.0.0.1", server.port)) as peer:
            hello = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5)
            path, authority = b"/grpc.health.v1.Health/Check", b"x"
            fields = b"\x83\x86\x04" + bytes([len(path)]) + path + b"\x01" + bytes([len(authority)]) + authority
            fields += b"\x00\x0ccontent-type\x10application/grpc\x00\x02te\x08trailers"
            peer.sendall(hello + len(fields).to_bytes(3, "big") + b"\x01\x04\x00\x00\x00\x01" + fields)
            assert peer.recv(100)
            wait_until(lambda: ": 1 calls, " in get(port, "/debug/tasks").text)
            server.process.send_signal(signal.SIGTERM)
            wait_until(lambda: get(port, "/health/ready").status == 503)
            assert get(port, "/health/live").status == 503


def test_a_signal_logs_what_the_server_is_at_whatever_the_level(server: ServerProcess) -> None:
    server.process.send_signal(signal.SIGUSR2)
    wait_until(lambda: "== models ==" in server.log and "'mlp' version 1: READY" in server.log)
    wait_until(lambda: "== thread worker-0 ==" in server.log and "toutates.net.worker.Worker.run" in server.log)
    assert server.stop() == 0


def test_a_port_in_use_ends_the_start_before_models_are_loaded(tmp_path: Path) -> None:
    build_broken_repository(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        ended = subprocess.run(
            command("--model-repository", str(tmp_path), "--grpc-addr", "127.0.0.1:0", "--metrics-addr", address),
            env=environment(),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert ended.returncode == 2
    assert f"--metrics-addr: cannot listen: Address already in use (got '{address}'); " in ended.stderr
    assert "loaded" not in ended.stderr
    assert "cannot be served" not in ended.stderr


def test_the_log_says_where_the_page_is_and_the_port_is_open_while_models_load(server: ServerProcess) -> None:
    said = server.log.index("status page on")
    assert said < server.log.index("serving gRPC on")


def test_many_who_watch_get_the_same_and_cost_little(server: ServerProcess) -> None:
    port = port_of(server)
    sequences: list[int] = []

    def watch() -> None:
        texts = [get(port, "/status.json?history=recent").text for _ in range(5)]
        sequences.extend(json.loads(text)["sequence"] for text in texts)

    threads = [threading.Thread(target=watch) for _ in range(6)]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = time.monotonic() - began
    assert len(set(sequences)) <= took + 2
