"""Threads as the system sees them: their names, and the CPUs they may run on."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import trio

__all__ = ["cpus_of", "cpus_of_threads", "no_threads", "threads_by_id"]

#: A thread with a stack of this size has no room in the address space of a process, bytes.
_NO_ROOM: Final = 1 << 47


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


@contextmanager
def no_threads() -> Iterator[None]:
    """A block in which this process can start no thread, as where the system has none left, nor has Trio an idle one.

    Python raises RuntimeError, "can't start new thread".
    """
    size = threading.stack_size(_NO_ROOM)
    go_on = threading.Event()
    try:
        with suppress(RuntimeError):
            while True:
                trio.lowlevel.start_thread_soon(go_on.wait, lambda outcome: None)
        yield
    finally:
        threading.stack_size(size)
        go_on.set()
