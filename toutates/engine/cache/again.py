"""Requests that have waited for an answer which turns out to be no answer to all of them: each is computed itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from toutates.engine.cache.store import ENTRY_BYTES
from toutates.engine.calls import Calls, ModelCall, Outcome
from toutates.engine.lane import RowShapes
from toutates.engine.result import BatchResult, Outputs, PendingRequest
from toutates.engine.servable import Buffer, Consumer, Servable

__all__ = ["Again", "Asked"]


class Asked:
    """What alike requests ask for: a copy.

    Args:
        shapes: of one row of each input, as the graph has them.
        outputs: indices of those that are wanted; None for all.
        contents: bytes of each input.

    Attributes:
        size: of these, and of itself.
        Others: as given, copied.
    """

    __slots__ = ("contents", "outputs", "shapes", "size")

    def __init__(self, shapes: RowShapes, outputs: Sequence[int] | None, contents: Sequence[Buffer]) -> None:
        self.shapes = shapes
        self.outputs = None if outputs is None else tuple(outputs)
        self.contents = [bytes(content) for content in contents]
        self.size = sum(map(len, self.contents)) + ENTRY_BYTES


class Again:
    """Computes requests from any thread. They are counted where they came in.

    Args:
        model: its name, for errors.
        number: of the version.
        servable: what computes.
    """

    def __init__(self, model: str, number: int, servable: Servable) -> None:
        self._servable = servable
        self._calls = Calls(model, number, servable)

    def compute(self, asked: Asked, rows: int, waiting: Sequence[tuple[Consumer, Any]]) -> None:
        """Have requests computed that ask for the same. What goes wrong with one is its own outcome.

        Args:
            asked: what they ask for.
            rows: of each.
            waiting: whose requests they are, who is told, and their contexts.
        """
        inputs = self._servable.signature.inputs
        shapes = tuple([(index, inputs[index].to_wire(shape)) for index, shape in asked.shapes])
        calls = [self._call(asked, rows, consumer, context) for consumer, context in waiting]
        self._calls.submit_each(calls, shapes, [asked.contents] * len(calls))

    def _call(self, asked: Asked, rows: int, consumer: Consumer, context: Any) -> ModelCall:
        def tell(outcome: Outcome) -> None:
            outputs = outcome.outputs
            if outputs is not None and outcome.is_whole:
                outputs = self._with_whole_texts(outputs, rows)
            pending: list[PendingRequest] = [(context, outcome.first, rows, None)]
            consumer.finish(BatchResult(pending, outputs, outcome.error, outcome.timing))

        return ModelCall(
            rows,
            tell,
            asked.outputs,
            is_wanted=lambda by_ns: consumer.is_wanted(context, by_ns),
            requests=((rows, 0),),
            about=lambda: consumer.about(context),
        )

    def _with_whole_texts(self, outputs: Outputs, rows: int) -> Outputs:
        """Outputs that were joined of several batches. Their BYTES cannot be cut into rows, and are taken whole."""
        forms = dict(outputs.forms or {})
        for index, spec in enumerate(self._servable.signature.outputs):
            if not spec.datatype.size:
                forms[index] = spec.datatype, (rows, *spec.to_wire(outputs.row_shapes[index]))
        return replace(outputs, forms=forms or None)
