"""How many CPUs' worth of time the process may use, on machines that were written down and on this one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.system.test_memory import install
from toutates.system import cpu_quota as module
from toutates.system.cpu_quota import cpu_quota, usable_cpus


@pytest.mark.parametrize(
    ("cgroup", "files", "expected"),
    [
        ("0::/\n", {}, None),
        ("0::/\n", {"cpu.max": "max 100000\n"}, None),
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 1.5),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "50000 100000\n"}, 0.5),
        ("0::/a/b\n", {"a/b/cpu.max": "200000 100000\n", "a/cpu.max": "300000 100000\n"}, 2.0),
        (
            "4:memory:/c\n3:cpu,cpuacct:/c\n",
            {"cpu/c/cpu.cfs_quota_us": "250000", "cpu/c/cpu.cfs_period_us": "100000"},
            2.5,
        ),
        ("3:cpu,cpuacct:/c\n", {"cpu/c/cpu.cfs_quota_us": "-1\n", "cpu/c/cpu.cfs_period_us": "100000\n"}, None),
        ("3:cpu,cpuacct:/c\n", {"cpu/c/cpu.cfs_quota_us": "100000\n"}, None),
        ("4:cpuset:/c\n", {"cpu/c/cpu.cfs_quota_us": "1000", "cpu/c/cpu.cfs_period_us": "1000"}, None),
    ],
)
def test_least_quota_on_the_way_to_the_root(
    tmp_path: Path, cgroup: str, files: dict[str, str], expected: float | None
) -> None:
    assert cpu_quota(*install(tmp_path, cgroup, files)) == expected


@pytest.mark.parametrize(("quota", "expected"), [(None, 4), (0.2, 1), (1.0, 1), (1.5, 2), (4.0, 4), (64.0, 4)])
def test_quota_is_rounded_up_and_is_never_more_than_the_cpus(
    monkeypatch: pytest.MonkeyPatch, quota: float | None, expected: int
) -> None:
    monkeypatch.setattr(module, "cpu_quota", lambda: quota)
    assert usable_cpus((0, 1, 4, 5)) == expected


def test_this_machine() -> None:
    assert 1 <= usable_cpus() <= len(os.sched_getaffinity(0))
