"""Runs of a model that last as long as the test says, in place of models that compute for a long time.

``python -m tests.e2e.held PATH MODEL FLAGS...`` is a server like ``python -m toutates FLAGS...``, but runs of MODEL
wait, before they compute, for what the test says in the file PATH. With a number for PATH, each
waits so many seconds.
"""

from __future__ import annotations

import runpy
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from onnxruntime import InferenceSession

from tests.e2e.process import ServerProcess, running
from tests.waiting import wait_until

__all__ = ["Runs", "main", "running_device", "running_held", "waiting_run"]

#: What the file has, as int64: how many runs have begun, and how many of them may compute.
_BEGUN, _ALLOWED = 0, 1
_ALL: Final = 2**62


def _shared(path: Path, mode: Any) -> Any:
    return np.memmap(path, np.int64, mode, shape=(2,))


class Runs:
    """The runs of a model with one executor, as the test sees them.

    Args:
        path: of a file that does not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._shared = _shared(path, "w+")
        self._shared[_ALLOWED] = _ALL

    @property
    def begun(self) -> int:
        """How many have begun so far; those that wait for the test are among them."""
        return int(self._shared[_BEGUN])

    def forget(self) -> None:
        """Count anew: runs of the load are no request's."""
        self._shared[_BEGUN] = 0

    def wait_begun(self, count: int) -> None:
        """Wait until so many have begun since the file was made."""
        wait_until(lambda: self.begun >= count)

    @contextmanager
    def held(self) -> Iterator[None]:
        """In this block runs wait, but for those that ``allow`` lets go on."""
        self._shared[_ALLOWED] = self.begun
        try:
            yield
        finally:
            self._shared[_ALLOWED] = _ALL

    def allow(self, runs: int = 1) -> None:
        """Let the next runs go on, of those that wait or are still to come."""
        self._shared[_ALLOWED] += runs


def waiting_run(path: Path) -> Callable[[], None]:
    """What a run does before it computes, so that ``Runs(path)`` can hold it."""
    shared = _shared(path, "r+")

    def wait() -> None:
        shared[_BEGUN] += 1
        number = int(shared[_BEGUN])
        wait_until(lambda: shared[_ALLOWED] >= number, pause_s=0.001)

    return wait


@contextmanager
def running_held(
    repository: Path | str,
    folder: Path,
    flags: Sequence[str] = (),
    model: str = "slow",
    *,
    module: Sequence[str] = ("tests.e2e.held",),
) -> Iterator[tuple[ServerProcess, Runs]]:
    """A server as ``process.running`` starts it, and the runs of one of its models.

    Args:
        module: runs in the server's process, and arguments that come before those of this one.
    """
    runs = Runs(folder / "runs")
    with running(repository, folder, flags, module=(*module, str(runs.path), model)) as process:
        runs.forget()
        yield process, runs


@contextmanager
def running_device(
    repository: Path | str, folder: Path, seconds: float, flags: Sequence[str] = (), *, model: str
) -> Iterator[ServerProcess]:
    """A server as ``process.running`` starts it, on which every run of one of its models takes so long."""
    with running(repository, folder, flags, module=("tests.e2e.held", str(seconds), model)) as process:
        yield process


def _hold(model: str, wait: Callable[[], None]) -> None:
    """Have the sessions of a model, which ONNX Runtime knows by their files, wait before each run."""

    def waiting(run: Callable[..., Any]) -> Callable[..., Any]:
        def wait_and_run(session: Any, *arguments: Any, **more: Any) -> Any:
            if Path(session._model_path or "").parent.parent.name == model:
                wait()
            return run(session, *arguments, **more)

        return wait_and_run

    for name in ("run", "run_with_iobinding", "run_with_ort_values"):
        setattr(InferenceSession, name, waiting(getattr(InferenceSession, name)))


def main() -> None:
    """Be the server."""
    _, path, model, *sys.argv[1:] = sys.argv
    timed = path.replace(".", "").isdigit()
    _hold(model, partial(time.sleep, float(path)) if timed else waiting_run(Path(path)))
    runpy.run_module("toutates", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
