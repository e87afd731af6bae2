"""How much memory the batches of a version may take."""

from __future__ import annotations

from typing import Final

from toutates.engine.lane import MAX_BATCH_BYTES, PackedLane
from toutates.models.config.settings import ModelSettings
from toutates.protocol.signature import Signature
from toutates.system.memory import available_memory
from toutates.system.remembered import Remembered

__all__ = ["capacity_bytes", "whole_batch"]


#: What is known, with what it was found for: by its identity, which nothing else can have as long as it is held.
_KNOWN: Final[Remembered[tuple[int, int], tuple[ModelSettings, Signature, tuple[int, int] | None]]] = Remembered(256)


def whole_batch(settings: ModelSettings, signature: Signature) -> tuple[int, int] | None:
    """Rows of one batch of the SuperTensor at most, and the bytes of its buffers; None where a row has an open size."""
    key = (id(settings), id(signature))
    known = _KNOWN.get(key)
    if known is None:
        known = (settings, signature, _whole_batch(settings, signature))
        _KNOWN.put(key, known)
    return known[-1]


def _whole_batch(settings: ModelSettings, signature: Signature) -> tuple[int, int] | None:
    given = [(at, tensor) for at, tensor in enumerate(signature.inputs) if not tensor.optional]
    # BYTES and rows without elements are kept as they come, and have no buffers.
    if not given or any(not tensor.datatype.size or 0 in tensor.graph_shape for _, tensor in given):
        return settings.batch_size if signature.batched else 1, 0
    if any(-1 in tensor.graph_shape for _, tensor in given):
        return None
    lane = PackedLane(signature, tuple((at, tensor.graph_shape) for at, tensor in given), settings.batch_size)
    return lane.batch_rows, lane.batch_bytes


def capacity_bytes(settings: ModelSettings, signature: Signature) -> int:
    """What the configuration says; else ``capacity`` batches of the largest size, and at most half of the memory."""
    if settings.capacity_bytes is not None:
        return settings.capacity_bytes
    _, batch_bytes = whole_batch(settings, signature) or (0, 0)
    return min(settings.capacity * max(MAX_BATCH_BYTES, batch_bytes), available_memory() // 2)
