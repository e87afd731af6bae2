"""How much memory the process may use: the machine's, or less where a control group limits it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

__all__ = ["available_memory"]


def available_memory(proc: Path = Path("/proc"), cgroup_root: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes that this process may use at most: the least of the machine's memory and its control groups' limits.

    Args:
        proc, cgroup_root: where the kernel shows them (``proc(5)``, ``cgroups(7)``, versions 1 and 2). They are read
            once a second at most: every model that is loaded asks.
    """
    return _available(proc, cgroup_root, time.monotonic_ns() // 1_000_000_000)


@lru_cache(maxsize=2)
def _available(proc: Path, cgroup_root: Path, second: int) -> int:
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min((machine, *_cgroup_limits(proc, cgroup_root)))


def _cgroup_limits(proc: Path, root: Path) -> Iterator[int]:
    """The limits of the process's control groups and of those above them."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        base, name = (root / "memory", "memory.limit_in_bytes") if controllers else (root, "memory.max")
        group = Path(path.lstrip("/"))
        for folder in (group, *group.parents):
            try:
                text = (base / folder / name).read_text().strip()
            except OSError:
                continue
            if text.isdigit():  # "max" is none
                yield int(text)
