"""Readers of the metrics' text, and a stand-in for NVML."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import SimpleNamespace
from typing import Any, Final

from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from toutates.observe.metrics.exposition import Format

__all__ = ["PARSERS", "Nvml"]

#: prometheus_client's, which have no annotations.
PARSERS: Final[Mapping[Format, Callable[[str], Iterable[Any]]]] = {
    Format.TEXT: parse_text,
    Format.OPENMETRICS: openmetrics.text_string_to_metric_families,
}


class NvmlError(Exception):
    """What the stand-in raises."""


class Nvml:
    """A driver with one GPU. ``broken`` names functions that fail; ``before`` is called by each."""

    NVMLError = NvmlError

    def __init__(self) -> None:
        self.broken: set[str] = set()
        self.before: Callable[[], object] = lambda: None
        self.energy_mj = 7_000_000

    def __getattr__(self, name: str) -> Callable[..., Any]:
        answers: dict[str, Any] = {
            "nvmlInit": None,
            "nvmlDeviceGetCount": 1,
            "nvmlDeviceGetHandleByIndex": "handle",
            "nvmlDeviceGetUUID": "GPU-1",
            "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=40),
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=1000, used=300),
            "nvmlDeviceGetPowerUsage": 50_500,
            "nvmlDeviceGetPowerManagementLimit": 300_000,
            "nvmlDeviceGetTotalEnergyConsumption": self.energy_mj,
        }

        def function(*arguments: Any) -> Any:
            self.before()
            if name in self.broken:
                raise NvmlError(name)
            return answers[name]

        return function
