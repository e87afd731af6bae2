"""The metrics of a model's instance, in memory that the server reads when it is asked for its metrics.

The model changes a number there, and nobody is told. The memory has three parts:

    HEAD                how often the definitions were written anew (odd while they are), and how long they are, bytes
    definitions         a line of JSON for each series: family, kind, help, labels, bounds, and its first number
    numbers             float64: one of a counter or a gauge; of a histogram one for each bucket, and the sum

A series that ends has a line too. When there is no room for one more line, the lines are written anew, without those.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from toutates.backends.python.child import frames
from toutates.backends.python.child.errors import TritonModelException

__all__ = ["MetricTable", "Series"]


class Series:
    """The numbers of one series.

    Args:
        table: that they are in.
        start: the first of them.
        count: how many.
        bounds: of a histogram's buckets.
        line: its definition.
    """

    __slots__ = ("bounds", "count", "line", "start", "table", "users")

    def __init__(self, table: MetricTable, start: int, count: int, bounds: tuple[float, ...], line: bytes) -> None:
        self.table, self.start, self.count, self.bounds, self.line = table, start, count, bounds, line
        #: metric objects of the model that share it
        self.users = 1


class MetricTable:
    """The memory of one instance.

    Args:
        memory: ``frames.METRICS_BYTES`` of it, zeroed.

    Attributes:
        lock: of all numbers and definitions, and of the families that they are of.
        families: for whoever keeps families in this table.
    """

    def __init__(self, memory: memoryview) -> None:
        self.lock = threading.Lock()
        self.families: dict[str, Any] = {}
        #: what is to be done under the lock
        self._later: deque[Callable[[], None]] = deque()
        self._head = memory[: frames.METRICS_HEAD.size]
        self._lines = memory[frames.METRICS_HEAD.size : frames.METRICS_NUMBERS_AT]
        self.numbers: Any = memory[frames.METRICS_NUMBERS_AT :].cast("d")
        self._series: list[Series] = []
        self._written = self._times = 0
        self._free: dict[int, list[int]] = {}
        self._next = 0

    def soon(self, do: Callable[[], None]) -> None:
        """Have something done under the lock: now, or where another has it, before the next series is added.

        For finalizers, which may run while this very thread has it.
        """
        self._later.append(do)
        if self.lock.acquire(blocking=False):
            try:
                self.catch_up()
            finally:
                self.lock.release()

    def catch_up(self) -> None:
        """Do what is to be done; with ``lock`` held."""
        while self._later:
            self._later.popleft()()

    def add(self, definition: dict[str, Any], count: int, bounds: tuple[float, ...] = ()) -> Series:
        """One more series, of this many numbers; with ``lock`` held.

        Raises:
            TritonModelException: there is no room.
        """
        if len(self._series) >= frames.MAX_METRICS:
            raise TritonModelException(f"Failed to create metric. An instance has at most {frames.MAX_METRICS}.")
        free = self._free.get(count)
        start = free.pop() if free else self._next
        line = json.dumps({**definition, "bounds": bounds, "at": start}).encode() + b"\n"
        if start + count > len(self.numbers) or len(line) > frames.MAX_METRIC_LINE:
            raise TritonModelException("Failed to create metric. There is no room for its labels or buckets.")
        self._next = max(self._next, start + count)
        for at in range(start, start + count):
            self.numbers[at] = 0.0
        series = Series(self, start, count, bounds, line)
        self._series.append(series)
        try:
            self._append(line)
        except TritonModelException:
            self._series.remove(series)
            self._free.setdefault(count, []).append(start)
            raise
        return series

    def remove(self, series: Series) -> None:
        """End a series; with ``lock`` held."""
        self._series.remove(series)
        self._free.setdefault(series.count, []).append(series.start)
        self._append(b'{"gone": %d}\n' % series.start)

    def _append(self, line: bytes) -> None:
        if self._written + len(line) <= len(self._lines):
            self._lines[self._written : self._written + len(line)] = line
            self._written += len(line)
            self._tell()
            return
        text = b"".join([series.line for series in self._series])
        if len(text) > len(self._lines):
            raise TritonModelException("Failed to create metric. There is no room for more of them.")
        self._times += 1  # odd: nobody reads it now
        self._tell()
        self._lines[: len(text)] = text
        self._written = len(text)
        self._times += 1
        self._tell()

    def _tell(self) -> None:
        frames.METRICS_HEAD.pack_into(self._head, 0, self._times, self._written)
