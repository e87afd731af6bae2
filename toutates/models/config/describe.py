"""How a served model is described to clients: the answers to ModelMetadata and ModelConfig.

A config.pbtxt is shown as it was written, whether or not its fields are acted on, and completed as Triton completes it:
clients read formats, labels and parameters of their own there. Without one, a ModelConfig is made of the settings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from toutates.models.config.queues import fill_policies
from toutates.models.config.settings import (
    MODEL_FILENAME,
    ModelSettings,
    RateLimit,
    SessionSettings,
    WarmupInput,
    WarmupSample,
)
from toutates.models.config.triton_configuration import BACKEND, PLATFORM
from toutates.models.config.triton_fields import COMPLETED_BATCHING
from toutates.models.config.triton_ragged import add_ragged
from toutates.models.config.triton_sequences import sequence_message
from toutates.protocol.datatypes import BY_NAME
from toutates.protocol.grpc_service_pb2 import ModelMetadataResponse
from toutates.protocol.model_config_pb2 import (
    ModelConfig,
    ModelDynamicBatching,
    ModelInput,
    ModelInstanceGroup,
    ModelOutput,
    ModelTensorReshape,
    ModelVersionPolicy,
    ModelWarmup,
)
from toutates.protocol.signature import Signature, TensorSpec

__all__ = ["ONNX_NAME", "BackendName", "model_config", "model_metadata"]

_GPU_DEVICE: Final = 0  # the one that sessions run on


@dataclass(frozen=True, slots=True)
class BackendName:
    """What a ModelConfig says of the backend of a version.

    Attributes:
        name: ``backend``.
        platform: Triton's older name of the same; "" where it has none.
        filename: of the model's file where the settings do not say it; "" where there is none.
    """

    name: str
    platform: str = ""
    filename: str = ""


#: Of ONNX models.
ONNX_NAME: Final = BackendName(BACKEND, PLATFORM, MODEL_FILENAME)


def model_metadata(
    name: str, versions: Sequence[int], signature: Signature, config: ModelConfig
) -> ModelMetadataResponse:
    """Answer ModelMetadata.

    Args:
        name: of the model.
        versions: all that are ready, or the one that was asked for.
        signature: of the version described; shapes are given with the batch dimension as -1.
        config: of the same version. Where it has no platform, its backend stands for it, as with Triton.
    """
    return ModelMetadataResponse(
        name=name,
        versions=[str(version) for version in sorted(versions)],
        platform=config.platform or config.backend,
        inputs=[_tensor_metadata(tensor, signature) for tensor in signature.inputs],
        outputs=[_tensor_metadata(tensor, signature) for tensor in signature.outputs],
    )


def _tensor_metadata(tensor: TensorSpec, signature: Signature) -> ModelMetadataResponse.TensorMetadata:
    return ModelMetadataResponse.TensorMetadata(
        name=tensor.name, datatype=tensor.datatype.name, shape=signature.wire_shape(tensor)
    )


def model_config(
    name: str,
    signature: Signature,
    settings: ModelSettings,
    *,
    gpu: bool | None = False,
    version_policy: ModelVersionPolicy | None = None,
    given: ModelConfig | None = None,
    with_own: bool = False,
    backend: BackendName = ONNX_NAME,
) -> ModelConfig:
    """Answer ModelConfig: the configuration, complete and normalised.

    Args:
        name: of the model.
        signature: of the version described; dims are given without the batch dimension.
        settings: of the same version.
        gpu: whether a CUDA or TensorRT execution provider runs what may run anywhere; None leaves that open.
        version_policy: of the model; None for all versions, which is what is served without a config.pbtxt.
        given: what the model's config.pbtxt says, if the settings come from there.
        with_own: whether what Triton has no field for goes into ``parameters``, under keys that begin with
            ``toutates.``: then ``triton_configuration`` reads the same settings from the message.
        backend: of the version.
    """
    policy = version_policy or ModelVersionPolicy(all=ModelVersionPolicy.All())
    if given is None:
        config = _made(name, signature, settings, gpu, backend)
    else:
        config = _completed(given, name, signature, settings, gpu, backend)
    config.version_policy.CopyFrom(policy)
    # Triton shows both as true on every machine, with or without a GPU.
    optimization = config.optimization
    for pinned in ("input_pinned_memory", "output_pinned_memory"):
        if not optimization.HasField(pinned):
            getattr(optimization, pinned).enable = True
    if with_own:
        for key, value in _own_parameters(settings).items():
            config.parameters[key].string_value = value
        if config.HasField("dynamic_batching") and not settings.joined_by:
            config.parameters[COMPLETED_BATCHING].string_value = "completed"
    return config


def _completed(
    given: ModelConfig,
    name: str,
    signature: Signature,
    settings: ModelSettings,
    gpu: bool | None,
    backend: BackendName,
) -> ModelConfig:
    """A config.pbtxt with what it leaves out, as Triton fills that in."""
    config = ModelConfig()
    config.CopyFrom(given)
    config.name, config.platform, config.backend = name, backend.platform, backend.name
    config.default_model_filename = settings.model_filename or backend.filename
    if signature.batched:
        config.max_batch_size = settings.batch_size
    # Where both are there, Triton leaves the file as it is; a scheduler is added to what it has read from the graph.
    if not (given.input and given.output):
        if not given.input:
            config.input.extend([_input(tensor, signature.batched) for tensor in signature.inputs])
        if not given.output:
            config.output.extend([_output(tensor, signature.batched, settings) for tensor in signature.outputs])
        if config.max_batch_size > 1 and not config.HasField("sequence_batching"):
            config.dynamic_batching.SetInParent()
    if config.HasField("dynamic_batching") and config.max_batch_size:
        batching = config.dynamic_batching
        if not batching.preferred_batch_size:
            batching.preferred_batch_size.append(config.max_batch_size)
    if config.HasField("sequence_batching") and settings.sequences is not None:
        config.sequence_batching.max_sequence_idle_microseconds = settings.sequences.max_idle_us
    if not config.instance_group:
        config.instance_group.extend(_instance_groups(name, settings, gpu))
    for at, group in enumerate(config.instance_group):
        _complete_group(group, f"{name}_{at}", gpu)
    return config


def _complete_group(group: ModelInstanceGroup, name: str, gpu: bool | None) -> None:
    """An instance group as ``triton_configuration`` takes it."""
    group.name = group.name or name
    group.count = group.count or 1
    if group.kind == ModelInstanceGroup.KIND_AUTO and (group.gpus or gpu is not None):
        group.kind = ModelInstanceGroup.KIND_GPU if group.gpus or gpu else ModelInstanceGroup.KIND_CPU
    if group.kind == ModelInstanceGroup.KIND_GPU and not group.gpus:
        group.gpus.append(_GPU_DEVICE)


def _made(
    name: str, signature: Signature, settings: ModelSettings, gpu: bool | None, backend: BackendName
) -> ModelConfig:
    """The settings as a ModelConfig."""
    config = ModelConfig(
        name=name,
        platform=backend.platform,
        backend=backend.name,
        max_batch_size=settings.batch_size if signature.batched else 0,
        input=[_input(tensor, signature.batched) for tensor in signature.inputs],
        output=[_output(tensor, signature.batched, settings) for tensor in signature.outputs],
        instance_group=_instance_groups(name, settings, gpu),
        default_model_filename=settings.model_filename or backend.filename,
        dynamic_batching=_dynamic_batching(signature, settings),
        sequence_batching=sequence_message(settings.sequences) if settings.sequences is not None else None,
        model_warmup=[_warmup(sample) for sample in settings.warmup],
    )
    if settings.ragged is not None:
        add_ragged(config, settings.ragged)
    level = _GRAPH_LEVELS[settings.session.graph_level]
    if level:
        config.optimization.graph.level = level
    for accelerator, options in settings.accelerators.items():
        config.optimization.execution_accelerators.gpu_execution_accelerator.add(
            name=accelerator, parameters=dict(options)
        )
    for key, value in {**_parameters(settings.session), **settings.parameters}.items():
        config.parameters[key].string_value = value
    return config


_GRAPH_LEVELS: Final = {"basic": -1, "all": 0, "extended": 1, "off": 2}


def _parameters(session: SessionSettings) -> dict[str, str]:
    """What differs from the defaults, under Triton's keys."""
    parameters: dict[str, str] = {}
    if session.intra_threads is not None:
        parameters["intra_op_thread_count"] = str(session.intra_threads)
    if session.inter_threads is not None:
        parameters["inter_op_thread_count"] = str(session.inter_threads)
    if session.execution_mode is not None:
        parameters["execution_mode"] = str(int(session.execution_mode == "parallel"))
    if not session.memory_arena:
        parameters["enable_mem_arena"] = "0"
    if not session.memory_pattern:
        parameters["enable_mem_pattern"] = "0"
    if session.arena_shrinkage:
        parameters["memory.enable_memory_arena_shrinkage"] = session.arena_shrinkage
    if session.device_allocator_for_initializers:
        parameters["session.use_device_allocator_for_initializers"] = "1"
    return parameters


