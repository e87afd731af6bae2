"""Checks the outputs of a run against the model's signature, and brings them into the form that responses need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from toutates.engine.result import Form, Outputs
from toutates.protocol.datatypes import BY_NAME
from toutates.protocol.signature import Signature, TensorSpec
from toutates.protocol.strings import EncodedStrings
from toutates.system.errors import ExecutionFailed

__all__ = ["LARGE_OUTPUT_BYTES", "OtherRows", "OutputArray", "OutputPacker"]

#: One output of a run.
OutputArray = npt.NDArray[Any] | EncodedStrings

NOWHERE: Final[Mapping[int, tuple[int, ...]]] = MappingProxyType({})
#: Outputs above it are sent from the memory that the backend gave them, instead of being copied once more.
LARGE_OUTPUT_BYTES: Final = 65_536


class OtherRows(ExecutionFailed):
    """A run has given another number of rows than went in: they cannot be divided among several requests.

    Args:
        text: what is told a client for whom the outputs are of no use.
        outputs: all of them, for the one request whose rows went in.
    """

    def __init__(self, text: str, outputs: Outputs) -> None:
        super().__init__(text)
        self.outputs = outputs


class OutputPacker:
    """Packs the outputs of one backend's runs; used by one executor at a time.

    Args:
        signature: the model's tensors.
        model: its name, for errors.
        any_rows: whether a run may give another number of rows than went in (``OtherRows``).
    """

    def __init__(self, signature: Signature, model: str, *, any_rows: bool = False) -> None:
        self._signature = signature
        self._model = model
        self._any_rows = any_rows and signature.batched
        #: by output, the type and row shape that were last found to fit the signature
        self._sound_forms: list[object] = [None] * len(signature.outputs)

    def pack(
        self,
        arrays: Sequence[OutputArray | None],
        rows: int,
        known: Outputs | None = None,
        elsewhere: Mapping[int, tuple[int, ...]] = NOWHERE,
    ) -> Outputs:
        """Check and convert the outputs of a run.

        Args:
            arrays: what a run returned, in the signature's order: arrays of the outputs' datatypes, BYTES encoded.
            rows: rows of the run, the size every output's first dimension must have where the model is batched.
            known: the form of the outputs, where the lane has it (``PackedLane.known_outputs``).
            elsewhere: row shapes of outputs that are where their caller wants them already, by index; None stands for
                them in ``arrays``, and they have no bytes to be sent.

        Raises:
            ExecutionFailed: an output has another type than the signature, not one row per row of the run, or a size
                that differs from what the graph or the configuration fixes.
            OtherRows: not one row per row of the run, where that may be.
        """
        batch = rows if self._signature.batched else None
        data: list[bytes | npt.NDArray[Any] | EncodedStrings] = []
        in_arrays = False
        row_bytes: list[int] = []
        row_shapes: list[tuple[int, ...]] = []
        forms: dict[int, Form] = {}
        other: ExecutionFailed | None = None
        for index, (array, tensor) in enumerate(zip(arrays, self._signature.outputs, strict=True)):
            if array is None:
                row_shapes.append(elsewhere[index])
                row_bytes.append(0)
                data.append(b"")
                continue
            form = array.dtype, (array.shape if batch is None else array.shape[1:])
            if batch is not None and array.shape[:1] != (batch,):
                other = _wrong_output(array, tensor, batch, self._model)
                if not self._any_rows or array.dtype != tensor.datatype.numpy:
                    raise other
                forms[index] = tensor.datatype, _wire_shape(array.shape, tensor)
                row_shapes.append(array.shape[1:])
                row_bytes.append(0)
                data.append(array if isinstance(array, EncodedStrings) else array.tobytes())
                continue
            if form != self._sound_forms[index]:
                if not _is_sound(*form, tensor, batch):
                    raise _wrong_output(array, tensor, batch, self._model)
                self._sound_forms[index] = form
            row_shapes.append(form[1])
            if isinstance(array, EncodedStrings):
                data.append(array)
                row_bytes.append(0)
                continue
            row_bytes.append(array.nbytes // (batch or 1))
            # A large output keeps the backend's memory until the response is sent. A small one is copied.
            large = array.nbytes > LARGE_OUTPUT_BYTES and known is None
            data.append(np.ascontiguousarray(array).reshape(-1).view(np.uint8) if large else array.tobytes())
            in_arrays |= large
        if other is not None:
            outputs = Outputs(tuple(data), tuple(row_bytes), tuple(row_shapes), in_arrays=in_arrays, forms=forms)
            raise OtherRows(str(other), outputs)
        if known is not None:
            return Outputs(tuple(data), known.row_bytes, known.row_shapes, fixed=True)
        return Outputs(tuple(data), tuple(row_bytes), tuple(row_shapes), in_arrays=in_arrays)


def _wire_shape(shape: tuple[int, ...], tensor: TensorSpec) -> tuple[int, ...]:
    """What clients see of the whole shape of an output of a batched model."""
    return (*shape[:1], *tensor.to_wire(shape[1:])) if shape else shape


def _is_sound(dtype: np.dtype[Any], row_shape: tuple[int, ...], tensor: TensorSpec, rows: int | None) -> bool:
    """Whether an output has the signature's type, number of dimensions, and fixed dimensions."""
    if dtype != tensor.datatype.numpy:
        return False
    expected = tensor.graph_shape
    if rows is None and not expected:
        return True  # a scalar, or of a rank that the graph leaves open
    return len(row_shape) == len(expected) and all(
        size in (-1, actual) for size, actual in zip(expected, row_shape, strict=True)
    )


def _wrong_output(array: OutputArray, tensor: TensorSpec, rows: int | None, model: str) -> ExecutionFailed:
    shape = tensor.graph_shape
    expected = list(shape if rows is None else (rows, *shape))
    found = next((type_.name for type_ in BY_NAME.values() if type_.numpy == array.dtype), str(array.dtype))
    return ExecutionFailed(
        f"model '{model}' returned output '{tensor.name}' as {found} {list(array.shape)}, "
        f"expected {tensor.datatype.name} {expected}"
        + (f" for a batch of {rows} row{'' if rows == 1 else 's'}" if rows is not None else "")
    )
