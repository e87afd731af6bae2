"""How many versions have been loaded, replaced and unloaded since the start."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["LoadCounters"]


@dataclass(slots=True)
class LoadCounters:
    """Written by the manager's thread only, read by any.

    Attributes:
        loads: versions loaded.
        failures: versions that could not be loaded, and models of which not even the versions could be told.
        reloads: those of ``loads`` that replaced one that was served.
        unloads: versions that are no longer served, replaced ones included.
        load_ns: nanoseconds that all loads took, failed ones included.
        executor_deaths: executors whose thread died.
    """

    loads: int = 0
    failures: int = 0
    reloads: int = 0
    unloads: int = 0
    load_ns: int = 0
    executor_deaths: int = 0
