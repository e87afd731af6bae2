"""Copies of large contents into a batch, in steps of rounds: a worker serves others between them.

A batch is not run while it is copied to: whoever copies counts among those who are writing to it (``Batch.busy``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
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


@dataclass(slots=True, eq=False)
class _Copy:
    """A copy that is under way.

    Attributes:
        batch: it goes to.
        target, content: of the same size.
        fail: called if the content cannot be copied.
        done: bytes that are there.
    """

    batch: Batch
    target: memoryview
    content: memoryview
    fail: Callable[[], None]
    done: int = 0


class LongCopies:
    """The copies of one worker into one SuperTensor. They take turns, a step each.

    Args:
        supertensor: whose batches they are.
        at_round_end: see ``Consumer``.
    """

    def __init__(self, supertensor: SuperTensor, at_round_end: Callable[[Callable[[], None]], None]) -> None:
        self._supertensor = supertensor
        self._at_round_end = at_round_end
        self._left: deque[_Copy] = deque()

    def begin(self, batch: Batch, target: memoryview, content: memoryview, fail: Callable[[], None]) -> None:
        """Copy a content at the end of this round and the next ones; the batch waits until it is there.

        Args:
            batch: whose rows it is of.
            target, content: of the same size.
            fail: called if the content cannot be copied.
        """
        with self._supertensor.lock:
            batch.busy += 1
        self._left.append(_Copy(batch, target, content, fail))
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
            copy.fail()
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
