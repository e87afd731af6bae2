"""Copies of large contents into a batch, in steps of rounds: a worker serves others between them.

A batch is not run while it is copied to: whoever copies counts among those who are writing to it (``Batch.busy``).
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from mmap import mmap
from typing import Final, NoReturn

from toutates.engine.lane import Batch
from toutates.engine.result import BatchResult, PendingRequest, Timing
from toutates.engine.servable import Consumer
from toutates.engine.splits import settled
from toutates.engine.supertensor import SuperTensor
from toutates.system.errors import ExecutionFailed

__all__ = ["STEP_BYTES", "LongCopies", "may_be_kept"]

#: 0.5 ms of a machine that does nothing else, and some 8 ms where the memory is fresh and the processor is shared.
STEP_BYTES: Final = 4 * 2**20


def may_be_kept(content: memoryview) -> bool:
    """Whether the memory of a content stays as it is while somebody has a view of it, as messages and bodies do.

    Other memory may be somebody's for the next request, such as the outputs of a step of an ensemble.
    """
    return isinstance(content.obj, (bytes, bytearray, mmap))


@dataclass(slots=True, eq=False)
class _Copy:
    """A copy that is under way.

    Attributes:
        batch: it goes to.
        first: row of the batch, of its request.
        target, content: of the same size.
        done: bytes that are there.
    """

    batch: Batch
    first: int
    target: memoryview
    content: memoryview
    done: int = 0


class LongCopies:
    """The copies of one worker into one SuperTensor. They take turns, a step each.

    Args:
        supertensor: whose batches they are.
        port: of the worker.
        consumer: the worker's.
    """

    def __init__(self, supertensor: SuperTensor, port: int, consumer: Consumer) -> None:
        self._supertensor = supertensor
        self._port = port
        self._at_round_end = consumer.at_round_end
        self._finish_here = consumer.finish_here
        self._left: deque[_Copy] = deque()

    def begin(self, batch: Batch, first: int, target: memoryview, content: memoryview) -> None:
        """Copy a content at the end of this round and the next ones; the batch waits until it is there.

        Args:
            batch: whose rows it is of.
            first: of these rows; their request fails if the content cannot be copied.
            target, content: of the same size.
        """
        with self._supertensor.lock:
            batch.busy += 1
        self._left.append(_Copy(batch, first, target, content))
        if len(self._left) == 1:
            self._at_round_end(self._step)

    def _step(self) -> None:
        copy = self._left[0]
        is_over = True
        try:
            end = copy.done + STEP_BYTES
            copy.target[copy.done : end] = copy.content[copy.done : end]
            copy.done = end
            is_over = end >= len(copy.content)
        except BaseException:
            self._fail(copy.batch, copy.first)
            raise
        finally:
            if is_over:
                self._left.popleft()
            else:
                self._left.rotate(-1)
            if self._left:
                self._at_round_end(self._step)
            if is_over:
                copy.target.release()
                copy.content.release()
                self._supertensor.commit((copy.batch,), inline=False)

    def _fail(self, batch: Batch, first: int) -> None:
        """Rows from ``first`` on could not be copied: their request fails, and the others of the batch run."""
        with self._supertensor.lock:
            pending = batch.pending[self._port]
            failed = [request for request in pending if request[1] == first and request[2]]
            pending[:] = [request for request in pending if request[1] != first or not request[2]]
            ports: list[list[PendingRequest]] = [[] for _ in batch.pending]
        ports[self._port] = failed
        now_ns = time.monotonic_ns()
        outcome = ports, None, ExecutionFailed("internal error"), Timing(now_ns, now_ns, now_ns, now_ns)
        for told, outputs, error, timing in settled([outcome], self._supertensor, _not_needed, _not_needed):
            if told[self._port]:
                self._finish_here(BatchResult(told[self._port], outputs, error, timing))


def _not_needed(*given: object) -> NoReturn:
    """What fails is not run once more."""
    raise AssertionError(given)
