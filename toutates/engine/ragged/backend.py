"""Runs batches of ragged rows, and cuts the outputs apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from toutates.engine.around import AroundBackend
from toutates.engine.lane import Batch
from toutates.engine.packing import LARGE_OUTPUT_BYTES, OtherRows, OutputArray, OutputPacker
from toutates.engine.padded.lanes import Entry, PaddedBatch
from toutates.engine.ragged.lanes import RaggedEntry
from toutates.engine.ragged.ragged import Ragged
from toutates.engine.result import Outputs, PendingRequest, Separate
from toutates.engine.servable import Backend
from toutates.protocol.signature import Signature, TensorSpec
from toutates.protocol.strings import StringTensor
from toutates.system.errors import ExecutionFailed, RequestError

__all__ = ["RaggedBackend", "RawBackend"]


class RawBackend(Backend, Protocol):
    """A backend whose outputs come as they are. Its signature is ``Ragged.run_signature``."""

    def run_raw(self, batch: Batch, first: int, rows: int) -> Sequence[OutputArray]:
        """``run``, but for the check of the outputs and their form."""
        ...

    def run_arrays(self, inputs: Mapping[int, npt.NDArray[Any] | StringTensor]) -> Sequence[OutputArray]:
        """Run on arrays, by the input's index."""
        ...


