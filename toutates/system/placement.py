"""Which CPUs each thread runs on: a plan that is made before any thread starts, and the functions that pin threads.

    manager     1 CPU, the last in the order below, because it idles while others serve
    executors   N CPUs (--executor-cpus), which the executors of all models share in turn
    workers     M CPUs (--processing-cores), one each
    intra-op    the rest, which the pools of ONNX Runtime's sessions share in turn

Workers write the rows that executors read, so both are kept on one NUMA node as long as it has room. The words "core"
of the flags and "CPU" of Linux mean the same, a logical CPU; physical cores are used before their SMT siblings.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from toutates.system.errors import ConfigurationError
from toutates.system.topology import Node, Topology, format_cpu_list

__all__ = ["Placement", "Turns", "default_processing_cores", "place", "running_on", "worker_warnings"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Placement:
    """The CPUs of each role. Without pinning every tuple of CPUs is empty, and the system decides.

    Attributes:
        executor_cpus: how many CPUs are kept for executors, pinned or not.
        processing_cores: how many workers there are.
        topology: the CPUs that may be used.
        manager: the CPU of the main thread.
        executors: CPUs that executors take in turn.
        workers: the CPU of each worker.
        intra_op: CPUs that the threads of ONNX Runtime's intra-op pools take in turn.
    """

    executor_cpus: int = 1
    processing_cores: int = 1
    topology: Topology = field(default=Topology(()))
    manager: tuple[int, ...] = ()
    executors: tuple[int, ...] = ()
    workers: tuple[int, ...] = ()
    intra_op: tuple[int, ...] = ()

    @property
    def pinned(self) -> bool:
        """Whether threads are pinned at all."""
        return bool(self.manager)

    @property
    def anywhere(self) -> tuple[int, ...]:
        """The CPUs of threads without a role: all that may be used. Empty without pinning."""
        return self.topology.cpus if self.pinned else ()


def default_processing_cores(cpus: int, *, executor_cpus: int, intra_threads: int, pinned: bool, gil: bool) -> int:
    """The number of workers where the user gives none.

    With the GIL it is one: only one thread runs Python at a time, so further workers only add to the cost of a request.
    Without the GIL it is one per CPU that is left by the executors and, with pinning, by the manager and one session's
    pool of threads.

    Args:
        cpus: that the process may use.
        executor_cpus: ``--executor-cpus``.
        intra_threads: ``--ort-intra-threads``; the executor's own is one of them.
        pinned: whether threads will be pinned.
        gil: whether the interpreter has the GIL.
    """
    if gil:
        return 1
    others = 1 + (intra_threads - 1) if pinned else 0
    return max(1, cpus - executor_cpus - others)


def place(
    topology: Topology, *, executor_cpus: int, processing_cores: int, intra_threads: int = 1, pinned: bool
) -> Placement:
    """Make the plan.

    Raises:
        ConfigurationError: there are fewer CPUs than the threads to be pinned need.
    """
    if not pinned:
        return Placement(executor_cpus, processing_cores, topology)
    cpus = _by_value(topology)
    needs = {
        "the manager": 1,
        "executors (--executor-cpus)": executor_cpus,
        "workers (--processing-cores)": processing_cores,
        "ONNX Runtime's pools (--ort-intra-threads)": int(intra_threads > 1),
    }
    if sum(needs.values()) > len(cpus):
        parts = ", ".join(f"{count} for {role}" for role, count in needs.items() if count)
        raise ConfigurationError(
            f"pinning needs at least {sum(needs.values())} CPUs, {parts}, "
            f"and the process may use {len(cpus)} ({format_cpu_list(cpus)})",
            key="--cpu-pinning",
            remedy="give it more CPUs, ask for fewer, or leave --cpu-pinning out",
        )
    workers_end = executor_cpus + processing_cores
    return Placement(
        executor_cpus,
        processing_cores,
        topology,
        manager=cpus[-1:],
        executors=cpus[:executor_cpus],
        workers=cpus[executor_cpus:workers_end],
        intra_op=cpus[workers_end:-1],
    )


def _by_value(topology: Topology) -> tuple[int, ...]:
    """Every CPU, in the order in which threads that share memory should take them.

    Node by node: the one with most room first, then those of its socket, then the others. In a node every physical core
    once before any SMT sibling, which shares its core's execution units and caches with it.
    """
    if not topology.nodes:
        return ()
    home = max(topology.nodes, key=lambda node: (_room(node), -node.number))
    nodes = sorted(
        topology.nodes,
        key=lambda node: (node is not home, node.cores[0].socket != home.cores[0].socket, -_room(node), node.number),
    )
    return tuple(cpu for node in nodes for cpu in _cores_first(node))


def _room(node: Node) -> int:
    return sum(len(core.cpus) for core in node.cores)


def _cores_first(node: Node) -> Iterator[int]:
    for sibling in range(max(len(core.cpus) for core in node.cores)):
        yield from (core.cpus[sibling] for core in node.cores if sibling < len(core.cpus))


def worker_warnings(placement: Placement, *, gil: bool, usable: int) -> list[str]:
    """Warnings for the log about numbers of workers that are allowed but cost performance, a sentence each.

    Args:
        placement: plan of the threads.
        gil: whether the interpreter has the GIL.
        usable: number of CPUs that the process can keep busy (``cpu_quota.usable_cpus``).
    """
    workers, cpus = placement.processing_cores, placement.topology.cpus
    found = []
    if gil and workers > 1:
        found.append(
            f"--processing-cores: {workers} workers on an interpreter with the GIL spread the connections, and a long "
            "handler in one does not stop the others; but only one of them runs Python at a time, and a request costs "
            "more CPU. For throughput use free-threaded Python 3.14t, or one worker"
        )
    if workers > len(cpus):
        found.append(
            f"--processing-cores: {workers} workers on {len(cpus)} CPUs ({format_cpu_list(cpus)}) take turns; "
            "more workers than CPUs cost throughput and latency"
        )
    elif workers > usable:
        found.append(
            f"--processing-cores: {workers} workers, and the control group's quota is that of {usable} CPUs: "
            "once it is used up, the kernel stops all of them for the rest of a period, which costs latency"
        )
    return found


class Turns:
    """Hands out CPUs in turn, beginning again after the last. Any thread may call it.

    Args:
        cpus: of one role; without any, none are handed out.
    """

    def __init__(self, cpus: Sequence[int]) -> None:
        self._cpus = cpus
        self._next = 0
        self._lock = threading.Lock()

    def take(self, count: int) -> tuple[int, ...]:
        """The next ``count`` CPUs, some of them twice if there are not as many; ``()`` where there are none."""
        if not self._cpus:
            return ()
        with self._lock:
            first, self._next = self._next, self._next + count
        return tuple(self._cpus[turn % len(self._cpus)] for turn in range(first, first + count))


@contextmanager
def running_on(cpus: Collection[int], afterwards: Collection[int]) -> Iterator[None]:
    """The calling thread runs on ``cpus`` within the block; does nothing if there are none.

    A thread inherits the CPUs of the thread that starts it, and Trio uses its threads again for other jobs. So every
    job in a thread says where it runs, and leaves the thread on ``afterwards``.
    """
    if not cpus:
        yield
        return
    _pin(cpus)
    try:
        yield
    finally:
        _pin(afterwards)


def _pin(cpus: Collection[int]) -> None:
    try:
        os.sched_setaffinity(0, cpus)  # 0 is the calling thread, not the process
    except OSError as error:
        # The cpuset of a container can shrink while the server runs; that shall not end it.
        logger.warning(
            "cannot pin thread %s to CPU %s: %s",
            threading.current_thread().name,
            format_cpu_list(cpus),
            error.strerror,
        )
