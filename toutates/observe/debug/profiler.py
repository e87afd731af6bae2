"""A sampling profiler for a running server. A thread of its own reads the stacks of all threads many times a second.

A sample counts for the CPU time that its thread has used since the last one, so that threads that wait count nothing;
or for the time that has passed, which shows what threads wait for. A sample costs the server some 0.05 ms with the GIL,
and without it 0.2 ms in which every thread is stopped (``thread_stacks``).
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache, partial
from itertools import dropwhile
from typing import Final

import trio

from toutates.observe.debug.thread_stacks import Stack, StackReader, thread_names

__all__ = ["MAX_HZ", "MAX_SECONDS", "Busy", "Profile", "Profiler", "Weight"]

MAX_SECONDS: Final = 60.0
MAX_HZ: Final = 500
#: Different stacks that are kept; further ones are counted together as OTHERS.
MAX_STACKS: Final = 20_000
OTHERS: Final = "other stacks"
THREAD_NAME: Final = "profiler"
#: Ends of the labels of frames that every thread begins with.
_START: Final = ("(threading.py)", "(trio/_core/_thread_cache.py)", "(outcome/_impl.py)", "(trio/_threads.py)")


class Busy(Exception):
    """Another profile is being taken."""


class Weight(Enum):
    """What a sample counts."""

    CPU = "cpu"
    WALL = "wall"


@dataclass(slots=True)
class Profile:
    """The samples of some seconds, added up.

    Attributes:
        weight: the time that ``stacks`` counts.
        stacks: microseconds by stack; the outermost frame is the thread's name.
        samples: how often the stacks were read.
        seconds: how long the profile took.
    """

    weight: Weight
    stacks: dict[Stack, int] = field(default_factory=dict)
    samples: int = 0
    seconds: float = 0.0

    def add(self, stack: Stack, microseconds: int) -> None:
        """Count time at ``stack``."""
        if stack not in self.stacks and len(self.stacks) >= MAX_STACKS:
            stack = (stack[0], OTHERS)
        self.stacks[stack] = self.stacks.get(stack, 0) + microseconds


class Profiler:
    """Takes one profile at a time. Used in one Trio run."""

    def __init__(self) -> None:
        self._busy = False

    async def take(self, seconds: float, hz: int, weight: Weight) -> Profile:
        """Profile the process for so many seconds, fewer if cancelled.

        Raises:
            Busy: another profile is being taken.
        """
        if self._busy:
            raise Busy
        self._busy = True
        stop = threading.Event()

        async def stop_when_cancelled() -> None:
            try:
                await trio.sleep_forever()
            finally:
                stop.set()

        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(stop_when_cancelled)
                profile = await trio.to_thread.run_sync(
                    partial(_watch, seconds, hz, weight, stop),
                    thread_name=THREAD_NAME,
                    limiter=trio.CapacityLimiter(1),
                )
                nursery.cancel_scope.cancel()
            return profile
        finally:
            self._busy = False


def _watch(seconds: float, hz: int, weight: Weight, stop: threading.Event) -> Profile:
    profile = Profile(weight)
    own = threading.get_ident()
    began = time.monotonic()
    clocks = _Clocks()
    with StackReader.open() as reader:
        names = thread_names()
        clocks.passed()
        at = began
        # On a busy machine the first sample may come when the time is up; it is taken all the same.
        while at - began < seconds and not stop.wait(max(0.0, at + 1 / hz - time.monotonic())):
            before, at = at, time.monotonic()
            stacks = reader.read()
            used = clocks.passed() if weight is Weight.CPU else None
            if any(thread not in names for thread in stacks):
                names = thread_names()
            for thread, stack in stacks.items():
                if thread == own:
                    continue
                passed_us = int((at - before) * 1e6) if used is None else used.get(thread, 0)
                if passed_us:
                    profile.add((names.get(thread, "unnamed thread"), *_without_start(stack)), passed_us)
            profile.samples += 1
    profile.seconds = time.monotonic() - began
    return profile


@lru_cache(maxsize=4_096)
def _without_start(stack: Stack) -> Stack:
    """The stack without the frames that every thread begins with."""
    return tuple(dropwhile(lambda frame: frame.endswith(_START), stack))


class _Clocks:
    """The CPU clocks of all threads."""

    def __init__(self) -> None:
        self._seen_ns: dict[int, int] = {}

    def passed(self) -> dict[int, int]:
        """Microseconds of CPU that each thread has used since the last call, by the thread's identifier."""
        seen_ns: dict[int, int] = {}
        passed: dict[int, int] = {}
        for thread in threading.enumerate():
            if thread.ident is None or thread.native_id is None:
                continue
            try:
                now_ns = seen_ns[thread.ident] = time.clock_gettime_ns(_cpu_clock(thread.native_id))
            except OSError:
                continue  # the thread has just ended
            passed[thread.ident] = (now_ns - self._seen_ns.get(thread.ident, now_ns)) // 1000
        self._seen_ns = seen_ns
        return passed


def _cpu_clock(native_id: int) -> int:
    """The clock of a thread's CPU time. Linux makes its number from the thread's (clock_getcpuclockid(3)), and unlike
    ``time.pthread_getcpuclockid`` it may be asked for a thread that has ended."""
    return ~native_id << 3 | 0b110
