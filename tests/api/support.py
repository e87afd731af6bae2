"""A data plane without any transport, over models of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import trio

from tests.graphs import DOUBLE
from toutates.api.dataplane.plane import DataPlane, ServerIdentity
from toutates.api.dataplane.readiness import Readiness
from toutates.backends.onnx.loader import OnnxKind
from toutates.backends.onnx.opening import SessionOptions
from toutates.infer.tracing.settings import TraceSetting, TraceSettings
from toutates.models.manager import LoadOptions, ModelManager
from toutates.models.table import ModelTable
from toutates.repositories.control.model_control import ModelControl
from toutates.repositories.control.modes import ControlMode
from toutates.repositories.local.repository import LocalRepository
from toutates.system import errors
from toutates.system.errors import ByError
from toutates.system.logs.control import LogControl
from toutates.system.logs.levels import parse_levels

__all__ = ["assert_has_every_error", "plane_of", "put", "serving"]

#: Every error that any part of the server may answer with. What one API alone knows has a status there.
REQUEST_ERRORS: Final = {
    kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.RequestError)
} - {errors.RequestError}


def assert_has_every_error(statuses: ByError[Any]) -> None:
    """An error may be left out whose base has the same status."""
    assert set(statuses) <= REQUEST_ERRORS
    for kind in REQUEST_ERRORS:
        assert statuses[kind], kind


def put(root: Path, name: str, version: int = 1, content: bytes = DOUBLE) -> None:
    """Write a version of a model whose output y is twice its input x, rows of four FP32."""
    folder = root / name / str(version)
    folder.mkdir(parents=True)
    (folder / "model.onnx").write_bytes(content)


def plane_of(manager: Any = None, control: Any = None, readiness: Readiness | None = None) -> DataPlane:
    """A data plane; without manager and control it has no models, and can load none."""
    empty = ModelTable({})
    return DataPlane(
        ServerIdentity("triton", "1.2.3"),
        lambda: empty if manager is None else manager.table,
        readiness or Readiness(serving=True),
        control,
        LogControl(parse_levels("info")),
        TraceSettings(TraceSetting()),
    )


@asynccontextmanager
async def serving(root: Path, mode: ControlMode = "none", *others: Path) -> AsyncIterator[DataPlane]:
    """A data plane over a repository, or several. Everything in the first is loaded, but in the mode "explicit"."""
    async with trio.open_nursery() as nursery:
        manager = ModelManager(LoadOptions([OnnxKind(SessionOptions())]), nursery)
        try:
            repository = LocalRepository(root)
            control = ModelControl([repository, *map(LocalRepository, others)], manager, mode, poll_s=0.01)
            await manager.load_all([] if mode == "explicit" else repository.scan(), lambda done, total, name: None)
            yield plane_of(manager, control)
        finally:
            manager.stop()
