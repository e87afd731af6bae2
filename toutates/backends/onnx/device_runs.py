"""Requests whose rows a GPU has: which GPU a session may take them from, and what is bound there."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Final

import onnxruntime

from toutates.backends.onnx.provider_names import ON_DEVICES
from toutates.engine.lane import RowShapes
from toutates.engine.on_device import DeviceRows
from toutates.protocol.signature import Signature

__all__ = ["GPU_MEMORY", "bind_on_device", "device_of", "placed_outputs"]

#: ONNX Runtime's name of the memory of GPUs.
GPU_MEMORY: Final = "cuda"
#: Options of CUDA's provider and of TensorRT's to record runs.
_GRAPH_OPTIONS: Final = ("enable_cuda_graph", "trt_cuda_graph_enable")


def device_of(session: onnxruntime.InferenceSession) -> int | None:
    """Number of the GPU that a session's runs are on and may bind memory of; None for the CPU.

    Runs that were recorded as a CUDA graph use the memory that they were recorded with, so they may not.
    """
    provider = session.get_providers()[0]
    if provider not in ON_DEVICES:
        return None
    options = session.get_provider_options()[provider]
    if any(options.get(name, "0").lower() in ("1", "true") for name in _GRAPH_OPTIONS):
        return None
    return int(options["device_id"])


def placed_outputs(
    signature: Signature, wanted: Mapping[int, tuple[int, int]], rows: int
) -> dict[int, tuple[int, ...]]:
    """The outputs that can be written where they are wanted on the GPU, by index, with the shapes of their rows.

    Args:
        signature: the model's tensors.
        wanted: see ``DeviceRows.outputs``.
        rows: of the run.
    """
    placed = {}
    for index, (_, room) in wanted.items():
        tensor = signature.outputs[index]
        shape = tensor.graph_shape
        # No shape at all may be a scalar's, or a rank that the graph leaves open.
        is_known = -1 not in shape and bool(signature.batched or shape)
        if is_known and 0 < rows * prod(shape) * tensor.datatype.size <= room:
            placed[index] = shape
    return placed


def bind_on_device(
    binding: onnxruntime.IOBinding,
    signature: Signature,
    device: int,
    row_shapes: RowShapes,
    rows: int,
    given: DeviceRows,
    placed: Mapping[int, tuple[int, ...]],
) -> None:
    """Bind the inputs of a run, and its outputs: those that are placed on the GPU, the others to come to the host.

    Args:
        binding: of the session; nothing is bound yet.
        signature: the model's tensors.
        device: number of the GPU.
        row_shapes, rows: of the inputs.
        given: where they are, and where outputs are wanted.
        placed: see ``placed_outputs``.
    """
    lead = (rows,) if signature.batched else ()
    for index, row_shape in row_shapes:
        tensor = signature.inputs[index]
        shape, address = (*lead, *row_shape), given.inputs[index]
        binding.bind_input(tensor.name, GPU_MEMORY, device, tensor.datatype.onnx_type, shape, address)
    for index, tensor in enumerate(signature.outputs):
        if index in placed:
            shape, address = (*lead, *placed[index]), given.outputs[index][0]
            binding.bind_output(tensor.name, GPU_MEMORY, device, tensor.datatype.onnx_type, shape, address)
        else:
            binding.bind_output(tensor.name, "cpu")
