"""Callers take turns within a text model: no request waits behind more than one batch of any one other caller's texts.

A batch is led by the text of the caller whose turn it is, and others of about its length come along, whoever sent them.
So nothing is lost where many callers have one text each, and somebody with thousands has what the others leave.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from typing import Any, Final

from toutates.backends.text.reading import Slice
from toutates.engine.lengths import Chosen, WaitingRows
from toutates.engine.padded.lanes import Entry

__all__ = ["RowsInTurn", "UnreadTurns"]

#: How many callers without rows may stand in line, beside as many as there are with rows.
_FEW: Final = 64


class _Turn:
    """Of one caller.

    Attributes:
        since: how many batches had been led when it began to wait.
        own: its texts, the oldest first. The first one waits.
    """

    __slots__ = ("own", "since")

    def __init__(self, since: int) -> None:
        self.since = since
        self.own: deque[Any] = deque()


class UnreadTurns:
    """Texts whose tokens are not read. Those of callers who have none that are read come first.

    Attributes:
        first: callers who have none, and their texts, whose turn it is first.
        others: callers who have some.
    """

    __slots__ = ("first", "others")

    def __init__(self) -> None:
        self.first: OrderedDict[object, _Turn] = OrderedDict()
        self.others: OrderedDict[object, _Turn] = OrderedDict()

    def add(self, slices: Sequence[Slice], led: int, *, has_read: bool) -> None:
        """Add texts of a request, after so many batches, whose caller has others that are read, or none."""
        caller = slices[0][0].caller
        turn = self.first.get(caller) or self.others.get(caller)
        if turn is None:
            turn = (self.others if has_read else self.first)[caller] = _Turn(led)
        turn.own.extend(slices)

    def next(self, *, among_others: bool) -> Slice | None:
        """The texts to read next; None where there are none.

        Args:
            among_others: whether they may be of a caller who has read ones.
        """
        turns = self.first or (self.others if among_others else None)
        if not turns:
            return None
        slice_: Slice = next(iter(turns.values())).own[0]
        return slice_

    def take(self, *, gives_way: bool) -> None:
        """Take the texts that are next.

        Args:
            gives_way: whether their caller will have read ones.
        """
        turns = self.first or self.others
        caller, turn = next(iter(turns.items()))
        request, _, _ = turn.own.popleft()
        request.led = turn.since
        if not turn.own:
            del turns[caller]
        elif gives_way and turns is self.first:
            del turns[caller]
            self.others[caller] = turn
        else:
            turns.move_to_end(caller)

    def note_none_read(self, caller: object, led: int) -> None:
        """After so many batches a caller has no texts any more that are read."""
        turn = self.others.pop(caller, None)
        if turn is not None:
            turn.since = led
            self.first[caller] = turn


class RowsInTurn(WaitingRows[Entry]):
    """``WaitingRows`` of texts. In place of the oldest one, the oldest of the caller whose turn it is leads a batch.

    Args:
        on_none_left: called with a caller who has no rows any more, and ``led``.
        Others: as of ``WaitingRows``.

    Attributes:
        led: how many batches there were.
        callers: who has rows.
    """

    def __init__(self, *given: Any, on_none_left: Callable[[object, int], object]) -> None:
        super().__init__(*given)
        self.led = 0
        self.callers: dict[object, _Turn] = {}
        #: a heap of the callers, by ``since`` and how many had come before; some have no rows any more
        self._line: list[tuple[int, int, _Turn, object]] = []
        self._turns = 0
        self._on_none_left = on_none_left

    def add(self, own: Any, rows: int, length: int) -> None:
        request = own.context
        turn = self.callers.get(request.caller)
        if turn is None:
            turn = self.callers[request.caller] = _Turn(request.led)
            self._line_up(turn, request.caller)
        turn.own.append((self._added, own))
        super().add(own, rows, length)

    def _line_up(self, turn: _Turn, caller: object) -> None:
        """A place for a caller: before those who have led a batch since."""
        self._turns += 1
        heappush(self._line, (turn.since, self._turns, turn, caller))

    def take(self) -> Chosen[Entry]:
        chosen = super().take()
        self.led += 1
        _, _, turn, leader = heappop(self._line)
        turn.since = self.led
        self._line_up(turn, leader)
        callers = self.callers
        rows: Sequence[Any] = chosen.entries
        for row in rows:
            row.is_taken = True
        for caller in dict.fromkeys([row.context.caller for row in rows]):
            own = callers[caller].own
            while own and own[0][1].is_taken:
                own.popleft()
            if not own:
                del callers[caller]
                self._on_none_left(caller, self.led)
        if len(self._line) > 2 * len(callers) + _FEW:
            self._line = [place for place in self._line if place[2].own]
            heapify(self._line)
        return chosen

    def _next_bucket(self) -> int:
        """The bucket of the row that leads, which is its first one then."""
        line = self._line
        while not line[0][2].own:
            heappop(line)
        number, leading = line[0][2].own[0]
        bucket = self._buckets.of(leading.length)
        self._waiting[bucket].move_to_end(number, last=False)
        return bucket
