"""A data plane without any transport, over models of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from tests.models.support import manager_in
from tests.tables import table_of
from toutates.api.dataplane.plane import DataPlane, ServerIdentity
from toutates.api.dataplane.readiness import Readiness
from toutates.infer.tracing.settings import TraceSetting, TraceSettings
from toutates.repositories.control.model_control import ModelControl
from toutates.repositories.local.repository import LocalRepository
from toutates.system.logs.control import LogControl
from toutates.system.logs.levels import parse_levels

__all__ = ["plane_of", "serving"]


def plane_of(manager: Any = None, control: Any = None, readiness: Readiness | None = None) -> DataPlane:
    """A data plane; without manager and control it has no models, and can load none."""
    empty = table_of()
    return DataPlane(
        ServerIdentity("triton", "1.2.3"),
        lambda: empty if manager is None else manager.table,
        readiness or Readiness(serving=True),
        control,
        LogControl(parse_levels("info")),
        TraceSettings(TraceSetting()),
    )


@asynccontextmanager
async def serving(root: Path, mode: Any = "none", *others: Path) -> AsyncIterator[DataPlane]:
    """A data plane over a repository, or several. Everything in the first is loaded, but in the mode "explicit"."""
    async with trio.open_nursery() as nursery:
        manager = manager_in(nursery)
        try:
            repository = LocalRepository(root)
            control = ModelControl([repository, *map(LocalRepository, others)], manager, mode, poll_s=0.01)
            await manager.load_all([] if mode == "explicit" else repository.scan(), lambda done, total, name: None)
            yield plane_of(manager, control)
        finally:
            manager.stop()
