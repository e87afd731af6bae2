"""Ports of versions with queue policies: requests wait whole, with their priority and their timeout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import numpy as np

from toutates.engine.lane import Lane, Piece, RowShapes
from toutates.engine.lane_table import is_packed
from toutates.engine.padded.lanes import Entry
from toutates.engine.padded.port import EntryPort
from toutates.engine.policies.queue import PolicyQueue
from toutates.engine.ragged.port import RaggedPort
from toutates.engine.result import Parameters
from toutates.engine.servable import Buffer, Content, view_of
from toutates.system.errors import InvalidRequest, QueueFull

__all__ = ["PolicyPort", "RaggedPolicyPort"]

#: What is remembered of a request that waits, beside its rows: itself, its level, its place among the timeouts.
_OWN_BYTES: Final = 2_048


class _Policies(EntryPort):
    """What the two kinds of port have in common."""

    def _enter(self, form: Lane, rows: int, held_bytes: int, entries: Sequence[Entry]) -> None:
        """See ``EntryPort``.

        Raises:
            QueueFull: as many requests of this priority wait as may.
        """
        queue, (entry,) = self._queue, entries
        assert isinstance(queue, PolicyQueue)
        said = self._parameters(entry.context)
        priority, timeout_us = (_number(said, "priority"), _number(said, "timeout")) if said else (0, 0)
        entry.held_bytes += _OWN_BYTES
        size = rows * entry.length
        with self._supertensor.lock:
            if not queue.bound_met(priority):
                self._put(queue, form, entry, size, priority, timeout_us)
                return
        # What idle executors take at the commit does not wait.
        self.commit(inline=False)
        with self._supertensor.lock:
            bound = queue.bound_met(priority)
            if bound:
                keys = self._supertensor.budget.bounds.keys
                raise QueueFull(
                    f"Exceeds maximum queue size: {bound} requests of this priority wait for model "
                    f"'{self._supertensor.name}'; try again later, or raise {keys.waiting} in its {keys.file}"
                ).after(self._supertensor.budget.wait_s())
            self._put(queue, form, entry, size, priority, timeout_us)

    def _put(self, queue: PolicyQueue, form: Lane, entry: Entry, size: int, priority: int, timeout_us: int) -> None:
        self._supertensor.let_in(form, entry.rows, entry.held_bytes)
        queue.put(form, entry, size, priority, timeout_us)


@dataclass(frozen=True, slots=True)
class PolicyWay:
    """The way into a port for rows of one shape (``engine.servable.Way``).

    Attributes:
        lane: of the rows.
        packed: see ``Way``.
        row_shapes: of the rows.
        row_bytes: of one row of all inputs.
    """

    lane: Lane
    packed: bool
    row_shapes: RowShapes
    row_bytes: int


class PolicyPort(_Policies):
    """The port of a version whose rows run as they came (``engine.servable.Port``)."""

    def way(self, row_shapes: RowShapes, outputs: Sequence[int] | None = None) -> PolicyWay:
        """See ``Port``."""
        supertensor = self._supertensor
        signature = supertensor.signature
        sizes = [prod(shape) * signature.inputs[index].datatype.size for index, shape in row_shapes]
        packed = is_packed(signature, row_shapes)
        return PolicyWay(supertensor.lane(row_shapes), packed, tuple(row_shapes), sum(sizes))

    def add_packed(self, way: PolicyWay, rows: int, context: Any, buffer: Buffer, spans: Sequence[int]) -> None:
        """See ``Port``."""
        whole = memoryview(buffer)
        self._add_bytes(way, rows, context, [whole[spans[at] : spans[at + 1]] for at in range(0, len(spans), 2)])

    def add_contents(self, way: PolicyWay, rows: int, context: Any, contents: Sequence[Content]) -> None:
        """See ``Port``."""
        self._add_bytes(way, rows, context, list(map(view_of, contents)))

    def add_gathered(
        self, way: PolicyWay, rows: int, context: Any, arrays: Sequence[Piece], held_bytes: int = 0
    ) -> None:
        """See ``Port``."""
        self._check_rows(way, rows)
        self._add(way, rows, context, arrays, held_bytes)

    def _add_bytes(self, way: PolicyWay, rows: int, context: Any, contents: Sequence[memoryview]) -> None:
        signature = self._supertensor.signature
        self._check_rows(way, rows)
        arrays = [
            np.frombuffer(bytes(content), signature.inputs[index].datatype.numpy).reshape(
                (rows, *shape) if signature.batched else shape
            )
            for (index, shape), content in zip(way.row_shapes, contents, strict=True)
        ]
        # The rows of a batch are joined when it runs.
        self._add(way, rows, context, arrays, 2 * rows * way.row_bytes)

    def _add(self, way: PolicyWay, rows: int, context: Any, arrays: Sequence[Piece], held_bytes: int) -> None:
        entry = Entry(way.row_bytes, self._port, context, rows, arrays, None, held_bytes)
        self._enter(way.lane, rows, held_bytes, (entry,))
        self._note_added()

    def _check_rows(self, way: PolicyWay, rows: int) -> None:
        supertensor = self._supertensor
        most = way.lane.batch_rows
        if rows < 1:
            raise InvalidRequest(f"the batch dimension for model '{supertensor.name}' is 0; send 1 row or more")
        if rows > most:
            raise InvalidRequest(f"inference request batch-size must be <= {most} for '{supertensor.name}'")


class RaggedPolicyPort(_Policies, RaggedPort):
    """The port of a version with ragged inputs and queue policies."""


def _number(said: Parameters, name: str) -> int:
    """A parameter of a request; 0 if it is no integer, which only models can say."""
    value = said.get(name, 0)
    return value if isinstance(value, int) else 0
