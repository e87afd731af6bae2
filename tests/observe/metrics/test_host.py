"""CPU and memory of the machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from toutates.observe.metrics.host import HostGauges

MEMINFO = "MemTotal:       1000 kB\nMemFree:         100 kB\nMemAvailable:    400 kB\nHugePages_Total:   0\n"


class Clock:
    """Seconds that pass when told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def values_of(gauges: HostGauges) -> dict[str, float]:
    read = {}
    for family in gauges.collect():
        [(labels, value)] = family.series
        assert labels == ()
        assert isinstance(value, int | float)
        read[family.spec.name] = value
    return read


def write_ticks(proc: Path, *ticks: int) -> None:
    (proc / "stat").write_text(f"cpu  {' '.join(map(str, ticks))}\ncpu0 1 2 3\nintr 5\n")


def test_utilization_is_what_was_not_idle_since_the_last_time(tmp_path: Path) -> None:
    clock = Clock()
    (tmp_path / "meminfo").write_text(MEMINFO)
    #: user, nice, system, idle, iowait, irq, softirq, steal, guest, guest_nice
    write_ticks(tmp_path, 100, 0, 100, 800, 0, 0, 0, 0, 0, 0)
    gauges = HostGauges(tmp_path, clock)
    assert values_of(gauges)["nv_cpu_utilization"] == 0
    write_ticks(tmp_path, 130, 10, 110, 900, 20, 4, 3, 3, 30, 10)
    clock.now += 2
    assert values_of(gauges)["nv_cpu_utilization"] == 60 / 180  # guests are in user and nice already
    clock.now += 0.5
    write_ticks(tmp_path, 230, 10, 110, 900, 20, 4, 3, 3, 30, 10)
    assert values_of(gauges)["nv_cpu_utilization"] == 60 / 180  # too soon
    clock.now += 0.5
    assert values_of(gauges)["nv_cpu_utilization"] == 1


def test_memory_in_use_is_what_could_not_be_had(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text(MEMINFO)
    assert values_of(HostGauges(tmp_path)) == {
        "nv_cpu_memory_total_bytes": 1_024_000,
        "nv_cpu_memory_used_bytes": 614_400,
    }


@pytest.mark.parametrize("stat", ["", "cpu", "cpu a b c d e f g h", "processes 1 2 3 4 5 6 7 8"])
@pytest.mark.parametrize("meminfo", ["", "MemTotal: 1 kB\n", "MemTotal:\nMemAvailable: x kB\n"])
def test_files_of_another_form_leave_their_metrics_out(tmp_path: Path, stat: str, meminfo: str) -> None:
    (tmp_path / "stat").write_text(stat)
    (tmp_path / "meminfo").write_text(meminfo)
    assert values_of(HostGauges(tmp_path)) == {}


def test_this_machine_has_cpus_and_memory() -> None:
    clock = Clock()
    gauges = HostGauges(clock=clock)
    clock.now += 60
    values = values_of(gauges)
    assert 0 <= values["nv_cpu_utilization"] <= 1
    assert 2**28 < values["nv_cpu_memory_used_bytes"] < values["nv_cpu_memory_total_bytes"]
