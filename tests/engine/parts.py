"""Parts of the engine by themselves: a clock that a test turns, and a batch that nobody runs."""

from __future__ import annotations

from toutates.engine.lane import Batch, PackedLane
from toutates.protocol.datatypes import BY_NAME
from toutates.protocol.signature import Signature, TensorSpec

__all__ = ["Clock", "some_batch"]


class Clock:
    """A clock that a test turns."""

    def __init__(self) -> None:
        self.now_ns = 10**12

    def __call__(self) -> int:
        return self.now_ns


def some_batch(order: int, *, rows: int = 1, busy: int = 0) -> Batch:
    """A batch of a lane of its own, which has room for 8 rows.

    Args:
        order: of opening.
        rows: reserved.
        busy: workers that write to it.
    """
    fp32 = BY_NAME["FP32"]
    signature = Signature((TensorSpec("x", fp32, (-1,)),), (TensorSpec("y", fp32, (-1,)),), True)
    batch = PackedLane(signature, ((0, (order,)),), 8).new_batch(1, 8)
    batch.order, batch.rows, batch.busy = order, rows, busy
    return batch