class RaggedBackend(AroundBackend[RawBackend]):
    """The backend of an executor of a version with ragged inputs (``engine.servable.Backend``).

    Args:
        backend: what computes.
        ragged: of the version.
        signature: the tensors that clients see.
        model: its name, for errors.
    """

    def __init__(self, backend: RawBackend, ragged: Ragged, signature: Signature, model: str) -> None:
        super().__init__(backend)
        self._ragged = ragged
        self._signature = signature
        self._model = model
        outputs = enumerate(signature.outputs)
        by_row = tuple(tensor for index, tensor in outputs if index not in ragged.outputs)
        #: of the outputs with a row for each row
        self._packer = OutputPacker(replace(signature, outputs=by_row), model, any_rows=True)

    @property
    def device(self) -> None:
        """The GPU that may bind memory of its runs: none, because rows are joined first."""
        return None

    @property
    def ragged(self) -> Ragged:
        """How the rows of the version are joined."""
        return self._ragged

    def run(self, batch: Batch, first: int, rows: int) -> Outputs | Separate:
        """See ``Backend``."""
        assert isinstance(batch, PaddedBatch)
        try:
            arrays = self._backend.run_raw(batch, first, rows)
        finally:
            self.started_ns, self.ended_ns = self._backend.started_ns, self._backend.ended_ns
        scattered = self._ragged.outputs
        try:
            by_row = self._packer.pack([array for index, array in enumerate(arrays) if index not in scattered], rows)
        except OtherRows as error:
            if len(batch.among(first, rows)) == 1 and scattered:
                raise ExecutionFailed(str(error)) from None  # the other outputs are cut by rows
            raise
        if not scattered:
            return by_row
        entries = batch.among(first, rows)
        cuts = {index: self._cut(index, source, arrays[index], entries) for index, source in scattered.items()}
        own = [
            self._own(by_row, start - first, entry, {index: parts[at] for index, parts in cuts.items()})
            for at, (start, entry) in enumerate(entries)
        ]
        if len(own) == 1:
            return own[0]
        outcomes: list[tuple[int, PendingRequest, Outputs | RequestError]] = [
            (entry.port, batch.request(start, entry), outputs)
            for (start, entry), outputs in zip(entries, own, strict=True)
        ]
        return Separate(outcomes)

    def run_arrays(self, inputs: Mapping[int, npt.NDArray[Any] | StringTensor]) -> Sequence[OutputArray]:
        """Run the inputs of one request, as clients send them; for warm-up."""
        return self._run_requests(inputs, [next(iter(inputs.values())).shape[0]])

    def run_each(self, inputs: Mapping[int, npt.NDArray[Any] | StringTensor]) -> Sequence[OutputArray]:
        """Run the inputs of requests of one row each, together."""
        return self._run_requests(inputs, [1] * next(iter(inputs.values())).shape[0])

    def _run_requests(
        self, inputs: Mapping[int, npt.NDArray[Any] | StringTensor], rows: Sequence[int]
    ) -> Sequence[OutputArray]:
        ragged = self._ragged
        shapes = {index: tuple(array.shape[1:]) for index, array in inputs.items()}
        flat = {
            index: array.reshape(-1) if index in ragged.inputs and isinstance(array, np.ndarray) else array
            for index, array in inputs.items()
        }
        try:
            return self._backend.run_arrays({**flat, **ragged.made(self._signature, rows, [shapes] * len(rows))})
        finally:
            self.started_ns, self.ended_ns = self._backend.started_ns, self._backend.ended_ns

    def _cut(
        self, index: int, source: int, array: OutputArray, entries: Sequence[tuple[int, Entry]]
    ) -> list[npt.NDArray[Any]]:
        """The parts of an output that lie end to end, of each request, as arrays [rows, *row shape].

        Raises:
            ExecutionFailed: it has another type, or not as many elements as its requests want.
        """
        tensor = self._signature.outputs[index]
        shapes = [(entry.rows, *_closed(tensor, entry, source)) for _, entry in entries]
        sizes = [prod(shape) for shape in shapes]
        if not isinstance(array, np.ndarray) or array.dtype != tensor.datatype.numpy or array.size != sum(sizes):
            raise ExecutionFailed(
                f"model '{self._model}' returned output '{tensor.name}' as {array.dtype} {list(array.shape)}, "
                f"expected {tensor.datatype.name} of {sum(sizes)} elements: the shapes of input "
                f"'{self._signature.inputs[source].name}' say so"
            )
        flat = array.reshape(-1)
        ends = np.cumsum(sizes)
        return [flat[end - size : end].reshape(shape) for end, size, shape in zip(ends, sizes, shapes, strict=True)]

    def _own(self, by_row: Outputs, first: int, entry: Entry, cut: Mapping[int, npt.NDArray[Any]]) -> Outputs:
        """The outputs of one request, copied: its rows, and its parts of the outputs that are cut."""
        data: list[bytes | npt.NDArray[Any]] = []
        row_bytes: list[int] = []
        row_shapes: list[tuple[int, ...]] = []
        in_arrays = False
        rows = zip(by_row.data, by_row.row_bytes, by_row.row_shapes, strict=True)
        for index in range(len(self._signature.outputs)):
            own = cut.get(index)
            if own is None:
                whole, size, shape = next(rows)
                assert isinstance(whole, bytes | np.ndarray)
                part = whole[first * size : (first + entry.rows) * size]
                large = len(part) > LARGE_OUTPUT_BYTES
                data.append(np.array(part) if isinstance(part, np.ndarray) and large else bytes(part))
            else:
                size, shape = own.nbytes // entry.rows, own.shape[1:]
                large = own.nbytes > LARGE_OUTPUT_BYTES
                data.append(np.array(own, order="C").reshape(-1).view(np.uint8) if large else own.tobytes())
            in_arrays |= isinstance(data[-1], np.ndarray)
            row_bytes.append(size)
            row_shapes.append(shape)
        return Outputs(tuple(data), tuple(row_bytes), tuple(row_shapes), in_arrays=in_arrays)


def _closed(tensor: TensorSpec, entry: Entry, source: int) -> tuple[int, ...]:
    """The shape of a row of an output that is cut, with the sizes that the source has in its open dimensions."""
    assert isinstance(entry, RaggedEntry)
    given = dict(entry.row_shapes)[source]
    return tuple([given[at] if size == -1 else size for at, size in enumerate(tensor.graph_shape)])
