"""Ensemble tensors: how they come out of a step, and into the outputs of an ensemble."""

from __future__ import annotations

from math import prod
from typing import Any, cast

from toutates.backends.ensemble.binding import Asked, BoundStep, Value
from toutates.engine.calls import Outcome
from toutates.engine.servable import Content, view_of
from toutates.protocol.strings import EncodedStrings, StringRows

__all__ = ["encoded_strings", "outputs_of_step", "rows_of", "whole_strings"]


def outputs_of_step(step: BoundStep, asked: Asked, outcome: Outcome) -> list[tuple[int, Value]]:
    """The ensemble tensors that a step was asked for and has written, by index."""
    assert outcome.outputs is not None
    missing, forms = outcome.outputs.missing, outcome.outputs.forms
    values: list[tuple[int, Value]] = []
    row_shapes = outcome.outputs.row_shapes
    batched = step.batched
    for index, tensor in asked.outputs:
        if index in missing:
            continue
        spec = step.specs[index]
        content = outcome.content(index, batched=batched)
        if forms is not None and index in forms:
            datatype, shape = forms[index]
        else:
            datatype, shape = spec.datatype, row_shapes[index]
            shape = shape if spec.reshape is None else spec.to_wire(shape)
            shape = (outcome.rows, *shape) if batched else shape
        values.append((tensor, (shape, content, datatype)))
    return values


def whole_strings(content: Content, shape: tuple[int, ...]) -> EncodedStrings:
    """Encoded strings of which nobody takes a part: where the elements begin, which may be a million, is not asked."""
    bounds = {0: 0, prod(shape): len(content)}
    return EncodedStrings(bytes(content), cast(Any, bounds), shape)


def encoded_strings(content: Content, shape: tuple[int, ...]) -> EncodedStrings:
    """Encoded strings with where each begins."""
    starts, _ = StringRows.received(view_of(content), shape, tensor="", model="").where()
    bounds = [int(start) - 4 for start in starts]
    bounds.append(len(content))
    return EncodedStrings(bytes(content), bounds, shape)


def rows_of(value: Value | None, first: int, rows: int) -> Value | None:
    """Some rows of a tensor whose first dimension is that of the rows."""
    if value is None:
        return None
    shape, content, datatype = value
    part = (rows, *shape[1:])
    if not datatype.size:
        return part, encoded_strings(content, shape).rows(first, rows), datatype
    row_bytes = len(content) // shape[0]
    return part, content[first * row_bytes : (first + rows) * row_bytes], datatype
