"""Models that are loaded on demand: what does not need a server."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import AsyncIterator, KeysView
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import trio
import trio.testing

from tests.repositories.test_control import managing, put
from toutates.models.manager import ModelManager
from toutates.models.repository import ModelFolder, VersionFolder
from toutates.models.running import Outcome, RunningVersions
from toutates.repositories.control import on_demand
from toutates.repositories.control.model_control import ModelControl
from toutates.repositories.control.on_demand import FAILURE_S, OnDemand
from toutates.repositories.local.repository import LocalRepository
from toutates.system.errors import RepositoryError, RequestError


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


def test_requests_are_told_no_path_of_a_repository_that_cannot_be_read_and_the_log_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*arguments: object) -> ModelFolder:
        raise RepositoryError(f"--model-cache-dir {tmp_path}/cache: No space left on device; make room")

    put(tmp_path, "m")

    async def main() -> None:
        async with loading(tmp_path) as (_, _, demand):
            monkeypatch.setattr(LocalRepository, "fetch", refuse)
            told = "model 'm' cannot be loaded: --model-cache-dir cache: No space left on device; make room"
            assert str(await load(demand, "m")) == told

    trio.run(main)
    assert f"--model-cache-dir {tmp_path}/cache" in caplog.text


def test_the_names_for_an_index_are_not_copied_on_the_main_thread(tmp_path: Path) -> None:
    for name in "ab":
        put(tmp_path, name)

    async def main() -> None:
        async with loading(tmp_path) as (_, control, _):
            names = await control.names()
            assert set(names) == {"a", "b"}
            assert isinstance(names, KeysView)  # a view of the index

    trio.run(main)


def test_what_is_wanted_once_the_server_exits_is_refused_at_once(tmp_path: Path) -> None:
    put(tmp_path, "a")

    async def main() -> None:
        async with loading(tmp_path) as (_, _, demand):
            pass
        with trio.fail_after(120):
            assert str(await load(demand, "a")) == "Server exiting"

    trio.run(main)


def test_no_load_begins_once_the_server_exits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = {name: threading.Event() for name in ("of two versions", "small", "waits")}
    for name in go_on:
        put(tmp_path, name)
    shutil.copytree(tmp_path / "of two versions" / "1", tmp_path / "of two versions" / "2")
    begun: list[str] = []
    try_to_load = RunningVersions.try_to_load

    def load_later(running: RunningVersions, model: str, version: VersionFolder, *, overridden: bool) -> Outcome:
        begun.append(model)
        go_on[model].wait(120)
        return try_to_load(running, model, version, overridden=overridden)

    monkeypatch.setattr(RunningVersions, "try_to_load", load_later)

    async def main() -> None:
        told: list[str] = []
        async with managing(parallel_loads=3) as manager:
            repository = LocalRepository(tmp_path)
            control = ModelControl([repository], manager, "on-demand")
            demand = OnDemand([repository], manager, control, parallel=2)
            await demand.begin()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(demand.run)
                for name in go_on:
                    demand.want(name, lambda error: told.append(str(error)))
                while not {"of two versions", "small"}.issubset(begun):  # noqa: ASYNC110  # a task, and none
                    await trio.sleep(0.005)
                nursery.cancel_scope.cancel()
                with trio.CancelScope(shield=True):
                    await trio.testing.wait_all_tasks_blocked()  # else the load may end before anybody was told
                    go_on["small"].set()
                    while (entry := manager.entry("small")) is None or not entry.served():  # noqa: ASYNC110
                        await trio.sleep(0.005)
                    go_on["of two versions"].set()
                    go_on["waits"].set()
        assert told == ["Server exiting"] * 3
        assert "waits" not in begun

    trio.run(main)
