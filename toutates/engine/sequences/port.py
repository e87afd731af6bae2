"""A consumer's way into a model with sequences (``engine.servable.Port``)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from toutates.engine.lane import Piece, RowShapes
from toutates.engine.result import BatchResult
from toutates.engine.sequences.scheduler import Identifier
from toutates.engine.servable import Buffer, Consumer, Content, SequenceOf, view_of
from toutates.protocol.sequence_parameters import ID_MASK
from toutates.protocol.strings import StringRows
from toutates.system.errors import InvalidSequence

__all__ = ["SequencePort", "SequenceRequest", "SequenceWay"]


@dataclass(frozen=True, slots=True)
class SequenceWay:
    """The way for rows of certain shapes.

    Attributes:
        packed: see ``Way``.
        shapes: of a row, by input, as clients see them.
    """

    packed: bool
    shapes: RowShapes


@dataclass(slots=True, eq=False)
class SequenceRequest:
    """A request of a sequence.

    Attributes:
        port: that it came by.
        way: see ``SequenceWay``.
        context: the consumer's.
        contents: bytes of each input, in the order of the way's shapes.
        size: of all of them.
    """

    port: SequencePort
    way: SequenceWay
    context: Any
    contents: tuple[bytes, ...]
    size: int


class Batcher(Protocol):
    """What a port adds requests to.

    Attributes:
        gives_ids: whether a request without an id is a sequence of its own, which gets one.
    """

    @property
    def gives_ids(self) -> bool: ...

    def way(self, row_shapes: RowShapes) -> SequenceWay:
        """The way for rows of these shapes."""
        ...

    def add(self, request: SequenceRequest, identifier: Identifier, *, start: bool, end: bool, timeout_us: int) -> None:
        """Add a request; it runs with the next ``commit``, or later. Its id is 0 or "" for none.

        Raises:
            RequestError: it is refused.
        """
        ...

    def commit(self) -> None:
        """Let run what was added."""
        ...


class SequencePort:
    """See ``engine.servable.Port``. A request's sequence is what ``Consumer.sequence`` says, or its parameters.

    Args:
        batcher: of the model.
        model: its name, for errors.
        consumer: for whom it is.

    Attributes:
        counters: the consumer's.
        consumer: as given.
    """

    def __init__(self, batcher: Batcher, model: str, consumer: Consumer) -> None:
        self._batcher = batcher
        self._model = model
        self.consumer = consumer
        self.counters = consumer.counters
        self._sequence = consumer.sequence or self._sequence_about
        self._at_round_end: Callable[[Callable[[], None]], None] = consumer.at_round_end
        self._commit_asked = False
        #: the thread that commits now; None while none does
        self._committing: int | None = None

    def way(self, row_shapes: RowShapes, outputs: Sequence[int] | None = None) -> SequenceWay:
        """See ``Port``. A run makes all outputs, whichever are wanted."""
        return self._batcher.way(row_shapes)

    def add_packed(self, way: SequenceWay, rows: int, context: Any, buffer: Buffer, spans: Sequence[int]) -> None:
        """See ``Port``.

        Raises:
            InvalidSequence: it is not one row, names no sequence, or one that has not begun.
            Overloaded: too much waits.
            ModelNotReady: the version is being unloaded.
        """
        if buffer.__class__ is bytes:
            if len(spans) == 2:
                self._add(way, rows, context, (buffer[spans[0] : spans[1]],))
                return
            whole: Buffer = buffer
        else:
            whole = memoryview(buffer)
        self._add(
            way, rows, context, tuple([bytes(whole[spans[at] : spans[at + 1]]) for at in range(0, len(spans), 2)])
        )

    def add_contents(self, way: SequenceWay, rows: int, context: Any, contents: Sequence[Content]) -> None:
        """See ``Port`` and ``add_packed``."""
        self._add(way, rows, context, tuple([bytes(view_of(content)) for content in contents]))

    def add_gathered(
        self, way: SequenceWay, rows: int, context: Any, arrays: Sequence[Piece], held_bytes: int = 0
    ) -> None:
        """See ``Port`` and ``add_packed``."""
        self._add(way, rows, context, tuple([_bytes_of(array) for array in arrays]))

    def commit(self, *, inline: bool = True) -> None:
        """See ``Port``."""
        self._committing = threading.get_ident() if inline else None
        try:
            self._batcher.commit()
        finally:
            self._committing = None

    def finish(self, result: BatchResult) -> None:
        """Hand over an outcome, in any thread."""
        if self._committing == threading.get_ident():
            self.consumer.finish_here(result)
        else:
            self.consumer.finish(result)

    def _add(self, way: SequenceWay, rows: int, context: Any, contents: tuple[bytes, ...]) -> None:
        if rows != 1:
            raise InvalidSequence(
                f"inference request to model '{self._model}' must specify batch-size 1 due to requirements of sequence "
                "batcher"
            )
        identifier, start, end, timeout_us = self._sequence(context)
        if not (identifier or self._batcher.gives_ids):
            raise InvalidSequence(
                f"inference request to model '{self._model}' must specify a non-zero or non-empty correlation ID"
            )
        size = len(contents[0]) if len(contents) == 1 else sum(map(len, contents))
        request = SequenceRequest(self, way, context, contents, size)
        self._batcher.add(request, identifier, start=start, end=end, timeout_us=timeout_us)
        if not self._commit_asked:
            self._commit_asked = True
            self._at_round_end(self._commit_round)

    def _sequence_about(self, context: Any) -> SequenceOf:
        """See ``Consumer.sequence``, of a consumer that has none."""
        said = self.consumer.about(context).parameters
        identifier = said.get("sequence_id", 0)
        if not isinstance(identifier, str):
            identifier = int(identifier) & ID_MASK
        start, end = bool(said.get("sequence_start")), bool(said.get("sequence_end"))
        return identifier, start, end, int(said.get("timeout", 0))

    def _commit_round(self) -> None:
        self._commit_asked = False
        self.commit()


def _bytes_of(array: Piece) -> bytes:
    if isinstance(array, StringRows):
        return bytes(memoryview(array.content)[:-1])
    return np.ascontiguousarray(array).tobytes()
