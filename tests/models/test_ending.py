"""Versions in use, and their end."""

from __future__ import annotations

import gc
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing

from tests.engine.test_batched import SIGNATURE, Doubling
from tests.kinds import MadeKind
from tests.models.support import CONFIG, folder_of, gone, load_model, manager_in, put, unload_model
from tests.threads import no_threads
from tests.waiting import wait_until
from toutates.engine.batched import BatchedServable
from toutates.engine.counters import VersionCounters
from toutates.engine.servable import Consumer, Host, Servable
from toutates.engine.supertensor import SuperTensor
from toutates.models.manager import ModelManager
from toutates.models.repository import scan, scan_model
from toutates.models.table import ModelState, ServedVersion
from toutates.system.errors import ModelNotReady


def repository_state(manager: ModelManager) -> tuple[ModelState, str]:
    entry = manager.table.models["m"].versions[1]
    return entry.state, entry.reason


class Worker:
    """A way into a version, and what has come back on it."""

    def __init__(self, version: ServedVersion) -> None:
        self.results: list[Any] = []
        self._rounds: list[Any] = []
        self.port = version.servable.port(Consumer(self.results.append, self.results.append, self._rounds.append))
        self.way: Any = self.port.way(((0, (4,)),))

    def add(self, row: bytes) -> None:
        """Add one row, which is not committed yet."""
        self.port.add_packed(self.way, 1, "a", row, [0, 16])

    def commit(self) -> None:
        """End the round."""
        self._rounds.pop()()


async def double_once(version: ServedVersion) -> None:
    worker = Worker(version)
    worker.add(bytes(16))
    worker.commit()
    # Not in a thread, which might still know of all this when it is to be freed.
    while not (worker.results and worker.way.lane.spare):  # noqa: ASYNC110  # no event
        await trio.sleep(0.0005)


def test_loaded_models_run_until_stop_ends_every_executor(tmp_path: Path) -> None:
    put(tmp_path, "m", config=CONFIG.format(3))

    async def main() -> None:
        with trio.fail_after(120):
            async with trio.open_nursery() as nursery:
                manager = manager_in(nursery)
                await manager.load_all(scan(tmp_path), lambda *progress: None)
                [version] = manager.table.served()
                servable = version.servable
                await trio.to_thread.run_sync(wait_until, lambda: servable.statistics().occupancy.idle_executors == 3)
                worker = Worker(version)
                worker.add(np.ones(4, np.float32).tobytes())
                worker.commit()
                await trio.to_thread.run_sync(wait_until, lambda: worker.results)
                manager.stop()
        assert version.servable.counters.batches()[1].count == 1
        assert worker.results[0].outputs.data[0] == np.full(4, 2, np.float32).tobytes()

    trio.run(main)


@pytest.mark.parametrize("threads", [0, 1], ids=["threads of its own", "threads that models share"])
def test_a_server_that_fails_waits_for_its_executors_to_close_their_backends(tmp_path: Path, threads: int) -> None:
    put(tmp_path, "m")
    closing, closed = threading.Event(), threading.Event()

    class Slow(Doubling):
        def close(self) -> None:
            closing.set()
            closed.wait(0.2)  # which nobody sets
            closed.set()

    def slow(model: str, number: int, folder: Path) -> Servable:
        supertensor = SuperTensor(model, SIGNATURE, batch_size=4, capacity=2)
        return BatchedServable(number, supertensor, [Slow()], pooled=True)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            manager = manager_in(nursery, kinds=[MadeKind("model.onnx", slow, "slow")], executor_threads=threads)
            await manager.load_all(scan(tmp_path), lambda *told: None)
            await trio.testing.wait_all_tasks_blocked()
            try:
                nursery.cancel_scope.cancel()
                await trio.lowlevel.checkpoint()
            finally:
                manager.stop()
        assert closing.is_set()
        assert closed.is_set()

    trio.run(main)


@pytest.mark.parametrize("delay", ["", "max_queue_delay_us: 100\n"])
def test_models_whose_executors_share_threads_need_no_tasks_while_they_are_served(tmp_path: Path, delay: str) -> None:
    config = CONFIG.format(2) + delay
    put(tmp_path / "one", "m", config=config)
    for number in range(5):
        put(tmp_path / "five", f"m{number}", config=config)

    async def tasks(root: Path, served: int) -> int:
        async with trio.open_nursery() as nursery:
            manager = manager_in(nursery, executor_threads=1)
            await manager.load_all(scan(root), lambda *told: None)
            await trio.testing.wait_all_tasks_blocked()
            count = trio.lowlevel.current_statistics().tasks_living
            assert len(manager.table.served()) == served
            assert all(version.servable.ready for version in manager.table.served())
            manager.stop()
        return count

    assert trio.run(tasks, tmp_path / "five", 5) == trio.run(tasks, tmp_path / "one", 1)


