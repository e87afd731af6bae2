"""Exit codes, as processes end with them, and what each signal does to a server."""

from __future__ import annotations

import io
import json
import re
import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Final

from tests.contract.asking import SERVICE, plain
from tests.e2e.forking import Forked, fork
from tests.e2e.models import add_model, negating_model
from tests.e2e.process import PYTHON, VARIABLE, ServerProcess, environment, running
from tests.e2e.wire import client_of
from tests.waiting import PATIENCE_S, wait_until
from toutates.command.main import main

__all__ = ["exit_lines", "main_lines", "signal_lines"]

#: Commands that run at the same time.
_AT_ONCE: Final = 3
_SERVE: Final = ("--grpc-addr", "127.0.0.1:0", "--http-addr", "off", "--metrics-addr", "off")


def _start(folder: Path, arguments: Sequence[str]) -> Forked | subprocess.Popen[bytes]:
    """Start a command; what it prints goes to files of a new folder."""
    folder.mkdir()
    for name in ("output", "errors"):
        (folder / name).touch()
    # What the test mode logs at the start is nothing that users have.
    settings = {**environment(), VARIABLE: "0"}
    return fork(PYTHON, ["toutates", *arguments], settings, folder / "output", folder / "errors")


def _end_of(folder: Path, arguments: Sequence[str]) -> tuple[int, str, str]:
    """Exit code, and what was printed, of a command that ends by itself."""
    process = _start(folder, arguments)
    try:
        code = process.wait(PATIENCE_S)
    finally:
        process.kill()
    return code, (folder / "output").read_text(), (folder / "errors").read_text()


def exit_lines(folder: Path) -> list[str]:
    """Exit codes of processes, and which stream they write to."""
    folder.mkdir(exist_ok=True)
    models, broken = folder / "models", folder / "broken"
    add_model(models, "neg", negating_model(4))
    (broken / "garbage" / "1").mkdir(parents=True)
    (broken / "garbage" / "1" / "model.onnx").write_bytes(b"this is no graph")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = f"127.0.0.1:{taken.getsockname()[1]}"
        serve = ("--model-repository", str(models), *_SERVE)
        commands: dict[str, tuple[str, ...]] = {
            # The first one waits for some seconds.
            "a repository that is not there, --exit-on-error": (
                *("--model-repository", str(folder / "nowhere"), "--exit-on-error", "true"),
                *_SERVE,
            ),
            "--help": ("--help",),
            "a model that does not load, --exit-on-error": (
                *("--model-repository", str(broken), "--exit-on-error", "true"),
                *_SERVE,
            ),
            "a port in use": (*serve, "--grpc-addr", port),
            "unknown flag": ("--nothing",),
            "bench, nobody listens": ("bench", "127.0.0.1:1", "-m", "neg", "--seconds", "0.1"),
            "check, all is well": ("check", str(models)),
            "check, errors": ("check", str(broken)),
            "config": ("config", str(models / "neg")),
            "config, a model that does not load": ("config", str(broken / "garbage")),
            "probe, nobody listens": ("probe", "127.0.0.1:1"),
        }
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            places = (folder / f"run{at}" for at in range(len(commands)))
            ends = pool.map(_end_of, places, commands.values())
            lines = [_exit(what, *end) for what, end in zip(commands, ends, strict=True)]
        lines += _interrupted(folder, taken, port)
    return sorted(lines)


def main_lines(folder: Path) -> list[str]:
    """The same of commands that end before they begin anything, without a process for each. For the main thread."""
    folder.mkdir(exist_ok=True)
    wrong, right, nowhere = folder / "wrong.yaml", folder / "right.yaml", str(folder / "nowhere")
    wrong.write_text("nothing: 1\n")
    right.write_text("grpc-addr: 127.0.0.1:0\n")
    commands: dict[str, tuple[str, ...]] = {
        "--help-limits": ("--help-limits",),
        "--version": ("--version",),
        "no repository": (),
        "a flag without its value": ("--grpc-addr",),
        "a value that cannot be read": ("--executor-cpus", "x"),
        "settings that exclude each other": ("serve", nowhere, "--model-repository", nowhere),
        "unknown command": ("nothing",),
        "--config with an unknown key": ("--config", str(wrong)),
        "--config that is not there": ("--config", nowhere),
        "tritonserver, a refused flag": ("tritonserver", "--allow-grpc=false"),
        "serve, a path that is not there": ("serve", nowhere),
        "bench, no model": ("bench", "127.0.0.1:1"),
        "check, no repository": ("check", nowhere),
        "check, --help": ("check", "--help"),
        "completion": ("completion", "bash"),
        "completion, unknown shell": ("completion", "csh"),
        "config, no model": ("config", nowhere),
        "config show": ("config", "show", "--model-repository", nowhere),
        "config show, --config": ("config", "show", "--model-repository", nowhere, "--config", str(right)),
        "config show, unknown flag": ("config", "show", "--nothing"),
        "import, no model": ("import", nowhere),
        "init": ("init", str(folder / "made")),
        "init, it is there": ("init", str(folder / "made")),
        "probe, no address": ("probe", "nowhere"),
        "probe, one TLS file of two": ("probe", "127.0.0.1:1", "--tls-cert", nowhere),
        "proto": ("proto", str(folder / "protos")),
        "proto, a folder that is a file": ("proto", str(wrong)),
        "tune, no model": ("tune", nowhere),
        "tune, no argument": ("tune",),
    }
    return [_exit(what, *_end_of_main(arguments)) for what, arguments in commands.items()]


