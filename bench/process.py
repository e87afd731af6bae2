"""CPU time and memory of a server, its child processes included."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

__all__ = ["CpuTime", "cpu_time", "open_files", "peak_mib", "reset_peak", "resident_mib", "tree"]

_CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
_PROC = Path("/proc")
# Written to clear_refs, it sets the peak back to what is resident now (proc(5)).
_RESET_PEAK = "5"


@dataclass(frozen=True, slots=True)
class CpuTime:
    """Seconds of CPU; the kernel counts in hundredths."""

    user: float
    system: float

    @property
    def total(self) -> float:
        return self.user + self.system

    def __sub__(self, earlier: CpuTime) -> CpuTime:
        return CpuTime(self.user - earlier.user, self.system - earlier.system)


def tree(pid: int) -> list[int]:
    """The process and all its living descendants."""
    children: dict[int, list[int]] = defaultdict(list)
    for entry in _PROC.iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))):
            children[int(fields[1])].append(int(entry.name))
    found = [pid]
    for member in found:
        found.extend(children[member])
    return found


def cpu_time(pid: int) -> CpuTime:
    """What the process and its descendants have used, ended threads and awaited children included.

    Raises:
        ProcessLookupError: the process is gone.
    """
    if not _stat(pid):
        raise ProcessLookupError(pid)
    user = system = 0
    for member in tree(pid):
        if fields := _stat(member):
            # utime, stime, and the same of children that have ended and were waited for.
            user += int(fields[11]) + int(fields[13])
            system += int(fields[12]) + int(fields[14])
    return CpuTime(user / _CLOCK_TICKS, system / _CLOCK_TICKS)


def resident_mib(pid: int) -> float:
    """Memory resident now, summed over the process and its descendants; pages they share count for each."""
    return _status_mib(pid, "VmRSS")


def peak_mib(pid: int) -> float:
    """The most memory that was resident since ``reset_peak``, summed likewise: the peaks need not coincide."""
    return _status_mib(pid, "VmHWM")


def reset_peak(pid: int) -> None:
    """Let ``peak_mib`` count from here."""
    for member in tree(pid):
        try:
            (_PROC / str(member) / "clear_refs").write_text(_RESET_PEAK)
        except OSError:
            pass  # A child that has just ended. Where the kernel does not offer this, peaks are those since the start.


def open_files(pid: int) -> int:
    """How many file descriptors the process has."""
    return len(os.listdir(_PROC / str(pid) / "fd"))


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the third on (the state); none if the process is gone."""
    try:
        # The second field is the command's name in parentheses, and may hold spaces and parentheses.
        return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def _status_mib(pid: int, key: str) -> float:
    total = 0
    for member in tree(pid):
        try:
            match = re.search(rf"^{key}:\s+(\d+) kB$", (_PROC / str(member) / "status").read_text(), re.MULTILINE)
        except (FileNotFoundError, ProcessLookupError):
            continue
        total += int(match[1]) if match else 0  # A process that has ended and was not waited for has no memory.
    return total / 1024
