"""Rows that are in the memory of a GPU already, for a version whose executors all run on that GPU.

Such a request has a batch of its own, of which the backend binds what the GPU has: nothing is copied to the host and
back. It pays for large rows only. Small ones are better off in one run with those of others, for which they are copied.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from toutates.engine.lane import GatheredLane, RowShapes
from toutates.engine.servable import Consumer
from toutates.engine.submitter import Submitter
from toutates.engine.supertensor import SuperTensor
from toutates.protocol.signature import Signature

__all__ = ["ALIGNMENT", "LEAST_BYTES", "DeviceLane", "DevicePort", "DeviceRows"]

#: Requests of fewer bytes of inputs run with those of others.
LEAST_BYTES: Final = 262_144
#: Where tensors have to lie, as those of ONNX Runtime's own allocator do: kernels read several elements at once.
ALIGNMENT: Final = 256


@dataclass(frozen=True, slots=True)
class DeviceRows:
    """Where one request has its rows, in place of arrays.

    Attributes:
        inputs: address of each input, by its index.
        outputs: address of each output that may be written where it is wanted, and the bytes it may have there.
    """

    inputs: Mapping[int, int]
    outputs: Mapping[int, tuple[int, int]]


class DeviceLane(GatheredLane):
    """A lane whose batches have one request each, of so many rows; its only piece is a ``DeviceRows``."""

    packed: ClassVar[bool] = False

    def __init__(self, signature: Signature, row_shapes: RowShapes, batch_size: int, rows: int) -> None:
        super().__init__(signature, row_shapes, batch_size)
        self.key = (*row_shapes, rows)
        self.batch_rows = self.room = rows
        self.outputs_in_place = None  # where they are wanted, they are wanted on the GPU


class DevicePort(Submitter):
    """A port that also takes rows that a GPU has.

    Args:
        supertensor, consumer: as of ``Submitter``.
        device: number of the GPU.

    Attributes:
        device: as given.
        signature: of the version.
    """

    def __init__(self, supertensor: SuperTensor, consumer: Consumer, device: int) -> None:
        super().__init__(supertensor, consumer)
        self.device = device
        self.signature = supertensor.signature

    def device_way(self, row_shapes: RowShapes, rows: int) -> DeviceLane | None:
        """The way for so many rows of these shapes; None where they are too many for one batch. Keep it."""
        supertensor = self._supertensor
        signature, batch_size = supertensor.signature, supertensor.batch_size
        if not 0 < rows <= (batch_size if signature.batched else 1):
            return None

        def make() -> DeviceLane:
            return DeviceLane(signature, row_shapes, batch_size, rows)

        with self._lock:
            lane: Any = supertensor.lanes.find_by((*row_shapes, rows), make)
        assert isinstance(lane, DeviceLane)
        return lane

    def add_on_device(self, way: DeviceLane, context: Any, rows: DeviceRows) -> None:
        """Add one request whose rows stay where they are until they have run; as ``add_gathered``.

        Raises:
            Overloaded: too much is under way; nothing was added.
            ModelNotReady: the model version is being unloaded.
        """
        piece: Any = rows
        self.add_gathered(way, way.batch_rows, context, [piece])
