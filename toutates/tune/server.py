"""The server that candidates are loaded into: a process with a repository of its own, which both go at the end.

The user's files are only read. A candidate is a config.yaml, or a config.pbtxt, for each model in the repository, put
there by renaming, and one call of RepositoryModelLoad; the server itself goes on.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from toutates.bench.calls import SERVICE, ask
from toutates.bench.endpoint import GRPC, Endpoint
from toutates.protocol.grpc_service_pb2 import RepositoryModelLoadRequest
from toutates.system.errors import ConfigurationError
from toutates.tune.declared import Declared

__all__ = ["CONFIG_NAME", "PBTXT_NAME", "Server", "ServerFailed", "copy_model"]

CONFIG_NAME: Final = "config.yaml"
PBTXT_NAME: Final = "config.pbtxt"
_SERVING: Final = re.compile(r"serving gRPC on 127\.0\.0\.1:(\d+)")
_START_S: Final = 120.0
_STOP_S: Final = 10.0
#: The server ends when this process does, however that ends (PR_SET_PDEATHSIG).
_PROGRAM: Final = (
    "import ctypes, signal, sys; ctypes.CDLL(None).prctl(1, int(signal.SIGTERM), 0, 0, 0); "
    "from toutates.command.main import main; sys.exit(main(sys.argv[1:]))"
)
_ADDRESS: Final = "127.0.0.1:0"


class ServerFailed(Exception):
    """The server does not start, or has ended."""


class Server:
    """A server of the models that are tuned.

    Args:
        repository: with the models, each made by ``copy_model``.
        versions: of each model the directory of its version there.
        log: a file that gets the server's log.
        flags: further ones.
        declared: the models whose configuration is a config.pbtxt, with it.
    """

    def __init__(
        self,
        repository: Path,
        versions: Mapping[str, Path],
        log: Path,
        flags: Sequence[str] = (),
        declared: Mapping[str, Declared] | None = None,
    ) -> None:
        self._repository, self.versions, self._log, self._flags = repository, versions, log, flags
        self._declared = declared or {}
        self._process: subprocess.Popen[bytes] | None = None
        self._port = 0

    @property
    def endpoint(self) -> Endpoint:
        """Its address."""
        return Endpoint(GRPC, "127.0.0.1", self._port)

    @property
    def runs(self) -> bool:
        """Whether the process is there."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it without a model; one that runs is stopped before.

        Raises:
            ServerFailed: it does not start, with what it said last.
        """
        self.stop()
        arguments = ["--model-repository", str(self._repository), "--model-control-mode", "explicit"]
        for flag in ("--grpc-addr", "--http-addr", "--metrics-addr"):
            arguments += [flag, _ADDRESS]
        with self._log.open("wb") as log:
            # A session of its own: an interrupt from the terminal is for the command alone.
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, *arguments, *self._flags],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={name: value for name, value in os.environ.items() if not name.startswith("TOUTATES_")},
            )
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline:
            text = self._log.read_text(encoding="utf-8", errors="replace")
            if match := _SERVING.search(text):
                self._port = int(match[1])
                return
            if self._process.poll() is not None:
                raise ServerFailed(f"the server does not start: {_last_line(text)}")
            time.sleep(0.05)
        self.stop()
        raise ServerFailed(f"the server did not start within {_START_S:.0f} s")

    def load(self, model: str, config: Mapping[str, Any] | None = None) -> None:
        """Load a model with a configuration, in place of the one that it is served with.

        Args:
            model: its name.
            config: all keys; None for the files that it has.

        Raises:
            Refused: the server cannot load it, with its reason; the one before goes on.
            Unreachable: the server does not answer.
        """
        if config is not None:
            self.write(model, config)
        message = RepositoryModelLoadRequest(model_name=model).SerializeToString()
        ask(self.endpoint, SERVICE + "RepositoryModelLoad", message)

    def write(self, model: str, config: Mapping[str, Any]) -> None:
        """Put a configuration into the repository, without loading it."""
        path, declared = self.versions[model] / CONFIG_NAME, self._declared.get(model)
        if declared is None:
            text = yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True)
        else:
            path, text = self.versions[model].with_name(PBTXT_NAME), declared.text(config)
        beside = path.with_name(f".{path.name}")
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)

    def has_ended(self) -> str:
        """The last line of the server's log, if it has ended; "" while it runs."""
        if self.runs:
            return ""
        return f"the server ended: {_last_line(self._log.read_text(encoding='utf-8', errors='replace'))}"

    def stop(self) -> None:
        """Stop the server."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_S)
        process.kill()
        process.wait()


def copy_model(model_dir: Path, version_dir: Path, number: int, repository: Path, *, as_it_is: bool = False) -> Path:
    """Put one version of a model into a repository of its own, by hard links where that is possible.

    Args:
        model_dir: of the model; its name is the model's.
        version_dir: of the version; the same for a text model without versions.
        number: of the version.
        repository: the directory that gets it.
        as_it_is: whether its configuration is copied too.

    Returns:
        The directory of the version there.

    Raises:
        ConfigurationError: files cannot be read or copied.
    """
    root = repository / model_dir.name
    target = root / str(number)
    try:
        shutil.copytree(version_dir, target, copy_function=_link_or_copy)
        if version_dir != model_dir:
            for entry in model_dir.iterdir():
                if entry.name.isdigit() or (entry.name == PBTXT_NAME and not as_it_is):
                    continue
                if entry.is_dir():
                    shutil.copytree(entry, root / entry.name, copy_function=_link_or_copy)
                else:
                    _link_or_copy(str(entry), str(root / entry.name))
        for name in () if as_it_is else (CONFIG_NAME, PBTXT_NAME):  # a file of its own is going to say all of it
            (target / name).unlink(missing_ok=True)
    except (OSError, shutil.Error) as error:
        raise ConfigurationError(
            f"cannot be copied: {error}",
            key="MODEL_DIR",
            value=str(model_dir),
            remedy="see that it can be read, and that there is room in the folder for temporary files (TMPDIR)",
        ) from None
    return target


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(os.path.realpath(source), target)
    except OSError:  # another file system, or none that has links
        shutil.copyfile(source, target)


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"
