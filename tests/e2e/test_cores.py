"""Which cores the threads of a server run on, and whether its interpreter has the GIL."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.process import PYTHON, ServerProcess, run, running
from tests.extension import NAME, build_extension, is_free_threaded
from tests.threads import cpus_of_threads
from tests.waiting import wait_until

ALLOWED: Final = sorted(os.sched_getaffinity(0))

free_threaded = pytest.mark.skipif(not is_free_threaded(PYTHON), reason="the server's interpreter always has the GIL")


def wait_for_threads(process: ServerProcess, expected: Mapping[str, set[int]]) -> None:
    """Wait until each of these threads is there once, and on these CPUs."""

    def are_there() -> bool:
        threads = [(name, cpus) for name, cpus in cpus_of_threads(process.process.pid) if name in expected]
        return sorted(threads) == sorted(expected.items())

    wait_until(are_there)


# --- cores


@pytest.mark.skipif(len(ALLOWED) < 3, reason="pinning takes three CPUs: manager, executor and worker")
def test_a_pinned_server_has_every_role_on_cores_of_its_own(repository: Path, tmp_path: Path) -> None:
    cores = ALLOWED[:3]
    flags = ["--load-models", "mlp", f"--cpu-pinning={','.join(map(str, cores))}", "--processing-cores", "1"]
    flags += ["--executor-threads", "1"]
    with running(repository, tmp_path, flags) as process:
        pid = process.process.pid
        found = dict(cpus_of_threads(pid))
        [executor], [worker] = found["executor-0"], found["worker-0"]
        [manager] = os.sched_getaffinity(pid)
        assert {executor, worker, manager} == set(cores)
        wait_for_threads(process, {"executor-0": {executor}, "worker-0": {worker}})
        lines = [line.split()[:3] for line in process.log.splitlines()]
        for line in (["manager", "1", str(manager)], ["executor", "1", str(executor)], ["worker", "1", str(worker)]):
            assert line in lines
        # Threads of libraries, made before or after, may run on all cores that were named or allowed.
        others = [cpus for name, cpus in cpus_of_threads(pid) if name not in ("executor-0", "worker-0")]
        others.remove({manager})
        assert all(cpus in (set(cores), set(ALLOWED)) for cpus in others)
        assert run("probe", process.address).returncode == 0
        assert process.stop() == 0


def test_pinning_with_fewer_cores_than_roles_ends_the_start(repository: Path) -> None:
    first, last = ALLOWED[0], ALLOWED[:2][-1]
    few = str(first) if first == last else f"{first}-{last}" if last == first + 1 else f"{first},{last}"
    ended = run("--model-repository", str(repository), f"--cpu-pinning={few}", "--processing-cores", "1")
    assert ended.returncode == 2
    assert ended.stderr.startswith("toutates: error: --cpu-pinning: pinning needs at least 3 CPUs, 1 for the manager, ")
    assert f"the process may use {len(ALLOWED[:2])} ({few}); give it more CPUs" in ended.stderr
    assert not ended.stdout


def test_without_pinning_named_threads_may_run_everywhere(repository: Path, tmp_path: Path) -> None:
    flags = ["--load-models", "mlp", "--processing-cores", "2", "--executor-threads", "3"]
    with running(repository, tmp_path, flags) as process:
        everywhere = set(ALLOWED)
        wait_for_threads(process, {"worker-0": everywhere, "worker-1": everywhere, "executor-0": everywhere})
        assert "2 workers, 3 executors; threads are not pinned to cores" in process.log
        doubted = "2 workers on an interpreter with the GIL" in process.log
        assert doubted == (not is_free_threaded(PYTHON))
        assert process.stop() == 0


def test_by_default_there_is_a_worker_with_the_gil_and_several_without(repository: Path, tmp_path: Path) -> None:
    with running(repository, tmp_path, ["--load-models", "mlp"]) as process:
        workers = max(1, len(ALLOWED) - 1) if is_free_threaded(PYTHON) else 1
        assert f"with {workers} worker{'' if workers == 1 else 's'}, ready" in process.log
        assert sum(name.startswith("worker-") for name, _ in cpus_of_threads(process.process.pid)) == workers
        assert "WARNING" not in process.log
        assert process.stop() == 0


# --- the GIL

#: Serve with a module that ``function``, called by the server, imports before it does what it does.
IMPORTING: Final = """
import importlib, sys
module = importlib.import_module({module!r})
function = module.{function}

def import_first(*arguments, **more):
    import {name}
    return function(*arguments, **more)

module.{function} = import_first
from toutates.command.main import main
sys.exit(main())
"""


@free_threaded
def test_a_free_threaded_server_runs_without_the_gil(repository: Path, tmp_path: Path) -> None:
    with running(repository, tmp_path, ["--load-models", "mlp"]) as process:
        announced = next(line for line in process.log.splitlines() if "serving gRPC on" in line)
        assert " free-threaded without the GIL: serving gRPC on " in announced
        assert " free-threaded without the GIL; onnxruntime " in process.log
        assert "GIL was switched on" not in process.log
        assert process.stop() == 0


@free_threaded
@pytest.mark.parametrize(
    ("module", "function"),
    [("toutates.models.repository", "scan"), ("toutates.models.config.settings", "load_settings")],
    ids=["at the start", "while a model loads"],
)
def test_a_module_that_switches_the_gil_on_is_named_in_the_log(
    repository: Path, tmp_path: Path, module: str, function: str
) -> None:
    build_extension(tmp_path, PYTHON)
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
    code += IMPORTING.format(module=module, function=function, name=NAME)
    with running(repository, tmp_path, ["--load-models", "mlp"], start=("-c", code)) as process:
        assert process.log.count(f"the GIL was switched on by module '{NAME}'") == 1
        assert " free-threaded with the GIL: serving gRPC on " in process.log
        assert process.stop() == 0


@free_threaded
def test_a_gil_that_the_user_asked_for_is_said_to_be(repository: Path, tmp_path: Path) -> None:
    start = ("-X", "gil=1", "-m", "toutates")
    with running(repository, tmp_path, ["--load-models", "mlp"], start=start) as process:
        assert "the GIL is on because -X gil=1 asks for it" in process.log
        assert "with 1 worker, ready" in process.log
        assert process.stop() == 0
