"""How tests wait for what another thread or process is about to do."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

__all__ = ["DEADLINES_S", "PATIENCE_S", "wait_until"]

#: How long tests wait for what takes milliseconds on an idle machine: only a hang reaches it.
PATIENCE_S: Final = 120.0
#: Where a deadline has to pass after something else has happened: a test takes the first that is long enough for that.
DEADLINES_S: Final = (0.3, 1.5, 7.0, 35.0)


def wait_until(condition: Callable[[], object], pause_s: float = 0.005) -> None:
    """Ask ``condition`` again and again, until what it returns is true.

    Args:
        condition: must not have side effects that add up.
        pause_s: between two calls.

    Raises:
        AssertionError: it was not true within ``PATIENCE_S``.
    """
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "what the test waits for has not come"
        time.sleep(pause_s)
