"""What the server's processes use of the machine, read from /proc, so that one that does not answer is seen too."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from prometheus_client import ProcessCollector

from toutates.observe.metrics.families import Named
from toutates.observe.view import ProcessState

__all__ = ["CpuSum", "ProcessMetrics", "cpu_seconds", "resident_bytes"]

#: Of the metrics that every process has, those that are added up. The others are the parent's.
_ADDED: Final = frozenset(
    {
        "process_virtual_memory_bytes",
        "process_resident_memory_bytes",
        "process_cpu_seconds_total",
        "process_open_fds",
    }
)
_CPU: Final = "process_cpu_seconds_total"
_MEMORY: Final = "process_resident_memory_bytes"


class CpuSum:
    """CPU time of all processes, those that have ended included, as far as they were seen."""

    def __init__(self) -> None:
        self._last: dict[int, float] = {}
        self._past = 0.0

    def update(self, used: dict[int, float]) -> float:
        """The sum, seconds; ``used`` has those that are there now, by their identifier."""
        self._past += sum(seconds for pid, seconds in self._last.items() if pid not in used)
        self._last = used
        return self._past + sum(used.values())


class ProcessMetrics:
    """``process_*`` of all processes together, and ``toutates_process_*`` of each.

    Args:
        processes: returns them, the parent first.
    """

    def __init__(self, processes: Callable[[], Sequence[ProcessState]]) -> None:
        self._processes = processes
        self._cpu = CpuSum()

    def collect(self) -> Iterator[Named]:
        """The metrics, as of now."""
        processes = self._processes()
        read = {one.name: _read(one.pid) for one in processes}
        own = read[processes[0].name]
        for name, value in own.items():
            if name == _CPU:
                value = self._cpu.update({one.pid or 0: read[one.name].get(_CPU, 0.0) for one in processes})
            elif name in _ADDED:
                value = sum(values.get(name, 0.0) for values in read.values())
            yield name, [((), value)]
        for name, of_all in (
            ("toutates_process_cpu_seconds_total", _CPU),
            ("toutates_process_resident_memory_bytes", _MEMORY),
        ):
            yield name, [((one.name,), read[one.name][of_all]) for one in processes if of_all in read[one.name]]
        numbered = processes[1:]
        yield "toutates_process_up", [((one.name,), int(one.serves)) for one in numbered]
        yield "toutates_process_restarts_total", [((one.name,), one.restarts) for one in numbered]


def _read(pid: int | None) -> dict[str, float]:
    if pid is None:
        return {}
    metrics = ProcessCollector(pid=lambda: pid, registry=None).collect()
    return {sample.name: sample.value for metric in metrics for sample in metric.samples}


def resident_bytes(pid: int | str = "self") -> int:
    """Resident memory of a process, bytes; 0 where /proc does not have it."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def cpu_seconds(pid: int) -> float:
    """CPU time that a process has used, seconds; 0 where /proc does not have it."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return 0.0
