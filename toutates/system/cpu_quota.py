"""How many CPUs' worth of time the process may use: its CPUs, or fewer where a control group has a quota."""

from __future__ import annotations

import math
from collections.abc import Collection
from pathlib import Path

from toutates.system.control_groups import PROC, ROOT, limit_texts
from toutates.system.topology import allowed_cpus

__all__ = ["cpu_quota", "usable_cpus"]


def usable_cpus(allowed: Collection[int] | None = None) -> int:
    """The number of CPUs that the process can keep busy: the least of ``allowed`` and of its quota, rounded up.

    Args:
        allowed: logical CPUs it may run on; None for those of the calling thread.
    """
    count = len(allowed_cpus() if allowed is None else allowed)
    quota = cpu_quota()
    return count if quota is None else max(1, min(count, math.ceil(quota)))


def cpu_quota(proc: Path = PROC, root: Path = ROOT) -> float | None:
    """The least quota of the process's control groups and of those above them, in CPUs; None where there is none.

    Args:
        proc, root: where the kernel shows processes and control groups: ``cpu.max`` of version 2, and
            ``cpu.cfs_quota_us`` and ``cpu.cfs_period_us`` of version 1.
    """
    files = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
    return min(
        (quota for text in limit_texts("cpu", files, "cpu.max", proc, root) for quota in _quotas(text)), default=None
    )


def _quotas(text: str) -> list[float]:
    """The quota of "QUOTA PERIOD", both in microseconds; none where the first is "max" or -1."""
    quota, _, period = text.partition(" ")
    if quota.isdigit() and period.isdigit() and int(quota) and int(period):
        return [int(quota) / int(period)]
    return []
