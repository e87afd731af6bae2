"""A port of a version with a latency target: a request that would be late is refused before anything is done for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from toutates.engine.deadlines.supertensor import DeadlineSuperTensor
from toutates.engine.lane import Batch, GatheredLane, Lane, Piece
from toutates.engine.servable import Buffer, Consumer, Content
from toutates.engine.submitter import LaneWriter, Submitter

__all__ = ["DeadlinePort"]


class DeadlinePort(Submitter):
    """A ``Submitter`` that asks for each request whether it makes its deadline, which takes some 3 us.

    Args:
        supertensor, consumer: as of ``Submitter``.
    """

    def __init__(self, supertensor: DeadlineSuperTensor, consumer: Consumer) -> None:
        super().__init__(supertensor, consumer)
        self._admit_rows = supertensor.admit
        self._deadlines = supertensor.deadlines
        self._is_wanted = consumer.is_wanted
        self._parameters = consumer.parameters
        self._around_ns = consumer.around_ns

    def add_packed(self, way: LaneWriter, rows: int, context: Any, buffer: Buffer, spans: Sequence[int]) -> None:
        """See ``Submitter``.

        Raises:
            WouldBeLate: the answer would come after the request's deadline.
        """
        self._admit(way.lane, rows, context)
        super().add_packed(way, rows, context, buffer, spans)

    def add_contents(self, way: LaneWriter, rows: int, context: Any, contents: Sequence[Content]) -> None:
        """See ``Port``."""
        if len(contents) > 1:
            self._admit(way.lane, rows, context)
        super().add_contents(way, rows, context, contents)

    def add_gathered(
        self, way: GatheredLane, rows: int, context: Any, arrays: Sequence[Piece], held_bytes: int = 0
    ) -> None:
        """See ``Submitter``."""
        self._admit(way, rows, context)
        super().add_gathered(way, rows, context, arrays, held_bytes)

    def add_strings(self, way: GatheredLane, rows: int, context: Any, buffer: Buffer, spans: Sequence[int]) -> None:
        """See ``Submitter``."""
        self._admit(way, rows, context)
        super().add_strings(way, rows, context, buffer, spans)

    def _admit(self, lane: Lane, rows: int, context: Any) -> None:
        is_wanted: Callable[[int], bool] = partial(self._is_wanted, context)
        timeout_us = self._parameters(context).get("timeout", 0)
        now_ns = time.monotonic_ns()
        if isinstance(timeout_us, int) and timeout_us > 0:
            is_wanted = partial(_before, is_wanted, now_ns + timeout_us * 1_000)
        self._admit_rows(lane, rows, is_wanted, self._around_ns(now_ns))

    def _reserve(self, batch: Batch, end: int) -> None:
        super()._reserve(batch, end)
        self._deadlines.note_rows(batch)


def _before(is_wanted: Callable[[int], bool], deadline_ns: int, by_ns: int) -> bool:
    """Whether a request is wanted at a time that is before its deadline."""
    return by_ns <= deadline_ns and is_wanted(by_ns)
