"""What work costs the CPU, for tests of how it grows.

``lines_run`` counts, so that continuous integration can hold it; ``least_cpu_s`` also sees what loops in C, such as a
copy of all bytes for each piece, and is for tests with the mark ``alone``.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

__all__ = ["least_cpu_s", "lines_run"]


def lines_run(work: Callable[[], object]) -> int:
    """How many lines of Python this thread runs for ``work``: each turn of a loop counts, if it has one line or more.

    The same for the same work, however busy the machine is. What loops in C counts as the line that calls it.
    """
    lines = 0

    def count(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return count

    before = sys.gettrace()
    gc.disable()
    sys.settrace(count)
    try:
        work()
    finally:
        sys.settrace(before)
        gc.enable()
    return lines


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
