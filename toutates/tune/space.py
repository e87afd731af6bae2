"""Which keys of config.yaml are tried, and with which values."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from toutates.tune.search import Point

__all__ = ["Axis", "Space", "make_space"]

_MOST_ROWS: Final = 1024
_MOST_PARALLEL: Final = 32
_DELAYS_US: Final = (0, 100, 250, 500, 1_000, 2_000, 5_000)
_LEVELS: Final = ("off", "basic", "extended", "all")


@dataclass(frozen=True, slots=True)
class Axis:
    """A key.

    Attributes:
        name: with a dot where it is within another key.
        values: that are tried, in their order.
    """

    name: str
    values: Sequence[Any]


@dataclass(frozen=True, slots=True)
class Space:
    """All configurations that may be tried.

    Attributes:
        base: the configuration as it is, all keys.
        axes: what may be changed.
    """

    base: Mapping[str, Any]
    axes: Sequence[Axis]

    @property
    def start(self) -> Point:
        """The configuration as it is."""
        return tuple(axis.values.index(_value(self.base, axis.name)) for axis in self.axes)

    def near(self, point: Point, wanted: Mapping[str, float]) -> Point:
        """The point with the values that are nearest to what is wanted of some keys."""
        places = list(point)
        for place, axis in enumerate(self.axes):
            if axis.name in wanted:
                goal = wanted[axis.name]
                places[place] = min(range(len(axis.values)), key=lambda at: abs(axis.values[at] - goal))
        return tuple(places)

    def values(self, point: Point) -> dict[str, Any]:
        """What a point says, by keys."""
        return {axis.name: axis.values[place] for axis, place in zip(self.axes, point, strict=True)}

    def changes(self, point: Point) -> dict[str, Any]:
        """The same, of those keys that differ from the configuration as it is."""
        return {name: value for name, value in self.values(point).items() if value != _value(self.base, name)}

    def config(self, point: Point) -> dict[str, Any]:
        """The configuration of a point. As many rows may wait as before, whatever the size of batches."""
        changes = self.changes(point)
        config = copy.deepcopy(dict(self.base))
        for name, value in changes.items():
            outer, dot, inner = name.partition(".")
            if dot:
                config[outer] = {**(config.get(outer) or {}), inner: value}
            else:
                config[name] = value
        if "batch_size" in changes:
            rows = self.base["batch_size"] * self.base["capacity"]
            config["capacity"] = max(2, math.ceil(rows / config["batch_size"]))
            if sizes := [size for size in config.get("preferred_batch_sizes") or () if size <= config["batch_size"]]:
                config["preferred_batch_sizes"] = sizes
            else:
                config.pop("preferred_batch_sizes", None)
        return config


def _value(config: Mapping[str, Any], name: str) -> Any:
    outer, dot, inner = name.partition(".")
    if dot:
        return (config.get(outer) or {}).get(inner, _WITHOUT[name])
    return config[name]


#: What holds where the key is not there.
_WITHOUT: Final[Mapping[str, Any]] = {
    "session.intra_threads": 1,
    "session.graph_level": "all",
    "session.memory_arena": True,
    "session.memory_pattern": True,
}


def make_space(base: Mapping[str, Any], cores: int, *, batches: bool, least_rows: int = 1) -> Space:
    """The configurations to try.

    Args:
        base: all keys of the model's configuration as it is, as ``toutates config`` prints them.
        cores: of the machine.
        batches: whether requests can be put together.
        least_rows: of a request.
    """
    most = min(_MOST_PARALLEL, 1 << max(0, math.ceil(math.log2(cores))))
    parallel = [1 << power for power in range(most.bit_length()) if 1 << power <= max(1, cores)]
    axes = []
    if batches:
        rows = [1 << power for power in range(_MOST_ROWS.bit_length()) if least_rows <= 1 << power <= _MOST_ROWS]
        axes.append(_axis("batch_size", rows, base))
    axes.append(_axis("num_executors", parallel, base))
    onnx = base["backend"] in ("supertensor", "onnxruntime")
    if onnx:
        axes.append(_axis("session.intra_threads", parallel, base))
    if batches:
        axes.append(_axis("max_queue_delay_us", _DELAYS_US, base))
    if onnx:
        axes.append(Axis("session.graph_level", _LEVELS))
        axes.append(Axis("session.memory_arena", (False, True)))
        if not base.get("padding"):  # where it has no effect
            axes.append(Axis("session.memory_pattern", (False, True)))
    return Space(base, axes)


def _axis(name: str, values: Sequence[int], base: Mapping[str, Any]) -> Axis:
    return Axis(name, sorted({*values, _value(base, name)}))
