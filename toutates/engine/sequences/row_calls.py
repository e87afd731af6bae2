"""Rows of sequences for a model that sees each of them as a request of its own, as Triton's Python models do.

Such a model may answer a row at any time and any number of times, and may ask for it once more. A row is *done* when it
is answered fully, or, of a decoupled model, when its ``execute`` has returned: then its sequence may go on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from toutates.engine.calls import ModelCall, Outcome
from toutates.engine.result import BatchResult
from toutates.engine.sequences.port import SequenceRequest
from toutates.engine.sequences.scheduler import Given
from toutates.engine.servable import RequestAbout

__all__ = ["RowBatch", "deliver", "row_calls"]

logger = logging.getLogger(__name__)

#: What a null row says.
_NULL: Final = RequestAbout(parameters={"sequence_id": 0, "sequence_start": False, "sequence_end": False})


class RowBatch:
    """A batch that is under way. Guarded by the servable's lock.

    Args:
        instance: that runs it.
        rows: its requests.

    Attributes:
        instance: as given.
        left: those that are not done.
    """

    def __init__(self, instance: int, rows: Sequence[Given[SequenceRequest]]) -> None:
        self.instance = instance
        self.left = set(rows)


#: Takes a row and its last outcome, or None once ``execute`` has returned, which comes before or after that. Whichever
#: comes first, the row is done. In any thread.
OnDone = Callable[[RowBatch, Given[SequenceRequest], Outcome | None], object]


class _Row:
    """A row that is under way.

    Args:
        batch: it belongs to.
        row: the request.
        on_done: see ``OnDone``.
    """

    __slots__ = ("_batch", "_on_done", "_row")

    def __init__(self, batch: RowBatch, row: Given[SequenceRequest], on_done: OnDone) -> None:
        self._batch, self._row, self._on_done = batch, row, on_done

    def is_wanted(self, by_ns: int) -> bool:
        """See ``Consumer``."""
        own = self._row.own
        return own.port.consumer.is_wanted(own.context, by_ns)

    def may_have_left(self) -> bool:
        """See ``Consumer``."""
        own = self._row.own
        return own.port.consumer.may_have_left(own.context)

    def unread_bytes(self) -> int:
        """See ``Consumer``."""
        own = self._row.own
        return own.port.consumer.unread_bytes(own.context)

    def about(self) -> RequestAbout:
        """What the request says, with the id and the flags that its sequence has given it."""
        row = self._row
        said = row.own.port.consumer.about(row.own.context)
        own = {"sequence_id": row.sequence.identifier, "sequence_start": row.start, "sequence_end": row.end}
        return RequestAbout(said.identifier, said.outputs, {**said.parameters, **own})

    def note(self, outcome: Outcome) -> None:
        """Pass on what has come of it."""
        if outcome.more:
            deliver(self._row, outcome)
        else:
            self._on_done(self._batch, self._row, outcome)

    def released(self) -> None:
        """See ``Consumer``."""
        self._on_done(self._batch, self._row, None)


@dataclass(slots=True, eq=False, kw_only=True)
class _RowCall(ModelCall):
    """The call of a row; ``row`` is None for a null row."""

    row: _Row | None

    passes_on: ClassVar[bool] = True

    def may_have_left(self) -> bool:
        """See ``Consumer``."""
        return self.row is None or self.row.may_have_left()

    def unread_bytes(self) -> int:
        """See ``Consumer``."""
        return 0 if self.row is None else self.row.unread_bytes()

    def released(self) -> None:
        """See ``Consumer``."""
        if self.row is not None:
            self.row.released()


def row_calls(batch: RowBatch, rows: Sequence[Given[SequenceRequest] | None], on_done: OnDone) -> list[ModelCall]:
    """A call for each row of a batch.

    Args:
        batch: they belong to.
        rows: None for a null row, which nobody waits for.
        on_done: see ``OnDone``.
    """
    calls: list[ModelCall] = []
    for given in rows:
        if given is None:
            calls.append(_RowCall(1, _drop, is_wanted=lambda by_ns: False, about=lambda: _NULL, row=None))
            continue
        row = _Row(batch, given, on_done)
        asked = given.own.port.consumer.about(given.own.context).outputs
        outputs = None if asked is None else tuple(sorted(asked))
        calls.append(_RowCall(1, row.note, outputs, row.is_wanted, about=row.about, row=row))
    return calls


def deliver(row: Given[SequenceRequest], outcome: Outcome) -> None:
    """Hand what has come of a row to the port of its request."""
    result = BatchResult(
        [(row.own.context, outcome.first, outcome.rows, None)], outcome.outputs, outcome.error, outcome.timing
    )
    result.more, result.taken = outcome.more, outcome.taken
    try:
        row.own.port.finish(result)
    except Exception:
        logger.exception("handing the outcome of a row of a sequence to its port failed")


def _drop(outcome: Outcome) -> None:
    """What comes of a null row is of no consequence."""
    if outcome.taken is not None:
        outcome.taken()
