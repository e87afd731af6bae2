"""Signals of operators that come while a process has hardly begun."""

from __future__ import annotations

import signal
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.process import PYTHON, environment, wait_serving
from tests.graphs import DOUBLE
from tests.waiting import wait_until

pytestmark = pytest.mark.long

ALL: Final = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
SEEN: Final = (
    "SIGHUP: there is nothing to read again",
    "SIGUSR1: everything is logged, until the next one",
    "SIGUSR2: ",
)


def hears(process: subprocess.Popen[bytes], number: int) -> bool:
    """Whether a process has a handler of its own for a signal."""
    for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
        name, _, mask = line.partition(":")
        if name == "SigCgt":
            return bool(int(mask, 16) >> (number - 1) & 1)
    return False


@pytest.mark.parametrize(
    "more",
    [pytest.param((), marks=pytest.mark.quick, id="one process"), pytest.param(("--processes=2",), id="two processes")],
)
def test_signals_before_the_server_has_said_anything_are_handled(tmp_path: Path, more: Sequence[str]) -> None:
    folder = tmp_path / "models" / "m" / "1"
    folder.mkdir(parents=True)
    (folder / "model.onnx").write_bytes(DOUBLE)
    ports = [f"--{name}-addr={where}" for name, where in (("grpc", "127.0.0.1:0"), ("http", "off"), ("metrics", "off"))]
    words = [PYTHON, "-m", "toutates", "--model-repository", str(tmp_path / "models"), *ports, *more]
    path = tmp_path / "log"
    with path.open("wb") as log, subprocess.Popen(words, stdout=log, stderr=log, env=environment()) as process:
        try:
            wait_until(lambda: hears(process, signal.SIGUSR2))
            assert not path.read_bytes()
            for number in ALL:
                process.send_signal(number)
            wait_serving(process, path)
            # The parent handles them and has its processes do so; what the second one logs while it loads is left out.
            counts = [2, 2, 3] if more else [1, 1, 1]
            wait_until(lambda: [path.read_text().count(text) for text in SEEN] == counts)
            process.send_signal(signal.SIGTERM)
            assert process.wait(120) == 0
        finally:
            process.kill()


def test_a_command_that_is_no_server_ends_by_them_as_others_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        words = [PYTHON, "-m", "toutates", "probe", address, "--timeout", "1000"]
        with subprocess.Popen(words, env=environment(), stderr=subprocess.PIPE) as process:
            connected, _ = listener.accept()
            with connected:
                process.send_signal(signal.SIGHUP)
                assert process.wait(120) == -signal.SIGHUP
                assert process.stderr is not None
                assert process.stderr.read() == b""
