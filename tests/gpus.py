"""The GPUs of this machine."""

from __future__ import annotations

from importlib import import_module

__all__ = ["gpus_here"]


def gpus_here() -> int:
    """How many there are that cuda-bindings finds; 0 without the package, or without a driver."""
    try:
        status, count = import_module("cuda.bindings.runtime").cudaGetDeviceCount()
    except Exception:  # of the package's own kinds where it finds no driver
        return 0
    return 0 if int(status) else int(count)
