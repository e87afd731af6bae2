"""``MetricFamily`` and ``Metric`` of ``triton_python_backend_utils``."""

from __future__ import annotations

import math
import re
import threading
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from toutates.backends.python.child.errors import TritonModelException
from toutates.backends.python.child.metric_table import MetricTable, Series

__all__ = ["Metric", "MetricFamily", "set_metric_table"]

_COUNTER, _GAUGE, _HISTOGRAM = range(3)
_KINDS = ("COUNTER", "GAUGE", "HISTOGRAM")
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]{0,199}")
_LABEL = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]{0,99}")


class _Shared:
    """What all family objects of one name have in common."""

    def __init__(self, name: str, kind: int, help_text: str) -> None:
        self.name, self.kind, self.help = name, kind, help_text
        self.users = 0
        self.series: dict[Any, Series] = {}


_whose = threading.local()
_default: list[MetricTable] = []


def set_metric_table(table: MetricTable, *, whole_process: bool = False) -> None:
    """Have the metrics that are made from now on kept in a table: by this thread, or by all of the process."""
    _whose.table = table
    if whole_process:
        _default[:] = [table]


def _table() -> MetricTable:
    found: MetricTable | None = getattr(_whose, "table", None) or (_default[0] if _default else None)
    if found is None:
        raise TritonModelException("Error when creating MetricFamily: this thread is not one that runs a model.")
    return found


class MetricFamily:
    """Metrics of one name, which appear on the server's /metrics as long as objects of them live.

    Args:
        name: as Prometheus has it.
        description: in a sentence.
        kind: COUNTER, GAUGE or HISTOGRAM.
    """

    COUNTER, GAUGE, HISTOGRAM = _COUNTER, _GAUGE, _HISTOGRAM

    def __init__(self, name: Any, description: Any, kind: int = _COUNTER) -> None:
        self._table: MetricTable | None = None
        if not isinstance(name, str) or not isinstance(description, str):
            raise TypeError("MetricFamily(name: str, description: str, kind)")
        if kind not in (_COUNTER, _GAUGE, _HISTOGRAM):
            raise TypeError("kind is MetricFamily.COUNTER, MetricFamily.GAUGE or MetricFamily.HISTOGRAM")
        if not _NAME.fullmatch(name):
            raise TritonModelException(f"Error when creating MetricFamily: '{name[:200]}' is no name of a metric.")
        table = _table()
        with table.lock:
            table.catch_up()
            shared = table.families.get(name)
            if shared is None:
                shared = table.families[name] = _Shared(name, kind, description[:1_000])
            elif shared.kind != kind:
                raise TritonModelException(
                    f"Error when creating MetricFamily: '{name}' is a family of kind {_KINDS[shared.kind]} already."
                )
            shared.users += 1
        self._shared = shared
        self._table = table
        #: metrics made of this object, to know that it is gone
        self._alive = [True]

    def Metric(self, labels: Mapping[str, str] | None = None, buckets: Sequence[float] | None = None) -> Metric:
        """A metric of the family.

        Args:
            labels: value by name.
            buckets: upper bounds of a histogram, strictly ascending.
        """
        if labels is not None and not isinstance(labels, dict):
            raise TritonModelException("Failed to create metric. Labels must be a dictionary.")
        if buckets is not None and not isinstance(buckets, (list, tuple)):
            raise TritonModelException("Failed to create metric. Buckets must be a list.")
        shared = self._shared
        if buckets is not None and shared.kind != _HISTOGRAM:
            raise TritonModelException("Failed to create metric. Unexpected buckets found.")
        if buckets is None and shared.kind == _HISTOGRAM:
            raise TritonModelException("Failed to create metric. Missing required buckets.")
        given = _checked_labels(labels or {}, shared.kind)
        bounds = _checked_bounds(buckets or ())
        table = self._table
        assert table is not None
        with table.lock:
            table.catch_up()
            series = shared.series.get(given)
            if series is None:
                definition = {"name": shared.name, "kind": shared.kind, "help": shared.help, "labels": given}
                series = table.add(definition, len(bounds) + 2 if shared.kind == _HISTOGRAM else 1, bounds)
                shared.series[given] = series
            else:
                series.users += 1
        return Metric(shared, given, series, self._alive)

    def __del__(self) -> None:
        table = getattr(self, "_table", None)
        if table is not None:
            self._alive[0] = False
            table.soon(partial(_forget_family, table, self._shared))