def _own_parameters(settings: ModelSettings) -> dict[str, str]:
    """What Triton has no field for."""
    parameters = {"toutates.capacity": str(settings.capacity), "toutates.allocator": settings.allocator}
    if settings.capacity_bytes is not None:
        parameters["toutates.capacity_bytes"] = str(settings.capacity_bytes)
    if settings.latency_target_ms:
        parameters["toutates.latency_target_ms"] = f"{settings.latency_target_ms:g}"
    if settings.ragged is not None:
        parameters["toutates.max_batch_elements"] = str(settings.ragged.max_batch_elements)
    if settings.profiling is not None:
        parameters["toutates.profiling.file_prefix"] = settings.profiling.file_prefix
        if settings.profiling.stop_after_batches is not None:
            parameters["toutates.profiling.stop_after_batches"] = str(settings.profiling.stop_after_batches)
    return parameters


def _warmup(sample: WarmupSample) -> ModelWarmup:
    return ModelWarmup(
        name=sample.name,
        batch_size=sample.batch_size,
        count=sample.count,
        inputs={name: _warmup_input(own) for name, own in sample.inputs.items()},
    )


def _warmup_input(own: WarmupInput) -> ModelWarmup.Input:
    tensor = ModelWarmup.Input(data_type=BY_NAME[own.datatype].config_name, dims=own.shape)
    match own.data:
        case "zero":
            tensor.zero_data = True
        case "random":
            tensor.random_data = True
        case "file":
            tensor.input_data_file = own.file
    return tensor


