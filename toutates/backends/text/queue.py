"""The texts of one version that wait: those whose tokens are not read yet, and those that have them, by length.

Both are pools of a ``PaddedQueue``, and batches are taken from either: a ``ReadingBatch`` of texts that have come, or a
``PaddedBatch`` of texts of about the same length. Reading comes first as long as few texts wait, because more of them
make better batches; but not so often that texts wait for others' tokens without end.

Callers take turns (``turns``): the texts of one who has none that are read come first, and batches are led by one after
the other.

A text without company has nothing to wait for: it is run by whoever has read it. So are all texts of a model that
pads nothing, because there they cost the same in any company.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from toutates.backends.text.interface import MOST_CHARACTERS_HERE
from toutates.backends.text.reading import Slice
from toutates.backends.text.turns import RowsInTurn, UnreadTurns
from toutates.backends.text.work import TextRequest
from toutates.engine.lane import NEVER_DOUBTED, Batch, Lane
from toutates.engine.lane_table import LaneTable
from toutates.engine.padded.lanes import Form, Pool, RowPool
from toutates.engine.padded.padding import Padding
from toutates.engine.padded.queue import PaddedQueue
from toutates.protocol.signature import Signature

__all__ = ["TEXTS", "ReadingBatch", "TextQueue", "slices_of"]

#: The row shapes of texts: the first input, by its tokens.
TEXTS: Final = ((0, (-1,)),)

#: Texts whose tokens are read at once.
_SLICE: Final = 64
#: Characters or bytes of these, unless one text has more.
_SLICE_SIZE: Final = 65_536
#: How many slices are read in a row while others wait to be run.
_MOST_READS: Final = 8
#: Texts that are read wait for this many full batches at most, and for so many more of callers who have none of them.
_ENOUGH: Final = 4
_ENOUGH_OF_ALL: Final = 16
#: After a run that took so long, all runs have to show anew that they are quick.
_SLOW_NS: Final = 4_000_000


class ReadingLane(Lane):
    """The lane of texts that are read together.

    Args:
        signature: of the model.
        number: that tells it from the others.
        computes: whether they are run at once.
        is_quick: whether a worker may do so.
    """

    packed = False
    lasts = True

    def __init__(self, signature: Signature, number: int, *, computes: bool, is_quick: bool = False) -> None:
        super().__init__(signature, ((0, (1,) * number),), 2 * _SLICE)
        self.computes = computes
        self._is_quick = is_quick

    def note_run(self, rows: int, duration_ns: int, moved_bytes: int = 0, doubted_ns: int = NEVER_DOUBTED) -> bool:
        """See ``Lane``. Texts that take long for their size rarely come alone, so they count against all sizes."""
        if not self._is_quick:
            return True
        if not super().note_run(rows, duration_ns, moved_bytes, doubted_ns):
            return False
        if duration_ns > _SLOW_NS:
            self.run_ns[:] = [max(known_ns, _SLOW_NS) for known_ns in self.run_ns]
        return True


class ReadingBatch(Batch):
    """Texts that are read together.

    Attributes:
        slices: the texts; one of ``pending`` for each.
    """

    __slots__ = ("slices",)

    def __init__(self, lane: Lane, slices: Sequence[Slice], rows: int) -> None:
        super().__init__(lane, 1, 0)
        self.slices = slices
        self.rows = rows
        own, at = self.pending[0], 0
        for request, first, end in slices:
            own.append((request, at, end - first, None))
            at += end - first

    def among(self, first: int, rows: int) -> Sequence[Slice]:
        """The texts of some rows: of all, or of one request's."""
        if rows == self.rows:
            return self.slices
        return [own for (_, at, _, _), own in zip(self.pending[0], self.slices, strict=True) if at == first]


