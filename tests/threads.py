"""Threads as the system sees them: their names, and the CPUs they may run on."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["cpus_of", "cpus_of_threads", "threads_by_id"]


def cpus_of(text: str) -> set[int]:
    """The CPUs of a list of the kernel's, such as ``0-3,8``."""
    ends = [part.split("-") for part in text.split(",")]
    return {cpu for first, *last in ends for cpu in range(int(first), int(last[0] if last else first) + 1)}


def cpus_of_threads(pid: int | None = None) -> list[tuple[str, set[int]]]:
    """Name, of 15 characters at most, and allowed CPUs of every thread of a process; of this one without ``pid``."""
    return list(threads_by_id(pid).values())


def threads_by_id(pid: int | None = None) -> dict[int, tuple[str, set[int]]]:
    """The same, by the thread's id. A test that looks for new threads must go by it: others end at any time."""
    found = {}
    for task in (Path("/proc") / str(pid or os.getpid()) / "task").iterdir():
        try:
            status = (task / "status").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended meanwhile
        fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        found[int(task.name)] = fields["Name"], cpus_of(fields["Cpus_allowed_list"])
    return found
