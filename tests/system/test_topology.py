"""What /sys says of CPUs, sockets and NUMA nodes, of machines that were written down and of this one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.machines import EPYC_NPS2, LAPTOP, VIRTUAL, XEON, XEON_INTERLEAVED, install
from toutates.system.topology import (
    Core,
    Node,
    Topology,
    allowed_cpus,
    format_cpu_list,
    parse_cpu_list,
    read_topology,
)


def test_one_socket_with_siblings(tmp_path: Path) -> None:
    cores = (Core((0, 4)), Core((1, 5)), Core((2, 6)), Core((3, 7)))
    topology = read_topology(range(8), install(tmp_path, LAPTOP))
    assert topology == Topology((Node(0, cores),))
    assert topology.cpus == tuple(range(8))


def test_siblings_that_are_neighbours(tmp_path: Path) -> None:
    [node] = read_topology(range(8), install(tmp_path, VIRTUAL)).nodes
    assert [core.cpus for core in node.cores] == [(0, 1), (2, 3), (4, 5), (6, 7)]


def test_two_sockets_with_siblings(tmp_path: Path) -> None:
    topology = read_topology(range(16), install(tmp_path, XEON))
    assert [node.number for node in topology.nodes] == [0, 1]
    assert topology.nodes[0].cores == tuple(Core((cpu, cpu + 8), 0) for cpu in range(4))
    assert topology.nodes[1].cores == tuple(Core((cpu, cpu + 8), 1) for cpu in range(4, 8))
    assert [topology.node_of(cpu) for cpu in (3, 11, 4, 15)] == [0, 0, 1, 1]


def test_sockets_whose_cpus_alternate(tmp_path: Path) -> None:
    topology = read_topology(range(16), install(tmp_path, XEON_INTERLEAVED))
    assert topology.nodes[1].cores == tuple(Core((cpu, cpu + 8), 1) for cpu in (1, 3, 5, 7))


def test_several_nodes_on_a_socket(tmp_path: Path) -> None:
    topology = read_topology(range(8), install(tmp_path, EPYC_NPS2))
    assert [(node.number, node.cores[0].socket) for node in topology.nodes] == [(0, 0), (1, 0), (2, 1), (3, 1)]


def test_a_cpuset_that_takes_single_siblings_is_a_small_machine(tmp_path: Path) -> None:
    topology = read_topology({1, 5, 9, 11, 13}, install(tmp_path, XEON))
    assert topology.nodes == (Node(0, (Core((1, 9), 0), Core((11,), 0))), Node(1, (Core((5, 13), 1),)))


def test_a_node_without_an_allowed_cpu_is_not_there(tmp_path: Path) -> None:
    assert [node.number for node in read_topology({4, 6}, install(tmp_path, XEON)).nodes] == [1]


def test_offline_cpus_are_left_out(tmp_path: Path) -> None:
    topology = read_topology(range(8), install(tmp_path, LAPTOP, offline=[1, 6]))
    assert topology == Topology((Node(0, (Core((0, 4)), Core((2,)), Core((3, 7)), Core((5,)))),))


def test_without_node_folders_everything_is_one_node(tmp_path: Path) -> None:
    topology = read_topology(range(16), install(tmp_path, XEON, nodes=False))
    assert [node.number for node in topology.nodes] == [0]
    assert [core.socket for core in topology.nodes[0].cores] == [0] * 4 + [1] * 4


def test_sibling_lists_of_older_kernels_are_read(tmp_path: Path) -> None:
    assert read_topology(range(8), install(tmp_path / "old", LAPTOP, old=True)) == read_topology(
        range(8), install(tmp_path / "new", LAPTOP)
    )


def test_where_sysfs_is_hidden_every_cpu_is_a_core(tmp_path: Path) -> None:
    assert read_topology({2, 5}, tmp_path) == Topology((Node(0, (Core((2,)), Core((5,)))),))


def test_files_that_make_no_sense_are_passed_over(tmp_path: Path) -> None:
    root = install(tmp_path, LAPTOP)
    (root / "devices/system/cpu/cpu0/topology/core_cpus_list").write_text("\n")
    (root / "devices/system/cpu/cpu4/topology/core_cpus_list").write_text("4-x\n")
    (root / "devices/system/cpu/cpu1/topology/physical_package_id").write_text("-1\n")  # of an ARM machine
    (root / "devices/system/node/node7").mkdir()
    (root / "devices/system/node/node7/cpulist").write_text("\n")  # memory alone
    [node] = read_topology(range(8), root).nodes
    assert {core.cpus for core in node.cores} == {(0,), (4,), (1, 5), (2, 6), (3, 7)}
    assert {core.socket for core in node.cores} == {0}


def test_this_machine_has_the_cpus_that_it_lets_the_process_use() -> None:
    assert allowed_cpus() == os.sched_getaffinity(0)
    assert set(read_topology(allowed_cpus()).cpus) == allowed_cpus()


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("0", {0}),
        ("0-3,8-11\n", {0, 1, 2, 3, 8, 9, 10, 11}),
        (" 5 , 2-2 ", {5, 2}),
        ("8191", {8_191}),
    ],
)
def test_a_list_of_cpus_is_read(text: str, cpus: set[int]) -> None:
    assert parse_cpu_list(text) == cpus


@pytest.mark.parametrize("text", ["", "a", "0,", "0--1", "-1", "3-", "1.5", "٣", "8192", "0-99999999999"])
def test_what_is_no_list_of_cpus_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is neither a CPU's number nor a range such as 0-3"):
        parse_cpu_list(text)


def test_a_range_that_runs_backwards_is_refused() -> None:
    with pytest.raises(ValueError, match="'5-3' ends before it begins"):
        parse_cpu_list("0,5-3")


@given(st.sets(st.integers(0, 300), min_size=1))
def test_lists_are_written_as_they_are_read(cpus: set[int]) -> None:
    assert parse_cpu_list(format_cpu_list(cpus)) == cpus


def test_neighbours_are_written_as_a_range() -> None:
    assert format_cpu_list([9, 1, 0, 2, 4, 8]) == "0-2,4,8-9"
