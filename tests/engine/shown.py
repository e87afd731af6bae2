"""A version that is shown and never run."""

from __future__ import annotations

from typing import Any, cast

from toutates.engine.batched import BatchedServable
from toutates.engine.supertensor import SuperTensor
from toutates.models.table import ServedVersion
from toutates.protocol.model_config_pb2 import ModelConfig
from toutates.protocol.signature import Signature

__all__ = ["shown_version"]


def shown_version(
    model: str,
    number: int,
    signature: Signature,
    *,
    batch_size: int = 64,
    capacity: int = 16,
    executors: int = 1,
    pool_threads: int = 0,
) -> ServedVersion:
    """A version that only tells what it is, but cannot run."""
    supertensor = SuperTensor(model, signature, batch_size=batch_size, capacity=capacity)
    backends = [cast(Any, None)] * executors
    return ServedVersion(
        model, number, ModelConfig(), BatchedServable(number, supertensor, backends, pool_threads=pool_threads)
    )
