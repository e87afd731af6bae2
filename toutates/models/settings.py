"""The file config.yaml beside a model.onnx: how that version is batched, and in which memory.

The file is small and written by hand, so the reader is strict: a key that is misspelled, given twice or of the wrong
type is refused rather than passed over, because the server would otherwise run for months with a default that nobody
chose. A file that is not YAML is refused for the first thing wrong with it. In a file that is, everything wrong is
reported at once, one line each, so that one start of the server shows all there is to mend.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Final, Literal, TypeGuard, cast

from toutates.errors import ConfigurationError
from toutates.models.yaml_reader import YamlValue, read_mapping, shown

__all__ = ["CONFIG_NAME", "ModelSettings", "ProfilingSettings", "check_allocator", "load_settings"]

CONFIG_NAME: Final = "config.yaml"

Allocator = Literal["cpu", "cuda_pinned"]
Shapes = Mapping[str, tuple[int, ...]]

_ALLOCATORS: Final = ("cpu", "cuda_pinned")
_CUDA_PROVIDERS: Final = frozenset({"CUDAExecutionProvider", "TensorrtExecutionProvider"})

# Upper bounds catch typing errors before they become an allocation: a batch buffer takes batch_size x row bytes, and
# capacity of them may be in flight; each executor is a thread and an ONNX Runtime session.
_MAX_BATCH_SIZE: Final = 2**20
_MAX_CAPACITY: Final = 2**16
_MAX_EXECUTORS: Final = 2**10
_MAX_PROFILED_BATCHES: Final = 2**31 - 1
_MAX_DIMENSION: Final = 2**31 - 1
_MAX_RANK: Final = 32  # NumPy 1's limit, the lower one of the two in use

_MAX_PROBLEMS: Final = 10  # more lines than this are not read, and a hostile file must not flood the log
_MAX_KEY_SHOWN: Final = 80  # characters


def _no_shapes() -> Shapes:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ProfilingSettings:
    """ONNX Runtime's own profiler for one model version.

    Attributes:
        file_prefix: start of the path of the JSON files; model, version, executor's number and a time stamp follow.
        stop_after_batches: number of batches after which the file is written and profiling ends; None for at unload.
    """

    file_prefix: str = "ort_profile"
    stop_after_batches: int | None = None


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """How one model version is batched and run. The defaults serve a version that has no config.yaml.

    Attributes:
        batch_size: most rows put together for one run.
        capacity: batches that may be open, queued or running at once; beyond them requests are turned away.
        num_executors: ONNX Runtime sessions running in parallel.
        allocator: memory of the batch buffers: ordinary, or page-locked for faster copies to a CUDA device.
        input_shapes: shapes by input name, the batch dimension included as -1; they narrow what the graph leaves open.
        output_shapes: the same for outputs.
        profiling: None for off.
    """

    batch_size: int = 64
    capacity: int = 16
    num_executors: int = 1
    allocator: Allocator = "cpu"
    input_shapes: Shapes = field(default_factory=_no_shapes)
    output_shapes: Shapes = field(default_factory=_no_shapes)
    profiling: ProfilingSettings | None = None


def load_settings(version_dir: Path) -> ModelSettings:
    """Read the config.yaml of a version directory, or take the defaults where there is none.

    Raises:
        ConfigurationError: the operator's file cannot be read, is not YAML, or holds what cannot be used. With several
            problems the text has one complete line for each.
    """
    source = version_dir / CONFIG_NAME
    values = read_mapping(source)
    if values is None:
        _refuse_misnamed(source)
        return ModelSettings()
    problems: list[ConfigurationError] = []
    settings = _model_settings(_Section(source, values, problems))
    if len(problems) == 1:
        raise problems[0]
    if problems:
        lines = [str(problem) for problem in problems[:_MAX_PROBLEMS]]
        if len(problems) > _MAX_PROBLEMS:
            lines.append(f"{source}: and {len(problems) - _MAX_PROBLEMS} more")
        raise ConfigurationError("\n".join(lines))
    return settings


def check_allocator(settings: ModelSettings, providers: Sequence[str], source: Path) -> None:
    """Refuse page-locked buffers where no execution provider would allocate or use them.

    Args:
        settings: of the version about to be loaded.
        providers: ONNX Runtime's names of the execution providers in use, such as ``CUDAExecutionProvider``.
        source: the config.yaml to name in the error.

    Raises:
        ConfigurationError: ``allocator: cuda_pinned`` without a CUDA or TensorRT provider.
    """
    if settings.allocator == "cuda_pinned" and _CUDA_PROVIDERS.isdisjoint(providers):
        raise ConfigurationError(
            f"page-locked memory needs the CUDA or TensorRT execution provider; in use: {', '.join(providers)}",
            source=source,
            key="allocator",
            value=settings.allocator,
            remedy="write `allocator: cpu`, or start the server with `--execution-providers cuda`",
        )


def _refuse_misnamed(source: Path) -> None:
    """Raise for the other usual suffix, which would otherwise be passed over without a word."""
    other = source.with_suffix(".yml")
    if other.exists():
        raise ConfigurationError("would not be read", source=other, remedy=f"rename it to {source.name}")


def _model_settings(section: _Section) -> ModelSettings:
    """Read every key; what is wrong goes to the section's list, with a stand-in value that is never used."""
    defaults = ModelSettings()
    section.choice("backend", ("supertensor",))
    settings = ModelSettings(
        batch_size=section.integer("batch_size", _MAX_BATCH_SIZE, defaults.batch_size),
        capacity=section.integer("capacity", _MAX_CAPACITY, defaults.capacity),
        num_executors=section.integer("num_executors", _MAX_EXECUTORS, defaults.num_executors),
        allocator=cast(Allocator, section.choice("allocator", _ALLOCATORS)),
        input_shapes=section.shapes("input_shapes"),
        output_shapes=section.shapes("output_shapes"),
        profiling=_profiling(section.mapping("profiling", "profiling: {file_prefix: ort_profile}")),
    )
    section.refuse_unknown_keys()
    return settings


