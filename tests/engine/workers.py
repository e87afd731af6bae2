"""A worker without a loop: the test adds rows through its port, ends its round, and collects what comes back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.waiting import PATIENCE_S
from toutates.engine.lane import GatheredLane, Piece
from toutates.engine.result import BatchResult, Outputs, Split
from toutates.protocol.signature import Signature
from toutates.protocol.strings import EncodedStrings, StringRows, join_rows
from toutates.system.errors import RequestError
from toutates.system.inline_time import INLINE_TIME, NO_BOUND_NS

__all__ = ["TestWorker", "inline_time", "received", "rows_of"]

Array = npt.NDArray[Any]


@dataclass
class TestWorker:
    """What a port needs of a worker, and the answers that have come back, by request context."""

    __test__ = False

    number: int
    signature: Signature
    results: SimpleQueue[BatchResult] = field(default_factory=SimpleQueue)
    callbacks: list[Callable[[], None]] = field(default_factory=list)
    answers: dict[Any, list[Array | bytes]] = field(default_factory=dict)
    errors: dict[Any, RequestError] = field(default_factory=dict)
    #: every result, in the order of arrival
    seen: list[BatchResult] = field(default_factory=list)
    #: the worker's way in, of whichever kind the version has
    port: Any = field(init=False)
    #: takes what others have run, in place of ``results``
    finish: Callable[[BatchResult], None] | None = None

    def deliver(self, result: BatchResult) -> None:
        """Take what others have run."""
        (self.finish or self.results.put)(result)

    def add(self, context: Any, lane: Any, *arrays: Array, rows: int | None = None) -> None:
        """Add one request's tensors, given by position in the lane."""
        if rows is None:
            rows = len(arrays[0]) if self.signature.batched and arrays else 1
        if isinstance(lane, GatheredLane):
            self.port.add_gathered(lane, rows, context, [received(array) for array in arrays])
            return
        contents = [array.tobytes() for array in arrays]
        spans: list[int] = []
        at = 7  # where a message has its own fields before the first content
        for content in contents:
            spans += (at, at + len(content))
            at += len(content)
        self.port.add_packed(self.port.writer(lane), rows, context, b"headers" + b"".join(contents), spans)

    def add_shaped(self, context: Any, *arrays: Array, inputs: Iterable[int] | None = None) -> None:
        """Add one request's tensors where rows of different shapes share a batch, given by position."""
        indices = inputs if inputs is not None else range(len(arrays))
        shapes = tuple((index, array.shape[1:]) for index, array in zip(indices, arrays, strict=True))
        contents = [array.tobytes() for array in arrays]
        port = self.port
        port.add_contents(port.way(shapes), len(arrays[0]), context, contents)

    def at_round_end(self, callback: Callable[[], None]) -> None:
        """See ``Consumer``."""
        self.callbacks.append(callback)

    def end_round(self) -> None:
        """Commit what was added."""
        callbacks, self.callbacks = self.callbacks, []
        for callback in callbacks:
            callback()

    def collect(self, *contexts: Any) -> list[Any]:
        """Wait for the answers of these requests: the first output of each, or its error."""
        deadline = time.monotonic() + PATIENCE_S
        while not all(context in self.answers or context in self.errors for context in contexts):
            self.take(self.results.get(timeout=deadline - time.monotonic()))
        return [self.errors[context] if context in self.errors else self.answers[context][0] for context in contexts]

    def take(self, result: BatchResult) -> None:
        """Give each request of a result its rows."""
        self.seen.append(result)
        outputs = result.outputs
        for context, first, rows, part in result.pending:
            if outputs is None:
                assert result.error is not None
                self.errors[context] = result.error
            elif part is None:
                self.answers[context] = rows_of(outputs, first, rows, self.signature)
            else:
                self._join(context, outputs, first, rows, *part)

    def _join(self, context: Any, outputs: Outputs, first: int, rows: int, split: Split, index: int) -> None:
        split.parts[index] = (outputs, first, rows)
        split.left -= 1
        if not split.left and context not in self.errors:
            parts = [rows_of(*part, self.signature) for part in split.parts if part is not None]
            self.answers[context] = [np.concatenate(pieces) for pieces in zip(*parts, strict=True)]


def received(array: Array) -> Piece:
    """An array as a service hands it to a lane; BYTES are bytes objects."""
    if not array.dtype.hasobject:
        return array
    encoded = EncodedStrings.of(array.ravel().tolist(), array.shape)
    return StringRows.received(encoded.content, array.shape, tensor="x", model="m")


def rows_of(outputs: Outputs, first: int, rows: int, signature: Signature) -> list[Any]:
    """Some rows of every output, as a service cuts them."""
    cut: list[Any] = []
    columns = zip(outputs.data, outputs.row_bytes, outputs.row_shapes, signature.outputs, strict=True)
    for index, (data, size, shape, spec) in enumerate(columns):
        whole = (rows, *shape) if signature.batched else shape
        if outputs.forms is not None and index in outputs.forms:
            assert not isinstance(data, EncodedStrings)
            cut.append(np.frombuffer(data, spec.datatype.numpy).reshape(outputs.forms[index][1]))
        elif isinstance(data, EncodedStrings):
            encoded = data.rows(first, rows) if signature.batched else data.content
            strings = StringRows.received(encoded, whole, tensor="y", model="m")
            cut.append(np.array(join_rows([strings], whole).elements(), object).reshape(whole))
        else:
            cut.append(np.frombuffer(data[first * size : (first + rows) * size], spec.datatype.numpy).reshape(whole))
    return cut


@contextmanager
def inline_time(left_ns: int) -> Iterator[None]:
    """A round of the calling thread that has so much time left for inline runs."""
    INLINE_TIME.left_ns = left_ns
    try:
        yield
    finally:
        INLINE_TIME.left_ns = NO_BOUND_NS
