"""What becomes of every field of Triton's ModelConfig: acted on, of no consequence, passed over, or refused.

A field that says how a model is to be computed must be understood or refused; one that says how fast, or what else a
server offers, may be passed over if the operator is told so. ``docs/migrating-from-triton.md`` has the same list.
"""

from __future__ import annotations

from enum import Enum
from types import MappingProxyType
from typing import Final, NamedTuple

from google.protobuf.message import Message

from toutates.models.config.problems import Problems

__all__ = ["COMPLETED_BATCHING", "FIELDS", "PARAMETERS", "Verdict", "check_fields", "set_fields"]


class Verdict(Enum):
    """What becomes of a field."""

    #: it is acted on
    WORKS = "works"
    #: nothing depends on it here, and nobody can tell
    NO_EFFECT = "no effect"
    #: shown to clients and else passed over, and named in a warning
    IGNORED = "ignored"
    #: a model that has it is not served
    REFUSED = "refused"


class Rule(NamedTuple):
    """A field's verdict, and what to say of it: a remedy where it is refused, the consequence where it is ignored."""

    verdict: Verdict
    note: str = ""


_WORKS: Final = Rule(Verdict.WORKS)


def _no_effect(note: str) -> Rule:
    return Rule(Verdict.NO_EFFECT, note)


def _ignored(note: str) -> Rule:
    return Rule(Verdict.IGNORED, note)


def _refused(note: str) -> Rule:
    return Rule(Verdict.REFUSED, note)


_TENSORRT_ONLY: Final = "of TensorRT plans only"
_DECOUPLED: Final = "model_transaction_policy.decoupled"

#: By path. A path that is not here is a message whose fields are.
FIELDS: Final = MappingProxyType(
    {
        "name": _WORKS,
        "platform": _WORKS,
        "backend": _WORKS,
        "runtime": _WORKS,
        "max_batch_size": _WORKS,
        "version_policy": _WORKS,
        "default_model_filename": _WORKS,
        "cc_model_filenames": _ignored("the file is default_model_filename whatever the GPU"),
        "input.name": _WORKS,
        "input.data_type": _WORKS,
        "input.dims": _WORKS,
        "input.reshape": _WORKS,
        "input.optional": _WORKS,
        "input.format": _no_effect("clients read it; ONNX graphs take tensors as they come"),
        "input.is_shape_tensor": _ignored(_TENSORRT_ONLY),
        "input.is_non_linear_format_io": _ignored(_TENSORRT_ONLY),
        "input.allow_ragged_batch": _WORKS,
        "batch_input": _WORKS,
        "batch_output": _WORKS,
        "output.name": _WORKS,
        "output.data_type": _WORKS,
        "output.dims": _WORKS,
        "output.reshape": _WORKS,
        "output.label_filename": _WORKS,
        "output.is_shape_tensor": _ignored(_TENSORRT_ONLY),
        "output.is_non_linear_format_io": _ignored(_TENSORRT_ONLY),
        "instance_group.count": _WORKS,
        "instance_group.kind": _WORKS,
        "instance_group.gpus": _WORKS,
        "instance_group.name": _no_effect("instances have no names here"),
        "instance_group.profile": _ignored(_TENSORRT_ONLY),
        "instance_group.rate_limiter": _WORKS,
        "instance_group.passive": _ignored("every instance runs batches"),
        "instance_group.secondary_devices": _ignored("there are none"),
        "instance_group.host_policy": _ignored("see --cpu-pinning"),
        "dynamic_batching.preferred_batch_size": _WORKS,
        "dynamic_batching.max_queue_delay_microseconds": _WORKS,
        "dynamic_batching.preserve_ordering": _WORKS,
        "dynamic_batching.priority_levels": _WORKS,
        "dynamic_batching.default_priority_level": _WORKS,
        "dynamic_batching.priority_queue_policy": _WORKS,
        "dynamic_batching.default_queue_policy.max_queue_size": _WORKS,
        "dynamic_batching.default_queue_policy.timeout_action": _WORKS,
        "dynamic_batching.default_queue_policy.default_timeout_microseconds": _WORKS,
        "dynamic_batching.default_queue_policy.allow_timeout_override": _WORKS,
        "sequence_batching": _WORKS,
        "ensemble_scheduling": _WORKS,
        _DECOUPLED: _refused("ONNX models give one response per request: remove it"),
        "model_warmup": _WORKS,
        "optimization.graph.level": _WORKS,
        "optimization.execution_accelerators.gpu_execution_accelerator": _WORKS,
        "optimization.execution_accelerators.cpu_execution_accelerator": _ignored("ONNX Runtime's own CPU code runs"),
        "optimization.cuda": _ignored("see the options of the accelerator cuda"),
        "optimization.priority": _no_effect(_TENSORRT_ONLY),
        "optimization.input_pinned_memory": _no_effect("see allocator in config.yaml"),
        "optimization.output_pinned_memory": _no_effect("see allocator in config.yaml"),
        "optimization.gather_kernel_buffer_threshold": _no_effect("there is no such kernel"),
        "optimization.eager_batching": _no_effect("batches are always filled as requests come"),
        "parameters": _WORKS,
        "metric_tags": _WORKS,
        "model_metrics": _ignored("metrics are as they are"),
        "model_operations.op_library_filename": _WORKS,
        "model_repository_agents": _refused("let whatever fills the repository do their work, and remove it"),
        "response_cache.enable": _WORKS,
    }
)

#: The parameter that says ``completed`` of a ``dynamic_batching`` that nobody has written: it is no user's word that
#: rows are independent.
COMPLETED_BATCHING: Final = "toutates.dynamic_batching"

#: Keys of ``parameters`` that are acted on. Others are there for clients to read, and named in a warning.
PARAMETERS: Final = (
    "intra_op_thread_count",
    "inter_op_thread_count",
    "execution_mode",
    "enable_mem_arena",
    "enable_mem_pattern",
    "memory.enable_memory_arena_shrinkage",
    "session.use_device_allocator_for_initializers",
    "cudnn_conv_algo_search",
    "gpu_mem_limit",
    "toutates.capacity",
    "toutates.capacity_bytes",
    "toutates.allocator",
    "toutates.latency_target_ms",
    "toutates.max_batch_elements",
    "toutates.pin",
    COMPLETED_BATCHING,
    "toutates.profiling.file_prefix",
    "toutates.profiling.stop_after_batches",
)


def set_fields(config: Message) -> dict[str, Rule]:
    """The paths of the fields that are set in a ModelConfig, with their rules."""
    found: dict[str, Rule] = {}
    _collect(config, "", found)
    return found


def check_fields(config: Message, problems: Problems, *, may_be_decoupled: bool = False) -> list[str]:
    """Refuse the fields of a ModelConfig that no model can be served with; returns those that are passed over.

    Args:
        config: a ModelConfig.
        problems: takes the refusals.
        may_be_decoupled: whether there are such models of its kind.
    """
    ignored = []
    for path, rule in set_fields(config).items():
        if path == _DECOUPLED and may_be_decoupled:
            continue
        if rule.verdict is Verdict.REFUSED:
            problems.add(path, "a model that needs it cannot be served", None, rule.note)
        elif rule.verdict is Verdict.IGNORED:
            ignored.append(f"{path} ({rule.note})")
    return ignored


def _collect(message: Message, prefix: str, found: dict[str, Rule]) -> None:
    for field, value in message.ListFields():
        path = prefix + field.name
        rule = FIELDS.get(path)
        if rule is not None:
            found[path] = rule
            continue
        for part in [value] if isinstance(value, Message) else value:
            _collect(part, path + ".", found)
