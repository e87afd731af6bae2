"""A gate of the kernel: one thread waits at it until another opens it.

An eventfd (``eventfd(2)``). A ``threading.Lock`` that is held but while somebody is to go on does the same. But on
CPython without the GIL, whoever waits for such a lock calls ``sched_yield`` 40 times before it sleeps. Each of these
calls gives the core to other threads for a turn, 1.4 ms and more where one computes, and the thread is not woken up
meanwhile: it comes late to what it waited for.
"""

from __future__ import annotations

import os
from typing import Final

__all__ = ["Gate"]

_ONE: Final = (1).to_bytes(8, "little")


class Gate:
    """Closed at first, and again behind whoever goes through. Opened twice before that, it lets one through.

    Raises:
        OSError: there are too many open files.
    """

    __slots__ = ("_fd",)

    def __init__(self) -> None:
        self._fd = -1
        self._fd = os.eventfd(0, os.EFD_CLOEXEC)

    def open(self) -> None:
        """Let the thread through that waits, or will. Any thread may call it."""
        os.write(self._fd, _ONE)

    def wait(self) -> None:
        """Block the thread until it is open. One thread at a time."""
        os.read(self._fd, 8)

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
