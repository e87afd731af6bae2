"""The plan of who runs where on machines of several kinds, and threads of this process that follow one."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.machines import EPYC_NPS2, LAPTOP, VIRTUAL, XEON, install
from toutates.system.errors import ConfigurationError
from toutates.system.placement import Placement, Turns, default_processing_cores, place, running_on, worker_warnings
from toutates.system.topology import Topology, allowed_cpus, read_topology

HERE = allowed_cpus()
ONE = {min(HERE)}


@pytest.fixture
def machine(tmp_path: Path) -> Callable[..., Topology]:
    def read(text: str, cpus: Any = range(16), **more: Any) -> Topology:
        return read_topology(cpus, install(tmp_path, text, **more))

    return read


def pinned(topology: Topology, executors: int, workers: int, **more: Any) -> Placement:
    return place(topology, executor_cpus=executors, processing_cores=workers, pinned=True, **more)


def roles(placement: Placement) -> tuple[tuple[int, ...], ...]:
    return placement.executors, placement.workers, placement.intra_op, placement.manager


# --- the plan


def test_physical_cores_come_before_siblings_and_the_manager_last(machine: Callable[..., Topology]) -> None:
    assert roles(pinned(machine(LAPTOP), 1, 3)) == ((0,), (1, 2, 3), (4, 5, 6), (7,))


def test_siblings_that_are_neighbours_are_told_from_cores(machine: Callable[..., Topology]) -> None:
    assert roles(pinned(machine(VIRTUAL), 1, 2)) == ((0,), (2, 4), (6, 1, 3, 5), (7,))


def test_roles_that_share_memory_fill_a_node_before_the_next(machine: Callable[..., Topology]) -> None:
    placement = pinned(machine(XEON), 2, 7)
    assert roles(placement) == ((0, 1), (2, 3, 8, 9, 10, 11, 4), (5, 6, 7, 12, 13, 14), (15,))
    assert [placement.topology.node_of(cpu) for cpu in placement.workers] == [0] * 6 + [1]


@pytest.mark.parametrize(
    ("cpus", "planned"),
    [
        ({0, 1, 2, 4, 5, 6, 7}, ((0,), (1, 2), (4, 5, 6), (7,))),
        ({1, 2, 4, 6, 7}, ((6,), (7, 4), (1,), (2,))),
    ],
)
def test_the_node_with_most_room_comes_first_and_its_socket_next(
    machine: Callable[..., Topology], cpus: set[int], planned: tuple[tuple[int, ...], ...]
) -> None:
    assert roles(pinned(machine(EPYC_NPS2, cpus), 1, 2)) == planned


def test_an_odd_cpuset_is_used_to_its_last_cpu(machine: Callable[..., Topology]) -> None:
    assert roles(pinned(machine(XEON, {1, 5, 9, 11, 13}), 1, 3)) == ((1,), (11, 9, 5), (), (13,))


def test_every_cpu_has_one_role(machine: Callable[..., Topology]) -> None:
    topology = machine(XEON)
    for executors in range(1, 15):
        placement = pinned(topology, executors, 15 - executors)
        assert sorted(cpu for role in roles(placement) for cpu in role) == list(range(16))


def test_without_pinning_nobody_has_a_place(machine: Callable[..., Topology]) -> None:
    placement = place(machine(LAPTOP), executor_cpus=3, processing_cores=50, intra_threads=9, pinned=False)
    assert (placement.executor_cpus, placement.processing_cores, placement.pinned) == (3, 50, False)
    assert roles(placement) == ((), (), (), ())
    assert placement.anywhere == ()


def test_threads_without_a_role_may_run_on_every_cpu(machine: Callable[..., Topology]) -> None:
    assert pinned(machine(LAPTOP, {1, 2, 5, 6}), 1, 1).anywhere == (1, 2, 5, 6)


@pytest.mark.parametrize(
    ("cpus", "executors", "workers", "intra_threads", "words"),
    [
        ({5}, 1, 1, 1, ["at least 3 CPUs", "1 for the manager", "may use 1 (5)"]),
        ({0, 1}, 1, 1, 1, ["at least 3 CPUs", "1 for executors (--executor-cpus)", "may use 2 (0-1)"]),
        (range(8), 2, 6, 1, ["at least 9 CPUs", "6 for workers (--processing-cores)", "may use 8 (0-7)"]),
        (range(8), 3, 4, 2, ["at least 9 CPUs", "1 for ONNX Runtime's pools (--ort-intra-threads)"]),
    ],
)
def test_too_few_cpus_are_an_error_that_counts_them(
    machine: Callable[..., Topology], cpus: Any, executors: int, workers: int, intra_threads: int, words: list[str]
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        pinned(machine(LAPTOP, cpus), executors, workers, intra_threads=intra_threads)
    text = str(caught.value)
    for word in ["--cpu-pinning: ", *words, "leave --cpu-pinning out"]:
        assert word in text
    assert ("pools" in text) == (intra_threads > 1)


def test_just_enough_cpus_are_enough(machine: Callable[..., Topology]) -> None:
    assert roles(pinned(machine(LAPTOP), 3, 3, intra_threads=5))[2:] == ((6,), (7,))


@pytest.mark.parametrize(
    ("cpus", "executor_cpus", "intra_threads", "is_pinned", "workers"),
    [
        (8, 1, 1, False, 7),
        (8, 3, 4, False, 5),
        (8, 1, 1, True, 6),
        (8, 1, 4, True, 3),
        (2, 1, 1, False, 1),
        (2, 1, 1, True, 1),
        (1, 4, 1, False, 1),
    ],
)
def test_without_the_gil_workers_get_what_the_others_leave(
    cpus: int, executor_cpus: int, intra_threads: int, is_pinned: bool, workers: int
) -> None:
    given = {"executor_cpus": executor_cpus, "intra_threads": intra_threads, "pinned": is_pinned}
    assert default_processing_cores(cpus, gil=False, **given) == workers  # type: ignore[arg-type]
    assert default_processing_cores(cpus, gil=True, **given) == 1  # type: ignore[arg-type]


@pytest.mark.parametrize("gil", [False, True])
def test_the_default_can_be_pinned_wherever_the_least_can(machine: Callable[..., Topology], gil: bool) -> None:
    topology = machine(LAPTOP)
    for executors in range(1, 6):
        for threads in range(1, 7 - executors):
            workers = default_processing_cores(8, executor_cpus=executors, intra_threads=threads, pinned=True, gil=gil)
            placement = pinned(topology, executors, workers, intra_threads=threads)
            assert gil or len(placement.intra_op) == threads - 1


def test_several_workers_with_the_gil_are_doubted(machine: Callable[..., Topology]) -> None:
    topology = machine(LAPTOP)
    [warning] = worker_warnings(pinned(topology, 1, 2), gil=True, usable=8)
    for word in ("--processing-cores", "2 workers", "only one of them runs Python at a time", "3.14t"):
        assert word in warning
    assert worker_warnings(pinned(topology, 1, 2), gil=False, usable=8) == []
    assert worker_warnings(pinned(topology, 1, 1), gil=True, usable=8) == []


def test_more_workers_than_cpus_are_doubted(machine: Callable[..., Topology]) -> None:
    topology = machine(LAPTOP, {0, 1, 5})
    four, three = (place(topology, executor_cpus=1, processing_cores=count, pinned=False) for count in (4, 3))
    [warning] = worker_warnings(four, gil=False, usable=2)
    assert "4 workers on 3 CPUs (0-1,5)" in warning
    [warning] = worker_warnings(three, gil=False, usable=2)
    assert "3 workers, and the control group's quota is that of 2 CPUs" in warning
    assert worker_warnings(three, gil=False, usable=3) == []


# --- following it


def test_turns_go_round() -> None:
    turns = Turns((4, 5, 6))
    assert [turns.take(count) for count in (2, 2, 0, 4)] == [(4, 5), (6, 4), (), (5, 6, 4, 5)]


def test_turns_without_cpus_are_empty() -> None:
    assert Turns(()).take(3) == ()


def test_turns_taken_by_several_threads_are_each_taken_once() -> None:
    turns = Turns(range(4_000))
    taken: list[int] = []

    def take() -> None:
        for _ in range(1_000):
            taken.extend(turns.take(1))

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == list(range(4_000))


def in_thread(job: Callable[[], Any]) -> Any:
    """What ``job`` returns in a thread of its own, whose affinity ends with it."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(job()))
    thread.start()
    thread.join()
    return results[0]


