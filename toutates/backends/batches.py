"""The batches of a version as its configuration wants them, for every kind of model whose requests are batched."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from toutates.engine.budget import PBTXT_KEYS, YAML_KEYS
from toutates.engine.deadlines.supertensor import DeadlineSuperTensor
from toutates.engine.lane import Allocate, Pin
from toutates.engine.padded.padding import Padding
from toutates.engine.ragged.ragged import Ragged
from toutates.engine.supertensor import QUICK_NS, SuperTensor
from toutates.models.capacity import capacity_bytes
from toutates.models.config.queues import batching_rules
from toutates.models.config.settings import ModelSettings
from toutates.protocol.signature import Signature

__all__ = ["batches_of"]


def batches_of(
    model: str,
    signature: Signature,
    settings: ModelSettings,
    *,
    is_triton: bool,
    pin: Pin | None = None,
    allocate: Allocate | None = None,
    lends: bool = False,
    quick_ns: int = QUICK_NS,
    padding: Padding | Ragged | None = None,
    keeps_whole: bool = False,
    splits_large: bool = False,
    keeps_split: bool = False,
    grows: bool = True,
    joins: bool = True,
) -> SuperTensor:
    """Make a version's batches.

    Args:
        model: name of the model.
        signature: its tensors.
        settings: of the version.
        is_triton: whether these come from config.pbtxt, so that errors name its keys; else from config.yaml.
        pin, allocate, lends, quick_ns, keeps_whole, splits_large, keeps_split, padding, grows, joins: as of
            ``SuperTensor``.
    """
    most_rows = settings.batch_size if signature.batched and joins else 1
    delay_us = settings.max_queue_delay_us if signature.batched and joins else 0
    rules = None
    make: Callable[..., SuperTensor] = SuperTensor
    if settings.latency_target_ms:
        target_ns = int(settings.latency_target_ms * 1e6)
        make = partial(DeadlineSuperTensor, target_ns=target_ns, executors=settings.num_executors)
    elif not isinstance(padding, Padding):
        preferred = settings.preferred_batch_sizes if signature.batched and joins else ()
        rules = batching_rules(settings.policies, settings.max_queue_size, preferred, most_rows, delay_us)
    return make(
        model,
        signature,
        batch_size=settings.batch_size,
        capacity=settings.capacity,
        capacity_bytes=capacity_bytes(settings, signature),
        max_queue_size=settings.max_queue_size if rules is None else 0,
        keys=PBTXT_KEYS if is_triton else YAML_KEYS,
        pin=pin,
        allocate=allocate,
        lends=lends,
        quick_ns=quick_ns,
        keeps_whole=keeps_whole,
        splits_large=splits_large,
        keeps_split=keeps_split,
        delay_ns=delay_us * 1_000 if rules is None else 0,
        grows=grows,
        enough_rows=min(settings.preferred_batch_sizes, default=settings.batch_size),
        padding=padding,
        rules=rules,
        joins=joins,
    )
