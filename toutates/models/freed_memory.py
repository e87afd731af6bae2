"""Memory that was freed, given back to the system: the C library keeps it otherwise, in every thread's own heap."""

from __future__ import annotations

import ctypes
from typing import Final

__all__ = ["give_back_freed_memory"]

#: Found once: ctypes makes a class for each handle of a library, 5 KB that only the garbage collector frees, which
#: comes after thousands of models that have left where there is no GIL.
_trim: Final = getattr(ctypes.CDLL(None), "malloc_trim", None)


def give_back_freed_memory() -> None:
    """Give freed memory back to the system. Blocks for some milliseconds per GB of small pieces.

    Does nothing where the C library has no ``malloc_trim``.
    """
    if _trim is not None:
        _trim(0)
