"""How much memory the process may use: the machine's, or less where a control group limits it."""

from __future__ import annotations

import os
import time
from functools import lru_cache
from pathlib import Path

from toutates.system.control_groups import PROC, ROOT, limit_texts

__all__ = ["available_memory"]


def available_memory(proc: Path = PROC, cgroup_root: Path = ROOT) -> int:
    """Bytes that this process may use at most: the least of the machine's memory and its control groups' limits.

    Args:
        proc, cgroup_root: where the kernel shows them (``proc(5)``, ``cgroups(7)``, versions 1 and 2). They are read
            once a second at most: every model that is loaded asks.
    """
    return _available(proc, cgroup_root, time.monotonic_ns() // 1_000_000_000)


@lru_cache(maxsize=2)
def _available(proc: Path, cgroup_root: Path, second: int) -> int:
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    texts = limit_texts("memory", ("memory.limit_in_bytes",), "memory.max", proc, cgroup_root)
    return min((machine, *(int(text) for text in texts if text.isdigit())))  # "max" is no limit
