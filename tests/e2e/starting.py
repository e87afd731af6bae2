"""A server that has begun and does not serve yet: its models are not there."""

from __future__ import annotations

import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.forking import Forked, fork
from tests.e2e.process import PYTHON, ServerProcess, environment, wait_serving
from tests.graphs import DOUBLE
from tests.ports import free_port
from tests.waiting import wait_until

__all__ = ["Starting", "is_open", "starting"]


@dataclass
class Starting:
    """A server whose models are not there yet."""

    process: Forked | subprocess.Popen[bytes]
    folder: Path
    grpc: int
    rest: int
    management: int

    def let_it_load(self) -> ServerProcess:
        """Put the models where they belong, and wait until it serves."""
        made = self.folder / "made" / "m" / "1"
        made.mkdir(parents=True)
        (made / "model.onnx").write_bytes(DOUBLE)
        (self.folder / "made").rename(self.folder / "models")
        wait_serving(self.process, self.folder / "log")
        return ServerProcess(self.process, self.grpc, self.folder / "log")

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(120)

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()


@contextmanager
def starting(folder: Path, *flags: str, early: bool = True) -> Iterator[Starting]:
    """A server that waits for its repository; with ``early``, as soon as it answers."""
    folder.mkdir(exist_ok=True)
    grpc, rest, management = (free_port() for _ in range(3))
    ports = {"grpc-addr": grpc, "http-addr": rest, "torchserve-management-addr": management}
    arguments = [f"--{name}=127.0.0.1:{port}" for name, port in ports.items()]
    arguments += ["--model-repository", str(folder / "models"), "--wait-for-repository=10000", "--torchserve-api"]
    words = ["toutates", *arguments, "--metrics-addr=off", *flags]
    process = fork(PYTHON, words, environment(), folder / "log")
    server = Starting(process, folder, grpc, rest, management)
    try:
        wait_until(lambda: (folder / "log").exists() and "waiting for it" in server.log)
        if early:
            wait_until(lambda: is_open(rest))
        yield server
        assert "Traceback" not in server.log
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(120)


def is_open(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 120).close()
    except ConnectionRefusedError:
        return False
    return True
