"""Models whose runs take long while cores have nothing to do: one executor with one thread is made for small models."""

from __future__ import annotations

from typing import Final

from toutates.models.config.pbtxt import PBTXT_NAME
from toutates.models.config.settings import ModelSettings
from toutates.system.cpu_quota import usable_cpus
from toutates.system.placement import Placement

__all__ = ["SLOW_RUN_NS", "idle_cores_advice", "usable_cores"]

#: A run that takes longer costs more than everything around it.
SLOW_RUN_NS: Final = 5_000_000


def usable_cores(placement: Placement) -> int:
    """The number of CPUs that the process may use."""
    return usable_cpus(placement.topology.cpus or None)


def idle_cores_advice(run_ns: int, settings: ModelSettings, intra_threads: int, cores: int, file: str) -> str:
    """What to change, in one sentence; "" where runs are quick or keep every core busy.

    Args:
        run_ns: how long a run takes on the CPU; 0 if that is not known, or it runs elsewhere.
        settings: of the version.
        intra_threads: inside one operator of one of its sessions.
        cores: that the process may use.
        file: name of the file that configures the version.
    """
    busy = settings.num_executors * intra_threads
    if run_ns < SLOW_RUN_NS or busy >= cores:
        return ""
    if file == PBTXT_NAME:
        executors, threads = "'count' of 'instance_group'", "the parameter 'intra_op_thread_count'"
    else:
        executors, threads = "'num_executors'", "'intra_threads' under 'session'"
    return (
        f"a run of one row takes {run_ns / 1e6:.0f} ms and batches use {busy} of {cores} cores at most; raise "
        f"{executors} in its {file} for more requests per second, or {threads} (--ort-intra-threads for all models) "
        "for less time per request"
    )
