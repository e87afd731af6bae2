"""Models that are loaded on demand: what does not need a server."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, KeysView
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import trio

from tests.repositories.test_control import managing, put
from toutates.models.manager import ModelManager
from toutates.repositories.control import on_demand
from toutates.repositories.control.model_control import ModelControl
from toutates.repositories.control.on_demand import FAILURE_S, OnDemand
from toutates.repositories.local.repository import LocalRepository
from toutates.system.errors import RequestError


@asynccontextmanager
async def loading(root: Path) -> AsyncIterator[tuple[ModelManager, ModelControl, OnDemand]]:
    """What loads the models of a directory on demand."""
    async with managing() as manager, trio.open_nursery() as nursery:
        repository = LocalRepository(root)
        control = ModelControl([repository], manager, "on-demand")
        demand = OnDemand([repository], manager, control)
        await demand.begin()
        nursery.start_soon(demand.run)
        yield manager, control, demand
        nursery.cancel_scope.cancel()


async def load(demand: OnDemand, model: str) -> RequestError | None:
    """Have a model loaded; returns why it could not be."""
    ended = trio.Event()
    found: list[RequestError | None] = []

    def done(error: RequestError | None) -> None:
        found.append(error)
        ended.set()

    demand.want(model, done)
    await ended.wait()
    return found[0]


@pytest.mark.parametrize("set_by_s", [-3_600, 3_600])
def test_a_failure_answers_for_its_time_whatever_the_time_of_day_is_set_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, set_by_s: int
) -> None:
    put(tmp_path, "broken")
    (tmp_path / "broken" / "1" / "model.onnx").write_bytes(b"no graph")
    wall_s, now_s = time.time(), time.monotonic()
    clocks = SimpleNamespace(time=lambda: wall_s, monotonic=lambda: now_s, monotonic_ns=time.monotonic_ns)
    monkeypatch.setattr(on_demand, "time", clocks)

    async def main() -> None:
        nonlocal wall_s, now_s
        async with loading(tmp_path) as (_, _, demand):
            assert await load(demand, "broken") is not None
            assert demand.failure_of("broken") is not None
            wall_s += set_by_s
            now_s += FAILURE_S - 1
            assert demand.failure_of("broken") is not None
            now_s += 1
            assert demand.failure_of("broken") is None

    trio.run(main)


def test_the_names_for_an_index_are_not_copied_on_the_main_thread(tmp_path: Path) -> None:
    for name in "ab":
        put(tmp_path, name)

    async def main() -> None:
        async with loading(tmp_path) as (_, control, _):
            names = await control.names()
            assert set(names) == {"a", "b"}
            assert isinstance(names, KeysView)  # a view of the index

    trio.run(main)
