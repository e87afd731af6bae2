"""How a served model is described to clients: the answers to ModelMetadata and ModelConfig.

The configuration is written as Triton shows it after completing and normalising its own, so that clients which read it
(perf_analyzer, the schedulers of other servers) find what they look for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from toutates.models.repository import MODEL_FILENAME
from toutates.models.settings import ModelSettings
from toutates.protocol.grpc_service_pb2 import ModelMetadataResponse
from toutates.protocol.model_config_pb2 import (
    ModelConfig,
    ModelDynamicBatching,
    ModelInput,
    ModelInstanceGroup,
    ModelOptimizationPolicy,
    ModelOutput,
    ModelTensorReshape,
    ModelVersionPolicy,
)
from toutates.protocol.signature import Signature, TensorSpec

__all__ = ["BACKEND", "PLATFORM", "model_config", "model_metadata"]

PLATFORM: Final = "onnxruntime_onnx"
BACKEND: Final = "onnxruntime"

_GPU_DEVICE: Final = 0  # the one that sessions run on


def model_metadata(name: str, versions: Sequence[int], signature: Signature) -> ModelMetadataResponse:
    """Answer ModelMetadata.

    Args:
        name: of the model.
        versions: all that are ready, or the one that was asked for.
        signature: of the version described; shapes are given with the batch dimension as -1.
    """
    return ModelMetadataResponse(
        name=name,
        versions=[str(version) for version in sorted(versions)],
        platform=PLATFORM,
        inputs=[_tensor_metadata(tensor, signature) for tensor in signature.inputs],
        outputs=[_tensor_metadata(tensor, signature) for tensor in signature.outputs],
    )


def _tensor_metadata(tensor: TensorSpec, signature: Signature) -> ModelMetadataResponse.TensorMetadata:
    return ModelMetadataResponse.TensorMetadata(
        name=tensor.name, datatype=tensor.datatype.name, shape=signature.wire_shape(tensor)
    )


def model_config(name: str, signature: Signature, settings: ModelSettings, *, gpu: bool = False) -> ModelConfig:
    """Answer ModelConfig.

    Args:
        name: of the model.
        signature: of the version described; dims are given without the batch dimension.
        settings: of the same version.
        gpu: whether a CUDA or TensorRT execution provider runs it.
    """
    pinned = ModelOptimizationPolicy.PinnedMemoryBuffer(enable=True)
    return ModelConfig(
        name=name,
        platform=PLATFORM,
        backend=BACKEND,
        # Every version in the repository is served, where Triton's default is the latest.
        version_policy=ModelVersionPolicy(all=ModelVersionPolicy.All()),
        max_batch_size=settings.batch_size if signature.batched else 0,
        input=[_input(tensor) for tensor in signature.inputs],
        output=[_output(tensor) for tensor in signature.outputs],
        instance_group=[_instance_group(name, settings.num_executors, gpu)],
        default_model_filename=MODEL_FILENAME,
        dynamic_batching=_dynamic_batching(signature, settings),
        # Triton shows both as true on every machine, with or without a GPU.
        optimization=ModelOptimizationPolicy(input_pinned_memory=pinned, output_pinned_memory=pinned),
    )


def _input(tensor: TensorSpec) -> ModelInput:
    return ModelInput(
        name=tensor.name,
        data_type=tensor.datatype.config_name,
        dims=tensor.shape,
        optional=tensor.optional,
        reshape=_reshape(tensor),
    )


def _output(tensor: TensorSpec) -> ModelOutput:
    return ModelOutput(
        name=tensor.name, data_type=tensor.datatype.config_name, dims=tensor.shape, reshape=_reshape(tensor)
    )


def _reshape(tensor: TensorSpec) -> ModelTensorReshape | None:
    return ModelTensorReshape(shape=[]) if tensor.squeezed else None


def _instance_group(name: str, count: int, gpu: bool) -> ModelInstanceGroup:
    if gpu:
        return ModelInstanceGroup(name=name, kind=ModelInstanceGroup.KIND_GPU, count=count, gpus=[_GPU_DEVICE])
    return ModelInstanceGroup(name=name, kind=ModelInstanceGroup.KIND_CPU, count=count)


def _dynamic_batching(signature: Signature, settings: ModelSettings) -> ModelDynamicBatching | None:
    """None, which leaves the field out, where requests are never put together."""
    if not signature.batched or settings.batch_size == 1:
        return None
    return ModelDynamicBatching(preferred_batch_size=[settings.batch_size])
