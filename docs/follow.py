"""Follows quick starts as a reader would, from nothing, each in a new folder: python docs/follow.py PAGE...

A block of a page is a step:

sh      runs to its end; with the first line "# Leave this running." it runs until the page is over, and the next step
        begins when the server is ready.
python  runs to its end, by the environment that the page has made.
text    is what the step before it printed: lines in this order, where "..." stands for any lines, and a line that
        begins with a quotation mark may stand inside a longer one.

What a page cannot say is where this checkout is: ``git clone <this repository>`` clones it. Ports are those of the
page. Where something listens on one already, another takes its place in all commands of the page, and the server is
told so by its flags.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

__all__ = ["Step", "WrongPage", "compare", "follow", "moved", "steps", "taken_ports"]

ROOT: Final = Path(__file__).resolve().parents[1]
SERVER: Final = "# Leave this running.\n"
PYTHON: Final = "env/bin/python"
#: Of the ports of the pages, that of REST, which is open once the first models are loaded.
REST_PORT: Final = 8000
#: For each command that is a server: its ports, and the flags that change them.
PORTS: Final = {
    "toutates": {8000: "--http-addr=0.0.0.0:{}", 8001: "--grpc-addr=0.0.0.0:{}", 9090: "--metrics-addr=0.0.0.0:{}"},
    "tritonserver": {8000: "--http-port={}", 8001: "--grpc-port={}", 8002: "--metrics-port={}"},
}
PATIENCE_S: Final = 120
#: Longest time that a step may take; an installation over a slow network on a busy machine is the longest.
STEP_S: Final = 900
_BLOCK: Final = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class WrongPage(Exception):
    """A step fails, or prints something else than the page says."""


class Step(NamedTuple):
    """A block of a page.

    Attributes:
        kind: ``sh``, ``python`` or ``text``.
        text: its lines.
    """

    kind: str
    text: str


def steps(page: str) -> list[Step]:
    """The blocks of a page, in order.

    Raises:
        WrongPage: a block of another kind.
    """
    found = [Step(kind, text) for kind, text in _BLOCK.findall(page)]
    for step in found:
        if step.kind not in ("sh", "python", "text"):
            raise WrongPage(f"a block is {step.kind or 'nothing'!r}, and none of sh, python and text")
    return found


def compare(said: str, expected: str) -> None:
    """Hold what a step printed against the page.

    Raises:
        WrongPage: with both.
    """
    pattern = ""
    for line in expected.splitlines():
        if line == "...":
            pattern += r"(?:.*\n)*?"
        elif line.startswith('"'):
            pattern += f".*{re.escape(line)}.*\n"
        else:
            pattern += f"{re.escape(line)}\n"
    if not re.fullmatch(pattern, said if said.endswith("\n") else said + "\n"):
        raise WrongPage(f"expected:\n{expected}\nprinted:\n{said}")


def taken_ports(wanted: Collection[int]) -> dict[int, int]:
    """Another port for each of these that something listens on; empty where all are free."""
    taken = [port for port in wanted if not _is_free(port)]
    with ExitStack() as stack:  # all at once, so that no two are the same
        others = [stack.enter_context(socket.create_server(("", 0))) for _ in taken]
        return {port: other.getsockname()[1] for port, other in zip(taken, others, strict=True)}


def _is_free(port: int) -> bool:
    try:
        socket.create_server(("", port)).close()
    except OSError:
        return False
    return True


def moved(step: Step, ports: Mapping[int, int]) -> Step:
    """A step in whose commands other ports take the place of those that are taken.

    Raises:
        WrongPage: it runs a server whose flags nobody knows.
    """
    if not ports:
        return step
    text = re.sub(r"(?<=localhost:)\d+", lambda match: str(ports.get(int(match[0]), match[0])), step.text)
    if text.startswith(SERVER):
        name = re.search(r"^env/bin/(\w+)", text, re.MULTILINE)
        if name is None or name[1] not in PORTS:
            raise WrongPage(f"a server that is none of {', '.join(PORTS)}:\n{text}")
        flags = [PORTS[name[1]][port].format(other) for port, other in ports.items() if port in PORTS[name[1]]]
        text = f"{text.rstrip()} {' '.join(flags)}\n"
    return Step(step.kind, text)


@contextmanager
def _running(text: str, folder: Path, port: int) -> Iterator[None]:
    """Run a server, and wait until it is ready."""
    with (folder / "server.log").open("w+") as log:
        # In a group of its own, because a shell does not pass signals on.
        server = subprocess.Popen(
            ["bash", "-ec", text],
            cwd=folder,
            env=_environment(),
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            deadline = time.monotonic() + PATIENCE_S
            while not _is_ready(port):
                if server.poll() is not None or time.monotonic() > deadline:
                    log.seek(0)
                    raise WrongPage(f"the server did not become ready:\n{log.read()}")
                time.sleep(0.1)
            yield
        finally:
            if server.poll() is None:
                os.killpg(server.pid, signal.SIGTERM)
                server.wait(PATIENCE_S)


def _is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/ready", timeout=5):
            return True
    except (urllib.error.URLError, OSError):
        return False


def _environment() -> dict[str, str]:
    """Of the steps. What is installed is compiled when it is imported, for most of it never is."""
    environment = {**os.environ, "PIP_NO_COMPILE": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    return environment


def _run(step: Step, folder: Path) -> str:
    text = step.text.replace("<this repository>", str(ROOT))
    command = ["bash", "-ec", text] if step.kind == "sh" else [PYTHON, "-c", text]
    done = subprocess.run(
        command, cwd=folder, env=_environment(), capture_output=True, text=True, timeout=STEP_S, check=False
    )
    if done.returncode:
        raise WrongPage(f"this ended with status {done.returncode}:\n{text}\n{done.stdout}{done.stderr}")
    return done.stdout


def follow(page: Path) -> None:
    """Do what a page says.

    Raises:
        WrongPage: something on it does not work.
    """
    ports: dict[int, int] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="quickstart-")))
        said = ""
        for step in steps(page.read_text()):
            if step.kind == "text":
                compare(said, step.text)
            elif step.text.startswith(SERVER):
                # As late as can be, for others may take ports meanwhile.
                ports = taken_ports(sorted({port for flags in PORTS.values() for port in flags}))
                if ports:
                    changed = ", ".join(f"{port} by {other}" for port, other in ports.items())
                    print(f"{page.name}: ports that are taken: {changed}", flush=True)
                server = moved(step, ports).text
                stack.enter_context(_running(server, folder, ports.get(REST_PORT, REST_PORT)))
            else:
                said = _run(moved(step, ports), folder)


def main(arguments: Sequence[str] | None = None) -> int:
    """Follow pages; the exit status is 1 if one of them is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="+", type=Path)
    wrong = 0
    for page in parser.parse_args(arguments).pages:
        started = time.monotonic()
        try:
            follow(page)
            print(f"{page.name}: works, {time.monotonic() - started:.0f} s", flush=True)
        except (WrongPage, subprocess.TimeoutExpired) as error:
            wrong = 1
            print(f"{page.name}: {error}", flush=True)
    return wrong


if __name__ == "__main__":
    sys.exit(main())
