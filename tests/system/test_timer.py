"""A timer of the kernel, by the clock as it is."""

from __future__ import annotations

import ctypes
import os
import threading
import time

import pytest

from toutates.system import timer as module
from toutates.system.timer import Timer

MS = 1_000_000


def test_it_ends_at_its_time_and_not_before() -> None:
    timer, began_ns = Timer(), time.monotonic_ns()
    timer.set(began_ns + 20 * MS)
    timer.wait()
    assert time.monotonic_ns() - began_ns >= 20 * MS


@pytest.mark.parametrize("to_ns", [0, 1, -1])
def test_a_sleeper_is_woken_by_a_time_that_is_over(to_ns: int) -> None:
    timer = Timer()
    timer.set(2**63)  # as good as never
    sleeper = threading.Thread(target=timer.wait)
    sleeper.start()
    timer.set(to_ns)
    sleeper.join(120)
    assert not sleeper.is_alive()


def test_its_descriptor_is_closed_with_it() -> None:
    timer = Timer()
    descriptor = timer._fd
    del timer
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_it_says_why_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    class Library:
        """Has no descriptor left."""

        @staticmethod
        def timerfd_create(clock: int, flags: int) -> int:
            ctypes.set_errno(24)
            return -1

    monkeypatch.setattr(module, "_LIBRARY", Library)
    with pytest.raises(OSError, match="no timer could be made: Too many open files"):
        Timer()
