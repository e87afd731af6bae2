"""Versions whose answers leave in the order of their requests."""

from __future__ import annotations

from dataclasses import replace

from toutates.engine.ordered.order import Order
from toutates.engine.ordered.servable import OrderedServable
from toutates.models.capacity import capacity_bytes
from toutates.models.config.settings import ModelSettings
from toutates.models.table import ServedVersion

__all__ = ["with_order"]


def with_order(served: ServedVersion, settings: ModelSettings) -> ServedVersion:
    """The version with an order before it: before the response cache too, for what is found there keeps its place."""
    signature = served.signature
    rows = settings.capacity * (settings.batch_size if signature.batched else 1)
    # As many may wait for their turn as may be under way.
    order = Order(served.model, 2 * rows, capacity_bytes(settings, signature))
    return replace(served, servable=OrderedServable(served.servable, order))
