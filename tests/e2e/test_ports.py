"""Ports and file descriptors: what cannot be had is said at the start, in one line."""

from __future__ import annotations

import socket
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.http import peer_of
from tests.e2e.process import command, environment, run, running
from tests.e2e.python_models import IDENTITY, add_model
from tests.e2e.support import Tensor, channel_to, infer, request
from tests.ports import free_port
from tests.waiting import wait_until

pytestmark = pytest.mark.long

#: Another program that takes a port, when the server has bound it and does not listen yet.
TAKES_PORT: Final = """
def initialize(self, args):
    import socket
    self.taken = socket.create_server(("127.0.0.1", {port}))
"""
_LIMIT: Final = 240
_LIMITED: Final = (
    "-c",
    f"import resource, runpy; resource.setrlimit(resource.RLIMIT_NOFILE, ({_LIMIT}, {_LIMIT})); "
    "runpy.run_module('toutates', run_name='__main__')",
)


@pytest.mark.quick
@pytest.mark.parametrize(
    ("first", "other", "hosts"),
    [
        ("--grpc-addr", "--http-addr", ("127.0.0.1", "127.0.0.1")),
        ("--http-addr", "--metrics-addr", ("0.0.0.0", "127.0.0.1")),
    ],
)
@pytest.mark.parametrize("more", [("--reuse-port",), ("--processes", "2")])
def test_two_flags_with_one_port_are_named(
    repository: Path, first: str, other: str, hosts: tuple[str, str], more: tuple[str, ...]
) -> None:
    one, two = (f"{host}:{free}" for host, free in zip(hosts, [free_port()] * 2, strict=True))
    flags = {"--grpc-addr": "127.0.0.1:0", first: one, other: two}
    ended = run("--model-repository", str(repository), *[word for flag in flags.items() for word in flag], *more)
    assert ended.returncode == 2
    [line] = ended.stderr.splitlines()
    said = f"{other}: is the port of {first}, {one} (got '{two}'); give each a port of its own"
    assert line.endswith(f"{said}, or write 'off' to do without")


def test_of_two_servers_that_start_together_on_one_port_one_serves(repository: Path, tmp_path: Path) -> None:
    port = free_port()
    words = command(
        "--model-repository", str(repository), "--load-models", "addsub", "--grpc-addr", f"127.0.0.1:{port}"
    )
    with ExitStack() as ended:
        logs = [ended.enter_context((tmp_path / name).open("w+")) for name in ("one", "two")]
        servers = [
            ended.enter_context(subprocess.Popen(words, env=environment(), stdout=log, stderr=log)) for log in logs
        ]
        wait_until(lambda: any(server.poll() is not None for server in servers))
        assert sorted(server.poll() is None for server in servers) == [False, True]
        for server, log in zip(servers, logs, strict=True):
            log.seek(0)
            text = log.read()
            if server.poll() is None:
                wait_until(lambda log=log: log.seek(0) == 0 and "serving" in log.read())  # type: ignore[misc]
                server.terminate()
            else:
                assert server.returncode == 2
                assert [line for line in text.splitlines() if "cannot listen: Address already in use" in line]
                assert "loaded" not in text


def test_a_port_that_is_taken_while_models_load_is_said_in_one_line(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    taken = TAKES_PORT.format(port=address.rpartition(":")[2])
    add_model(tmp_path, "takes_port", taken + IDENTITY, more="")
    flags = ("--grpc-addr", address, "--http-addr", "off", "--metrics-addr", "off")
    ended = run("--model-repository", str(tmp_path), *flags)
    assert ended.returncode == 2
    said = f"cannot listen: Address already in use (got '{address}'); choose an address of this machine and a port that"
    assert said in ended.stderr.splitlines()[-1]
    assert "Traceback" not in ended.stderr


def test_few_descriptors_are_a_warning_and_connections_leave_some_for_everything_else(
    repository: Path, tmp_path: Path
) -> None:
    metrics = free_port()
    flags = ["--load-models", "addsub", "--metrics-addr", f"127.0.0.1:{metrics}"]
    with running(repository, tmp_path, flags, start=_LIMITED) as process, ExitStack() as opened:
        assert f"ulimit -n: {_LIMIT} file descriptors are enough for " in process.log
        with channel_to(process.address) as channel:
            ones = [Tensor.of(name, "INT32", [[1] * 16]) for name in ("INPUT0", "INPUT1")]
            assert infer(channel, request("addsub", *ones)).model_name == "addsub"
            for _ in range(2 * _LIMIT):  # more than there are
                opened.enter_context(socket.create_connection(("127.0.0.1", process.port)))
            wait_until(lambda: "kept back" in process.log.partition("accepting pauses")[2])
            with peer_of(metrics) as peer:
                assert peer.ask(b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n").status == 200
            assert process.open_files() <= _LIMIT * 7 // 8
            assert infer(channel, request("addsub", *ones)).model_name == "addsub"
        assert process.stop() == 0