def _profiling(section: _Section | None) -> ProfilingSettings | None:
    if section is None:
        return None
    settings = ProfilingSettings(
        file_prefix=section.text("file_prefix", ProfilingSettings().file_prefix),
        stop_after_batches=section.optional_integer("stop_after_batches", _MAX_PROFILED_BATCHES),
    )
    section.refuse_unknown_keys()
    return settings


class _Section:
    """One mapping of the file, read key by key; every method notes what is wrong and returns a stand-in for it."""

    def __init__(
        self, source: Path, values: Mapping[str, YamlValue], problems: list[ConfigurationError], prefix: str = ""
    ) -> None:
        self._source, self._values, self._problems, self._prefix = source, values, problems, prefix
        self._known: list[str] = []

    def choice(self, key: str, allowed: Sequence[str]) -> str:
        """A required word out of ``allowed``."""
        value = self._required(key, allowed[0])
        if value not in allowed:
            self._refuse(key, "must be " + " or ".join(allowed), value, f"write `{key}: {allowed[0]}`")
        return str(value)

    def integer(self, key: str, highest: int, example: int) -> int:
        """A required integer from 1 to ``highest``."""
        return self._integer(key, self._required(key, example), highest, example)

    def optional_integer(self, key: str, highest: int) -> int | None:
        """An integer from 1 to ``highest``, or None where the key is absent."""
        return self._integer(key, self._values[key], highest, 100) if self._has(key) else None

    def text(self, key: str, default: str) -> str:
        """A text of at least one character."""
        value = self._values[key] if self._has(key) else default
        if not isinstance(value, str) or not value:
            self._refuse(key, "is not a text", value, f"write a text, such as `{key}: {default}`")
        return str(value)

    def mapping(self, key: str, example: str) -> _Section | None:
        """A nested mapping, or None where the key is absent."""
        if not self._has(key):
            return None
        value = self._values[key]
        if isinstance(value, dict):
            return _Section(self._source, value, self._problems, f"{self._prefix}{key}.")
        self._refuse(key, "is not a mapping", value, f"write `{example}`, or leave the key out")
        return None

    def shapes(self, key: str) -> Shapes:
        """A mapping from tensor names to lists of dimensions."""
        section = self.mapping(key, f"{key}: {{name: [-1, 8]}}")
        if section is None:
            return _no_shapes()
        return MappingProxyType({name: section._shape(name) for name in section._values})

    def refuse_unknown_keys(self) -> None:
        """Note each key that no other method of this section asked for."""
        for key in self._values:
            if key not in self._known:
                near = get_close_matches(key, self._known, n=1)
                remedy = f"did you mean `{near[0]}`?" if near else f"known keys: {', '.join(sorted(self._known))}"
                self._refuse(key, "unknown key", None, remedy)

    def _shape(self, name: str) -> tuple[int, ...]:
        dims = self._values[name]
        if isinstance(dims, list) and len(dims) <= _MAX_RANK:
            shape = tuple(dim for dim in dims if _is_dimension(dim))
            if len(shape) == len(dims):
                return shape
        self._refuse(
            name,
            f"is not a list of at most {_MAX_RANK} dimensions, each -1 or from 1 to {_MAX_DIMENSION}",
            dims,
            f"write -1 for the batch dimension and positive sizes for the others, such as `{name}: [-1, 8]`",
        )
        return ()

    def _integer(self, key: str, value: object, highest: int, example: int) -> int:
        if _is_integer(value) and 1 <= value <= highest:
            return value
        remedy = f"write a plain decimal number without quotes, such as `{key}: {example}`"
        self._refuse(key, f"is not an integer from 1 to {highest}", value, remedy)
        return example

    def _required(self, key: str, example: str | int) -> YamlValue:
        if self._has(key):
            return self._values[key]
        self._refuse(key, "required key is missing", None, f"add `{key}: {example}`")
        return example

    def _has(self, key: str) -> bool:
        self._known.append(key)
        return key in self._values

    def _refuse(self, key: str, problem: str, value: object, remedy: str) -> None:
        where = self._prefix + ((key or "''") if len(key) <= _MAX_KEY_SHOWN else key[:_MAX_KEY_SHOWN] + "...")
        self._problems.append(
            ConfigurationError(problem, source=self._source, key=where, value=shown(value), remedy=remedy)
        )


def _is_integer(value: object) -> TypeGuard[int]:
    # YAML's true and false are integers to Python.
    return isinstance(value, int) and not isinstance(value, bool)


def _is_dimension(value: object) -> TypeGuard[int]:
    return _is_integer(value) and (value == -1 or 1 <= value <= _MAX_DIMENSION)
