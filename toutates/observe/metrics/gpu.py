"""What NVML says of NVIDIA's GPUs, by Triton's names; nothing where there is no NVML.

The driver may take its time, or for ever when a GPU has fallen off the bus. So it is asked in a thread of its own, and
a scrape is given what it said last, unless that is too old to be true.
"""

from __future__ import annotations

import importlib
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import trio

from toutates.observe.metrics.catalogue import CATALOGUE
from toutates.observe.metrics.families import Family

__all__ = ["GpuGauges", "load_nvml"]

logger = logging.getLogger(__name__)

#: Between two readings; Triton's ``--metrics-interval-ms``.
INTERVAL_S: Final = 2.0
#: What was read longer ago is not shown.
STALE_S: Final = 30.0


def load_nvml() -> Any:
    """The package nvidia-ml-py; None where it is not installed."""
    try:
        return importlib.import_module("pynvml")
    except ImportError:
        return None


@dataclass(slots=True)
class _Gpu:
    """One GPU: its handle, and the energy it had used when it was first asked."""

    handle: Any
    uuid: str
    first_mj: int | None = None


class GpuGauges:
    """See the module.

    Args:
        nvml: the package nvidia-ml-py, or what behaves like it; None for none.
        clock: monotonic seconds.
    """

    def __init__(self, nvml: Any, clock: Callable[[], float] = time.monotonic) -> None:
        self._nvml = nvml
        self._clock = clock
        self._gpus: list[_Gpu] | None = None
        #: by metric, (UUID, value); replaced as a whole by the thread that reads
        self._values: dict[str, list[tuple[str, float]]] = {}
        self._read_at = clock()

    async def run(self) -> None:
        """Keep the values fresh until cancelled; returns at once where there is nothing to read.

        A driver that does not answer leaves its thread behind, one at most, because no other is started until then.
        """
        if self._nvml is None:
            return
        while True:
            if not await trio.to_thread.run_sync(self.read, abandon_on_cancel=True):
                return
            await trio.sleep(INTERVAL_S)

    def read(self) -> bool:
        """Ask the driver, which blocks; whether there is a GPU to be asked again."""
        try:
            if self._gpus is None:
                self._gpus = self._find()
        except self._nvml.NVMLError as error:
            # No driver, none that works, or none for us: most machines.
            logger.info("no GPU metrics: %s", error)
            return False
        values: dict[str, list[tuple[str, float]]] = {}
        for gpu in self._gpus:
            for name, read in self._readers(gpu):
                try:
                    value = read()
                except self._nvml.NVMLError:
                    continue  # many a GPU has no power sensor; one that is lost has nothing
                values.setdefault(name, []).append((gpu.uuid, value))
        self._values = values
        self._read_at = self._clock()
        return bool(self._gpus)

    def collect(self) -> Iterator[Family]:
        """The metrics as they were read last."""
        if self._clock() - self._read_at > STALE_S:
            return
        for name, values in self._values.items():
            yield Family(CATALOGUE[name], [((uuid,), value) for uuid, value in values])

    def _find(self) -> list[_Gpu]:
        nvml = self._nvml
        nvml.nvmlInit()
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        return [_Gpu(handle, nvml.nvmlDeviceGetUUID(handle)) for handle in handles]

    def _readers(self, gpu: _Gpu) -> list[tuple[str, Callable[[], float]]]:
        nvml, handle = self._nvml, gpu.handle
        return [
            ("nv_gpu_utilization", lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100),
            ("nv_gpu_memory_total_bytes", lambda: nvml.nvmlDeviceGetMemoryInfo(handle).total),
            ("nv_gpu_memory_used_bytes", lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used),
            ("nv_gpu_power_usage", lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1_000),
            ("nv_gpu_power_limit", lambda: nvml.nvmlDeviceGetPowerManagementLimit(handle) / 1_000),
            ("nv_energy_consumption", lambda: self._energy(gpu)),
        ]

    def _energy(self, gpu: _Gpu) -> float:
        """Joules since the first reading; the driver counts millijoules since it was loaded."""
        now_mj: int = self._nvml.nvmlDeviceGetTotalEnergyConsumption(gpu.handle)
        if gpu.first_mj is None or now_mj < gpu.first_mj:  # the driver was loaded again
            gpu.first_mj = now_mj
        return (now_mj - gpu.first_mj) / 1_000
