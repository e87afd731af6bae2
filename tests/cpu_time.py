"""How much CPU time something takes, for tests of how it grows."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

__all__ = ["least_cpu_s"]


def least_cpu_s(work: Callable[[], object], times: int = 2) -> float:
    """The least CPU time, in seconds, that this thread took for ``work``, of a few times.

    The garbage collector does not run meanwhile: after some hundred tests one of its rounds takes a second.
    """
    took = []
    gc.disable()
    try:
        for _ in range(times):
            began = time.thread_time()
            work()
            took.append(time.thread_time() - began)
    finally:
        gc.enable()
    return min(took)
