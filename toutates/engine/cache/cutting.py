"""The outputs of one request by themselves, cut from those of its batch, so that they can be kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from toutates.engine.result import Outputs, parameters_of
from toutates.protocol.strings import EncodedStrings

__all__ = ["Part", "cut", "size_of"]

#: Rows of one request in one batch: the outputs, the first row and how many.
Part = tuple[Outputs, int, int]


def cut(parts: Sequence[Part], *, batched: bool) -> Outputs | None:
    """The rows of one request, copied; None where its parts do not go together, so that it has no answer.

    Args:
        parts: in the order of its rows.
        batched: whether the model is.
    """
    first = parts[0][0]
    if len(parts) > 1 and not all(outputs.is_regular for outputs, _, _ in parts):
        return None
    if any(outputs.row_shapes != first.row_shapes for outputs, _, _ in parts):
        return None
    data = [_joined([_rows(part, index, batched) for part in parts]) for index in range(len(first.data))]
    parameters = parameters_of(parts) if len(parts) > 1 else first.parameters
    return Outputs(
        tuple(data),
        first.row_bytes,
        first.row_shapes,
        fixed=first.fixed,
        parameters=parameters,
        missing=first.missing,
        forms=first.forms,
    )


def size_of(outputs: Outputs) -> int:
    """Bytes that outputs of one request hold; 0 if one of them is empty, because such an answer is not kept."""
    sizes = [
        len(content.content) + 8 * len(content.bounds) if isinstance(content, EncodedStrings) else len(content)
        for content in outputs.data
    ]
    return sum(sizes) if all(sizes) else 0


def _rows(part: Part, index: int, batched: bool) -> bytes | EncodedStrings:
    outputs, first, rows = part
    content: Any = outputs.data[index]
    if outputs.forms is not None and index in outputs.forms:
        batched = False
    if isinstance(content, EncodedStrings):
        return content.cut(first, rows) if batched else content
    found = outputs.rows(index, first, rows, batched=batched)
    return found.tobytes() if isinstance(found, np.ndarray) else bytes(found)


def _joined(pieces: Sequence[Any]) -> Any:
    if len(pieces) == 1:
        return pieces[0]
    return EncodedStrings.joined(pieces) if isinstance(pieces[0], EncodedStrings) else b"".join(pieces)
