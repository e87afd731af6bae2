"""Machines as Linux describes them in /sys, in a compact form that expands into a tree of files.

A line is a NUMA node: its number, its socket, and the sibling list of each of its physical cores, as
``cpuN/topology/core_cpus_list`` has it.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Final

from toutates.system.topology import format_cpu_list, parse_cpu_list

__all__ = ["EPYC_NPS2", "LAPTOP", "VIRTUAL", "XEON", "XEON_INTERLEAVED", "install"]

#: One socket, four cores with two siblings each, numbered n and n + 4: a desktop or laptop processor of Intel's.
LAPTOP: Final = "node0 socket0: 0,4 1,5 2,6 3,7"

#: Two sockets of four cores, siblings n and n + 8, sockets one after the other: what most two-socket servers show.
XEON: Final = """
node0 socket0: 0,8 1,9 2,10 3,11
node1 socket1: 4,12 5,13 6,14 7,15
"""

#: The same machine as some firmware numbers it: even CPUs on one socket, odd ones on the other.
XEON_INTERLEAVED: Final = """
node0 socket0: 0,8 2,10 4,12 6,14
node1 socket1: 1,9 3,11 5,13 7,15
"""

#: Two sockets of two NUMA nodes each, as EPYC's NPS2 setting makes them; SMT is off.
EPYC_NPS2: Final = """
node0 socket0: 0 1
node1 socket0: 2 3
node2 socket1: 4 5
node3 socket1: 6 7
"""

#: A virtual machine of a cloud: siblings are neighbours.
VIRTUAL: Final = "node0 socket0: 0-1 2-3 4-5 6-7"


def install(root: Path, machine: str, *, offline: Collection[int] = (), nodes: bool = True, old: bool = False) -> Path:
    """Write a machine's /sys; returns its root.

    Args:
        root: an empty folder.
        machine: see the module.
        offline: CPUs that are switched off, which then have no topology and are in no list.
        nodes: without them there is no ``node`` folder, as in a kernel without NUMA or a container that hides it.
        old: sibling lists under their name before Linux 5.3.
    """
    system = root / "devices" / "system"
    online: set[int] = set()
    for line in machine.strip().splitlines():
        head, _, cores = line.partition(":")
        node, socket = head.split()
        of_node: set[int] = set()
        for core in cores.split():
            siblings = parse_cpu_list(core) - set(offline)
            of_node |= siblings
            for cpu in siblings:
                topology = system / "cpu" / f"cpu{cpu}" / "topology"
                topology.mkdir(parents=True)
                name = "thread_siblings_list" if old else "core_cpus_list"
                (topology / name).write_text(format_cpu_list(siblings) + "\n")
                (topology / "physical_package_id").write_text(socket.removeprefix("socket") + "\n")
        if nodes:
            (system / "node" / node).mkdir(parents=True)
            (system / "node" / node / "cpulist").write_text(format_cpu_list(of_node) + "\n")
        online |= of_node
    for cpu in offline:
        (system / "cpu" / f"cpu{cpu}").mkdir(parents=True)
    (system / "cpu" / "online").write_text(format_cpu_list(online) + "\n")
    return root
