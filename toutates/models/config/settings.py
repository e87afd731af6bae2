"""The settings of one model version: how it is batched, run and loaded; and the file config.yaml that gives them.

The file lies beside a model.onnx, is small and written by hand, so the reader is strict: a key that is misspelled,
given twice or of the wrong type is refused rather than passed over, because the server would otherwise run for months
with a default that nobody chose. A file that is not YAML is refused for the first thing wrong with it. In a file that
is, everything wrong is reported at once, one line each, so that one start of the server shows all there is to mend.

The same settings can come from Triton's config.pbtxt, see ``triton_configuration``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Final, Literal, cast

from toutates.models.config.ensemble_yaml import ENSEMBLE, read_ensemble
from toutates.models.config.padding import PaddingSettings, read_padding
from toutates.models.config.problems import MAX_PROBLEMS, Problems
from toutates.models.config.queues import MAX_QUEUE_SIZE, NO_POLICIES, PolicySettings, read_policies
from toutates.models.config.ragged import RaggedSettings, read_ragged
from toutates.models.config.sequences import SequenceSettings, read_sequences
from toutates.models.config.yaml_reader import mapping_of, read_file
from toutates.models.config.yaml_section import Section, Shapes
from toutates.protocol.datatypes import BY_NAME
from toutates.protocol.model_config_pb2 import ModelConfig
from toutates.system.errors import ConfigurationError
from toutates.system.remembered import Remembered

__all__ = [
    "ACCELERATORS",
    "CONFIG_NAME",
    "DEFAULT_ROWS",
    "MAX_BATCH_SIZE",
    "MAX_CAPACITY",
    "MAX_CAPACITY_BYTES",
    "MAX_DELAY_US",
    "MAX_EXECUTORS",
    "MAX_TARGET_MS",
    "MIN_TARGET_MS",
    "MODEL_DIRECTORY",
    "MODEL_FILENAME",
    "ONNX_BACKENDS",
    "Allocator",
    "ModelSettings",
    "ProfilingSettings",
    "RateLimit",
    "ResourceNeed",
    "SessionSettings",
    "Shapes",
    "WarmupInput",
    "WarmupSample",
    "is_inside",
    "load_settings",
]

CONFIG_NAME: Final = "config.yaml"
MODEL_FILENAME: Final = "model.onnx"
#: Names of the backend of ONNX models; the first is the one that a config.yaml is written with.
ONNX_BACKENDS: Final = ("supertensor", "onnxruntime")

Allocator = Literal["cpu", "cuda_pinned"]
ExecutionMode = Literal["sequential", "parallel"]
GraphLevel = Literal["off", "basic", "extended", "all"]
WarmupData = Literal["zero", "random", "file"]

_ALLOCATORS: Final = ("cpu", "cuda_pinned")
_DEVICE: Final = re.compile(r"auto|cpu|gpu:[0-9]{1,3}")
#: Execution providers that a model may ask for beside the server's, in the order in which ONNX Runtime tries them.
ACCELERATORS: Final = ("tensorrt", "cuda")

# Upper bounds catch typing errors before they become an allocation: batch_size x capacity rows may be in flight; each
# executor is a thread and an ONNX Runtime session.
MAX_BATCH_SIZE: Final = 2**20
MAX_CAPACITY: Final = 2**16
MAX_CAPACITY_BYTES: Final = 2**50
MAX_EXECUTORS: Final = 2**10
_MAX_PROFILED_BATCHES: Final = 2**31 - 1
_MAX_THREADS: Final = 2**10
MAX_DELAY_US: Final = 60_000_000
MIN_TARGET_MS: Final = 0.01
#: Triton's fields have 32 bits.
MAX_RESOURCE_COUNT: Final = 2**32 - 1
MAX_RATE_PRIORITY: Final = 2**32 - 1
#: An hour. What may take longer has no use for a target.
MAX_TARGET_MS: Final = 3_600_000
#: Rows that may be under way where nothing bounds them.
DEFAULT_ROWS: Final = 1_024
_MAX_COUNT: Final = 10**6


#: A config.yaml up to this size is remembered: what it comes to takes a few times as much.
_REMEMBERED_BYTES: Final = 16_384
_MOST_REMEMBERED: Final = 128


def _no_shapes() -> Shapes:
    return MappingProxyType({})


def _no_accelerators() -> Mapping[str, Mapping[str, str]]:
    return MappingProxyType({})


def _no_labels() -> Mapping[str, str]:
    return MappingProxyType({})


def _no_parameters() -> Mapping[str, str]:
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
class SessionSettings:
    """What one model's ONNX Runtime sessions do otherwise than the server's flags and ONNX Runtime's defaults say.

    Attributes:
        intra_threads, inter_threads: threads inside and across operators; None for the server's flags.
        execution_mode: operators one after the other or side by side; None for parallel where inter_threads > 1.
        graph_level: graph optimisations.
        memory_arena: whether memory for the CPU comes from an arena, which keeps what it once had.
        memory_pattern: whether memory is planned by the pattern of the runs before.
        arena_shrinkage: devices whose arenas give memory back after each run, such as ``cpu:0;gpu:0``; "" for none.
        device_allocator_for_initializers: weights are allocated from the device, and not from the arena.
    """

    intra_threads: int | None = None
    inter_threads: int | None = None
    execution_mode: ExecutionMode | None = None
    graph_level: GraphLevel = "all"
    memory_arena: bool = True
    memory_pattern: bool = True
    arena_shrinkage: str = ""
    device_allocator_for_initializers: bool = False


@dataclass(frozen=True, slots=True)
class ResourceNeed:
    """What a run needs of a resource of the rate limiter.

    Attributes:
        name: of the resource.
        count: how many of it.
        is_global: whether all devices share it; else each has its own.
    """

    name: str
    count: int = 1
    is_global: bool = False


@dataclass(frozen=True, slots=True)
class RateLimit:
    """What the rate limiter has to know of an executor; Triton's ``rate_limiter`` of an instance group.

    Attributes:
        resources: that a run needs, each once.
        priority: an executor of priority 2 runs half as often as one of 1.
    """

    resources: tuple[ResourceNeed, ...] = ()
    priority: int = 1


@dataclass(frozen=True, slots=True)
class WarmupInput:
    """One input of a warm-up sample.

    Attributes:
        datatype: such as ``FP32``.
        shape: of one row, as clients see it; no dimension is open.
        data: zeros, random values, or a file.
        file: with ``data`` "file", the file of raw contents, relative to the model's directory ``warmup``.
    """

    datatype: str
    shape: tuple[int, ...]
    data: WarmupData = "zero"
    file: str = ""


@dataclass(frozen=True, slots=True)
class WarmupSample:
    """A request that is run before a version is ready.

    Attributes:
        name: for errors.
        inputs: by name.
        batch_size: rows of the request, all alike; 1 for a model that is not batched.
        count: how often it is run, on each executor.
    """

    name: str
    inputs: Mapping[str, WarmupInput]
    batch_size: int = 1
    count: int = 1


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """How one model version is batched and run. The defaults serve a version that has no configuration.

    Attributes:
        backend: the name of what computes; "" where nothing names it. It is not compared, because config.yaml and
            config.pbtxt may have different names for the same.
        batch_size: most rows put together for one run.
        capacity: ``batch_size`` times so many rows may be reserved, queued or running at once, of all shapes together;
            beyond them requests are turned away.
        capacity_bytes: memory that batches with these rows may take; None for ``models.capacity``'s default.
        max_queue_size: requests that may wait, those of batches that run not among them; 0 for any number.
        num_executors: ONNX Runtime sessions running in parallel.
        allocator: memory of the batch buffers: ordinary, or page-locked for faster copies to a CUDA device.
        input_shapes: shapes by input name, the batch dimension included as -1; they narrow what the graph leaves open.
        output_shapes: the same for outputs.
        profiling: None for off.
        batching: False keeps a model unbatched whose graph would allow it.
        joined_by: the key by which the configuration says that rows of several requests may share a run; "" where it
            leaves that to be found out. It is not compared, as it has two names.
        max_queue_delay_us: how long a batch that is smaller than any preferred size may wait for more rows, from when
            its oldest request came; 0 for not at all.
        preferred_batch_sizes: sizes at which a batch does not wait; () for ``batch_size`` alone.
        preserve_ordering: whether answers leave in the order in which their requests came.
        policies: priorities, and how long requests wait.
        input_wire_shapes: shapes by input name as clients see them, where that is not as the graph has them; the batch
            dimension included as -1. See ``TensorSpec.reshape``.
        output_wire_shapes: the same for outputs.
        required_inputs: inputs that are optional in the graph, and yet belong into every request.
        outputs: those that are offered; () for all of the graph.
        model_filename: of the model's file, in the version's directory; "" for the backend's default.
        devices: what the executors run on, in turn: ``auto`` (what --execution-providers says), ``cpu`` or ``gpu:N``;
            () for ``auto``.
        accelerators: for executors on a GPU, options of execution providers by ``tensorrt`` or ``cuda``; one that is
            named here is used even if the server's flags do not name it.
        session: of ONNX Runtime.
        warmup: requests to run before the version is ready.
        labels: files of class labels by output, relative to the model's directory.
        parameters: for the backend, by its own keys; of ONNX models, ``session`` has what they say.
        ensemble: tensors and steps of an ensemble that a config.yaml describes; None otherwise.
        padding: how rows of different length share a batch; None where they do not.
        ragged: how rows of different shape share a batch without padding; None where they do not.
        sequences: how its sequences are scheduled; None for a model without.
        response_cache: whether its answers are kept, where the server has a response cache.
        latency_target_ms: within which requests are to be answered; what would be later is refused. 0 for no target.
        rate_limits: of the executors, in turn, where the server has the rate limiter; () for none.
        pin: whether it stays in memory where models are loaded on demand.
    """

    backend: str = field(default="", compare=False)
    batch_size: int = 64
    capacity: int = 16
    num_executors: int = 1
    allocator: Allocator = "cpu"
    input_shapes: Shapes = field(default_factory=_no_shapes)
    output_shapes: Shapes = field(default_factory=_no_shapes)
    profiling: ProfilingSettings | None = None
    capacity_bytes: int | None = None
    max_queue_size: int = 0
    batching: bool = True
    joined_by: str = field(default="", compare=False)
    max_queue_delay_us: int = 0
    preferred_batch_sizes: tuple[int, ...] = ()
    preserve_ordering: bool = False
    policies: PolicySettings = NO_POLICIES
    input_wire_shapes: Shapes = field(default_factory=_no_shapes)
    output_wire_shapes: Shapes = field(default_factory=_no_shapes)
    required_inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    model_filename: str = ""
    devices: tuple[str, ...] = ()
    accelerators: Mapping[str, Mapping[str, str]] = field(default_factory=_no_accelerators)
    session: SessionSettings = SessionSettings()
    warmup: tuple[WarmupSample, ...] = ()
    labels: Mapping[str, str] = field(default_factory=_no_labels)
    parameters: Mapping[str, str] = field(default_factory=_no_parameters)
    ensemble: ModelConfig | None = None
    padding: PaddingSettings | None = None
    ragged: RaggedSettings | None = None
    sequences: SequenceSettings | None = None
    response_cache: bool = False
    latency_target_ms: float = 0.0
    rate_limits: tuple[RateLimit, ...] = ()
    pin: bool = False

    def rate_limit(self, executor: int) -> RateLimit:
        """What the rate limiter has to know of an executor, by its number from 0."""
        return self.rate_limits[executor % len(self.rate_limits)] if self.rate_limits else RateLimit()

    def device(self, executor: int) -> str:
        """What an executor runs on, by its number from 0."""
        return self.devices[executor % len(self.devices)] if self.devices else "auto"


#: What files come to, by their bytes. Many models have the same few lines, and share one record of settings; to find
#: out anew what they mean takes 0.7 ms.
_KNOWN: Final[Remembered[bytes, ModelSettings]] = Remembered(_MOST_REMEMBERED)


def load_settings(
    version_dir: Path, backends: Sequence[str] = ONNX_BACKENDS, *, most_problems: int | None = MAX_PROBLEMS
) -> ModelSettings | None:
    """Read the config.yaml of a version directory; None where there is none.

    Args:
        version_dir: the directory. Those whose files are the same, byte by byte, get the same object.
        backends: names that ``backend`` may have.
        most_problems: that are told, and of the others their number; None for all.

    Raises:
        ConfigurationError: the operator's file cannot be read, is not YAML, or holds what cannot be used. With several
            problems the text has one complete line for each.
    """
    source = version_dir / CONFIG_NAME
    data = read_file(source)
    if data is None:
        _refuse_misnamed(source)
        return None
    known = _KNOWN.get(data)
    if known is not None and (not known.backend or known.backend in backends):
        return known
    values = mapping_of(data, source, may_be_empty=True)
    problems = Problems(source)
    section = Section(values, problems)
    is_ensemble = values.get("backend") == ENSEMBLE and ENSEMBLE in backends
    settings = _ensemble_settings(section) if is_ensemble else _model_settings(section, backends)
    problems.raise_all(most_problems)
    if settings.ensemble is None and len(data) <= _REMEMBERED_BYTES:
        _KNOWN.put(data, settings)
    return settings


def _refuse_misnamed(source: Path) -> None:
    """Raise for the other usual suffix, which would otherwise be passed over without a word."""
    other = source.with_suffix(".yml")
    if other.exists():
        raise ConfigurationError("would not be read", source=other, remedy=f"rename it to {source.name}")


def _ensemble_settings(section: Section) -> ModelSettings:
    """The keys of an ensemble, which has no executors, no buffers and no file."""
    section.has("backend")
    batching = section.optional_flag("batching") is not False
    batch_size = section.optional_integer("batch_size", MAX_BATCH_SIZE, 8) or 1
    settings = ModelSettings(
        backend=ENSEMBLE,
        batch_size=batch_size if batching else 1,
        batching=batching,
        capacity=section.optional_integer("capacity", MAX_CAPACITY, 128) or max(-(-DEFAULT_ROWS // batch_size), 16),
        capacity_bytes=section.optional_integer("capacity_bytes", MAX_CAPACITY_BYTES, 2**30),
        labels=_labels(section.mapping("labels", "labels: {OUTPUT: labels.txt}")),
        ensemble=read_ensemble(section, batch_size if batching else 0),
        response_cache=bool(section.optional_flag("response_cache")),
        pin=bool(section.optional_flag("pin")),
    )
    section.refuse_unknown_keys()
    return settings


def _model_settings(section: Section, backends: Sequence[str]) -> ModelSettings:
    """Read every key; what is wrong goes to the section's list, with a stand-in value that is never used."""
    defaults = ModelSettings()
    batching = section.optional_flag("batching")
    settings = ModelSettings(
        backend=section.optional_choice("backend", backends) or defaults.backend,
        batch_size=section.optional_integer("batch_size", MAX_BATCH_SIZE, defaults.batch_size) or defaults.batch_size,
        capacity=section.optional_integer("capacity", MAX_CAPACITY, defaults.capacity) or defaults.capacity,
        capacity_bytes=section.optional_integer("capacity_bytes", MAX_CAPACITY_BYTES, 2**30),
        max_queue_size=section.optional_integer("max_queue_size", MAX_QUEUE_SIZE, 100, lowest=0) or 0,
        num_executors=section.optional_integer("num_executors", MAX_EXECUTORS, 1) or defaults.num_executors,
        allocator=cast(Allocator, section.optional_choice("allocator", _ALLOCATORS) or defaults.allocator),
        input_shapes=section.shapes("input_shapes"),
        output_shapes=section.shapes("output_shapes"),
        profiling=_profiling(section.mapping("profiling", "profiling: {file_prefix: ort_profile}")),
        batching=batching is not False,
        joined_by="batching: true" if batching else "",
        max_queue_delay_us=section.optional_integer("max_queue_delay_us", MAX_DELAY_US, 100, lowest=0) or 0,
        preferred_batch_sizes=section.integers("preferred_batch_sizes", MAX_BATCH_SIZE, "[4, 8]"),
        preserve_ordering=bool(section.optional_flag("preserve_ordering")),
        policies=read_policies(section, preserve_ordering=section.optional_flag("preserve_ordering") is True),
        input_wire_shapes=section.shapes("input_wire_shapes"),
        output_wire_shapes=section.shapes("output_wire_shapes"),
        required_inputs=section.texts("required_inputs", "[name]"),
        outputs=section.texts("outputs", "[name]"),
        model_filename=_filename(section, "model_filename", MODEL_FILENAME) if section.has("model_filename") else "",
        devices=section.texts("devices", "[cpu], of auto, cpu and gpu:N", lambda text: bool(_DEVICE.fullmatch(text))),
        accelerators=_accelerators(section.mapping("accelerators", "accelerators: {tensorrt: {trt_fp16_enable: '1'}}")),
        session=_session(section.mapping("session", "session: {intra_threads: 4}")),
        warmup=tuple(
            _warmup_sample(sample, f"sample {at}")
            for at, sample in enumerate(section.sections("warmup", "warmup: [{name: zeros, inputs: {...}}]"))
        ),
        labels=_labels(section.mapping("labels", "labels: {OUTPUT: labels.txt}")),
        parameters=_parameters(section.mapping("parameters", "parameters: {threads: 2}")),
        padding=read_padding(section.mapping("padding", "padding: {inputs: {input_ids: {}}}")),
        ragged=read_ragged(section.mapping("ragged", "ragged: {inputs: {values: [-1, -1]}}")),
        sequences=read_sequences(section.mapping("sequences", "sequences: {strategy: direct}")),
        response_cache=bool(section.optional_flag("response_cache")),
        pin=bool(section.optional_flag("pin")),
        latency_target_ms=section.optional_number("latency_target_ms", MAX_TARGET_MS, 20) or 0.0,
        rate_limits=tuple(
            _rate_limit(limit) for limit in section.sections("rate_limits", "rate_limits: [{resources: [{name: r}]}]")
        ),
    )
    if 0 < settings.latency_target_ms < MIN_TARGET_MS:
        remedy = "write such as 20, or 0 for none"
        section.refuse("latency_target_ms", f"is below {MIN_TARGET_MS}", settings.latency_target_ms, remedy)
    for size in settings.preferred_batch_sizes:
        if size > settings.batch_size:
            section.refuse(
                "preferred_batch_sizes", "is above batch_size", size, f"write sizes of at most {settings.batch_size}"
            )
    if settings.policies.are_set:
        for key, beside in (("padding", settings.padding), ("sequences", settings.sequences)):
            if beside is not None:
                remedy = "remove priority_levels and queue_timeout_us, or this key"
                section.refuse(key, "stands beside priorities or timeouts of the queue", None, remedy)
    if settings.preserve_ordering and settings.sequences is not None:
        problem = "stands beside sequences, whose requests run one after the other"
        section.refuse("preserve_ordering", problem, None, "remove it, or write it into the section `sequences`")
    for key, own in (("padding", settings.padding), ("ragged", settings.ragged)):
        if own is not None and settings.backend not in ("", *ONNX_BACKENDS):
            section.refuse(key, "is for ONNX models only", None, "remove it")
    if settings.ragged is not None and settings.padding is not None:
        section.refuse("ragged", "stands beside padding: rows are padded or joined", None, "remove one of the two")
    if settings.ragged is not None and settings.sequences is not None:
        section.refuse("ragged", "stands beside sequences: their rows are not ragged", None, "remove one of the two")
    section.refuse_unknown_keys()
    return settings


