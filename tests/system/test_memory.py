"""How much memory the process may use, on machines that were written down and on this one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from toutates.system.memory import available_memory

MACHINE = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def install(folder: Path, cgroup: str, files: dict[str, str]) -> tuple[Path, Path]:
    """Kernel files below ``folder``."""
    for path, text in {"proc/self/cgroup": cgroup, **{f"cgroup/{path}": text for path, text in files.items()}}.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder / "proc", folder / "cgroup"


@pytest.mark.parametrize(
    ("cgroup", "files", "expected"),
    [
        ("0::/\n", {}, MACHINE),
        ("0::/\n", {"memory.max": "max\n"}, MACHINE),
        ("0::/\n", {"memory.max": "1000000\n"}, 1_000_000),
        ("0::/a/b\n", {"a/b/memory.max": "max\n", "a/memory.max": "3000000\n"}, 3_000_000),
        ("0::/a/b\n", {"a/b/memory.max": "2000000\n", "a/memory.max": "3000000\n"}, 2_000_000),
        ("4:memory:/c\n3:cpu,cpuacct:/\n", {"memory/c/memory.limit_in_bytes": "5000000\n"}, 5_000_000),
        ("4:memory:/\n", {"memory/memory.limit_in_bytes": "9223372036854771712\n"}, MACHINE),
    ],
)
def test_least_of_the_machine_and_its_control_groups(
    tmp_path: Path, cgroup: str, files: dict[str, str], expected: int
) -> None:
    assert available_memory(*install(tmp_path, cgroup, files)) == expected


def test_machine_without_control_groups(tmp_path: Path) -> None:
    assert available_memory(tmp_path, tmp_path) == MACHINE


def test_this_machine() -> None:
    assert 10**8 < available_memory() <= MACHINE
