"""Servers forked from a process that has imported everything, which saves each of them most of a second of processor.

The tests start hundreds of servers, and a server's start is mostly imports. ``fork`` has one made by a process that
``python -m tests.e2e.forking PATH`` is: it imports what a server needs, listens at PATH, and forks for each connection.
The child runs ``python -m NAME ARGUMENTS...`` as a fresh interpreter would, to the interpreter's regular end. What the
start of a process itself is like, ``test_process.py`` tests without this.

Where the environment variable TOUTATES names a command, such as ``/other/venv/bin/toutates``, nothing is forked: that
command is run, and what a test changes in a server is changed in its interpreter.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import runpy
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

__all__ = ["INSTALLED", "Forked", "fork", "python_of"]

#: The command that is tested in the place of this checkout; None for the checkout.
INSTALLED: Final = os.environ.get("TOUTATES")

_READY: Final = b"ready\n"
#: As long as the number of a process is when it is sent, for its exit status may be right behind it.
_PID_BYTES: Final = 16
#: What ``python -m toutates`` imports sooner or later, whatever its flags are.
_IMPORTED: Final = (
    "toutates.command.main",
    "toutates.server.server",
    "toutates.observe.status.app",
    "toutates.observe.metrics.exposition",
    "toutates.observe.http.http_thread",
    "toutates.repositories.opening",
)


class Forked:
    """A process that was forked, with the part of ``subprocess.Popen`` that tests use.

    Args:
        pid: its number.
        news: where its exit status comes from when it has ended.
    """

    def __init__(self, pid: int, news: socket.socket) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._news = news

    def poll(self) -> int | None:
        """Its exit status, or None while it runs."""
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; returns the exit status, or minus the number of the signal that killed it.

        Raises:
            TimeoutExpired: of ``subprocess``; it has not ended within so many seconds.
        """
        if self.returncode is None:
            self._news.settimeout(timeout)
            try:
                status = self._news.recv(32)
            except (TimeoutError, BlockingIOError):
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0) from None
            assert status, "the process that forks has ended"
            self.returncode = int(status)
            self._news.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it is still there."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


# --- in the tests' process

_forker: tuple[Path, subprocess.Popen[bytes]] | None = None


def fork(
    python: str, command: Sequence[str], environment: Mapping[str, str], output: Path, errors: Path | None = None
) -> Forked | subprocess.Popen[bytes]:
    """Run ``python -m NAME ARGUMENTS...``.

    Args:
        python: the interpreter; always the same.
        command: NAME and ARGUMENTS.
        environment: of the process. What only an interpreter's start looks at has no effect.
        output: the file that standard output is appended to.
        errors: the same for standard error; None for the same file.
    """
    if INSTALLED is not None:
        name, *arguments = command
        words = [INSTALLED] if name == "toutates" else [python, "-m", name]
        with output.open("ab") as out, (errors or output).open("ab") as err:
            return subprocess.Popen([*words, *arguments], stdout=out, stderr=err, env=environment)
    global _forker
    if _forker is None or _forker[1].poll() is not None:
        _forker = _start_forker(python, environment)
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(str(_forker[0]))
    request = {
        "command": command,
        "environment": dict(environment),
        "folder": os.getcwd(),
        "output": str(output),
        "errors": str(errors or output),
    }
    sock.sendall(json.dumps(request).encode() + b"\n")
    sock.settimeout(120)
    return Forked(int(sock.recv(_PID_BYTES)), sock)


def python_of(command: str) -> str:
    """The interpreter that an installed command names in its first line."""
    path = shutil.which(command)
    assert path is not None, f"TOUTATES: there is no command {command}"
    first = Path(path).read_bytes().split(b"\n", 1)[0]
    assert first.startswith(b"#!/"), f"TOUTATES: {path} does not name its interpreter in its first line"
    return first[2:].decode().strip()


def _start_forker(python: str, environment: Mapping[str, str]) -> tuple[Path, subprocess.Popen[bytes]]:
    folder = tempfile.TemporaryDirectory()
    path = Path(folder.name) / "socket"
    process = subprocess.Popen(
        [python, "-m", "tests.e2e.forking", str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        # As a server does for itself: ONNX Runtime would start a thread, which no child has.
        env={**environment, "ORT_DISABLE_TELEMETRY": "1"},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    atexit.register(folder.cleanup)
    atexit.register(process.stdin.close)  # it ends when nobody can ask it any more
    assert process.stdout.readline() == _READY
    process.stdout.close()
    return path, process


# --- in the process that forks


def _wait_for_requests(path: str) -> list[str]:
    """Fork for each request; returns in the children alone, with what they are to run."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(16)
    asleep, awake = socket.socketpair()
    awake.setblocking(False)
    signal.set_wakeup_fd(awake.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    children: dict[int, socket.socket] = {}
    with selectors.DefaultSelector() as selector:
        for file in (listener, asleep, sys.stdin):
            selector.register(file, selectors.EVENT_READ)
        os.write(1, _READY)
        while True:
            for key, _ in selector.select():
                if key.fileobj is sys.stdin:
                    sys.exit(0)
                if key.fileobj is asleep:
                    asleep.recv(4_096)
                    _report_the_dead(children)
                else:
                    sock, _ = listener.accept()
                    with sock.makefile("rb") as lines:
                        request = json.loads(lines.readline())
                    pid = os.fork()
                    if pid == 0:
                        signal.set_wakeup_fd(-1)
                        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                        # Whoever runs the tests may ignore it, as the background of a shell does.
                        signal.signal(signal.SIGINT, signal.default_int_handler)
                        return _as_requested(request)
                    children[pid] = sock
                    sock.sendall(str(pid).ljust(_PID_BYTES).encode())


def _report_the_dead(children: dict[int, socket.socket]) -> None:
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        with children.pop(pid) as sock:
            try:
                sock.sendall(str(os.waitstatus_to_exitcode(status)).encode())
            except OSError:
                pass  # nobody waits for it


def _as_requested(request: dict[str, Any]) -> list[str]:
    """Make this process what a fresh one would be."""
    os.closerange(3, 256)
    sources = [os.open(os.devnull, os.O_RDONLY)]
    sources += [os.open(request[name], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666) for name in ("output", "errors")]
    for target, source in enumerate(sources):
        os.dup2(source, target)
    os.closerange(3, 256)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    command: list[str] = request["command"]
    return command


def _main() -> None:
    for name in _IMPORTED:
        __import__(name)
    gc.collect()
    gc.freeze()  # else each child would look through all of it, and so copy it
    name, *arguments = _wait_for_requests(sys.argv[1])
    sys.argv = [name, *arguments]
    if folder := os.environ.get("TOUTATES_TEST_LINES"):
        # Only here: a server's interpreter need not have coverage.
        from tests.e2e.executed_lines import record_lines

        record_lines(folder)
    runpy.run_module(name, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main()