def _profiling(section: Section | None) -> ProfilingSettings | None:
    if section is None:
        return None
    settings = ProfilingSettings(
        file_prefix=section.text("file_prefix", ProfilingSettings().file_prefix),
        stop_after_batches=section.optional_integer("stop_after_batches", _MAX_PROFILED_BATCHES),
    )
    section.refuse_unknown_keys()
    return settings


def _session(section: Section | None) -> SessionSettings:
    if section is None:
        return SessionSettings()
    settings = SessionSettings(
        intra_threads=section.optional_integer("intra_threads", _MAX_THREADS, 4),
        inter_threads=section.optional_integer("inter_threads", _MAX_THREADS, 2),
        execution_mode=cast(
            "ExecutionMode | None", section.optional_choice("execution_mode", ("sequential", "parallel"))
        ),
        graph_level=cast(
            GraphLevel, section.optional_choice("graph_level", ("all", "extended", "basic", "off")) or "all"
        ),
        memory_arena=section.optional_flag("memory_arena") is not False,
        memory_pattern=section.optional_flag("memory_pattern") is not False,
        arena_shrinkage=section.text("arena_shrinkage", "cpu:0") if section.has("arena_shrinkage") else "",
        device_allocator_for_initializers=bool(section.optional_flag("device_allocator_for_initializers")),
    )
    section.refuse_unknown_keys()
    return settings


