"""Threads of models on the CPUs that they are given."""

from __future__ import annotations

import os
from pathlib import Path

import trio

from tests.models.support import CONFIG, WatchedFiles, manager_in, put
from tests.threads import cpus_of_threads
from tests.waiting import wait_until
from toutates.backends.onnx.opening import SessionOptions
from toutates.models.repository import scan
from toutates.system.placement import Placement, running_on
from toutates.system.topology import allowed_cpus, read_topology


def pinned_placement() -> Placement:
    """Every role on the first and the last CPU of this process, however few it has."""
    first, last = min(allowed_cpus()), max(allowed_cpus())
    return Placement(
        topology=read_topology(allowed_cpus()),
        manager=(last,),
        executors=(first, last),
        workers=(first,),
        intra_op=(last, first, first),
    )


def test_pinned_executors_and_pools_take_their_cpus_in_turn(tmp_path: Path) -> None:
    for name in ("a", "b"):
        put(tmp_path, name, config=CONFIG.format(2))
    placement = pinned_placement()
    first, last = placement.executors
    # Two threads for each of four sessions, of last, first, first, last, first, first, last, first.
    pools = sorted([last] * 3 + [first] * 5)

    def placed() -> bool:
        threads = cpus_of_threads()
        executors = [of(threads, f"executor-0 {name}", f"executor-1 {name}") for name in ("a", "b")]
        return executors == [sorted([first, last])] * 2 and of(threads, "ort a", "ort b") == pools

    def look() -> None:
        # Trio keeps the thread for other tests, and it has inherited the manager's CPU.
        with running_on(allowed_cpus(), allowed_cpus()):
            wait_until(placed)

    async def main() -> None:
        with running_on(placement.manager, allowed_cpus()):
            async with trio.open_nursery() as nursery:
                manager = manager_in(nursery, placement=placement, sessions=SessionOptions(intra_threads=3))
                try:
                    await manager.load_all(scan(tmp_path), lambda *progress: None)
                    await trio.to_thread.run_sync(look)
                finally:
                    manager.stop()

    trio.run(main)


def of(threads: list[tuple[str, set[int]]], *names: str) -> list[int]:
    """The CPU of each thread of these names, ascending; -1 for a thread that has several."""
    return sorted(min(cpus) if len(cpus) == 1 else -1 for name, cpus in threads if name in names)


def test_models_load_on_every_cpu_though_the_manager_is_pinned(tmp_path: Path) -> None:
    seen: list[set[int]] = []
    files = WatchedFiles(before=lambda: seen.append(os.sched_getaffinity(0)))
    for name in ("a", "b", "c"):
        put(tmp_path, name)
    placement = pinned_placement()

    async def main() -> None:
        with running_on(placement.manager, allowed_cpus()):
            async with trio.open_nursery() as nursery:
                manager = manager_in(nursery, placement=placement, files=files)
                await manager.load_all(scan(tmp_path), lambda *progress: None)
                manager.stop()

    trio.run(main)
    assert seen == [allowed_cpus()] * 3
