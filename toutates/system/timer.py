"""A timer of the kernel: one thread sleeps until a time, and others change that time without waking it.

A timerfd (``timerfd_create(2)``), which Python has from 3.13 on. It is also more exact than a lock with a timeout: the
kernel puts the end of that off by up to 50 us.
"""

from __future__ import annotations

import ctypes
import os
import time
from typing import Final

__all__ = ["Timer"]

#: With the GIL held: these calls do not block, and letting go of it would cost more than they do.
_LIBRARY: Final = ctypes.PyDLL(None, use_errno=True)
_TFD_TIMER_ABSTIME: Final = 1
_TFD_CLOEXEC: Final = os.O_CLOEXEC
#: So far off that it is never, and what the kernel takes.
_NEVER_NS: Final = 2**62
_S: Final = 10**9


class Timer:
    """One timer, which is off at first.

    Raises:
        OSError: there are too many open files.
    """

    __slots__ = ("_fd", "_times")

    def __init__(self) -> None:
        self._fd = -1
        #: interval and time, each of seconds and nanoseconds (struct itimerspec)
        self._times = (ctypes.c_long * 4)()
        fd = _LIBRARY.timerfd_create(time.CLOCK_MONOTONIC, _TFD_CLOEXEC)
        if fd < 0:
            number = ctypes.get_errno()
            raise OSError(number, f"no timer could be made: {os.strerror(number)}")
        self._fd = fd

    def set(self, at_ns: int) -> None:
        """Have it end at a time, monotonic nanoseconds, in place of the one before. Not in two threads at once.

        One that is over ends it at once.
        """
        times = self._times
        times[2], times[3] = divmod(min(max(at_ns, 1), _NEVER_NS), _S)
        _LIBRARY.timerfd_settime(self._fd, _TFD_TIMER_ABSTIME, times, None)

    def wait(self) -> None:
        """Block the thread until it ends."""
        os.read(self._fd, 8)

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
