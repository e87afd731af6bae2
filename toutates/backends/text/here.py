"""Short texts of a table, each in a request of its own, computed in the thread of the worker that they have come to.

A table computes such texts in less time than their way through the queue takes, where each has a request, a place in a
batch, a row and a result. Those that came in one round are run as they are, as one batch in which nobody waits, as long
as an executor is idle and runs are known to be quick. A text that is unusual in any way is left to the queue.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, islice, takewhile
from typing import Final

from toutates.backends.text.interface import MOST_CHARACTERS_HERE, Float32
from toutates.backends.text.work import Settled
from toutates.engine.lane import Batch, Lane
from toutates.engine.result import Timing
from toutates.engine.supertensor import SuperTensor

__all__ = ["HereBatch", "HereRunner"]

#: Texts of one run.
_MOST_TEXTS: Final = 64


class HereBatch(Batch):
    """Texts that run without requests.

    Attributes:
        texts: strings of valid Unicode.
        settled: how they are computed.
        vectors, tokens: what they got: None and 0 for one that is left to the queue.
        computed: how many are not.
        read_ns: how long reading their tokens took.
    """

    __slots__ = ("computed", "read_ns", "settled", "texts", "tokens", "vectors")

    def __init__(self, lane: Lane, texts: Sequence[str], size: int, settled: Settled) -> None:
        super().__init__(lane, 0, 0)
        self.rows = self.computed = len(texts)
        self.held_bytes = size
        self.texts = texts
        self.settled = settled
        self.vectors: Sequence[Float32 | None] = ()
        self.tokens: Sequence[int] = ()
        self.read_ns = 0


class HereRunner:
    """Runs such texts. Any thread may use it.

    Args:
        supertensor: of the model.
        lane: whose runs tell whether these are quick.
    """

    def __init__(self, supertensor: SuperTensor, lane: Lane) -> None:
        self._supertensor = supertensor
        self._lane = lane

    def run(self, texts: Sequence[str], settled: Settled) -> tuple[HereBatch, Timing] | None:
        """Run the first of some texts, at least one; None where they are to be put into the queue."""
        together = "".join(texts)
        if len(together) > MOST_CHARACTERS_HERE or len(texts) > _MOST_TEXTS:
            sizes = takewhile(MOST_CHARACTERS_HERE.__ge__, islice(accumulate(map(len, texts)), _MOST_TEXTS))
            texts = texts[: sum(1 for _ in sizes)]
            together = "".join(texts)
        if not together.isascii():
            try:
                together.encode()
            except UnicodeEncodeError:
                return None
        batch = HereBatch(self._lane, texts, len(together), settled)
        supertensor = self._supertensor
        with supertensor.lock:
            executor = supertensor.claim(batch)
        if executor is None:
            return None
        try:
            timing = executor.run_claimed(batch)
        finally:
            following = supertensor.release_inline(batch, executor, more=True)
            if following is not None:
                executor.run_inline(following, supertensor.deliver)
        return None if timing is None else (batch, timing)
