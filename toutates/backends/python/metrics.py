"""Reads the metrics that models keep in memory of their own (``child.metric_table``). Nothing there is trusted."""

from __future__ import annotations

import json
import math
import re
import threading
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy.typing as npt

from toutates.backends.python.child import frames
from toutates.engine.model_metrics import COUNTER, GAUGE, HISTOGRAM, ModelSeries, lasting, sum_series
from toutates.system.text import printable

__all__ = ["TableReader", "VersionMetrics"]

_KINDS: Final = (COUNTER, GAUGE, HISTOGRAM)
_NAME: Final = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]{0,199}")
_LABEL: Final = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]{0,99}")
_MAX_LABELS: Final = 20
_MAX_VALUE: Final = 500
_MAX_HELP: Final = 1_000
#: Beyond it a float is no exact number of measurements any more.
_MAX_COUNT: Final = 2.0**53


@dataclass(frozen=True, slots=True)
class _Definition:
    """What a line says of a series; see ``ModelSeries``. ``at`` is its first number."""

    name: str
    kind: str
    help: str
    labels: tuple[tuple[str, str], ...]
    bounds: tuple[float, ...]
    at: int


class TableReader:
    """Reads one instance's metrics.

    Args:
        memory: that they are in, bytes.
    """

    def __init__(self, memory: npt.NDArray[Any]) -> None:
        head = frames.METRICS_HEAD.size
        self._head = memory[:head].view("<u8")
        self._lines = memory[head : frames.METRICS_NUMBERS_AT]
        self._numbers = memory[frames.METRICS_NUMBERS_AT :].view("<f8")
        self._state = (0, 0)
        #: by the first number
        self._definitions: dict[int, _Definition] = {}

    def read(self) -> list[ModelSeries]:
        """Its series. What makes no sense is left out."""
        self._update()
        numbers = self._numbers.tolist() if self._definitions else []
        found = []
        for one in self._definitions.values():
            values = _checked(one.kind, numbers[one.at : one.at + _count(one.kind, one.bounds)])
            if values is not None:
                found.append(ModelSeries(one.name, one.kind, one.help, one.labels, one.bounds, values))
        return found

    def _update(self) -> None:
        times, written = self._head.tolist()
        if (times, written) == self._state or times % 2 or written > self._lines.nbytes:
            return  # the same, or being written: then what was read last holds
        start = 0
        if times == self._state[0] and written > self._state[1]:
            start = self._state[1]
        text = self._lines[start:written].tobytes()
        if self._head.tolist()[0] != times:
            return
        if not start:
            self._definitions = {}
        for line in text.splitlines()[: 2 * frames.MAX_METRICS]:
            self._take(line)
        self._state = times, written

    def _take(self, line: bytes) -> None:
        try:
            said = json.loads(line)
            if "gone" in said:
                self._definitions.pop(int(said["gone"]), None)
                return
            definition = self._definition(said)
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, RecursionError):
            return
        if definition is not None and len(self._definitions) < frames.MAX_METRICS:
            self._definitions[definition.at] = definition

    def _definition(self, said: Any) -> _Definition | None:
        name, kind, at = said["name"], _KINDS[said["kind"]], said["at"]
        labels = tuple([(key, printable(value, _MAX_VALUE)) for key, value in said["labels"]])
        bounds = tuple([float(bound) for bound in said["bounds"]])
        keys = [key for key, _ in labels]
        if not (_NAME.fullmatch(name) and all(map(_LABEL.fullmatch, keys)) and len(labels) <= _MAX_LABELS):
            return None
        if len(set(keys)) < len(keys) or (kind == HISTOGRAM and "le" in keys) or (kind != HISTOGRAM and bounds):
            return None
        if not all(map(math.isfinite, bounds)) or any(a >= b for a, b in pairwise(bounds)):
            return None
        if not isinstance(at, int) or not 0 <= at <= self._numbers.size - _count(kind, bounds):
            return None
        return _Definition(name, kind, printable(said["help"], _MAX_HELP), tuple(sorted(labels)), bounds, at)


def _count(kind: str, bounds: tuple[float, ...]) -> int:
    """How many numbers a series has."""
    return len(bounds) + 2 if kind == HISTOGRAM else 1


def _checked(kind: str, numbers: list[float]) -> tuple[float, ...] | None:
    """The numbers of a series, if they can be of its kind."""
    if kind == COUNTER:
        return tuple(numbers) if 0 <= numbers[0] < math.inf else None
    if kind == HISTOGRAM:
        counts = numbers[:-1]
        if not all(0 <= count < _MAX_COUNT for count in counts):
            return None
        return (*map(int, counts), numbers[-1])
    return tuple(numbers)


class VersionMetrics:
    """The metrics of all instances of a version, added up. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._readers: list[TableReader] = []
        #: of instances that have ended: what only grows must not fall while the version is served
        self._past: tuple[ModelSeries, ...] = ()

    def add(self, memory: npt.NDArray[Any]) -> TableReader:
        """Read one more instance's; returns what does it."""
        reader = TableReader(memory)
        with self._lock:
            self._readers.append(reader)
        return reader

    def end(self, reader: TableReader) -> None:
        """An instance has ended. What it has counted stays in the sums."""
        with self._lock:
            if reader in self._readers:
                self._readers.remove(reader)
                self._past = sum_series([*self._past, *lasting(reader.read())])

    def series(self) -> tuple[ModelSeries, ...]:
        """The series, added up over the instances."""
        with self._lock:
            return sum_series([*self._past, *(one for reader in self._readers for one in reader.read())])