def _end_of_main(arguments: Sequence[str]) -> tuple[int, str, str]:
    output, errors = io.StringIO(), io.StringIO()
    with redirect_stdout(output), redirect_stderr(errors):
        try:
            code = main(arguments)
        except SystemExit as end:
            code = int(end.code or 0)
    return code, output.getvalue(), errors.getvalue()


def _exit(what: str, code: int, output: str, errors: str) -> str:
    written = [name for name, text in (("stdout", output), ("stderr", errors)) if text]
    prefix = "  each line begins with 'toutates: error: '" if _all_errors(errors) else ""
    return f"exit {code}  {what}  writes {' and '.join(written) or 'nothing'}{prefix}"


def _all_errors(errors: str) -> bool:
    lines = errors.splitlines()
    return bool(lines) and all(line.startswith("toutates: error: ") for line in lines)


def _interrupted(folder: Path, listener: socket.socket, port: str) -> Iterator[str]:
    """A command that is interrupted, and one that is ended, while it waits for a server that says nothing."""
    for number in (signal.SIGINT, signal.SIGTERM):
        place = folder / number.name
        process = _start(place, ("probe", port, "--timeout", "60"))
        listener.settimeout(PATIENCE_S)
        connection, _ = listener.accept()
        with connection:
            connection.recv(1)  # it is at its work
            process.send_signal(number)
            code = process.wait(PATIENCE_S)
        shown = f"killed by {signal.Signals(-code).name}" if code < 0 else str(code)
        errors = (place / "errors").read_text()
        yield f"exit {shown}  probe, {number.name}  {'writes stderr' if errors else 'writes nothing'}"


# --- signals ----------------------------------------------------------------------------------------------------------


def signal_lines(folder: Path) -> list[str]:
    """What a server does on each signal, by its log in JSON, and with what code it ends."""
    folder.mkdir(exist_ok=True)
    repository = folder / "models"
    repository.mkdir()
    flags = ("--log-format", "json", "--metrics-addr", "127.0.0.1:0")
    lines: list[str] = []
    for number, observe in ((signal.SIGTERM, _each), (signal.SIGINT, _second)):
        logs = folder / number.name
        logs.mkdir()
        with running(repository, logs, flags) as server:
            lines += observe(server, number)
    return lines


def _each(server: ServerProcess, end: signal.Signals) -> Iterator[str]:
    """Every signal that a server goes on after, and the one that ends it."""
    for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR1, signal.SIGUSR2):
        yield f"{number.name}  goes on  {_event_of(server, number)}"
    code = server.stop(end)
    yield f"{end.name}  ends, exit {code}  {_said(server, end)}"


def _events(server: ServerProcess) -> list[str]:
    """Sentences of the log."""
    events = []
    for line in server.log.splitlines():
        try:
            document = json.loads(line)
        except ValueError:  # the table of models, or a line that is being written
            continue
        if isinstance(document, dict) and "event" in document:
            events.append(f"{document['level']} {document['area']}: {plain(str(document['event']))}")
    return events


def _event_of(server: ServerProcess, number: signal.Signals) -> str:
    """Send a signal; returns the first sentence that the log has of it."""
    before = len(_events(server))
    server.process.send_signal(number)
    wait_until(lambda: any(number.name in event for event in _events(server)[before:]))
    return _short(next(event for event in _events(server)[before:] if number.name in event))


def _short(event: str) -> str:
    """A sentence; of a dump its beginning."""
    return re.split(r"(?<=SIGUSR2: ).", event)[0] + ("..." if "SIGUSR2: " in event else "")


def _said(server: ServerProcess, number: signal.Signals) -> str:
    return next(event for event in _events(server) if number.name in event)


def _second(server: ServerProcess, number: signal.Signals) -> Iterator[str]:
    """A signal while a call is open, and another one."""
    with client_of(server.port) as client:
        client.start(SERVICE + "ModelStreamInfer")
        # The answer to a later call says that the server has the one before.
        client.call(SERVICE + "ServerLive", b"")
        server.process.send_signal(number)
        wait_until(lambda: any(number.name in event for event in _events(server)))
        yield f"{number.name}  waits for open calls  {_said(server, number)}"
        server.process.send_signal(number)
        code = server.process.wait(PATIENCE_S)
        last = [event for event in _events(server) if number.name in event][-1]
        yield f"{number.name} for the second time  ends, exit {code}  {last}"
