"""Leaves out batches of a version with a latency target that have waited for too long."""

from __future__ import annotations

import time
from typing import Final

from toutates.engine.around import AroundBackend
from toutates.engine.deadlines.queue import DeadlineQueue
from toutates.engine.lane import Batch
from toutates.engine.result import Outputs, Separate
from toutates.engine.servable import Backend
from toutates.system.errors import TooLate

__all__ = ["InTime"]

_LATE: Final = "Deadline Exceeded: the model's latency target had passed before the request could be run"


class InTime(AroundBackend[Backend]):
    """A ``Backend`` that does not run what is late anyway (``engine.servable``).

    Args:
        backend: that runs the rest.
        queue: of the version.
    """

    def __init__(self, backend: Backend, queue: DeadlineQueue) -> None:
        super().__init__(backend)
        self._queue = queue

    def run(self, batch: Batch, first: int, rows: int) -> Outputs | Separate:
        """See ``Backend``.

        Raises:
            TooLate: all requests of the batch are late.
        """
        if self._queue.is_too_late(batch):
            self.started_ns = self.ended_ns = time.monotonic_ns()
            raise TooLate(_LATE)
        backend = self._backend
        try:
            outputs = backend.run(batch, first, rows)
        finally:
            self.started_ns, self.ended_ns = backend.started_ns, backend.ended_ns
        if rows == batch.rows and (expected := self._queue.expected(batch)) is not None:
            expected.ran = True
            expected.run_ns = self.ended_ns - self.started_ns
        return outputs
