"""Repositories of small models of ONNX, and managers that load them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import trio

from tests.graphs import DOUBLE
from toutates.backends.onnx.loader import OnnxKind
from toutates.backends.onnx.opening import SessionOptions
from toutates.backends.onnx.weights import GraphFiles, GraphSource
from toutates.models.kinds import Kind
from toutates.models.manager import LoadOptions, ModelManager
from toutates.models.repository import ModelFolder, VersionFolder, scan
from toutates.repositories.local.repository import LocalRepository
from toutates.system.placement import Placement

__all__ = [
    "CONFIG",
    "WatchedFiles",
    "folder_of",
    "gone",
    "load",
    "load_model",
    "manager_in",
    "put",
    "unload_model",
]

T = TypeVar("T")

CONFIG = "backend: supertensor\nbatch_size: 4\ncapacity: 2\nnum_executors: {}\nallocator: cpu\n"


def put(root: Path, name: str, content: bytes = DOUBLE, version: int = 1, config: str = "") -> Path:
    folder = root / name / str(version)
    folder.mkdir(parents=True)
    (folder / "model.onnx").write_bytes(content)
    if config:
        (folder / "config.yaml").write_text(config)
    return folder


def nothing(*given: object) -> None:
    """What is done where a test wants nothing done."""


class WatchedFiles(GraphFiles):
    """Opens graphs, and has something done before and after their sessions are made, in the thread that makes them.

    Args:
        before: called before the sessions of a version are made.
        after: called with all of them, a list of ONNX Runtime's.
    """

    def __init__(self, before: Callable[[], object] = nothing, after: Callable[[list[Any]], object] = nothing) -> None:
        super().__init__()
        self._before, self._after = before, after

    def read(
        self,
        version: VersionFolder,
        graph: Path,
        what: str,
        make: Callable[[GraphSource], T],
        *,
        several: bool = False,
    ) -> T:
        def watched(source: GraphSource) -> T:
            self._before()
            made: Any = make(source)
            self._after(made[0])
            return made  # type: ignore[no-any-return]  # as it was made

        return super().read(version, graph, what, watched, several=several)


def manager_in(
    nursery: trio.Nursery,
    *,
    files: GraphFiles | None = None,
    kinds: Sequence[Kind] = (),
    sessions: SessionOptions | None = None,
    placement: Placement | None = None,
    parallel_loads: int = 1,
    executor_threads: int = 0,
    **more: Any,
) -> ModelManager:
    """A manager of ONNX models, or of other ``kinds``."""
    placement = placement or Placement()
    kinds = kinds or [OnnxKind(sessions or SessionOptions(), placement, files=files)]
    options = LoadOptions(kinds, placement, parallel_loads, executor_threads=executor_threads)
    return ModelManager(options, nursery, **more)


def load(root: Path, **more: Any) -> tuple[ModelManager, list[tuple[int, int, str]]]:
    """Load a repository, and stop at once; returns what was told of the progress besides."""
    progress: list[tuple[int, int, str]] = []

    async def main() -> ModelManager:
        async with trio.open_nursery() as nursery:
            manager = manager_in(nursery, **more)
            assert not manager.table.ready
            await manager.load_all(scan(root), lambda done, total, name: progress.append((done, total, name)))
            manager.stop()
        return manager

    return trio.run(main), progress


def folder_of(root: Path, name: str = "m") -> Any:
    [folder] = LocalRepository(root).scan([name])
    return folder


async def gone(manager: ModelManager, name: str = "m") -> None:
    """Wait until no version of the model is left that is not in the table: before that, nobody gets a turn."""
    async with manager.turn(name):
        pass


async def load_model(manager: ModelManager, folder: ModelFolder, **more: Any) -> None:
    async with manager.turn(folder.name) as turn:
        await turn.load(folder, **more)


async def unload_model(manager: ModelManager, name: str = "m", **more: Any) -> None:
    async with manager.turn(name) as turn:
        turn.unload(**more)
