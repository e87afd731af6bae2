"""Checks the outputs of a run against the model's signature, and brings them into the form that responses need."""

from __future__ import annotations

import logging
import threading
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

__all__ = ["LARGE_OUTPUT_BYTES", "OtherRows", "OtherSizes", "OutputArray", "OutputPacker"]

logger = logging.getLogger(__name__)

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


class OtherSizes:
    """Says once of a version that an output has other sizes than is declared. Used by all of its executors.

    Args:
        model: its name.
        version: its number; 0 where it is not known.
    """

    def __init__(self, model: str, version: int = 0) -> None:
        self._who = f"model '{model}' version {version}" if version else f"model '{model}'"
        self._model = model
        self._is_said = False
        self._lock = threading.Lock()

    @staticmethod
    def told(tensor: TensorSpec, given: Sequence[int], *, batched: bool) -> str:
        """What is wrong with a declaration, and what to do.

        Args:
            tensor: the output.
            given: the whole shape that a run has given.
            batched: whether the model is.
        """
        declared = [-1] * batched + list(tensor.graph_shape)
        return (
            f"output '{tensor.name}' is declared {declared} and came as {list(given)}, which is sent as it is; open "
            f"what is not fixed: -1 in output_shapes.{tensor.name} of config.yaml, or in its dims in config.pbtxt"
        )

    def note_said(self) -> None:
        """Say nothing any more."""
        with self._lock:
            self._is_said = True

    def say(self, what: str) -> None:
        """Log what ``told`` says, if nothing was said before."""
        with self._lock:
            if self._is_said:
                return
            self._is_said = True
        logger.warning("%s: %s", self._who, what, extra={"model": self._model})


class OutputPacker:
    """Packs the outputs of one backend's runs; used by one executor at a time.

    Args:
        signature: the model's tensors.
        model: its name, for errors.
        other_sizes: of the version; None for its own.
        any_rows: whether a run may give another number of rows than went in (``OtherRows``).
    """

    def __init__(
        self, signature: Signature, model: str, other_sizes: OtherSizes | None = None, *, any_rows: bool = False
    ) -> None:
        self._signature = signature
        self._model = model
        self._other_sizes = other_sizes or OtherSizes(model)
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
            known: the form of the outputs, where the lane has it (``PackedLane.known_outputs``). They may have another.
            elsewhere: row shapes of outputs that are where their caller wants them already, by index; None stands for
                them in ``arrays``, and they have no bytes to be sent.

        Raises:
            ExecutionFailed: an output has another type than the signature, or not one row per row of the run.
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
                    raise _wrong_output(array, tensor, batch, self._model)
                forms[index] = tensor.datatype, _wire_shape(array.shape, tensor)
                row_shapes.append(array.shape[1:])
                row_bytes.append(0)
                data.append(array if isinstance(array, EncodedStrings) else array.tobytes())
                continue
            if form != self._sound_forms[index]:
                if array.dtype != tensor.datatype.numpy:
                    raise _wrong_output(array, tensor, batch, self._model)
                if not _has_declared_sizes(form[1], tensor, batch):
                    self._other_sizes.say(OtherSizes.told(tensor, array.shape, batched=batch is not None))
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
        if known is not None and known.row_shapes == tuple(row_shapes):
            return Outputs(tuple(data), known.row_bytes, known.row_shapes, fixed=True)
        return Outputs(tuple(data), tuple(row_bytes), tuple(row_shapes), in_arrays=in_arrays)


def _wire_shape(shape: tuple[int, ...], tensor: TensorSpec) -> tuple[int, ...]:
    """What clients see of the whole shape of an output of a batched model."""
    return (*shape[:1], *tensor.to_wire(shape[1:])) if shape else shape


def _has_declared_sizes(row_shape: tuple[int, ...], tensor: TensorSpec, rows: int | None) -> bool:
    """Whether an output has the signature's number of dimensions, and its fixed dimensions."""
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