def _accelerators(section: Section | None) -> Mapping[str, Mapping[str, str]]:
    if section is None:
        return _no_accelerators()
    found: dict[str, Mapping[str, str]] = {}
    for name, options in section.subsections("tensorrt: {}"):
        if name not in ACCELERATORS:
            section.refuse(name, "unknown accelerator", None, f"known ones: {', '.join(ACCELERATORS)}")
        found[name] = MappingProxyType(options.words())
    return MappingProxyType(found)


def _rate_limit(section: Section) -> RateLimit:
    resources: dict[str, ResourceNeed] = {}
    for own in section.sections("resources", "resources: [{name: r, count: 1}]"):
        need = ResourceNeed(
            own.required_text("name", "r"),
            own.optional_integer("count", MAX_RESOURCE_COUNT, 1) or 1,
            bool(own.optional_flag("global")),
        )
        if need.name in resources:
            own.refuse("name", "is there twice", need.name, "write each resource once")
        own.refuse_unknown_keys()
        resources[need.name] = need
    priority = section.optional_integer("priority", MAX_RATE_PRIORITY, 1, lowest=0) or 1
    section.refuse_unknown_keys()
    return RateLimit(tuple(resources.values()), priority)


def _labels(section: Section | None) -> Mapping[str, str]:
    if section is None:
        return _no_labels()
    files = section.words()
    return MappingProxyType({name: _filename(section, name, "labels.txt") for name in files})


