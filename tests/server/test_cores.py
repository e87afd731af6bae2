"""Which CPUs the threads of a server run on, and what it says of them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.graphs import DOUBLE
from tests.server.started import Running, options_of, started
from tests.threads import cpus_of_threads
from tests.waiting import wait_until
from toutates.server import server as server_module
from toutates.server.server import Server
from toutates.server.thread_plan import plan_threads
from toutates.system.errors import ConfigurationError
from toutates.system.interpreter import gil_enabled
from toutates.system.placement import Placement
from toutates.system.topology import allowed_cpus, read_topology


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository" / "m" / "1"
    folder.mkdir(parents=True)
    (folder / "model.onnx").write_bytes(DOUBLE)
    return tmp_path / "repository"


def test_pinned_threads_run_where_the_plan_says_and_the_process_is_as_before_afterwards(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    allowed = allowed_cpus()
    first, last = min(allowed), max(allowed)
    # By hand, because roles may share a CPU here: a plan of the server's own takes three CPUs at least.
    plan = Placement(
        processing_cores=2,
        topology=read_topology(allowed),
        manager=(last,),
        executors=(first,),
        workers=(last, first),
    )
    monkeypatch.setattr(server_module, "plan_threads", lambda options: plan)
    server = Server(options_of(repository))
    running = Running(server)

    async def main() -> None:
        with trio.fail_after(120):
            async with trio.open_nursery() as nursery:
                await nursery.start(running.run)
                expected = {"worker-0": {last}, "worker-1": {first}, "executor-0": {first}}
                await trio.to_thread.run_sync(wait_until, lambda: expected.items() <= dict(cpus_of_threads()).items())
                assert os.sched_getaffinity(os.getpid()) == {last}  # of the main thread, whose id is the process's
                assert (await running.probe())[0]
                server.stop()

    trio.run(main)
    assert running.code == 0
    assert allowed_cpus() == allowed


def test_pinning_with_fewer_cores_than_roles_is_refused_before_anything_starts(repository: Path) -> None:
    one = (min(allowed_cpus()),)
    with pytest.raises(ConfigurationError, match=rf"--cpu-pinning: .* at least 3 CPUs, .* may use 1 \({one[0]}\)"):
        Server(options_of(repository, cpu_pinning=one))


def test_the_plan_is_made_from_the_options(repository: Path) -> None:
    cpus = len(allowed_cpus())

    def placed(**more: Any) -> tuple[int, int]:
        placement = plan_threads(options_of(repository, **more))
        return placement.executor_cpus, placement.processing_cores

    assert placed() == (1, 1 if gil_enabled() else max(1, cpus - 1))
    assert placed(executor_cpus=cpus + 3) == (cpus + 3, 1)
    assert placed(processing_cores=cpus + 5) == (1, cpus + 5)


def test_threads_are_shown_beside_the_models(repository: Path, capfd: pytest.CaptureFixture[str]) -> None:
    async def main() -> None:
        async with started(
            options_of(repository, processing_cores=2, ort_intra_threads=2, executor_threads=3)
        ) as running:
            running.server.stop()

    trio.run(main)
    last = capfd.readouterr().out.splitlines()[-1]
    assert last == "2 workers, 3 executors, 1 intra-op thread; threads are not pinned to cores"


def test_more_workers_than_cpus_are_served_with_a_warning(repository: Path, caplog: pytest.LogCaptureFixture) -> None:
    workers = len(allowed_cpus()) + 1

    async def main() -> None:
        async with started(options_of(repository, processing_cores=workers)) as running:
            assert (await running.probe())[0]
            running.server.stop()

    trio.run(main)
    assert f"{workers} workers on {workers - 1} CPUs" in caplog.text
    assert ("with the GIL spread the connections" in caplog.text) == gil_enabled()
