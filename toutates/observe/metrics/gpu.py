"""Gauges of NVIDIA's GPUs, read by NVML, with Triton's names. There are none without NVML.

The driver may answer late, or never if a GPU has fallen off the bus. So it is asked in a thread of its own. A scrape
gets the last values, unless they are older than STALE_S.
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
from toutates.system.thread_pools import ThreadPool

__all__ = ["GpuGauges", "load_nvml"]

logger = logging.getLogger(__name__)

#: Seconds between two readings, as Triton's ``--metrics-interval-ms``.
INTERVAL_S: Final = 2.0
_READING: Final = ThreadPool("gpu figures", 1)
#: Values that were read longer ago, in seconds, are not shown.
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
    """Reads the GPUs, and has the values for scrapes.

    Args:
        nvml: the module of nvidia-ml-py, or one that behaves like it; None for no GPUs.
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
        """Read the values regularly until cancelled; returns at once where there is nothing to read.

        If the driver does not answer, one thread is left waiting for it; no other is started before it does. A reading
        that fails in any other way, as where the system has no thread left, is tried again: nobody else's work ends
        for want of these gauges.
        """
        if self._nvml is None:
            return
        has_failed = False
        while True:
            try:
                if not await _READING.run(self.read, abandon_on_cancel=True):
                    return
                has_failed = False
            except Exception:
                if not has_failed:
                    logger.exception("the GPUs could not be read; it is tried again every %g s", INTERVAL_S)
                has_failed = True
            await trio.sleep(INTERVAL_S)

    def read(self) -> bool:
        """Read the values, which may block; returns whether there are GPUs to read again."""
        try:
            if self._gpus is None:
                self._gpus = self._find()
        except self._nvml.NVMLError as error:
            # No driver, a broken one, or no permission. Most machines have no GPU.
            logger.info("no GPU metrics: %s", error)
            return False
        values: dict[str, list[tuple[str, float]]] = {}
        for gpu in self._gpus:
            for name, read in self._readers(gpu):
                try:
                    value = read()
                except self._nvml.NVMLError:
                    continue  # some GPUs have no power sensor, and a lost GPU answers nothing
                values.setdefault(name, []).append((gpu.uuid, value))
        self._values = values
        self._read_at = self._clock()
        return bool(self._gpus)

    def collect(self) -> Iterator[Family]:
        """The families of the last values."""
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
        """Joules since the first reading. The driver counts millijoules since it was loaded."""
        now_mj: int = self._nvml.nvmlDeviceGetTotalEnergyConsumption(gpu.handle)
        if gpu.first_mj is None or now_mj < gpu.first_mj:  # the driver was loaded again
            gpu.first_mj = now_mj
        return (now_mj - gpu.first_mj) / 1_000
