"""Runs padded batches with any backend, and cuts the outputs back to each row's own length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from toutates.engine.around import AroundBackend
from toutates.engine.counters import ExecutorCounters
from toutates.engine.lane import Batch
from toutates.engine.packing import LARGE_OUTPUT_BYTES, OtherRows
from toutates.engine.padded.lanes import Entry, PaddedBatch, PaddedLane
from toutates.engine.padded.padding import Padding
from toutates.engine.result import Outputs, PendingRequest, Separate
from toutates.engine.servable import Backend
from toutates.protocol.signature import Signature
from toutates.system.errors import ExecutionFailed, RequestError

__all__ = ["PaddedBackend"]


class PaddedBackend(AroundBackend[Backend]):
    """The backend of an executor of a padded version (``engine.servable.Backend``).

    Args:
        backend: what computes.
        padding: of the version.
        signature: the model's tensors.
        model: its name, for errors.
        counters: the executor's.
    """

    def __init__(
        self, backend: Backend, padding: Padding, signature: Signature, model: str, counters: ExecutorCounters
    ) -> None:
        super().__init__(backend)
        self._padding = padding
        self._signature = signature
        self._model = model
        self._counters = counters

    def run(self, batch: Batch, first: int, rows: int) -> Outputs | Separate:
        """See ``Backend``."""
        lane = batch.lane
        assert isinstance(batch, PaddedBatch)
        assert isinstance(lane, PaddedLane)
        entries = batch.among(first, rows)
        real = sum([entry.rows * entry.length for _, entry in entries])
        self._counters.add_elements(rows, real, rows * lane.length)
        try:
            outputs = self._backend.run(batch, first, rows)
        except OtherRows as error:
            if len(entries) == 1 and self._padding.outputs and real < rows * lane.length:
                raise ExecutionFailed(str(error)) from None  # nobody can tell what of it is padding
            raise
        finally:
            self.started_ns, self.ended_ns = self._backend.started_ns, self._backend.ended_ns
        self._padding.run_cost.note(rows * lane.length, self.ended_ns - self.started_ns)
        if isinstance(outputs, Separate) or not self._padding.outputs:
            return outputs
        if all([entry.length == lane.length for _, entry in entries]):
            return outputs
        arrays = self._arrays(outputs, lane.length, rows)
        if len(entries) == 1:
            return self._cut(arrays, 0, entries[0][1])
        outcomes: list[tuple[int, PendingRequest, Outputs | RequestError]] = []
        for start, entry in entries:
            own = self._cut(arrays, start - first, entry)
            outcomes.append((entry.port, batch.request(start, entry), own))
        return Separate(outcomes)

    def _arrays(self, outputs: Outputs, length: int, rows: int) -> list[npt.NDArray[Any]]:
        """The outputs of a run as arrays [rows, *row shape].

        Raises:
            ExecutionFailed: one that is to be cut back does not have the length of the rows.
        """
        arrays = []
        for index, (spec, data, shape) in enumerate(
            zip(self._signature.outputs, outputs.data, outputs.row_shapes, strict=True)
        ):
            axis = self._padding.outputs.get(index)
            if axis is not None and shape[axis : axis + 1] != (length,):
                size = shape[axis] if axis < len(shape) else "no"
                raise ExecutionFailed(
                    f"model '{self._model}' returned output '{spec.name}' with {size} elements along dimension "
                    f"{axis + 1}, which is cut back, and the rows were padded to {length}"
                )
            assert isinstance(data, bytes | np.ndarray)
            arrays.append(np.frombuffer(data, spec.datatype.numpy).reshape(rows, *shape))
        return arrays

    def _cut(self, arrays: Sequence[npt.NDArray[Any]], first: int, entry: Entry) -> Outputs:
        """The outputs of one entry's rows, copied."""
        data: list[bytes | npt.NDArray[Any]] = []
        row_bytes: list[int] = []
        row_shapes: list[tuple[int, ...]] = []
        in_arrays = False
        for index, array in enumerate(arrays):
            own = array[first : first + entry.rows]
            axis = self._padding.outputs.get(index)
            if axis is not None:
                own = own[(slice(None),) * (axis + 1) + (slice(entry.length),)]
            row_shapes.append(own.shape[1:])
            row_bytes.append(own.nbytes // entry.rows)
            if own.nbytes > LARGE_OUTPUT_BYTES:
                data.append(np.array(own, order="C").reshape(-1).view(np.uint8))
                in_arrays = True
            else:
                data.append(own.tobytes())
        return Outputs(tuple(data), tuple(row_bytes), tuple(row_shapes), in_arrays=in_arrays)