def _input(tensor: TensorSpec, batched: bool) -> ModelInput:
    return ModelInput(
        name=tensor.name,
        data_type=tensor.datatype.config_name,
        dims=tensor.shape,
        optional=tensor.optional,
        reshape=_reshape(tensor, batched),
    )


def _output(tensor: TensorSpec, batched: bool, settings: ModelSettings) -> ModelOutput:
    return ModelOutput(
        name=tensor.name,
        data_type=tensor.datatype.config_name,
        dims=tensor.shape,
        label_filename=settings.labels.get(tensor.name, ""),
        reshape=_reshape(tensor, batched),
    )


def _reshape(tensor: TensorSpec, batched: bool) -> ModelTensorReshape | None:
    # A scalar is dims [1] and no more: Triton takes no reshape to nothing without a batch dimension.
    if tensor.reshape is None or (tensor.is_scalar and not batched):
        return None
    return ModelTensorReshape(shape=tensor.reshape)


def _instance_groups(name: str, settings: ModelSettings, gpu: bool | None) -> list[ModelInstanceGroup]:
    """One group for each device and rate limit, named as Triton names groups that have no name."""
    if not settings.devices and not settings.rate_limits:
        return [_instance_group(name, settings.num_executors, "auto", gpu)]
    counts = Counter((settings.device(number), settings.rate_limit(number)) for number in range(settings.num_executors))
    groups = []
    for at, ((device, limit), count) in enumerate(counts.items()):
        group = _instance_group(f"{name}_{at}", count, device, gpu)
        if limit != RateLimit():
            group.rate_limiter.priority = limit.priority
            for need in limit.resources:
                group.rate_limiter.resources.add(name=need.name, count=need.count, **{"global": need.is_global})
        groups.append(group)
    return groups


def _instance_group(name: str, count: int, device: str, gpu: bool | None) -> ModelInstanceGroup:
    if device == "auto" and gpu is None:
        return ModelInstanceGroup(name=name, kind=ModelInstanceGroup.KIND_AUTO, count=count)
    if device == "cpu" or (device == "auto" and not gpu):
        return ModelInstanceGroup(name=name, kind=ModelInstanceGroup.KIND_CPU, count=count)
    number = _GPU_DEVICE if device == "auto" else int(device.removeprefix("gpu:"))
    return ModelInstanceGroup(name=name, kind=ModelInstanceGroup.KIND_GPU, count=count, gpus=[number])


def _dynamic_batching(signature: Signature, settings: ModelSettings) -> ModelDynamicBatching | None:
    """None, which leaves the field out, where requests are never put together and their queue is not bounded."""
    if settings.sequences is not None:
        return None
    batching = ModelDynamicBatching(preserve_ordering=settings.preserve_ordering)
    fill_policies(batching, settings.policies, settings.max_queue_size)
    if not signature.batched or settings.batch_size == 1:
        return batching if batching.ListFields() else None
    batching.preferred_batch_size.extend(settings.preferred_batch_sizes or [settings.batch_size])
    batching.max_queue_delay_microseconds = settings.max_queue_delay_us
    return batching
