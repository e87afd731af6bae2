"""Callers take turns within a text model: no request waits behind more than one batch of any one other caller's texts.

A batch is led by the text of the caller whose turn it is, and others of about its length come along, whoever sent them.
So nothing is lost where many callers have one text each, and somebody with thousands has what the others leave.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import Any

from toutates.backends.text.reading import Slice
from toutates.engine.lengths import Chosen, WaitingRows
from toutates.engine.padded.lanes import Entry

__all__ = ["RowsInTurn", "UnreadTurns"]


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
        callers: who has rows, whose turn it is first.
    """

    def __init__(self, *given: Any, on_none_left: Callable[[object, int], object]) -> None:
        super().__init__(*given)
        self.led = 0
        self.callers: OrderedDict[object, _Turn] = OrderedDict()
        self._on_none_left = on_none_left

    def add(self, own: Any, rows: int, length: int) -> None:
        super().add(own, rows, length)
        request = own.context
        turn = self.callers.get(request.caller)
        if turn is None:
            turn = self._enter(request.caller, request.led)
        turn.own.append(own)

    def _enter(self, caller: object, since: int) -> _Turn:
        """A place for a caller: before those who have led a batch since."""
        callers = self.callers
        later: list[object] = []
        for other in reversed(callers):
            if callers[other].since <= since:
                break
            later.append(other)
        turn = callers[caller] = _Turn(since)
        for other in reversed(later):
            callers.move_to_end(other)
        return turn

    def take(self) -> Chosen[Entry]:
        callers = self.callers
        leader, turn = next(iter(callers.items()))
        chosen = super().take()
        self.led += 1
        turn.since = self.led
        callers.move_to_end(leader)
        rows: Sequence[Any] = chosen.entries
        for row in rows:
            row.is_taken = True
        for caller in dict.fromkeys([row.context.caller for row in rows]):
            own = callers[caller].own
            while own and own[0].is_taken:
                own.popleft()
            if not own:
                del callers[caller]
                self._on_none_left(caller, self.led)
        return chosen

    def _next_bucket(self) -> int:
        """The bucket of the row that leads, which is its first one then."""
        leading = next(iter(self.callers.values())).own[0]
        bucket = self._buckets.of(leading.length)
        entries = self._waiting[bucket]
        if entries[0].own is not leading:
            at = next(at for at, entry in enumerate(entries) if entry.own is leading)
            entry = entries[at]
            del entries[at]
            entries.appendleft(entry)
        return bucket
