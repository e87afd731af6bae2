"""The machine's CPUs as Linux describes them: NUMA nodes, sockets, physical cores, and the SMT siblings of each.

Only the CPUs that the process may use count, so a cgroup's cpuset looks like a small machine. What /sys does not show,
as in some containers, is taken as one node, one socket and one CPU per core.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["Core", "Node", "Topology", "allowed_cpus", "format_cpu_list", "parse_cpu_list", "read_topology"]

#: Numbers above it are mistakes: Linux is built for 8192 CPUs at most.
MAX_CPUS: Final = 8_192


@dataclass(frozen=True, slots=True)
class Core:
    """A physical core.

    Attributes:
        cpus: its logical CPUs, ascending: one, or the SMT siblings that share it.
        socket: the processor package it belongs to.
    """

    cpus: tuple[int, ...]
    socket: int = 0


@dataclass(frozen=True, slots=True)
class Node:
    """A NUMA node: cores that are equally far from one part of the memory.

    Attributes:
        number: as Linux counts them.
        cores: by socket, then by their first CPU; at least one.
    """

    number: int
    cores: tuple[Core, ...]


@dataclass(frozen=True, slots=True)
class Topology:
    """The CPUs that the process may use; ``nodes`` ascend by number."""

    nodes: tuple[Node, ...]

    @property
    def cpus(self) -> tuple[int, ...]:
        """Every logical CPU, ascending."""
        return tuple(sorted(cpu for node in self.nodes for core in node.cores for cpu in core.cpus))

    def node_of(self, cpu: int) -> int:
        """The number of the node that has ``cpu``, which must be one of ``cpus``."""
        return next(node.number for node in self.nodes if any(cpu in core.cpus for core in node.cores))


def allowed_cpus() -> frozenset[int]:
    """The CPUs that the calling thread may run on: of its cgroup's cpuset, and of its affinity."""
    return frozenset(os.sched_getaffinity(0))


def read_topology(allowed: Collection[int], root: Path = Path("/sys")) -> Topology:
    """Read the nodes, sockets and cores of the ``allowed`` CPUs.

    Args:
        allowed: logical CPUs, at least one; those that are offline are left out.
        root: where sysfs is mounted.
    """
    system = root / "devices" / "system"
    online = _read_list(system / "cpu" / "online")
    cpus = (set(allowed) & online) if online else set(allowed)
    nodes = _nodes_by_cpu(system / "node")
    cores: dict[int, dict[Core, None]] = {}
    for cpu in sorted(cpus):
        topology = system / "cpu" / f"cpu{cpu}" / "topology"
        # Before Linux 5.3 the first file had the second's name.
        siblings = _read_list(topology / "core_cpus_list") or _read_list(topology / "thread_siblings_list") or {cpu}
        core = Core(tuple(sorted(siblings & cpus)) or (cpu,), _read_socket(topology / "physical_package_id"))
        cores.setdefault(nodes.get(cpu, 0), {})[core] = None
    return Topology(
        tuple(
            Node(number, tuple(sorted(of_node, key=lambda core: (core.socket, core.cpus))))
            for number, of_node in sorted(cores.items())
        )
    )


def _nodes_by_cpu(folder: Path) -> dict[int, int]:
    nodes: dict[int, int] = {}
    for path in folder.glob("node[0-9]*/cpulist"):
        number = path.parent.name.removeprefix("node")
        if number.isdigit():
            nodes.update(dict.fromkeys(_read_list(path), int(number)))
    return nodes


def _read_list(path: Path) -> set[int]:
    """The CPUs that a file of sysfs lists; none if it is missing or has another form."""
    try:
        return parse_cpu_list(path.read_text())
    except (OSError, ValueError):
        return set()


def _read_socket(path: Path) -> int:
    """The number of a CPU's socket; 0 where the file is missing or says -1, as on machines without sockets."""
    try:
        return max(0, int(path.read_text()))
    except (OSError, ValueError):
        return 0


def parse_cpu_list(text: str) -> set[int]:
    """Numbers from Linux's form of a CPU list: ``0-3,8-11`` is 0, 1, 2, 3, 8, 9, 10 and 11.

    Raises:
        ValueError: the text has another form; the error names the wrong part.
    """
    cpus: set[int] = set()
    for part in text.strip().split(","):
        first, dash, last = part.strip().partition("-")
        if not _is_number(first) or (dash and not _is_number(last)):
            raise ValueError(f"{part.strip()!r} is neither a CPU's number nor a range such as 0-3")
        if dash and int(last) < int(first):
            raise ValueError(f"{part.strip()!r} ends before it begins")
        cpus.update(range(int(first), int(last or first) + 1))
    return cpus


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 6 and int(text) < MAX_CPUS


def format_cpu_list(cpus: Iterable[int]) -> str:
    """The inverse of ``parse_cpu_list``: ascending, neighbours as a range."""
    ranges: list[list[int]] = []
    for cpu in sorted(set(cpus)):
        if ranges and cpu == ranges[-1][1] + 1:
            ranges[-1][1] = cpu
        else:
            ranges.append([cpu, cpu])
    return ",".join(f"{first}-{last}" if last > first else f"{first}" for first, last in ranges)
