"""CPU and memory of the whole machine, by Triton's names.

They are read from /proc, as Triton does it: two small files, 60 us together. psutil reads the same files, and would be
one more dependency with an extension module.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from toutates.observe.metrics.catalogue import CATALOGUE
from toutates.observe.metrics.families import Family

__all__ = ["HostGauges"]

#: Shortest time over which the utilization is measured: the kernel counts in clock ticks of 10 ms.
_MIN_SECONDS: Final = 1.0


class HostGauges:
    """Reads the files at each scrape. If a file is missing or has another form, its metrics are left out.

    Args:
        proc: where the files are.
        clock: monotonic seconds.
    """

    def __init__(self, proc: Path = Path("/proc"), clock: Callable[[], float] = time.monotonic) -> None:
        self._proc = proc
        self._clock = clock
        self._utilization = 0.0
        self._ticks = _cpu_ticks(proc)
        self._read_at = clock()

    def collect(self) -> Iterator[Family]:
        """The three metrics, as of now."""
        utilization = self._measure()
        if utilization is not None:
            yield Family(CATALOGUE["nv_cpu_utilization"], [((), utilization)])
        memory = _memory_bytes(self._proc)
        if memory is not None:
            total, available = memory
            yield Family(CATALOGUE["nv_cpu_memory_total_bytes"], [((), total)])
            yield Family(CATALOGUE["nv_cpu_memory_used_bytes"], [((), total - available)])

    def _measure(self) -> float | None:
        """The share of all CPUs' time that was not idle, since the last measurement of _MIN_SECONDS or more."""
        ticks = _cpu_ticks(self._proc)
        if ticks is None or self._ticks is None:
            self._ticks = ticks
            return None
        now = self._clock()
        busy, total = ticks[0] - self._ticks[0], ticks[1] - self._ticks[1]
        if now - self._read_at >= _MIN_SECONDS and total > 0:
            # The kernel may take back time that a CPU waited for a disk, so the share may leave the range.
            self._utilization = min(max(busy / total, 0.0), 1.0)
            self._ticks, self._read_at = ticks, now
        return self._utilization


def _cpu_ticks(proc: Path) -> tuple[int, int] | None:
    """Busy and all clock ticks of all CPUs since the machine's start. Those of guests are included (proc(5))."""
    try:
        name, *fields = (proc / "stat").read_text().split("\n", 1)[0].split()
        user, nice, system, idle, iowait, irq, softirq, steal = (int(field) for field in fields[:8])
    except (OSError, ValueError):
        return None
    if name != "cpu":
        return None
    busy = user + nice + system + irq + softirq + steal
    return busy, busy + idle + iowait


def _memory_bytes(proc: Path) -> tuple[int, int] | None:
    """Bytes of memory of the machine, and bytes that are available without swapping."""
    found: dict[str, int] = {}
    try:
        for line in (proc / "meminfo").read_text().splitlines():
            name, _, rest = line.partition(":")
            if name in ("MemTotal", "MemAvailable"):
                found[name] = int(rest.split()[0]) * 1024
    except (OSError, ValueError, IndexError):
        return None
    return (found["MemTotal"], found["MemAvailable"]) if len(found) == 2 else None
