"""The outcome of a batch, as an executor hands it to the workers: outputs or an error, and when it ran."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from toutates.protocol.datatypes import Datatype
from toutates.protocol.strings import EncodedStrings
from toutates.system.errors import ExecutionFailed, RequestError

__all__ = [
    "BatchResult",
    "Form",
    "Outputs",
    "Parameters",
    "PendingRequest",
    "Separate",
    "Split",
    "StepTiming",
    "Timing",
    "indivisible",
    "parameters_of",
]

#: Parameters of a request, or of a response, by name.
Parameters = Mapping[str, bool | int | float | str]

#: Datatype and whole shape of an output that a model gave otherwise than its signature says.
Form = tuple[Datatype, tuple[int, ...]]


class Split:
    """What has come back of a request whose rows went into several batches. Used by its worker's thread only.

    Attributes:
        parts: by position, the outputs of each part's batch, the request's first row in them, and its number of rows.
        left: parts that have not run yet.
        error: the error of a part that failed; None if no part did.
    """

    __slots__ = ("error", "left", "parts")

    def __init__(self, parts: int) -> None:
        self.parts: list[tuple[Outputs, int, int] | None] = [None] * parts
        self.left = parts
        self.error: RequestError | None = None


#: One request's rows in a batch: (its context, its first row, number of its rows, which part of a split request they
#: are). The context is any object that whoever added the rows wants back with the result.
PendingRequest = tuple[Any, int, int, tuple[Split, int] | None]


@dataclass(slots=True)
class Outputs:
    """The outputs of one run, in the signature's order.

    Attributes:
        data: row-major bytes of each output, whole rows one after the other; BYTES encoded.
        row_bytes: bytes per row of each output; 0 for BYTES. The whole output is one row where nothing is batched.
        row_shapes: shape of a row of each output, as the backend has it. The same object for every run of a lane whose
            output shapes are known beforehand, so that values derived from it can be found by identity.
        missing: indices of outputs that a request has asked for and that the model did not give; of a response of a
            decoupled version all that it does not have.
        fixed: whether they have the row shapes that are known of the lane beforehand, as other runs' have that say so.
        in_arrays: whether bytes in ``data`` are still in arrays of uint8, as executors leave large outputs.
        parameters: that the model has given its response, for the client; None for none, as nearly always.
        forms: by index, of outputs of another datatype than the signature's, or whose first dimension is not that of
            the rows. They are of one request, and have no rows. None for none, as nearly always.
    """

    data: tuple[bytes | memoryview | npt.NDArray[Any] | EncodedStrings, ...]
    row_bytes: tuple[int, ...]
    row_shapes: tuple[tuple[int, ...], ...]
    fixed: bool = False
    in_arrays: bool = False
    parameters: Parameters | None = None
    missing: Sequence[int] = ()
    forms: Mapping[int, Form] | None = None

    @property
    def is_regular(self) -> bool:
        """Whether all outputs that were asked for are there, as the signature says."""
        return self.forms is None and not self.missing

    def with_views(self) -> Outputs:
        """A copy of these outputs with memoryviews in place of arrays of uint8.

        Made by each worker for itself, and of an array object of its own: on free-threaded Python (3.14) the count of
        the slices of a memoryview is not atomic, and two threads that slice the same one end with a view released.
        """
        data = [content[:].data if isinstance(content, np.ndarray) else content for content in self.data]
        return Outputs(
            tuple(data),
            self.row_bytes,
            self.row_shapes,
            parameters=self.parameters,
            missing=self.missing,
            forms=self.forms,
        )

    def is_divisible(self, rows: int) -> bool:
        """Whether all ``forms`` of a run of so many rows have these as their first dimension."""
        return self.forms is None or all(shape[:1] == (rows,) for _, shape in self.forms.values())

    def part(self, first: int, rows: int, total: int) -> Outputs:
        """The outputs of one of several requests that were run as one, where they are divisible.

        Args:
            first: the first of its rows.
            rows: how many.
            total: rows of all requests.
        """
        data: list[Any] = []
        forms: dict[int, Form] = {}
        for index, content in enumerate(self.data):
            form = None if self.forms is None else self.forms.get(index)
            if form is not None:
                forms[index] = form[0], (rows, *form[1][1:])
            if isinstance(content, EncodedStrings):
                data.append(content.cut(first, rows))
            else:
                size = self.row_bytes[index] if form is None else len(content) // total
                data.append(content[first * size : (first + rows) * size])
        return Outputs(
            tuple(data),
            self.row_bytes,
            self.row_shapes,
            in_arrays=self.in_arrays,
            parameters=self.parameters,
            missing=self.missing,
            forms=forms or None,
        )

    def rows(self, index: int, first: int, rows: int, *, batched: bool) -> Any:
        """The bytes of some rows of one output, as they are sent, or a view of them.

        Args:
            index: of the output.
            first: the first of the rows.
            rows: how many.
            batched: whether the model is; else the whole output is one row.
        """
        data = self.data[index]
        size = self.row_bytes[index]
        if self.forms is not None and index in self.forms:
            return data.content if isinstance(data, EncodedStrings) else data
        if isinstance(data, EncodedStrings):
            return data.rows(first, rows) if batched else data.content
        return data[first * size : (first + rows) * size]


def indivisible(model: str, rows: int, batches: int) -> ExecutionFailed:
    """The error of a request whose rows were in several batches, of which a model gave something else than rows."""
    return ExecutionFailed(
        f"model '{model}' returned outputs that are not as declared for a request of {rows} rows, which took {batches} "
        "batches: what it gave for each cannot be put together; send fewer rows at once"
    )


def parameters_of(parts: Sequence[tuple[Outputs, int, int]]) -> Parameters | None:
    """The parameters of the response to a request whose rows were in several batches; None for none."""
    joined: dict[str, bool | int | float | str] = {}
    for outputs, _, _ in parts:
        joined.update(outputs.parameters or {})
    return joined or None


@dataclass(slots=True)
class Separate:
    """What a run comes to where the requests of a batch have outcomes of their own.

    Attributes:
        outcomes: for each request: the number of its port, the request, and its outputs, which hold the rows of this
            request alone, or its error.
    """

    outcomes: list[tuple[int, PendingRequest, Outputs | RequestError]]


@dataclass(slots=True)
class Timing:
    """When an executor took a batch, the computation started and ended, and the outputs were ready; monotonic ns.

    Attributes:
        steps: of a model that is made of other models: what these have done for the batch, in the order of their ends.
        cached: whether nothing was computed: the outputs were in the response cache, or another request under way has
            brought them. All four times are the same then.
    """

    taken_ns: int
    started_ns: int
    ended_ns: int
    done_ns: int
    steps: tuple[StepTiming, ...] = ()
    cached: bool = False


@dataclass(slots=True)
class StepTiming:
    """What one member of a model that is made of other models has done for a batch.

    Attributes:
        model, version: the member's.
        begun_ns: when it got the rows, monotonic nanoseconds.
        timing: of its own batch.
    """

    model: str
    version: int
    begun_ns: int
    timing: Timing


class BatchResult:
    """A batch's outcome for the requests of one port: ``outputs``, or the ``error`` that all of them get.

    A request of a decoupled version comes back any number of times (``open_request``): ``more`` says whether it does
    again, and the last time it may have neither outputs nor an error. ``taken`` is to be called when such a result is
    dealt with; None for other results.
    """

    __slots__ = ("_outputs", "error", "more", "pending", "taken", "timing")

    def __init__(
        self,
        pending: list[PendingRequest],
        outputs: Outputs | None,
        error: RequestError | None,
        timing: Timing,
    ) -> None:
        self.pending = pending
        self.error = error
        self.timing = timing
        self.more = False
        self.taken: Callable[[], object] | None = None
        self._outputs = outputs

    @property
    def outputs(self) -> Outputs | None:
        """The outputs of the whole batch. Read it once, in the worker's own thread; see ``Outputs.with_views``."""
        outputs = self._outputs
        return outputs.with_views() if outputs is not None and outputs.in_arrays else outputs

    @property
    def shared_outputs(self) -> Outputs | None:
        """The same outputs in a form that several threads may read at once: large ones are arrays of uint8."""
        return self._outputs
