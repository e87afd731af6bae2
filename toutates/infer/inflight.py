"""The bound on ModelInfer requests that were accepted and are not answered yet (``--max-inflight-requests``).

The server's number is divided among its workers. Each worker counts its own requests, without a lock. Where there is a
bound, a request costs an addition and a comparison, and a batch one subtraction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from toutates.engine.drain import Drain
from toutates.engine.result import BatchResult, PendingRequest
from toutates.system.errors import Overloaded

__all__ = ["FLAG", "Inflight", "share"]

FLAG: Final = "--max-inflight-requests"


def share(total: int, workers: int, number: int) -> int:
    """How many of ``total`` requests worker ``number`` may have; the shares of all workers add up to ``total``."""
    return total // workers + (number < total % workers)


class Inflight:
    """Counts the requests of one worker. Used by that worker's thread only.

    Args:
        most: requests that the worker may have in flight.
        total: the flag's value, for the text of refusals.

    Attributes:
        count: requests whose rows are in a batch that has not come back. A request whose caller has left counts until
            then, because its rows take their place until then.
        left: requests that have left so far.
    """

    __slots__ = ("_drain", "_refusal", "count", "left", "most")

    def __init__(self, most: int, total: int) -> None:
        self.count = self.left = 0
        self._drain = Drain()
        self.most = most
        of_total = "" if most == total else f", {most} of them on the worker that has this connection"
        self._refusal = (
            f"the server has all the requests in flight that it may: {FLAG} is {total}{of_total}; "
            "try again later, or raise the flag"
        )

    def refusal(self) -> Overloaded:
        """The error of a request that is one too many."""
        return Overloaded(self._refusal).after(self._drain.wait_s(self.count, self.left))

    def leaving(self, finish: Callable[[BatchResult], None]) -> Callable[[BatchResult], None]:
        """A function that takes the requests of a batch off the count, and then calls ``finish``."""

        def leave_and_finish(result: BatchResult) -> None:
            if not result.more:
                ended = _ended(result.pending)
                self.count -= ended
                self.left += ended
            finish(result)

        return leave_and_finish


def _ended(pending: Sequence[PendingRequest]) -> int:
    """How many requests end with these parts of a batch: all but one that was split and goes on in the next batch.

    Such a one fills its batch to the end, so it can only be the last that this worker has put there.
    """
    part = pending[-1][3]
    return len(pending) - (part is not None and part[1] + 1 < len(part[0].parts))
