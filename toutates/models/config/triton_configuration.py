"""Triton's ModelConfig as the settings of this server: what a config.pbtxt beside the version directories says.

What is left out is completed as Triton does for ONNX models, but for the defaults of this server: ``max_batch_size``
becomes 64 where Triton takes 4, and there is one instance where Triton has two on the CPU. Where ``input`` and
``output`` are both there, nothing is completed: without ``max_batch_size`` the model is not batched.

A batched model's requests are joined with or without ``dynamic_batching``. ``max_batch_size`` promises that rows do not
depend on each other, and clients may put any rows together; joining others' makes none of them wait.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Final, Literal, TypeVar, cast

from toutates.models.config.declared import Declared, DeclaredTensor
from toutates.models.config.other_kinds import kind_of_backend, kind_of_platform, refusal_of
from toutates.models.config.pbtxt import PBTXT_NAME, read_pbtxt
from toutates.models.config.settings import (
    ACCELERATORS,
    MAX_BATCH_SIZE,
    MAX_CAPACITY,
    MAX_CAPACITY_BYTES,
    MAX_DELAY_US,
    MAX_EXECUTORS,
    MODEL_FILENAME,
    ModelSettings,
    ProfilingSettings,
    SessionSettings,
    WarmupData,
    WarmupInput,
    WarmupSample,
    is_inside,
    raise_problems,
)
from toutates.models.config.triton_fields import PARAMETERS, Verdict, set_fields
from toutates.models.config.yaml_section import MAX_DIMENSION, MAX_RANK
from toutates.protocol.datatypes import BY_NAME
from toutates.protocol.model_config_pb2 import (
    DataType,
    ModelConfig,
    ModelInput,
    ModelInstanceGroup,
    ModelOutput,
    ModelVersionPolicy,
    ModelWarmup,
)
from toutates.protocol.signature import reshape_fits
from toutates.system.errors import ConfigurationError
from toutates.system.text import shown

__all__ = ["BACKEND", "PLATFORM", "TritonConfiguration", "read_triton_configuration", "triton_configuration"]

PLATFORM: Final = "onnxruntime_onnx"
BACKEND: Final = "onnxruntime"

#: Rows that may be in flight where config.pbtxt does not bound its queue, which Triton then does not either.
_DEFAULT_ROWS: Final = 1_024
_GRAPH_LEVELS: Final[Mapping[int, Literal["off", "basic", "extended", "all"]]] = MappingProxyType(
    {-1: "basic", 0: "all", 1: "extended", 2: "off"}
)
_PRECISIONS: Final = MappingProxyType(
    {"FP32": "", "FP16": "trt_fp16_enable", "BF16": "trt_bf16_enable", "INT8": "trt_int8_enable"}
)
#: Triton's names of the TensorRT provider's options, where they are not ONNX Runtime's.
_TENSORRT_OPTIONS: Final = MappingProxyType(
    {
        "max_workspace_size_bytes": "trt_max_workspace_size",
        "int8_calibration_table_name": "trt_int8_calibration_table_name",
        "int8_use_native_calibration_table": "trt_int8_use_native_calibration_table",
    }
)
_CONV_ALGORITHMS: Final = MappingProxyType({"0": "EXHAUSTIVE", "1": "HEURISTIC", "2": "DEFAULT"})
_BOOLEANS: Final = MappingProxyType({"1": True, "true": True, "on": True, "0": False, "false": False, "off": False})
_NUMBER: Final = re.compile(r"[0-9]{1,18}")
#: With an underscore before it, what Prometheus takes for the name of a label.
_TAG: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_]{0,99}")
# Every series of the model has all of them, in each scrape.
_MAX_TAGS: Final = 32
_MAX_TAG_VALUE: Final = 256

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TritonConfiguration:
    """What a config.pbtxt says.

    Attributes:
        source: the file.
        settings: of every version.
        declared: of the tensors, to be compared with the graph.
        given: the whole of it, as it was written.
        version_policy: which versions are served.
        warning: the fields that are passed over, in one sentence; "" if there are none.
    """

    source: Path
    settings: ModelSettings
    declared: Declared
    given: ModelConfig
    version_policy: ModelVersionPolicy
    warning: str = ""

    def chosen(self, numbers: Sequence[int]) -> tuple[list[int], list[int]]:
        """Which of the versions that are there are served, ascending; and which are not there, and should be."""
        policy = self.version_policy
        match policy.WhichOneof("policy_choice"):
            case "all":
                return sorted(numbers), []
            case "specific":
                wanted = sorted(set(policy.specific.versions))
                return [number for number in wanted if number in numbers], [n for n in wanted if n not in numbers]
        return sorted(numbers)[-policy.latest.num_versions :], []


def read_triton_configuration(model_dir: Path) -> TritonConfiguration | None:
    """Read the config.pbtxt of a model's directory; None where there is none.

    Raises:
        ConfigurationError: it cannot be read, or the model cannot be served so; with a line for each problem.
    """
    source = model_dir / PBTXT_NAME
    config = read_pbtxt(source)
    return None if config is None else triton_configuration(config, model_dir.name, source)


def triton_configuration(config: ModelConfig, model: str, source: Path) -> TritonConfiguration:
    """What a ModelConfig says, wherever it comes from.

    Args:
        config: the message.
        model: name of the model's directory.
        source: what errors name; paths are taken from nowhere but the message.

    Raises:
        ConfigurationError: the model cannot be served so; with a line for each problem.
    """
    return _Reader(config, model, source).read()


class _Reader:
    """Goes through one ModelConfig; what is wrong is collected."""

    def __init__(self, config: ModelConfig, model: str, source: Path) -> None:
        self._config, self._model, self._source = config, model, source
        self._problems: list[ConfigurationError] = []
        self._ignored: list[str] = []
        self._cuda_options: dict[str, str] = {}

    def read(self) -> TritonConfiguration:
        config = self._config
        self._apply_rules()
        self._check_identity()
        inputs = self._tensors("input", config.input)
        outputs = self._tensors("output", config.output)
        settings = self._with_queue(self._with_instances(self._with_batching(ModelSettings())))
        settings = self._with_parameters(settings)
        settings = self._with_optimization(settings)
        settings = replace(
            settings,
            warmup=tuple(self._warmup(sample, settings) for sample in config.model_warmup),
            model_filename=self._filename(),
            labels=self._labels(),
        )
        self._check_metric_tags()
        policy = self._version_policy()
        raise_problems(self._problems, self._source)
        return TritonConfiguration(
            self._source,
            settings,
            Declared(self._source, self._model, config.max_batch_size, inputs, outputs),
            config,
            policy,
            f"'{self._source}': passed over, because this server does not act on it: {'; '.join(self._ignored)}"
            if self._ignored
            else "",
        )

    # --- the whole message -------------------------------------------------------------------------------------------

    def _apply_rules(self) -> None:
        for path, rule in set_fields(self._config).items():
            if rule.verdict is Verdict.REFUSED:
                self._refuse(path, "a model that needs it cannot be served", None, rule.note)
            elif rule.verdict is Verdict.IGNORED:
                self._ignored.append(f"{path} ({rule.note})")

    def _check_identity(self) -> None:
        config = self._config
        if config.name and config.name != self._model:
            self._refuse(
                "name",
                f"unexpected directory name '{self._model}' for model '{config.name}', directory name must equal model "
                "name",
                None,
                f"write name: '{self._model}', or leave it out",
            )
        kinds = kind_of_platform(config.platform), kind_of_backend(config.backend)
        # One problem for one thing, whatever says it.
        is_said = config.HasField("ensemble_scheduling") or (kinds[0] is not None and kinds[0] == kinds[1])
        if config.platform and config.platform != PLATFORM and not is_said:
            problem, remedy = refusal_of("platform", config.platform, kinds[0], PLATFORM)
            self._refuse("platform", problem, config.platform, remedy)
        if config.backend and config.backend != BACKEND:
            problem, remedy = refusal_of("backend", config.backend, kinds[1], BACKEND)
            self._refuse("backend", problem, config.backend, remedy)

    def _version_policy(self) -> ModelVersionPolicy:
        policy = ModelVersionPolicy()
        policy.CopyFrom(self._config.version_policy)
        choice = policy.WhichOneof("policy_choice")
        if choice is None or (choice == "latest" and not policy.latest.num_versions):
            policy.latest.num_versions = 1
        if choice == "specific" and any(number < 1 for number in policy.specific.versions):
            self._refuse(
                "version_policy.specific.versions",
                "names what is no version",
                list(policy.specific.versions),
                "write positive integers",
            )
        return policy

    def _filename(self) -> str:
        name = self._config.default_model_filename or MODEL_FILENAME
        if not is_inside(name):
            self._refuse("default_model_filename", "leaves the version's directory", name, "write a plain name")
        return name

    def _labels(self) -> Mapping[str, str]:
        """Files of labels by output."""
        files = {tensor.name: tensor.label_filename for tensor in self._config.output if tensor.label_filename}
        for name, file in files.items():
            if not is_inside(file):
                key = f"output '{name}' label_filename"
                self._refuse(key, "leaves the model's directory", file, "write a plain name, such as labels.txt")
        return MappingProxyType(files)

    def _check_metric_tags(self) -> None:
        """Each becomes a label of the model's nv_ metrics, its key behind an underscore."""
        tags = self._config.metric_tags
        if len(tags) > _MAX_TAGS:
            self._refuse("metric_tags", f"has more than {_MAX_TAGS} entries", len(tags), "write fewer")
        for key, value in sorted(tags.items())[:_MAX_TAGS]:
            if not _TAG.fullmatch(key) or len(value) > _MAX_TAG_VALUE:
                self._refuse(
                    f"metric_tags['{shown(key)}']",
                    "cannot be a label of metrics",
                    shown(value),
                    f"write a key of letters, digits and underscores, and at most {_MAX_TAG_VALUE} characters",
                )

    # --- tensors -----------------------------------------------------------------------------------------------------

    def _tensors(self, role: str, tensors: Sequence[ModelInput | ModelOutput]) -> tuple[DeclaredTensor, ...]:
        seen: set[str] = set()
        return tuple(self._tensor(role, tensor, seen) for tensor in tensors)

    def _tensor(self, role: str, tensor: ModelInput | ModelOutput, seen: set[str]) -> DeclaredTensor:
        name = tensor.name
        key = f"{role} '{name}'"
        if not name:
            self._refuse(role, f"model {role} must specify 'name' for {self._model}", None, "name it as the graph does")
        elif name in seen:
            self._refuse(key, "is declared twice", None, "keep one of them")
        seen.add(name)
        datatype = DataType.Name(tensor.data_type)
        if datatype == "TYPE_INVALID":
            problem = f"model {role} '{name}' must specify 'data_type' for {self._model}"
            self._refuse(f"{key} data_type", problem, None, "write such as TYPE_FP32")
        has_reshape = tensor.HasField("reshape")
        dims, reshape = tuple(tensor.dims), tuple(tensor.reshape.shape)
        if not dims:
            self._refuse(
                f"{key} dims",
                f"model {role} '{name}' must specify 'dims' for {self._model}",
                None,
                "write such as [ 8 ]",
            )
        self._check_dims(f"{key} dims", f"model {role} '{name}'", "dimension", dims)
        if has_reshape:
            self._check_dims(f"{key} reshape", f"model {role} '{name}'", "reshape dimensions", reshape)
            if not reshape_fits(dims, reshape):
                self._refuse(
                    f"{key} reshape",
                    f"model {role} '{name}' for {self._model} has different size for dims and reshape",
                    list(reshape),
                    "write shapes of as many elements, with the same dimensions open",
                )
        optional = isinstance(tensor, ModelInput) and tensor.optional
        if optional and self._config.max_batch_size:
            self._refuse(
                f"{key} optional",
                "optional inputs are for models without batching",
                True,
                "write max_batch_size: 0, or remove it",
            )
        return DeclaredTensor(name, datatype, dims, reshape if has_reshape else dims, optional)

    def _check_dims(self, key: str, who: str, what: str, dims: tuple[int, ...]) -> None:
        if len(dims) > MAX_RANK or any(size != -1 and not 1 <= size <= MAX_DIMENSION for size in dims):
            self._refuse(
                key,
                f"{who}: {what} must be integer >= 1, or -1 to indicate a variable-size dimension",
                list(dims[: MAX_RANK + 1]),
                f"write at most {MAX_RANK} sizes up to {MAX_DIMENSION}",
            )

    # --- batching and instances --------------------------------------------------------------------------------------

    def _with_batching(self, settings: ModelSettings) -> ModelSettings:
        config, batching = self._config, self._config.dynamic_batching
        most = config.max_batch_size
        if not 0 <= most <= MAX_BATCH_SIZE:
            self._refuse("max_batch_size", f"is not from 0 to {MAX_BATCH_SIZE}", most, "write such as 64")
        complete = bool(config.input and config.output)
        batch_size = most if most > 0 else 1 if complete else settings.batch_size
        for size in batching.preferred_batch_size:
            if not 1 <= size <= batch_size:
                bound = "must be positive" if size < 1 else "must be <= max batch size"
                self._refuse(
                    "dynamic_batching.preferred_batch_size",
                    f"dynamic batching preferred size {bound} for {self._model}",
                    size,
                    f"write sizes from 1 to {batch_size}",
                )
        preferred = tuple(sorted(set(batching.preferred_batch_size)))
        if batching.max_queue_delay_microseconds > MAX_DELAY_US:
            self._refuse(
                "dynamic_batching.max_queue_delay_microseconds",
                f"is above {MAX_DELAY_US}",
                batching.max_queue_delay_microseconds,
                "write microseconds that a client would wait for, such as 500",
            )
        return replace(
            settings,
            batching=most > 0 or not complete,
            batch_size=batch_size,
            capacity=max(-(-_DEFAULT_ROWS // batch_size), settings.capacity),
            max_queue_delay_us=batching.max_queue_delay_microseconds,
            # The greatest alone is what there is without the field.
            preferred_batch_sizes=() if preferred == (batch_size,) else preferred,
            preserve_ordering=batching.preserve_ordering,
        )

    def _with_queue(self, settings: ModelSettings) -> ModelSettings:
        """Where the queue is bounded, by requests, there is room for the rows of all of them beside those that run."""
        queue_size = self._config.dynamic_batching.default_queue_policy.max_queue_size
        if not queue_size:
            return settings
        capacity = min(max(settings.capacity, queue_size + settings.num_executors), MAX_CAPACITY)
        return replace(settings, capacity=capacity, max_queue_size=queue_size)

    def _with_instances(self, settings: ModelSettings) -> ModelSettings:
        devices: list[str] = []
        for at, group in enumerate(self._config.instance_group):
            devices += self._devices(group, f"instance_group[{at}]")
        if len(devices) > MAX_EXECUTORS:
            self._refuse("instance_group", f"has more than {MAX_EXECUTORS} instances", len(devices), "write fewer")
        kinds = tuple(dict.fromkeys(devices))
        return replace(
            settings,
            num_executors=max(len(devices), 1),
            devices=() if kinds in ((), ("auto",)) else kinds if len(kinds) == 1 else tuple(devices),
        )

    def _devices(self, group: ModelInstanceGroup, key: str) -> list[str]:
        kind = ModelInstanceGroup.Kind.Name(group.kind)
        who = f"instance group {group.name or key} of model {self._model} has kind {kind}"
        count = group.count or 1
        if not 1 <= count <= MAX_EXECUTORS:
            self._refuse(f"{key}.count", f"is not from 1 to {MAX_EXECUTORS}", group.count, "write such as 1")
            return []
        if group.gpus and group.kind in (ModelInstanceGroup.KIND_CPU, ModelInstanceGroup.KIND_MODEL):
            self._refuse(f"{key}.gpus", f"{who} but specifies one or more GPUs", list(group.gpus), "remove one of them")
        if any(not 0 <= gpu <= 999 for gpu in group.gpus):
            self._refuse(f"{key}.gpus", "names what is no GPU", list(group.gpus), "write such as [ 0 ]")
            return []
        if group.kind == ModelInstanceGroup.KIND_CPU:
            return ["cpu"] * count
        if group.kind == ModelInstanceGroup.KIND_GPU or group.gpus:
            # ``count`` instances on each, the GPUs in turn, so that the first executors are on different ones.
            return [f"gpu:{gpu}" for _ in range(count) for gpu in group.gpus or (0,)]
        return ["auto"] * count

    # --- the session -------------------------------------------------------------------------------------------------

    def _with_parameters(self, settings: ModelSettings) -> ModelSettings:
        values = {key: parameter.string_value for key, parameter in self._config.parameters.items()}
        self._ignored += [f"parameters['{key}']" for key in sorted(values) if key not in PARAMETERS]

        def read(key: str, convert: Callable[[str], T | None], default: T, expected: str) -> T:
            if key not in values:
                return default
            value = convert(values[key].strip())
            if value is None:
                self._refuse(f"parameters['{key}']", f"is not {expected}", values[key], "correct the string_value")
                return default
            return value

        numbers, booleans = "a whole number", "true or false"
        intra = read("intra_op_thread_count", _number, 0, numbers)
        inter = read("inter_op_thread_count", _number, 0, numbers)
        mode = read("execution_mode", {"0": "sequential", "1": "parallel"}.get, "", "0 (sequential) or 1 (parallel)")
        conv = read("cudnn_conv_algo_search", _CONV_ALGORITHMS.get, "", "0, 1 or 2")
        gpu_memory = read("gpu_mem_limit", _number, 0, numbers)
        if conv:
            self._cuda_options["cudnn_conv_algo_search"] = conv
        if gpu_memory:
            self._cuda_options["gpu_mem_limit"] = str(gpu_memory)
        session = SessionSettings(
            intra_threads=intra or None,
            inter_threads=inter or None,
            execution_mode=cast("Literal['sequential', 'parallel'] | None", mode or None),
            memory_arena=read("enable_mem_arena", _boolean, True, booleans),
            memory_pattern=read("enable_mem_pattern", _boolean, True, booleans),
            arena_shrinkage=values.get("memory.enable_memory_arena_shrinkage", ""),
            device_allocator_for_initializers=read(
                "session.use_device_allocator_for_initializers", _boolean, False, booleans
            ),
        )
        profiling = None
        if "toutates.profiling.file_prefix" in values:
            batches = read("toutates.profiling.stop_after_batches", _number, 0, numbers)
            profiling = ProfilingSettings(values["toutates.profiling.file_prefix"], batches or None)
        allocators: Mapping[str, Literal["cpu", "cuda_pinned"]] = {"cpu": "cpu", "cuda_pinned": "cuda_pinned"}
        capacity = read("toutates.capacity", _number, settings.capacity, numbers)
        capacity_bytes = read("toutates.capacity_bytes", _number, 0, numbers)
        return replace(
            settings,
            session=session,
            profiling=profiling,
            capacity=min(max(capacity, 1), MAX_CAPACITY),
            capacity_bytes=min(capacity_bytes, MAX_CAPACITY_BYTES) or None,
            allocator=read("toutates.allocator", allocators.get, settings.allocator, "cpu or cuda_pinned"),
        )

    def _with_optimization(self, settings: ModelSettings) -> ModelSettings:
        optimization = self._config.optimization
        level = optimization.graph.level
        if level not in _GRAPH_LEVELS:
            self._refuse("optimization.graph.level", "is not -1, 0, 1 or 2", level, "leave it out for all of them")
        accelerators: dict[str, Mapping[str, str]] = {}
        for accelerator in optimization.execution_accelerators.gpu_execution_accelerator:
            if accelerator.name not in ACCELERATORS:
                self._refuse(
                    "optimization.execution_accelerators.gpu_execution_accelerator",
                    f"unknown Execution Accelerator '{accelerator.name}' is requested",
                    None,
                    f"choose from {', '.join(ACCELERATORS)}",
                )
                continue
            options = dict(accelerator.parameters)
            if accelerator.name == "tensorrt":
                options = self._tensorrt_options(options)
            accelerators[accelerator.name] = MappingProxyType(dict(sorted(options.items())))
        if self._cuda_options:
            accelerators["cuda"] = MappingProxyType(self._cuda_options | dict(accelerators.get("cuda", {})))
        return replace(
            settings,
            accelerators=MappingProxyType(accelerators),
            session=replace(settings.session, graph_level=_GRAPH_LEVELS.get(level, "all")),
        )

    def _tensorrt_options(self, parameters: Mapping[str, str]) -> dict[str, str]:
        """Triton's names as ONNX Runtime's."""
        options: dict[str, str] = {}
        for key, value in parameters.items():
            if key == "precision_mode":
                if value not in _PRECISIONS:
                    self._refuse(
                        "optimization.execution_accelerators.gpu_execution_accelerator.precision_mode",
                        f"unsupported precision mode '{value}' is requested",
                        None,
                        f"choose from {', '.join(_PRECISIONS)}",
                    )
                elif _PRECISIONS[value]:
                    options[_PRECISIONS[value]] = "1"
            else:
                options[_TENSORRT_OPTIONS.get(key, key)] = value
        return options

    # --- warm-up -----------------------------------------------------------------------------------------------------

    def _warmup(self, sample: ModelWarmup, settings: ModelSettings) -> WarmupSample:
        key = f"model_warmup '{sample.name}'"
        if not sample.name:
            self._refuse("model_warmup", "a sample has no name", None, "write name: 'zeros'")
        batch_size = sample.batch_size or 1
        if batch_size > settings.batch_size:
            self._refuse(f"{key} batch_size", "is above max_batch_size", batch_size, f"write {settings.batch_size}")
        inputs = {name: self._warmup_input(f"{key} inputs['{name}']", own) for name, own in sample.inputs.items()}
        if not inputs:
            self._refuse(f"{key} inputs", "are missing", None, "name every input of the model")
        return WarmupSample(
            sample.name, MappingProxyType(dict(sorted(inputs.items()))), batch_size, min(sample.count or 1, 10**6)
        )

    def _warmup_input(self, key: str, tensor: ModelWarmup.Input) -> WarmupInput:
        datatype = DataType.Name(tensor.data_type).removeprefix("TYPE_").replace("STRING", "BYTES")
        if datatype not in BY_NAME:
            self._refuse(f"{key} data_type", "is missing", None, "write such as TYPE_FP32")
        dims = tuple(tensor.dims)
        if len(dims) > MAX_RANK or any(not 1 <= size <= MAX_DIMENSION for size in dims) or prod(dims) > MAX_DIMENSION:
            self._refuse(f"{key} dims", "must be positive sizes, of one row", list(dims[:MAX_RANK]), "correct them")
        file = ""
        data: WarmupData = "zero"
        match tensor.WhichOneof("input_data_type"):
            case "zero_data":
                pass
            case "random_data":
                data = "random"
            case "input_data_file":
                data, file = "file", tensor.input_data_file
                if not is_inside(file):
                    self._refuse(f"{key} input_data_file", "leaves the directory 'warmup'", file, "write a plain name")
            case _:
                self._refuse(key, "has no data", None, "write zero_data: true, random_data: true or input_data_file")
        return WarmupInput(datatype, dims, data, file)

    def _refuse(self, key: str, problem: str, value: object, remedy: str) -> None:
        self._problems.append(ConfigurationError(problem, source=self._source, key=key, value=value, remedy=remedy))


def _number(text: str) -> int | None:
    return int(text) if _NUMBER.fullmatch(text) else None


def _boolean(text: str) -> bool | None:
    return _BOOLEANS.get(text.lower())
