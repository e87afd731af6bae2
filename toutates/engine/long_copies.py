"""Copies of large contents into a batch, in steps of rounds: a worker serves others between them.

A batch is not run while it is copied to: whoever copies counts among those who are writing to it (``Batch.busy``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from mmap import mmap
from typing import Final

from toutates.engine.lane import Batch
from toutates.engine.supertensor import SuperTensor

__all__ = ["STEP_BYTES", "LongCopies", "may_be_kept"]

#: 0.5 ms of a machine that does nothing else, and some 8 ms where the memory is fresh and the processor is shared.
STEP_BYTES: Final = 4 * 2**20


def may_be_kept(content: memoryview) -> bool:
    """Whether the memory of a content stays as it is while somebody has a view of it, as that of large messages does.

    Other memory may be somebody's for the next request, such as the outputs of a step of an ensemble.
    """
    return isinstance(content.obj, (bytes, mmap))


class LongCopies:
    """The copies of one worker into one SuperTensor, one after the other.

    Args:
        supertensor: whose batches they are.
        at_round_end: see ``Consumer``.
    """

    def __init__(self, supertensor: SuperTensor, at_round_end: Callable[[Callable[[], None]], None]) -> None:
        self._supertensor = supertensor
        self._at_round_end = at_round_end
        #: batch, where to and what, and what is called if it cannot be copied
        self._left: deque[tuple[Batch, memoryview, memoryview, Callable[[], None]]] = deque()
        self._done = 0

    def begin(self, batch: Batch, target: memoryview, content: memoryview, fail: Callable[[], None]) -> None:
        """Copy a content at the end of this round and the next ones; the batch waits until it is there.

        Args:
            batch: whose rows it is of.
            target, content: of the same size.
            fail: called if the content cannot be copied.
        """
        with self._supertensor.lock:
            batch.busy += 1
        self._left.append((batch, target, content, fail))
        if len(self._left) == 1:
            self._at_round_end(self._step)

    def _step(self) -> None:
        batch, target, content, fail = self._left[0]
        is_over = True
        try:
            end = self._done + STEP_BYTES
            target[self._done : end] = content[self._done : end]
            self._done = end
            is_over = end >= len(content)
        except BaseException:
            fail()
            raise
        finally:
            if is_over:
                self._left.popleft()
                self._done = 0
            if self._left:
                self._at_round_end(self._step)
            if is_over:
                target.release()
                content.release()
                self._supertensor.commit((batch,), inline=False)