def test_a_worker_that_ended_in_the_middle_of_its_round_does_not_keep_stop_from_ending(tmp_path: Path) -> None:
    put(tmp_path, "m")

    async def main() -> None:
        with trio.fail_after(120):
            async with trio.open_nursery() as nursery:
                manager = manager_in(nursery)
                await manager.load_all(scan(tmp_path), lambda *progress: None)
                [version] = manager.table.served()
                Worker(version).add(bytes(16))
                manager.stop()

    trio.run(main)


def test_a_version_that_is_replaced_is_freed_without_the_collector(tmp_path: Path) -> None:
    put(tmp_path, "m", config=CONFIG.format(2))

    async def main() -> None:
        with trio.fail_after(120):
            async with trio.open_nursery() as nursery:
                manager = manager_in(nursery)
                # Before, because on free-threaded Python a collection may give objects to other threads.
                gc.collect()
                gc.disable()
                try:
                    await load_model(manager, folder_of(tmp_path))
                    gc.freeze()
                    for number in range(3):
                        [version] = manager.table.served()
                        await double_once(version)
                        lane = Worker(version).way.lane
                        known = [weakref.ref(one) for one in (version.servable, lane, lane.spare[0].arrays[0])]
                        del version, lane
                        (tmp_path / "m" / "1" / "config.yaml").write_text(CONFIG.format(2) + f"# {number}\n")
                        await load_model(manager, folder_of(tmp_path))
                        await gone(manager)
                        assert [one() for one in known] == [None] * 3
                finally:
                    gc.enable()
                    gc.unfreeze()
                    manager.stop()

    trio.run(main)


def test_a_version_is_closed_only_once_every_worker_has_let_go(tmp_path: Path) -> None:
    put(tmp_path, "m")
    settled = trio.Event()

    async def main() -> None:
        with trio.fail_after(120):
            async with trio.open_nursery() as nursery:
                manager = manager_in(nursery, settle=settled.wait)
                await load_model(manager, folder_of(tmp_path))
                [version] = manager.table.served()
                await unload_model(manager, "m")
                assert repository_state(manager) == (ModelState.UNLOADING, "")
                assert manager.table.ready
                await trio.testing.wait_all_tasks_blocked()
                await double_once(version)  # a worker that has not looked yet
                settled.set()
                await gone(manager)
                assert repository_state(manager) == (ModelState.UNAVAILABLE, "unloaded")
                with pytest.raises(ModelNotReady):
                    await double_once(version)
                await load_model(manager, folder_of(tmp_path))
                assert repository_state(manager) == (ModelState.READY, "")
                manager.stop()

    trio.run(main)


def test_a_server_that_stops_does_not_wait_for_workers_that_will_not_let_go(tmp_path: Path) -> None:
    put(tmp_path, "m")

    async def main() -> None:
        with trio.fail_after(120):
            async with trio.open_nursery() as nursery:
                manager = manager_in(nursery, settle=trio.sleep_forever)
                await load_model(manager, folder_of(tmp_path))
                await unload_model(manager, "m")
                manager.stop()

    trio.run(main)


class Mortal:
    """A version whose threads die and come back as a test says."""

    ready = True

    def __init__(self) -> None:
        self.counters = VersionCounters([], [])
        self.hosts: list[Host] = []
        self._closed = trio.Event()

    async def run(self, host: Host) -> None:
        self.hosts.append(host)
        await self._closed.wait()

    def close(self, *, workers_ended: bool = False) -> None:
        self._closed.set()


def test_a_version_whose_executors_have_died_is_unavailable_until_they_are_replaced(tmp_path: Path) -> None:
    put(tmp_path, "m")
    changes: list[bool] = []

    async def main() -> None:
        servable: Any = Mortal()
        with trio.fail_after(120):
            async with trio.open_nursery() as nursery:
                manager: ModelManager
                kinds = [MadeKind("model.onnx", lambda *version: servable, "mortal")]
                manager = manager_in(nursery, kinds=kinds, on_change=lambda: changes.append(manager.table.ready))
                await manager.load_all(scan(tmp_path), lambda *progress: None)
                await trio.testing.wait_all_tasks_blocked()
                [host] = servable.hosts
                for servable.ready in (False, True):
                    host.on_death()
                    host.on_ready_change()
                    state, reason = repository_state(manager)
                    assert state is (ModelState.READY if servable.ready else ModelState.UNAVAILABLE)
                    assert ("died" in reason) is not servable.ready
                assert (changes, manager.counters.executor_deaths) == ([False, True], 2)
                manager.stop()

    trio.run(main)


def test_a_model_is_unloaded_where_there_is_no_thread_to_give_its_memory_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put(tmp_path, "m")

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            manager = manager_in(nursery)
            await manager.load_all(scan(tmp_path), lambda done, total, name: None)
            with no_threads():
                await unload_model(manager)
                await gone(manager)
            assert not manager.table.served()
            await load_model(manager, scan_model(tmp_path / "m"))
            assert [version.model for version in manager.table.served()] == ["m"]
            manager.stop()

    trio.run(main)
    assert "memory of models that have left is given back later: can't start new thread" in caplog.text