def _forget_family(table: MetricTable, shared: _Shared) -> None:
    shared.users -= 1
    if not shared.users:
        for series in shared.series.values():
            table.remove(series)
        shared.series.clear()
        table.families.pop(shared.name, None)


def _forget_metric(shared: _Shared, labels: tuple[tuple[str, str], ...], series: Series) -> None:
    series.users -= 1
    if not series.users and shared.series.get(labels) is series:
        del shared.series[labels]
        series.table.remove(series)


def _checked_labels(labels: Mapping[Any, Any], kind: int) -> tuple[tuple[str, str], ...]:
    for key, value in labels.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise TritonModelException("Failed to create metric. Names and values of labels must be strings.")
        if not _LABEL.fullmatch(key) or (kind == _HISTOGRAM and key == "le"):
            raise TritonModelException(f"Failed to create metric. '{key[:100]}' is no name of a label.")
    return tuple(sorted(labels.items()))


def _checked_bounds(buckets: Sequence[float]) -> tuple[float, ...]:
    bounds = tuple([float(bound) for bound in buckets])
    if not all(map(math.isfinite, bounds)) or any(a >= b for a, b in zip(bounds, bounds[1:])):  # noqa: RUF007 (Python 3.9)
        raise TritonModelException("Failed to create metric. Buckets must be finite, and ascend strictly.")
    return bounds


class Metric:
    """One metric. Any thread may use it; ``MetricFamily.Metric`` makes it."""

    __slots__ = ("_alive", "_at", "_bounds", "_kind", "_labels", "_lock", "_numbers", "_series", "_shared")

    def __init__(
        self,
        shared: _Shared,
        labels: tuple[tuple[str, str], ...],
        series: Series,
        alive: list[bool],
    ) -> None:
        self._shared, self._labels, self._series, self._alive = shared, labels, series, alive
        self._kind, self._bounds = shared.kind, series.bounds
        self._lock, self._numbers, self._at = series.table.lock, series.table.numbers, series.start

    def increment(self, value: float) -> None:
        """Add a value: to a counter one that is not negative, to a gauge any."""
        if self._kind == _HISTOGRAM:
            raise self._refusal("increment metric value", "Increment")
        value = _number(value)
        if self._kind == _COUNTER and not value >= 0:
            raise TritonModelException(
                "Failed to increment metric value: TRITONSERVER_METRIC_KIND_COUNTER can only be incremented "
                "monotonically by non-negative values."
            )
        with self._lock:
            self._check()
            self._numbers[self._at] += value

    def set(self, value: float) -> None:
        """Set a gauge."""
        if self._kind != _GAUGE:
            raise self._refusal("set metric value", "Set")
        with self._lock:
            self._check()
            self._numbers[self._at] = _number(value)

    def observe(self, value: float) -> None:
        """Add a measurement to a histogram."""
        if self._kind != _HISTOGRAM:
            raise self._refusal("observe metric value", "Observe")
        value = _number(value)
        bounds = self._bounds
        with self._lock:
            self._check()
            # One that is no number is above all bounds.
            self._numbers[self._at + (bisect_left(bounds, value) if value == value else len(bounds))] += 1
            self._numbers[self._at + len(bounds) + 1] += value

    def value(self) -> float:
        """The value of a counter or a gauge."""
        if self._kind == _HISTOGRAM:
            raise self._refusal("get metric value", "Value")
        with self._lock:
            self._check()
            return float(self._numbers[self._at])

    def _check(self) -> None:
        if not self._alive[0]:
            raise TritonModelException("Invalid metric operation as the corresponding 'MetricFamily' has been deleted.")

    def _refusal(self, what: str, operation: str) -> TritonModelException:
        return TritonModelException(
            f"Failed to {what}: TRITONSERVER_METRIC_KIND_{_KINDS[self._kind]} does not support {operation}"
        )

    def __del__(self) -> None:
        self._series.table.soon(partial(_forget_metric, self._shared, self._labels, self._series))


def _number(value: Any) -> float:
    if not isinstance(value, (int, float)) and not hasattr(value, "__float__"):
        raise TypeError("the value of a metric is a number")
    return float(value)
