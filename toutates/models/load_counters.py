"""What has become of the models since the start, in plain numbers."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["LoadCounters"]


@dataclass(slots=True)
class LoadCounters:
    """Written by the manager's thread only, read by any.

    Attributes:
        loads: versions loaded.
        failures: versions, or models of which no version could be told, that could not be.
        reloads: those of ``loads`` that replaced one that was served.
        unloads: versions that are no longer served; those that were replaced, too.
        load_ns: how long loading took, failed loads too.
        executor_deaths: executors whose thread died.
    """

    loads: int = 0
    failures: int = 0
    reloads: int = 0
    unloads: int = 0
    load_ns: int = 0
    executor_deaths: int = 0
