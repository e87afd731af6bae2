"""Requests whose rows are in several batches, of a version whose runs may give another number of rows than went in.

Only such a run shows that rows depend on each other, and then each request is to be run whole. So the rows of a split
one are kept, and what its parts come to is held back until the last of them has run. Requests that are not split have
none of this.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from toutates.engine.lane import Batch, Lane, PackedLane, Piece
from toutates.engine.packing import OtherRows
from toutates.engine.result import Outputs, PendingRequest, Split, Timing
from toutates.engine.servable import Content, view_of
from toutates.engine.supertensor import SuperTensor
from toutates.system.errors import RequestError

__all__ = ["KeptSplit", "Outcome", "batch_of_contents", "batch_of_pieces", "settled"]

#: Pending requests by port, and what they get: outputs or an error.
Outcome = tuple[list[list[PendingRequest]], Outputs | None, RequestError | None, Timing]
#: Runs a request by itself: the number of its port, its context, and what makes its batch.
RunWhole = Callable[[int, object, Callable[[], Batch]], Outcome]
#: Tells callers their outcomes.
Tell = Callable[[list[Outcome]], object]


class KeptSplit(Split):
    """A split request whose rows are kept. The SuperTensor's lock guards what changes.

    Attributes:
        make: makes a batch of all of its rows, in any thread.
        byte_size: that are kept beside the batches until the last part has run, and counted by whoever adds the
            request.
        ended: by position, what each part has come to; None where it has not run.
    """

    __slots__ = ("byte_size", "ended", "make")

    def __init__(self, parts: int, make: Callable[[], Batch], byte_size: int = 0) -> None:
        super().__init__(parts)
        self.make: Callable[[], Batch] | None = make
        self.byte_size = byte_size
        self.ended: list[Outcome | None] = [None] * parts


def batch_of_contents(lane: PackedLane, rows: int, contents: Sequence[Content]) -> Batch:
    """A batch of the rows of one request.

    Args:
        lane: of the rows.
        rows: how many.
        contents: bytes of each input, by position in the lane's row shapes.
    """
    batch = lane.new_batch(1, rows)
    for view, content in zip(batch.views[0], contents, strict=True):
        view[:] = view_of(content)
    batch.rows = rows
    return batch


def batch_of_pieces(lane: Lane, rows: int, pieces: Sequence[Piece]) -> Batch:
    """The same where the inputs are arrays."""
    batch = lane.new_batch(1, rows)
    batch.pieces.append((0, rows, pieces))
    batch.rows = rows
    return batch


def settled(outcomes: Sequence[Outcome], supertensor: SuperTensor, tell: Tell, run_whole: RunWhole) -> list[Outcome]:
    """What callers can be told of a batch that has run: of requests whose rows are kept, once all parts have run.

    One whose rows have come out as another number is run by itself, whole; so is one of a version that joins no
    requests any more. Nobody else waits for such a run: ``tell`` gets what is there before.
    """
    told: list[Outcome] = []
    to_run: list[tuple[KeptSplit, int, object]] = []
    for pending, outputs, error, timing in outcomes:
        others: list[list[PendingRequest]] = [[] for _ in pending]
        for port, own in enumerate(pending):
            for request in own:
                part = request[3]
                if part is None or not isinstance(part[0], KeptSplit):
                    others[port].append(request)
                    continue
                one: list[list[PendingRequest]] = [[] for _ in pending]
                one[port] = [request]
                with supertensor.lock:
                    part[0].ended[part[1]] = one, outputs, error, timing
                    is_last = None not in part[0].ended
                if not is_last:
                    continue
                parts = _of_all_parts(part[0], port, request[0], supertensor)
                if parts:
                    told += parts
                    _let_go(part[0], supertensor)
                else:
                    to_run.append((part[0], port, request[0]))
        told.append((others, outputs, error, timing))
    for split, port, context in to_run:
        tell(told)
        assert split.make is not None
        told = [run_whole(port, context, split.make)]
        _let_go(split, supertensor)
    return told


def _of_all_parts(split: KeptSplit, port: int, context: object, supertensor: SuperTensor) -> list[Outcome]:
    """What the caller of a request is told whose parts have all run: each of them; nothing where all rows are to be
    run once more, as one.
    """
    told = [outcome for outcome in split.ended if outcome is not None]
    failed = [outcome for outcome in told if outcome[2] is not None]
    broken = [outcome for outcome in failed if not isinstance(outcome[2], OtherRows)]
    if broken:
        pending, _, error, timing = broken[0]
        whole: list[list[PendingRequest]] = [[] for _ in pending]
        whole[port] = [(context, 0, 0, None)]
        return [(whole, None, error, timing)]
    return [] if failed or not supertensor.joins else told


def _let_go(split: KeptSplit, supertensor: SuperTensor) -> None:
    with supertensor.lock:
        supertensor.budget.memory_bytes -= split.byte_size
    split.ended, split.make = [], None
