"""The server as a subprocess, started as its users start it."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from tests.e2e.forking import INSTALLED, Forked, fork, python_of
from tests.waiting import wait_until

__all__ = ["FRESH", "PYTHON", "ServerProcess", "command", "environment", "is_alive", "run", "running", "wait_serving"]

#: Has a server search its answers for memory that nobody wrote, and what its log says of what it found.
VARIABLE: Final = "TOUTATES_TEST_POISON"
FOUND: Final = "memory that nobody wrote"

ROOT: Final = Path(__file__).resolve().parents[2]
#: The interpreter that serves, which need not be the one that tests: free-threaded Python has no grpcio.
PYTHON: Final = python_of(INSTALLED) if INSTALLED else os.environ.get("TOUTATES_SERVER_PYTHON", sys.executable)

#: A server in an interpreter of its own, as its users start it.
FRESH: Final = ("-m", "toutates")

#: The ports of HTTP are fixed by default, and tests start many servers at once.
NO_HTTP: Final = ("--metrics-addr", "off", "--http-addr", "off")

#: Commands that serve nothing, or have defaults of their own.
_OTHERS: Final = frozenset({"bench", "check", "config", "import", "init", "probe", "proto", "serve", "tune"})

_SERVING = re.compile(r"serving gRPC on 127\.0\.0\.1:(\d+)")
_REST = re.compile(r", HTTP on 127\.0\.0\.1:(\d+) with ")
_MANAGEMENT = re.compile(r"management API of TorchServe is on http://127\.0\.0\.1:(\d+)/")
_STATUS_PAGE = re.compile(r"status page on https?://127\.0\.0\.1:(\d+)/")
#: ONNX Runtime finishes what it runs, which takes its time on a busy machine.
_STOP_SECONDS = 120.0


@cache
def _paths() -> dict[str, str]:
    """What a server finds beside what is installed: this checkout; or its tests alone, where an installed one runs."""
    if INSTALLED is None:
        return {"PYTHONPATH": str(ROOT)}
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder)
    Path(folder, "tests").symlink_to(ROOT / "tests")
    return {"PYTHONPATH": folder, "PYTHONSAFEPATH": "1"}


def environment() -> dict[str, str]:
    """The environment of the server: this checkout, whatever is installed, with answers searched for unwritten memory.

    With TOUTATES (``forking``) it is that of the installed command.

    Who sets the variable in the environment of the tests switches that off, by "0", or names the pattern.
    """
    return {VARIABLE: "1", **os.environ, **_paths(), "PYTHONUNBUFFERED": "1"}


def command(*arguments: str) -> list[str]:
    """The command line of ``toutates`` with these arguments.

    A server is without its HTTP side unless they say so, but for commands that are not to have that.
    """
    is_server = not arguments or arguments[0] not in _OTHERS
    return [*([INSTALLED] if INSTALLED else [PYTHON, "-m", "toutates"]), *(NO_HTTP if is_server else ()), *arguments]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A command of ``toutates`` that ends by itself, or a server that does not start."""
    words = command(*arguments)
    with tempfile.TemporaryDirectory() as folder:
        output, errors = Path(folder, "output"), Path(folder, "errors")
        process = fork(PYTHON, ["toutates", *words[1 if INSTALLED else 3 :]], environment(), output, errors)
        try:
            code = process.wait(_STOP_SECONDS)
        finally:
            process.kill()
        return subprocess.CompletedProcess(words, code, output.read_text(), errors.read_text())


@dataclass(slots=True)
class ServerProcess:
    """A running server."""

    process: subprocess.Popen[bytes] | Forked
    port: int
    log_path: Path

    @property
    def address(self) -> str:
        """Where it listens, host:port."""
        return f"127.0.0.1:{self.port}"

    @property
    def rest_port(self) -> int:
        """Of REST, where it was told to have one (``--http-addr 127.0.0.1:0``)."""
        match = _REST.search(self.log)
        assert match is not None, self.log
        return int(match[1])

    @property
    def management_port(self) -> int:
        """Of TorchServe's management API, where it has one (``--torchserve-management-addr 127.0.0.1:0``)."""
        match = _MANAGEMENT.search(self.log)
        assert match is not None, self.log
        return int(match[1])

    @property
    def http_port(self) -> int:
        """Of its HTTP side, where it was told to have one (``--metrics-addr 127.0.0.1:0``)."""
        match = _STATUS_PAGE.search(self.log)
        assert match is not None, self.log
        return int(match[1])

    @property
    def log(self) -> str:
        """What it has printed so far."""
        return self.log_path.read_text(errors="replace")

    def open_files(self) -> int:
        """How many file descriptors it has."""
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def open_connections(self, port: int = 0) -> int:
        """How many connections to a port it has not closed, whatever has become of their clients; 0 for gRPC's port."""
        count = 0
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
            _, local, remote, *_, inode = line.split()[:10]
            is_listening = remote.endswith(":0000")
            # What only the kernel still remembers (TIME_WAIT) belongs to no file.
            count += local.endswith(f":{port or self.port:04X}") and not is_listening and inode != "0"
        return count

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and return the exit code."""
        self.process.send_signal(number)
        return self.process.wait(_STOP_SECONDS)


@contextmanager
def running(
    repository: Path | str | None,
    folder: Path,
    flags: Sequence[str] = (),
    start: Sequence[str] = (),
    port: int = 0,
    *,
    module: Sequence[str] = ("toutates",),
    finds: bool = False,
) -> Iterator[ServerProcess]:
    """A server that has become ready, and ends with the block if it has not ended by then.

    Args:
        repository: the models: a directory or an s3:// URL; None where ``module`` names them.
        folder: an empty one, for its log.
        flags: beside the repository and the address. There is no HTTP side unless they say so.
        start: what a new interpreter is told to run, such as FRESH; none forks the server (``forking``).
        port: where it listens; 0 lets the system choose.
        module: what runs in a forked server, and arguments that come before the flags.
        finds: whether memory that nobody wrote is to be found in its answers. Otherwise that fails the test.
    """
    log_path = folder / "log"
    models = [] if repository is None else ["--model-repository", str(repository)]
    arguments = [*models, "--grpc-addr", f"127.0.0.1:{port}", *NO_HTTP, *flags]
    process: subprocess.Popen[bytes] | Forked
    with log_path.open("wb") as log:
        if start:
            process = subprocess.Popen([PYTHON, *start, *arguments], stdout=log, stderr=log, env=environment())
        else:
            process = fork(PYTHON, [*module, *arguments], environment(), log_path)
    try:
        yield ServerProcess(process, wait_serving(process, log_path), log_path)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(_STOP_SECONDS)
    found = FOUND in log_path.read_text(errors="replace")
    assert found is finds, f"memory that nobody wrote was {'' if found else 'not '}found in answers, see {log_path}"


def is_alive(pid: int) -> bool:
    """Whether a process has not ended; that it has, its parent may not have taken note of."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_serving(process: subprocess.Popen[bytes] | Forked, log_path: Path) -> int:
    """Wait until the server says that it serves; returns its port."""
    wait_until(lambda: process.poll() is not None or _SERVING.search(log_path.read_text(errors="replace")))
    text = log_path.read_text(errors="replace")
    match = _SERVING.search(text)
    assert match is not None, f"the server does not serve:\n{text[-4000:]}"
    return int(match[1])