def _parameters(section: Section | None) -> Mapping[str, str]:
    return MappingProxyType(section.words(flags=True)) if section is not None else _no_parameters()


def _warmup_sample(section: Section, default_name: str) -> WarmupSample:
    inputs = section.mapping("inputs", "inputs: {x: {datatype: FP32, shape: [4], data: zero}}")
    if inputs is None:
        if not section.has("inputs"):
            section.refuse("inputs", "required key is missing", None, "name every input of the model")
        tensors = {}
    else:
        tensors = {name: _warmup_input(own) for name, own in inputs.subsections("x: {datatype: FP32, shape: [4]}")}
    sample = WarmupSample(
        name=section.text("name", default_name),
        inputs=MappingProxyType(tensors),
        batch_size=section.optional_integer("batch_size", MAX_BATCH_SIZE, 8) or 1,
        count=section.optional_integer("count", _MAX_COUNT, 1) or 1,
    )
    section.refuse_unknown_keys()
    return sample


def _warmup_input(section: Section) -> WarmupInput:
    in_file = section.has("file")
    shape = section.shape("shape")
    if -1 in shape:
        section.refuse("shape", "has an open dimension", list(shape), "write the size of each dimension of one row")
    tensor = WarmupInput(
        datatype=section.choice("datatype", ("FP32", *(name for name in BY_NAME if name != "FP32"))),
        shape=shape,
        data="file" if in_file else cast(WarmupData, section.optional_choice("data", ("zero", "random")) or "zero"),
        file=_filename(section, "file", "input0") if in_file else "",
    )
    if in_file and section.has("data"):
        section.refuse("data", "stands beside `file`", None, "keep one of them")
    section.refuse_unknown_keys()
    return tensor


def _filename(section: Section, key: str, default: str) -> str:
    """The name of a file in the model's own directories, or below one of them."""
    name = section.text(key, default)
    if not is_inside(name):
        section.refuse(key, "leaves the directory that it belongs into", name, f"write a plain name, such as {default}")
    return name


#: Stands for the model's directory at the beginning of a path.
MODEL_DIRECTORY: Final = "$$TRITON_MODEL_DIRECTORY"


def is_inside(name: str) -> bool:
    """Whether a relative path stays within the directory that it is relative to."""
    path = PurePosixPath(name)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts and "\0" not in name
