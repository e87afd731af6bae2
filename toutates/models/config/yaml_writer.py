"""Settings as the text of a config.yaml with every key, which ``settings.load_settings`` reads the same from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from toutates.models.config.padding import PaddingSettings
from toutates.models.config.queues import KEYS, PolicySettings, policies_as_yaml
from toutates.models.config.ragged import RaggedSettings
from toutates.models.config.sequences import SequenceSettings
from toutates.models.config.settings import (
    ONNX_BACKENDS,
    ModelSettings,
    RateLimit,
    SessionSettings,
    Shapes,
    WarmupInput,
    WarmupSample,
)

__all__ = ["write_yaml"]

_WIDTH = 110


def write_yaml(settings: ModelSettings) -> str:
    """The text; keys that stand for a flag's value, or for nothing, are comments."""
    lines = [
        _line("backend", settings.backend if settings.backend not in ("", *ONNX_BACKENDS) else ONNX_BACKENDS[0]),
        _line("batch_size", settings.batch_size),
        _line("capacity", settings.capacity),
        _line("capacity_bytes", settings.capacity_bytes, "64 MiB x capacity, half of the memory at most"),
        _line("max_queue_size", settings.max_queue_size, "as many requests as there are rows"),
        _line("num_executors", settings.num_executors),
        _line("allocator", settings.allocator),
        # Written, true is the operator's word that rows are independent.
        "# batching: found out when the model is loaded"
        if settings.batching and not settings.joined_by
        else _line("batching", settings.batching),
        _line("max_queue_delay_us", settings.max_queue_delay_us),
        _line("preferred_batch_sizes", list(settings.preferred_batch_sizes), "batch_size alone"),
        _line("preserve_ordering", settings.preserve_ordering),
        *_policies(settings.policies),
        _line("input_shapes", _shapes(settings.input_shapes), "from the graph"),
        _line("output_shapes", _shapes(settings.output_shapes), "from the graph"),
        _line("input_wire_shapes", _shapes(settings.input_wire_shapes), "as the graph's"),
        _line("output_wire_shapes", _shapes(settings.output_wire_shapes), "as the graph's"),
        _line("required_inputs", list(settings.required_inputs), "from the graph"),
        _line("outputs", list(settings.outputs), "from the graph"),
        _line("model_filename", settings.model_filename, "the backend's default"),
        _line("devices", list(settings.devices), "from --execution-providers"),
        _line(
            "accelerators", {name: dict(options) for name, options in settings.accelerators.items()}, "none of its own"
        ),
        *_session(settings.session),
        _line("warmup", [_warmup(sample) for sample in settings.warmup], "no samples"),
        _line("labels", dict(settings.labels), "none"),
        _line("parameters", dict(settings.parameters), "none"),
        *_padding(settings.padding),
        _line("ragged", _ragged(settings.ragged), "rows of one batch have one shape"),
        *_profiling(settings),
        _line("sequences", _sequences(settings.sequences), "requests do not belong together"),
        _line("response_cache", settings.response_cache),
        _line("latency_target_ms", _plain(settings.latency_target_ms), "none: requests wait as long as it takes"),
        _line("rate_limits", [_rate_limit(own) for own in settings.rate_limits], "no resources, priority 1"),
        _line("pin", settings.pin),
    ]
    return "\n".join(lines) + "\n"


def _plain(number: float) -> float:
    """A whole number as such."""
    return int(number) if number == int(number) else number


def _line(key: str, value: Any, nothing: str = "") -> str:
    """``key: value``, or a comment that says what an empty value stands for."""
    if nothing and not value:
        return f"# {key}: {nothing}"
    # Scalars one to a line, lists and the innermost mappings within one.
    flow = None if isinstance(value, list | dict) else False
    text = yaml.safe_dump({key: value}, default_flow_style=flow, sort_keys=False, allow_unicode=True, width=_WIDTH)
    return str(text).rstrip("\n")


def _policies(policies: PolicySettings) -> list[str]:
    values = policies_as_yaml(policies)
    return [_line(key, values[key]) if key in values else f"# {key}: {nothing}" for key, nothing in KEYS.items()]


def _shapes(shapes: Shapes) -> dict[str, list[int]]:
    return {name: list(shape) for name, shape in shapes.items()}