class UnreadPool(Pool):
    """Texts whose tokens are not read.

    Args:
        signature: of the model.
        pads: whether texts are to wait for others of their length.

    Attributes:
        has_company: whether there are other texts that wait.
        among_others: whether texts are read of callers who have others that are read.
        quick_lane: of those that a worker may run.
        turns: whose they are.
    """

    __slots__ = ("_large", "_pads", "among_others", "has_company", "quick_lane", "turns")

    def __init__(self, signature: Signature, *, pads: bool) -> None:
        super().__init__(ReadingLane(signature, 0, computes=False))
        self.quick_lane = ReadingLane(signature, 1, computes=True, is_quick=True)
        self._large = ReadingLane(signature, 2, computes=True)
        self._pads = pads
        self.turns = UnreadTurns()
        self.has_company, self.among_others = False, True

    @property
    def entries(self) -> int:
        return self.rows

    @property
    def oldest_ns(self) -> int:
        return 0

    def add(self, slices: Sequence[Slice], texts: int, led: int = 0, *, has_read: bool = False) -> None:
        """Add texts of a request that are counted already.

        Args:
            slices, texts: they, and how many.
            led: how many batches there were of texts that were read.
            has_read: whether its caller has others that are read.
        """
        self.turns.add(slices, led, has_read=has_read)
        self.rows += texts
        self.counted = self.rows

    def take(self, lanes: LaneTable) -> ReadingBatch:
        texts = left_out = size = 0
        found: list[Slice] = []
        turns = self.turns
        # Texts of a table cost the same in any company, so there are no more of them than a worker may run.
        most = _SLICE_SIZE if self._pads else MOST_CHARACTERS_HERE
        while texts < _SLICE and (slice_ := turns.next(among_others=self.among_others)) is not None:
            request, first, end = slice_
            count = end - first
            if request.error is not None:
                left_out += count
            else:
                own = request.text_size * count // len(request.texts) + count * len(request.settled.prompt)
                if found and size + own > most:
                    break
                size += own
                texts += count
                found.append(slice_)
            turns.take(gives_way=self._pads)
        self.rows = self.counted = self.rows - texts - left_out
        runs = not self._pads or (texts == 1 and not self.rows and not self.has_company)
        lane = self.lane if not runs else self.quick_lane if size <= MOST_CHARACTERS_HERE else self._large
        batch = ReadingBatch(lane, found, texts)
        batch.counted = texts + left_out
        return batch


class TextQueue(PaddedQueue):
    """The texts of one version that wait: those whose tokens are not read yet, and those that have them, by length.

    Args:
        signature: of the model.
        pads: whether texts are to wait for others of their length.

    Attributes:
        form: of the texts whose tokens are known.
    """

    def __init__(self, *given: Any, signature: Signature, pads: bool, **rest: Any) -> None:
        super().__init__(*given, **rest)
        form = self._lanes.find(TEXTS)
        assert isinstance(form, Form)
        self.form = form
        self._unread = UnreadPool(signature, pads=pads)
        self._reads = 0
        padding = form.padding
        assert isinstance(padding, Padding)
        self._read = RowsInTurn(
            *(padding.buckets, form.batch_rows, padding.most_elements, padding.run_cost),
            on_none_left=self._unread.turns.note_none_read,
        )

    @property
    def quick_lane(self) -> Lane:
        """The lane of texts that a worker may run."""
        return self._unread.quick_lane

    @property
    def unread(self) -> int:
        """How many texts are not read."""
        return self._unread.rows

    def put(self, slices: Sequence[Slice], texts: int) -> None:
        """Have texts wait that are counted."""
        if not self._unread.rows:
            self.add_open(self._unread)
        read = self._read
        self._unread.add(slices, texts, read.led, has_read=slices[0][0].caller in read.callers)

    def note_read(self, slices: Iterable[Slice]) -> None:
        """These texts were read, and those that are to be run are here."""
        turns, callers = self._unread.turns, self._read.callers
        if turns.others:
            for request, _, _ in slices:
                if request.caller not in callers:
                    turns.note_none_read(request.caller, self._read.led)

    def _new_pool(self, form: Lane) -> Batch:
        assert form is self.form
        return RowPool(self.form, self._read)

    def _next_open(self, sealed: Batch | None, *, seal_busy: bool) -> Batch | None:
        unread, read = self._unread, self.open.get(self.form)
        if unread.rows and self._may_read(0 if read is None else read.rows):
            self._reads += 1
            unread.has_company = read is not None
            return unread
        self._reads = 0
        return read

    def _may_read(self, rows: int) -> bool:
        """Whether texts are read while so many read ones wait.

        Where several callers have read ones, nobody else's company is waited for: no more of theirs are read.
        """
        unread, batch_rows = self._unread, self.form.batch_rows
        unread.among_others = rows < _ENOUGH * batch_rows and len(self._read.callers) < 2
        if self._reads >= _MOST_READS and rows:
            return False
        return unread.among_others or (bool(unread.turns.first) and rows < _ENOUGH_OF_ALL * batch_rows)


def slices_of(request: TextRequest) -> Sequence[Slice]:
    """A request's texts in parts that are read at once."""
    count = len(request.texts)
    if count <= _SLICE and request.text_size <= _SLICE_SIZE:
        return ((request, 0, count),)
    most = max(1, min(_SLICE, _SLICE_SIZE * count // max(request.text_size, 1)))
    return [(request, first, min(first + most, count)) for first in range(0, count, most)]
