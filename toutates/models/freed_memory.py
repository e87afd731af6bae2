"""Memory that was freed, given back to the system: the C library keeps it otherwise, in every thread's own heap."""

from __future__ import annotations

import ctypes

__all__ = ["give_back_freed_memory"]


def give_back_freed_memory() -> None:
    """Give freed memory back to the system. Blocks for some milliseconds per GB of small pieces.

    Does nothing where the C library has no ``malloc_trim``.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