def _session(session: SessionSettings) -> list[str]:
    return [
        "session:",
        *(
            "  " + line
            for line in (
                _line("intra_threads", session.intra_threads, "--ort-intra-threads"),
                _line("inter_threads", session.inter_threads, "--ort-inter-threads"),
                _line("execution_mode", session.execution_mode, "parallel where inter_threads is above 1"),
                _line("graph_level", session.graph_level),
                _line("memory_arena", session.memory_arena),
                _line("memory_pattern", session.memory_pattern),
                _line("arena_shrinkage", session.arena_shrinkage, "never"),
                _line("device_allocator_for_initializers", session.device_allocator_for_initializers),
            )
        ),
    ]


def _padding(padding: PaddingSettings | None) -> list[str]:
    if padding is None:
        return ["# padding: rows of different length do not share a batch"]
    inputs = [_line(name, {"axis": own.axis, "value": own.value}) for name, own in padding.inputs.items()]
    return [
        "padding:",
        *(
            "  " + line
            for line in (
                "inputs:",
                *("  " + line for line in inputs),
                _line("mask", padding.mask, "clients send it"),
                _line("outputs", dict(padding.outputs), "none is cut back"),
                _line("buckets", list(padding.buckets), "four to each doubling of the length"),
                _line("max_batch_tokens", padding.max_batch_tokens),
            )
        ),
    ]


def _ragged(ragged: RaggedSettings | None) -> dict[str, Any]:
    if ragged is None:
        return {}
    made = {own.name: {"kind": own.kind, "of": own.source, "datatype": own.datatype} for own in ragged.made}
    outputs = {name: {"of": own.source, "shape": list(own.shape)} for name, own in ragged.outputs.items()}
    value: dict[str, Any] = {"inputs": _shapes(ragged.inputs)} if ragged.inputs else {}
    value |= {"batch_inputs": made} if made else {}
    value |= {"outputs": outputs} if outputs else {}
    return {**value, "max_batch_elements": ragged.max_batch_elements}


def _profiling(settings: ModelSettings) -> list[str]:
    profiling = settings.profiling
    if profiling is None:
        return ["# profiling: off"]
    value: dict[str, Any] = {"file_prefix": profiling.file_prefix}
    if profiling.stop_after_batches is not None:
        value["stop_after_batches"] = profiling.stop_after_batches
    return [_line("profiling", value)]


def _sequences(settings: SequenceSettings | None) -> dict[str, Any]:
    if settings is None:
        return {}
    value: dict[str, Any] = {"strategy": settings.strategy, "max_idle_us": settings.max_idle_us}
    if settings.strategy == "oldest":
        value["max_candidates"] = settings.max_candidates
        value["preserve_ordering"] = settings.preserve_ordering
        value["preferred_batch_sizes"] = list(settings.preferred_batch_sizes)
    else:
        value["minimum_slot_utilization"] = settings.minimum_slot_utilization
    value["max_queue_delay_us"] = settings.max_queue_delay_us
    value["max_state_bytes"] = settings.max_state_bytes
    if settings.iterative:
        value["iterative"] = True
    value["controls"] = {
        own.name: {"kind": own.kind, "datatype": own.datatype, **({"values": list(own.values)} if own.values else {})}
        for own in settings.controls
    }
    value["states"] = [
        {
            "input": own.input,
            "output": own.output,
            **({"file": own.file} if own.initial == "file" else {"initial": own.initial} if own.initial else {}),
            **({"datatype": own.datatype} if own.datatype else {}),
            **({"shape": list(own.dims)} if own.dims is not None else {}),
            **({"initial_shape": list(own.initial_dims)} if own.initial_dims is not None else {}),
        }
        for own in settings.states
    ]
    return value


def _rate_limit(own: RateLimit) -> Mapping[str, Any]:
    resources = [{"name": need.name, "count": need.count, "global": need.is_global} for need in own.resources]
    return {"priority": own.priority, "resources": resources}


def _warmup(sample: WarmupSample) -> Mapping[str, Any]:
    inputs = {name: _warmup_input(own) for name, own in sample.inputs.items()}
    return {"name": sample.name, "batch_size": sample.batch_size, "count": sample.count, "inputs": inputs}


def _warmup_input(own: WarmupInput) -> dict[str, Any]:
    data = {"file": own.file} if own.data == "file" else {"data": own.data}
    return {"datatype": own.datatype, "shape": list(own.shape), **data}