def test_a_thread_runs_on_its_cpus_within_the_block_alone() -> None:
    def job() -> list[set[int]]:
        seen = []
        with running_on(ONE, HERE):
            seen.append(os.sched_getaffinity(0))
        seen.append(os.sched_getaffinity(0))
        with pytest.raises(ZeroDivisionError), running_on(ONE, HERE):
            raise ZeroDivisionError
        return [*seen, os.sched_getaffinity(0)]

    assert in_thread(job) == [ONE, HERE, HERE]
    assert os.sched_getaffinity(0) == HERE


def test_a_thread_started_by_a_pinned_one_runs_where_its_job_says() -> None:
    def job() -> list[set[int]]:
        with running_on(ONE, HERE):
            inherited = in_thread(lambda: os.sched_getaffinity(0))

            def loading() -> set[int]:
                with running_on(HERE, HERE):
                    return os.sched_getaffinity(0)

            return [inherited, in_thread(loading)]

    assert in_thread(job) == [ONE, HERE]


def test_without_cpus_a_thread_is_left_alone() -> None:
    def job() -> set[int]:
        os.sched_setaffinity(0, ONE)
        with running_on((), ()):
            pass
        return os.sched_getaffinity(0)

    assert in_thread(job) == ONE


def test_a_cpu_that_is_gone_is_a_warning_and_the_job_runs(caplog: pytest.LogCaptureFixture) -> None:
    gone = 8_191

    def job() -> str:
        with running_on((gone,), HERE):
            return "done"

    assert in_thread(job) == "done"
    assert "cannot pin thread" in caplog.text
    assert f"to CPU {gone}: Invalid argument" in caplog.text
