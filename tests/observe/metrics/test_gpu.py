"""GPUs, of which the machine that tests has none: NVML is a stand-in, once for its Python and once for its library."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from tests.observe.metrics.support import Nvml
from toutates.observe.metrics.gpu import INTERVAL_S, STALE_S, GpuGauges, load_nvml

ROOT = Path(__file__).resolve().parents[3]


def values_of(gauges: GpuGauges) -> dict[str, Any]:
    return {family.spec.name: dict(family.series) for family in gauges.collect()}


def test_a_gpu_has_tritons_metrics_in_tritons_units() -> None:
    nvml = Nvml()
    gauges = GpuGauges(nvml)
    assert values_of(gauges) == {}
    assert gauges.read()
    nvml.energy_mj += 2_500
    assert gauges.read()
    gpu = ("GPU-1",)
    assert values_of(gauges) == {
        "nv_gpu_utilization": {gpu: 0.4},
        "nv_gpu_memory_total_bytes": {gpu: 1000},
        "nv_gpu_memory_used_bytes": {gpu: 300},
        "nv_gpu_power_usage": {gpu: 50.5},
        "nv_gpu_power_limit": {gpu: 300},
        "nv_energy_consumption": {gpu: 2.5},
    }


def test_what_a_gpu_cannot_say_is_left_out() -> None:
    nvml = Nvml()
    nvml.broken = {"nvmlDeviceGetPowerUsage", "nvmlDeviceGetTotalEnergyConsumption"}
    gauges = GpuGauges(nvml)
    assert gauges.read()
    assert sorted(values_of(gauges)) == [
        "nv_gpu_memory_total_bytes",
        "nv_gpu_memory_used_bytes",
        "nv_gpu_power_limit",
        "nv_gpu_utilization",
    ]


@pytest.mark.parametrize("broken", ["nvmlInit", "nvmlDeviceGetCount"])
def test_without_a_driver_there_are_no_metrics_and_nothing_is_tried_again(broken: str) -> None:
    nvml = Nvml()
    nvml.broken = {broken}
    gauges = GpuGauges(nvml)
    with_timeout(gauges.run)  # returns by itself
    assert values_of(gauges) == {}


def test_without_the_package_there_are_no_metrics() -> None:
    gauges = GpuGauges(None)
    with_timeout(gauges.run)
    assert values_of(gauges) == {}


def test_a_driver_that_hangs_holds_nobody_up_and_its_last_words_are_forgotten() -> None:
    nvml, now = Nvml(), 0.0
    gauges = GpuGauges(nvml, lambda: now)
    assert gauges.read()
    hung, go_on = threading.Event(), threading.Event()

    def hang() -> None:
        hung.set()
        go_on.wait(120)

    nvml.before = hang

    async def scrape_meanwhile() -> None:
        nonlocal now
        async with trio.open_nursery() as nursery:
            nursery.start_soon(gauges.run)
            await trio.to_thread.run_sync(hung.wait)
            assert values_of(gauges)["nv_gpu_utilization"] == {("GPU-1",): 0.4}
            now += STALE_S + 1
            assert values_of(gauges) == {}
            nursery.cancel_scope.cancel()

    try:
        with_timeout(scrape_meanwhile)
    finally:
        go_on.set()


def test_a_reading_that_fails_ends_nobodys_work_and_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    nvml, readings = Nvml(), 0
    gauges = GpuGauges(nvml)

    def fail_twice() -> None:
        nonlocal readings
        readings += 1
        if readings <= 2:
            raise RuntimeError("can't start new thread")

    nvml.before = fail_twice

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(gauges.run)
            while not values_of(gauges):  # noqa: ASYNC110  # the clock jumps
                await trio.sleep(INTERVAL_S)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=MockClock(autojump_threshold=0))
    assert len([one for one in caplog.records if "could not be read" in one.message]) == 1


def with_timeout(main: Callable[[], Any]) -> None:
    async def run() -> None:
        with trio.fail_after(120):
            await main()

    trio.run(run)


def test_the_real_package_says_that_there_is_no_driver_here() -> None:
    if load_nvml() is None:
        pytest.skip("nvidia-ml-py is not installed")
    if os.path.exists("/dev/nvidiactl"):
        pytest.skip("there is a driver")
    assert GpuGauges(load_nvml()).read() is False


_SCRAPE = """
import json
from tests.observe.metrics.support import Nvml
from toutates.observe.metrics.gpu import GpuGauges, load_nvml
gauges = GpuGauges(load_nvml())
assert gauges.read() and gauges.read()
print(json.dumps({f.spec.name: {labels[0]: value for labels, value in f.series} for f in gauges.collect()}))
"""


def test_the_real_package_reads_a_library_that_has_gpus(tmp_path: Path) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    if load_nvml() is None:
        pytest.skip("nvidia-ml-py is not installed")
    source = Path(__file__).with_name("fake_nvml.c")
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-o", str(tmp_path / "libnvidia-ml.so.1"), str(source)], check=True, timeout=120
    )
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path), "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        [sys.executable, "-c", _SCRAPE], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout) == {
        "nv_gpu_utilization": {"GPU-0": 0.25, "GPU-1": 0.26},
        "nv_gpu_memory_total_bytes": {"GPU-0": 80 << 30, "GPU-1": 80 << 30},
        "nv_gpu_memory_used_bytes": {"GPU-0": 10 << 30, "GPU-1": 10 << 30},
        "nv_gpu_power_usage": {"GPU-0": 123.456},
        "nv_gpu_power_limit": {"GPU-0": 700},
        "nv_energy_consumption": {"GPU-0": 3.0},
    }
