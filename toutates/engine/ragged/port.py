"""A port of a version with ragged inputs: as a padded version's, but that a request is never split."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from toutates.engine.padded.lanes import Entry, PaddedWay
from toutates.engine.padded.port import PaddedPort
from toutates.engine.ragged.lanes import RaggedEntry, RaggedForm, RaggedWay
from toutates.engine.ragged.ragged import Ragged
from toutates.system.errors import InvalidRequest

__all__ = ["RaggedPort"]


class RaggedPort(PaddedPort):
    """See ``PaddedPort``. What the model is told is said of whole requests, so all rows of one run together."""

    def way(self, row_shapes: Sequence[tuple[int, tuple[int, ...]]], outputs: Sequence[int] | None = None) -> RaggedWay:
        """See ``Port``."""
        ragged, supertensor = self._padding, self._supertensor
        assert isinstance(ragged, Ragged)
        shapes, signature = tuple(row_shapes), supertensor.signature
        form = supertensor.lane(ragged.form_of(shapes, signature))
        assert isinstance(form, RaggedForm)
        row_bytes = tuple([prod(shape) * signature.inputs[index].datatype.size for index, shape in shapes])
        elements = ragged.elements(shapes)
        return RaggedWay(
            form,
            elements,
            row_bytes,
            sum(row_bytes) + ragged.made_bytes(shapes),
            elements,
            form.batch_rows,
            row_shapes=shapes,
        )

    def _entries(
        self, way: PaddedWay, rows: int, context: Any, contents: Sequence[bytes], row_held: int
    ) -> list[Entry]:
        assert isinstance(way, RaggedWay)
        if rows > way.most_rows:
            raise InvalidRequest(
                f"inference request batch-size must be <= {way.most_rows} for '{self._supertensor.name}'"
            )
        held = rows * row_held
        return [RaggedEntry(way.length, self._port, context, rows, contents, None, held, row_shapes=way.row_shapes)]
