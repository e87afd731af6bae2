"""Which keys of config.yaml are tried, and with which values; of one model, or of several that are served together."""

from __future__ import annotations

import copy
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Final

from toutates.tune.search import Point

__all__ = ["COPY", "ONNX", "Axis", "Changes", "Configs", "Space", "axes_of"]

#: Of each model, by its name: all keys of its configuration, and those that are changed.
Configs = Mapping[str, Mapping[str, Any]]
Changes = Mapping[str, Mapping[str, Any]]

#: Backends that compute by ONNX Runtime's sessions.
ONNX: Final = ("supertensor", "onnxruntime", "text")
#: Of other backends, the parameter that has the threads of a run.
_THREADS: Final[Mapping[str, str]] = {
    "fil": "cpu_nthread",
    "lightgbm": "threads",
    "openvino": "INFERENCE_NUM_THREADS",
    "pytorch": "INTRA_OP_THREAD_COUNT",
    "xgboost": "threads",
}
#: The backend whose instances are processes, which may wait for other things than a core.
_PROCESSES: Final = "python"
#: The key whose values are the model's file and copies of it in other types.
COPY: Final = "model_filename"

_MOST_ROWS: Final = 1024
_MOST_PARALLEL: Final = 32
_DELAYS_US: Final = (0, 100, 250, 500, 1_000, 2_000, 5_000)
_LEVELS: Final = ("off", "basic", "extended", "all")
#: Elements of a padded batch.
_TOKENS: Final = tuple(1 << power for power in range(8, 16))
#: Where a configuration names no longest length, buckets reach so far.
_LONGEST: Final = 2**20
#: A configuration may have so many.
_MOST_BUCKETS: Final = 128
#: Keys that interact, and are changed two at a time where no single step helps.
_PAIRED: Final = (
    *("batch_size", "num_executors", "session.intra_threads", "max_queue_delay_us"),
    *(f"parameters.{name}" for name in sorted(set(_THREADS.values()))),
)
_BUCKETS: Final = "padding.buckets"


@dataclass(frozen=True, slots=True)
class Axis:
    """A key.

    Attributes:
        model: whose key it is.
        name: with a dot where it is within another key.
        values: that are tried, in their order.
    """

    model: str
    name: str
    values: Sequence[Any]


@dataclass(frozen=True, slots=True)
class Space:
    """All configurations that may be tried.

    Attributes:
        base: the configurations as they are.
        axes: what may be changed.
    """

    base: Configs
    axes: Sequence[Axis]

    @property
    def start(self) -> Point:
        """The configurations as they are."""
        return tuple(axis.values.index(_value(self.base[axis.model], axis.name)) for axis in self.axes)

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """Axes that are changed two at a time."""
        return [
            (one, other)
            for one, other in combinations(range(len(self.axes)), 2)
            if self.axes[one].model == self.axes[other].model
            and self.axes[one].name in _PAIRED
            and self.axes[other].name in _PAIRED
        ]

    def near(self, point: Point, name: str, wanted: Mapping[str, float]) -> Point:
        """The point with the values of a key that are nearest to what is wanted of some models."""
        places = list(point)
        for place, axis in enumerate(self.axes):
            if axis.name == name and axis.model in wanted:
                goal = wanted[axis.model]
                places[place] = min(range(len(axis.values)), key=lambda at: abs(axis.values[at] - goal))
        return tuple(places)

    def changes(self, point: Point) -> Changes:
        """What a point says, of those keys that differ from the configurations as they are."""
        changes: dict[str, dict[str, Any]] = {}
        for axis, place in zip(self.axes, point, strict=True):
            if axis.values[place] != _value(self.base[axis.model], axis.name):
                changes.setdefault(axis.model, {})[axis.name] = axis.values[place]
        return changes

    def configs(self, point: Point) -> Configs:
        """The configurations of a point. As many rows may wait as before, whatever the size of batches."""
        changes = self.changes(point)
        return {model: _config(base, changes.get(model, {})) for model, base in self.base.items()}


