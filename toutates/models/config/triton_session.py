"""``parameters`` and ``optimization`` of a config.pbtxt: how the sessions of ONNX Runtime are made.

For any other backend ``parameters`` are that backend's, but for those of the server itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final, Literal, TypeVar, cast

from toutates.models.config.problems import Problems
from toutates.models.config.settings import (
    ACCELERATORS,
    MAX_CAPACITY,
    MAX_CAPACITY_BYTES,
    MAX_TARGET_MS,
    MIN_TARGET_MS,
    Allocator,
    ModelSettings,
    ProfilingSettings,
    SessionSettings,
)
from toutates.models.config.triton_fields import COMPLETED_BATCHING
from toutates.models.config.yaml_section import MAX_DIMENSION
from toutates.protocol.model_config_pb2 import ModelConfig

__all__ = ["with_parameters", "with_session"]

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
_DECIMAL: Final = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")

#: Keys of ``parameters`` that are the server's, whatever the backend.
_OWN: Final = (
    COMPLETED_BATCHING,
    "toutates.capacity",
    "toutates.capacity_bytes",
    "toutates.allocator",
    "toutates.latency_target_ms",
    "toutates.pin",
)
_ALLOCATORS: Final[Mapping[str, Allocator]] = MappingProxyType({"cpu": "cpu", "cuda_pinned": "cuda_pinned"})
_COMPLETED: Final = MappingProxyType({"completed": ""})
_NUMBERS: Final = "a whole number"
_MILLISECONDS: Final = f"a number of milliseconds from {MIN_TARGET_MS} to {MAX_TARGET_MS}"

T = TypeVar("T")


def with_session(settings: ModelSettings, config: ModelConfig, problems: Problems) -> ModelSettings:
    """The settings with what a ModelConfig says of sessions.

    Args:
        settings: what it says of everything else.
        config: the message.
        problems: get what is wrong.
    """
    reader = _Session(config, problems)
    return reader.with_optimization(reader.with_parameters(settings))


def with_parameters(settings: ModelSettings, config: ModelConfig, problems: Problems) -> ModelSettings:
    """The settings of a version that is no ONNX model, with the server's own parameters, and those of its backend.

    Args:
        settings: what the message says of everything else.
        config: the message.
        problems: get what is wrong.
    """
    others = {key: value.string_value for key, value in sorted(config.parameters.items()) if key not in _OWN}
    settings = _Parameters(config, problems).with_own(settings)
    return replace(settings, parameters=MappingProxyType(others))


class _Parameters:
    """Reads ``parameters`` of one ModelConfig."""

    def __init__(self, config: ModelConfig, problems: Problems) -> None:
        self._problems = problems
        self.values = {key: parameter.string_value for key, parameter in config.parameters.items()}

    def read(self, key: str, convert: Callable[[str], T | None], default: T, expected: str) -> T:
        """One parameter; the default where it is not there, or is no such value, which is a problem."""
        if key not in self.values:
            return default
        value = convert(self.values[key].strip())
        if value is None:
            key_shown = f"parameters['{key}']"
            self._problems.add(key_shown, f"is not {expected}", self.values[key], "correct the string_value")
            return default
        return value

    def with_own(self, settings: ModelSettings) -> ModelSettings:
        """The settings with the server's own parameters."""
        capacity = self.read("toutates.capacity", _number, settings.capacity, _NUMBERS)
        capacity_bytes = self.read("toutates.capacity_bytes", _number, 0, _NUMBERS)
        said = self.read(COMPLETED_BATCHING, _COMPLETED.get, settings.joined_by, "completed")
        return replace(
            settings,
            joined_by=said,
            capacity=min(max(capacity, 1), MAX_CAPACITY),
            capacity_bytes=min(capacity_bytes, MAX_CAPACITY_BYTES) or None,
            allocator=self.read("toutates.allocator", _ALLOCATORS.get, settings.allocator, "cpu or cuda_pinned"),
            latency_target_ms=self.read("toutates.latency_target_ms", _milliseconds, 0.0, _MILLISECONDS),
            pin=self.read("toutates.pin", _BOOLEANS.get, settings.pin, "true or false"),
        )


class _Session:
    """Reads the two fields of one ModelConfig."""

    def __init__(self, config: ModelConfig, problems: Problems) -> None:
        self._config, self._problems = config, problems
        self._cuda_options: dict[str, str] = {}

    def with_parameters(self, settings: ModelSettings) -> ModelSettings:
        parameters = _Parameters(self._config, self._problems)
        values, read = parameters.values, parameters.read
        numbers, booleans = _NUMBERS, "true or false"
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
        ragged = settings.ragged
        if ragged is not None:
            most = read("toutates.max_batch_elements", _number, ragged.max_batch_elements, _NUMBERS)
            ragged = replace(ragged, max_batch_elements=min(max(most, 1), MAX_DIMENSION))
        return replace(parameters.with_own(settings), session=session, profiling=profiling, ragged=ragged)

    def with_optimization(self, settings: ModelSettings) -> ModelSettings:
        optimization = self._config.optimization
        level = optimization.graph.level
        if level not in _GRAPH_LEVELS:
            self._problems.add(
                "optimization.graph.level", "is not -1, 0, 1 or 2", level, "leave it out for all of them"
            )
        accelerators: dict[str, Mapping[str, str]] = {}
        for accelerator in optimization.execution_accelerators.gpu_execution_accelerator:
            if accelerator.name not in ACCELERATORS:
                self._problems.add(
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
                    self._problems.add(
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


def _number(text: str) -> int | None:
    return int(text) if _NUMBER.fullmatch(text) else None


def _milliseconds(text: str) -> float | None:
    value = float(text) if _DECIMAL.fullmatch(text) else None
    return value if value is not None and (not value or MIN_TARGET_MS <= value <= MAX_TARGET_MS) else None


def _boolean(text: str) -> bool | None:
    return _BOOLEANS.get(text.lower())