def _config(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    config = copy.deepcopy(dict(base))
    for name, value in changes.items():
        outer, dot, inner = name.partition(".")
        if dot:
            config[outer] = {**(config.get(outer) or {}), inner: value}
        else:
            config[name] = value
    if "batch_size" in changes:
        rows = base["batch_size"] * base["capacity"]
        config["capacity"] = max(2, math.ceil(rows / config["batch_size"]))
        if sizes := [size for size in config.get("preferred_batch_sizes") or () if size <= config["batch_size"]]:
            config["preferred_batch_sizes"] = sizes
        else:
            config.pop("preferred_batch_sizes", None)
    return config


def _value(config: Mapping[str, Any], name: str) -> Any:
    outer, dot, inner = name.partition(".")
    if not dot:
        return config[name]
    value = (config.get(outer) or {}).get(inner, _WITHOUT[name])
    # Parameters are texts.
    return int(value) if isinstance(value, str) and outer == _PARAMETERS and value.isdecimal() else value


_PARAMETERS: Final = "parameters"
#: What holds where the key is not there.
_WITHOUT: Final[Mapping[str, Any]] = {
    **{f"{_PARAMETERS}.{name}": 1 for name in _THREADS.values()},
    "session.intra_threads": 1,
    "session.graph_level": "all",
    "session.memory_arena": True,
    "session.memory_pattern": True,
    "padding.max_batch_tokens": 4_096,
    "parameters.max_batch_tokens": 1_024,
    _BUCKETS: [],
}


def axes_of(
    model: str,
    base: Mapping[str, Any],
    cores: int,
    *,
    least_rows: int = 1,
    copies: Sequence[str] = (),
    ranges: Mapping[str, Sequence[int]] | None = None,
    keys: Collection[str] | None = None,
) -> list[Axis]:
    """What may be changed of a model.

    Args:
        model: its name.
        base: all keys of its configuration as it is, as ``toutates config`` prints them.
        cores: of the machine.
        least_rows: of a request.
        copies: names of files with the model in other types.
        ranges: values that are tried of some keys, in place of the usual ones.
        keys: that may be changed, without what is within them; None for all.
    """
    ranges = ranges or {}
    most = min(_MOST_PARALLEL, 1 << max(0, math.ceil(math.log2(cores))))
    parallel = [1 << power for power in range(most.bit_length()) if 1 << power <= max(1, cores)]
    # Without the key, whether rows share runs is found out when the model is loaded, and they do unless that is wrong.
    batches, backend = bool(base.get("batching", True)), base["backend"]
    axes = []

    def add(name: str, values: Sequence[int]) -> None:
        own = _value(base, name)
        if isinstance(own, int):  # a parameter may be a word
            axes.append(Axis(model, name, sorted({*ranges.get(name, values), own})))

    if batches:
        rows = [1 << power for power in range(_MOST_ROWS.bit_length()) if least_rows <= 1 << power <= _MOST_ROWS]
        add("batch_size", rows)
    add("num_executors", [*parallel, 2 * parallel[-1]] if backend == _PROCESSES else parallel)
    if backend in ONNX:
        add("session.intra_threads", parallel)
    elif backend in _THREADS:
        add(f"{_PARAMETERS}.{_THREADS[backend]}", parallel)
    if copies:
        axes.append(Axis(model, COPY, [base[COPY], *copies]))
    if base.get("padding"):
        add("padding.max_batch_tokens", _TOKENS)
        axes.append(Axis(model, _BUCKETS, _buckets(_value(base, _BUCKETS))))
    elif backend == "text":
        add(f"{_PARAMETERS}.max_batch_tokens", _TOKENS)
    if batches:
        add("max_queue_delay_us", _DELAYS_US)
    if backend in ONNX:
        axes.append(Axis(model, "session.graph_level", _LEVELS))
        axes.append(Axis(model, "session.memory_arena", (False, True)))
        if not base.get("padding") and backend != "text":  # where it has no effect
            axes.append(Axis(model, "session.memory_pattern", (False, True)))
    return axes if keys is None else [axis for axis in axes if axis.name.partition(".")[0] in keys]


def _buckets(own: list[int]) -> list[list[int]]:
    """Lists of buckets up to the same longest length, from the fewest on; [] is four to each doubling, without end.

    Args:
        own: those of the configuration.
    """
    longest = own[-1] if own else _LONGEST
    found = [_steps(longest, per_doubling) for per_doubling in (1, 2, 4, 8)]
    if own:
        found = [[longest], *found]
    else:
        found[2] = []
    found = [one for place, one in enumerate(found) if len(one) <= _MOST_BUCKETS and one not in found[:place]]
    if own not in found:
        found.insert(sum(len(one) < len(own) for one in found), own)
    return found


def _steps(longest: int, per_doubling: int) -> list[int]:
    """Lengths up to the longest, so many to each doubling, in steps of 8 at least, which runs are made for."""
    lengths = {longest}
    size = 16
    while size // 2 < longest:
        lengths |= {-(-size * (per_doubling + step) // (16 * per_doubling)) * 8 for step in range(1, per_doubling + 1)}
        size *= 2
    return sorted(length for length in lengths if length <= longest)
