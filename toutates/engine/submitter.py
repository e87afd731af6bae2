"""A port of a SuperTensor: rows are reserved, written, and committed together at the end of a round.

Then an executor has them, or the worker itself runs them with an executor's session (``dispatcher``, "Inline runs").
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import addressof, c_char
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, ClassVar, Final, cast
from weakref import WeakValueDictionary

from toutates.engine.lane import (
    ANYWHERE,
    LEAST_LENT_BYTES,
    Batch,
    GatheredLane,
    Lane,
    PackedLane,
    Piece,
    RowShapes,
)
from toutates.engine.long_copies import STEP_BYTES, LongCopies, may_be_kept
from toutates.engine.result import BatchResult, PendingRequest, Split
from toutates.engine.servable import Buffer, Consumer, Content, view_of
from toutates.engine.splits import KeptSplit, batch_of_contents, batch_of_pieces
from toutates.engine.supertensor import SuperTensor
from toutates.protocol.names import request_prefix
from toutates.protocol.strings import StringRows, are_many

__all__ = ["LaneWriter", "StringPort", "Submitter"]

#: From here on a view of the content is cheaper than a copy of it on the way into the batch: at 64 KiB 0.8 against 7.8
#: us; at 256 bytes the copy takes 0.2 and the view 0.4.
LARGE_CONTENT_BYTES: Final = 8_192
#: Rows that do not lie at a multiple of this are copied. The C library gives no memory that is aligned to less.
ALIGNMENT: Final = 16
#: What may hold other messages too, or belongs to somebody who does not look for views of it.
_COPIED: Final = (bytes, bytearray, memoryview)


@dataclass(slots=True)
class Part:
    """Rows reserved for one request: ``rows`` rows of ``batch`` from ``first``, the request's from ``offset``."""

    batch: Batch
    first: int
    rows: int
    offset: int


@dataclass(slots=True, weakref_slot=True, eq=False)
class LaneWriter:
    """One worker's way into one lane (``Submitter.writer``).

    It has copies of what the worker needs for every request. On free-threaded Python, reading an object that other
    workers read at the same time is dear (``toutates.h2grpc.wire``).

    Attributes:
        lane: whose rows are written.
        row_bytes: the lane's.
        large_rows: from so many rows on, contents are copied from a view of the message.
        lent_rows: from so many rows on, a request may be run where it was received.
        batch: the open batch that holds rows of this worker alone, if there is one.
        limit: rows that this one may get.
    """

    packed: ClassVar[bool] = True

    lane: PackedLane
    row_bytes: list[int]
    large_rows: int
    lent_rows: int
    batch: Batch | None = None
    limit: int = 0


class Submitter:
    """The port of a batched servable (``engine.servable.Port``); used by its consumer's thread only.

    Args:
        supertensor: shared with the other ports.
        consumer: for whom it is; its ``at_round_end`` commits the rows, so that the requests of a round run together
            and the lock is taken once for all of them.

    Attributes:
        counters: the consumer's.
    """

    def __init__(self, supertensor: SuperTensor, consumer: Consumer) -> None:
        self._supertensor = supertensor
        self._lock = supertensor.lock
        self._budget = supertensor.budget
        self._open = supertensor.queue.open
        self._port = supertensor.connect(consumer)
        self._finish_here = consumer.finish_here
        self._sift = consumer.sift
        self._at_round_end = consumer.at_round_end
        self._about = consumer.about
        self.counters = consumer.counters
        self._long_copies = LongCopies(supertensor, self._port, consumer)
        self._commit_asked = False
        #: batches with rows reserved since the last commit
        self._touched: set[Batch] = set()
        #: writers that have a batch of their own
        self._own: list[LaneWriter] = []
        #: those that plans hold
        self._writers: WeakValueDictionary[PackedLane, LaneWriter] = WeakValueDictionary()

    def way(self, row_shapes: RowShapes, outputs: Sequence[int] | None = None) -> LaneWriter | GatheredLane:
        """See ``Port``. A run makes all outputs, whichever are wanted."""
        lane = self._supertensor.lane(row_shapes)
        return self.writer(lane) if isinstance(lane, PackedLane) else cast(GatheredLane, lane)

    def writer(self, lane: PackedLane) -> LaneWriter:
        """The way into a lane, to be kept by whoever adds to it: there is one per lane as long as somebody does."""
        writer = self._writers.get(lane)
        if writer is None:
            large_rows = -(-LARGE_CONTENT_BYTES // lane.row_bytes[0])
            writer = self._writers[lane] = LaneWriter(lane, list(lane.row_bytes), large_rows, lane.lent_rows)
        return writer

    def add_packed(self, way: LaneWriter, rows: int, context: Any, buffer: Buffer, spans: Sequence[int]) -> None:
        """Copy one request's rows into the open batch; into several where they do not fit.

        Large rows that could run at once stay where they are instead, if ``buffer`` can be written to: then it is the
        memory of this one message, which whoever made it does not use again as long as there is a view of it.

        Args:
            way: into the lane of the rows' shapes.
            rows: how many.
            context: the request's; it comes back in ``BatchResult.pending``.
            buffer: the received message.
            spans: start and end of each input's bytes in ``buffer``, flat, by position in the lane's row shapes;
                their lengths are ``rows`` x ``row_bytes``.

        Raises:
            Overloaded: too much is under way; nothing was reserved.
            ModelNotReady: the model version is being unloaded.
        """
        batch = way.batch
        if batch is not None and (end := batch.rows + rows) <= way.limit:
            first = batch.rows
            batch.rows = end
        else:
            if rows >= way.lent_rows and self._add_lent(way, rows, context, buffer, spans[0]):
                return
            place = self._reserve_whole(way, rows)
            if place is None:
                self._add_split(way.lane, rows, context, buffer, spans)
                return
            batch, first = place
            end = first + rows
        try:
            if len(spans) == 2:
                row_bytes = way.row_bytes[0]
                view = batch.views[self._port][0]
                if rows < way.large_rows:
                    view[first * row_bytes : end * row_bytes] = buffer[spans[0] : spans[1]]
                else:
                    target = view[first * row_bytes : end * row_bytes]
                    self._write(batch, first, target, memoryview(buffer)[spans[0] : spans[1]])
            else:
                self._copy(batch, way.lane, first, rows, buffer, spans, 0)
        except BaseException:
            self._after_adding(full=True)  # out of memory; rows that are reserved have to be committed even so
            raise
        batch.pending[self._port].append((context, first, rows, None))
        if not self._commit_asked or end == batch.room:
            self._after_adding(full=end == batch.room)

    def add_contents(self, way: LaneWriter, rows: int, context: Any, contents: Sequence[Content]) -> None:
        """See ``Port``."""
        if len(contents) == 1:
            self.add_packed(way, rows, context, view_of(contents[0]), (0, len(contents[0])))
            return
        try:
            parts = self._reserve_parts(way.lane, rows)
            for part in parts:
                for view, row_bytes, content in zip(
                    part.batch.views[self._port], way.lane.row_bytes, contents, strict=True
                ):
                    start = part.offset * row_bytes
                    own = view_of(content)[start : start + part.rows * row_bytes]
                    target = view[part.first * row_bytes : (part.first + part.rows) * row_bytes]
                    self._write(part.batch, part.first, target, own)
            self._enter(parts, context, self._split(way.lane, rows, contents, len(parts)))
        finally:
            self._after_adding(full=True)

    def _reserve_whole(self, writer: LaneWriter, rows: int) -> tuple[Batch, int] | None:
        """Reserve rows in one batch; returns it and the first of them, or None if they do not fit into what is open."""
        lane = writer.lane
        if writer.batch is not None:
            self.commit()  # the own batch has no room for these rows, and can run meanwhile
        with self._lock:
            batch = self._open.get(lane)
            if batch is None:
                if rows > lane.batch_rows:
                    return None
                batch = self._supertensor.open_own_batch(lane, rows)
                if batch is not None:
                    writer.batch = batch
                    # What it gets is counted at the commit: others may have taken the rest by then, which does no harm.
                    limit = rows + self._budget.most_rows - self._budget.rows
                    writer.limit = limit if limit < batch.room else batch.room
                    self._own.append(writer)
                    self._touched.add(batch)
                    return batch, 0
                batch = self._supertensor.open_batch(lane, rows, new_request=True)
            elif batch.rows + rows > batch.counted:
                if batch.rows + rows > batch.room:
                    return None
                self._supertensor.join(batch, rows)
            first = batch.rows
            self._reserve(batch, first + rows)
            return batch, first

    def _add_lent(self, writer: LaneWriter, rows: int, context: Any, buffer: Any, start: int) -> bool:
        """Run one request's rows where they lie, here and now; False if they have to be copied."""
        if buffer.__class__ in _COPIED:
            return False
        address = addressof(c_char.from_buffer(buffer, start))
        if address % ALIGNMENT:
            return False
        if writer.batch is not None:
            self.commit()
        # Made beforehand: once an executor is claimed, nothing may fail.
        own = memoryview(buffer)[start:]
        pending: list[PendingRequest] = [(context, 0, rows, None)]
        with self._lock:
            run = self._supertensor.claim_lent(writer.lane, rows, address)
        if run is None:
            return False
        executor, batch = run
        batch.lent = own
        batch.pending[self._port] = pending
        del own  # the message is free with the batch, also where the traceback of an error keeps this frame
        executor.run_inline(batch, self._deliver)
        return True

    def run_apart(
        self, way: LaneWriter, requests: Sequence[tuple[int, Any, Buffer, Sequence[int]]]
    ) -> list[BatchResult] | None:
        """Run requests in a batch of their own on the calling thread. The one method for any thread.

        Args:
            way: of all of them.
            requests: rows, context, buffer and spans of each, as for ``add_packed``.

        Returns:
            What has become of them; of those that it says nothing of, the consumer hears as of others. None where
            nothing was done, because the requests had better be added.

        Raises:
            Overloaded, ModelNotReady: as ``add_packed``.
        """
        lane = way.lane
        rows = sum([request[0] for request in requests])
        with self._lock:
            run = self._supertensor.claim_own(lane, rows)
        if run is None:
            return None
        executor, batch = run
        results: list[BatchResult] = []

        def deliver(port: int, result: BatchResult) -> None:
            if port != self._port:
                self._supertensor.deliver(port, result)
            elif self._sift is None:
                results.append(result)
            else:
                results.extend(self._sift(result))

        pending = batch.pending[self._port]
        try:
            first = 0
            for count, context, buffer, spans in requests:
                self._copy(batch, lane, first, count, buffer, spans, 0)
                pending.append((context, first, count, None))
                first += count
        except BaseException:
            pending.clear()  # the executor is to be idle again, and runs nothing that nobody waits for
            raise
        finally:
            executor.run_inline(batch, deliver, 1)
        return results

    # --- BYTES -------------------------------------------------------------------------------------------------------

    def add_strings(self, way: GatheredLane, rows: int, context: Any, buffer: Buffer, spans: Sequence[int]) -> None:
        """Add one request whose only input is BYTES.

        Elements that are large, and could run at once, stay where they are if ``buffer`` is the memory of this one
        message, as for ``add_packed``. Others are copied.

        Args:
            way: of a lane that ``lends_strings``.
            rows, context, buffer: as for ``add_packed``.
            spans: start and end of the encoded elements in ``buffer``.

        Raises:
            InvalidRequest: the elements are few, and not as many as the shape asks for; nothing was reserved.
            Overloaded, ModelNotReady: as ``add_packed``.
        """
        start, end = spans
        is_large = end - start >= LEAST_LENT_BYTES and buffer.__class__ not in _COPIED
        if is_large and self._add_lent_strings(way, rows, context, buffer, start, end):
            return
        strings = self._strings_of(way, rows, context, memoryview(buffer), start, end)
        self._add_pieces(way, rows, context, [strings], end - start)

    def _add_lent_strings(
        self, lane: GatheredLane, rows: int, context: Any, buffer: Buffer, start: int, end: int
    ) -> bool:
        """``_add_lent`` for BYTES."""
        whole = memoryview(buffer)
        tensor, shape = self._of_strings(lane, rows)
        if end >= len(whole) or are_many(prod(shape), end - start):
            return False  # C ends a string with a 0, and there is no room for that of the last; or it takes long
        strings = StringRows.lying(whole[start : end + 1], shape, tensor=tensor, model=self._supertensor.name)
        pieces: list[tuple[int, int, Sequence[Piece]]] = [(0, rows, (strings,))]
        pending: list[PendingRequest] = [(context, 0, rows, None)]
        with self._lock:
            run = self._supertensor.claim_lent(lane, rows, ANYWHERE, end - start)
        if run is None:
            return False
        executor, batch = run
        batch.pieces = pieces
        batch.pending[self._port] = pending
        del whole, strings, pieces
        executor.run_inline(batch, self._deliver)
        return True

    def _strings_of(
        self, lane: GatheredLane, rows: int, context: Any, whole: memoryview, start: int, end: int
    ) -> StringRows:
        """The elements of a request: a copy, or where they lie, where that is a message that it takes long to copy."""
        tensor, shape = self._of_strings(lane, rows)
        # What is wrong with few elements is known now, and told with the words that the caller has for its requests.
        prefix = ""
        if are_many(prod(shape), end - start):
            prefix = request_prefix(self._about(context).identifier)
        model = self._supertensor.name
        if end - start > STEP_BYTES and end < len(whole) and may_be_kept(whole) and not whole.readonly:
            return StringRows.lying(whole[start : end + 1], shape, tensor=tensor, model=model, prefix=prefix)
        return StringRows.received(whole[start:end], shape, tensor=tensor, model=model, prefix=prefix)

    def _of_strings(self, lane: GatheredLane, rows: int) -> tuple[str, tuple[int, ...]]:
        """Name and shape of a request's only input."""
        signature = lane.signature
        ((index, row_shape),) = lane.row_shapes
        return signature.inputs[index].name, (rows, *row_shape) if signature.batched else row_shape

    def _add_split(self, lane: PackedLane, rows: int, context: Any, buffer: Buffer, spans: Sequence[int]) -> None:
        try:
            parts = self._reserve_parts(lane, rows)
            for part in parts:
                self._copy(part.batch, lane, part.first, part.rows, buffer, spans, part.offset)
            whole = memoryview(buffer)
            contents = [whole[spans[at] : spans[at + 1]] for at in range(0, len(spans), 2)]
            self._enter(parts, context, self._split(lane, rows, contents, len(parts)))
        finally:
            self._after_adding(full=True)

    def add_gathered(
        self,
        way: GatheredLane,
        rows: int,
        context: Any,
        arrays: Sequence[Piece],
        held_bytes: int = 0,
    ) -> None:
        """The same for a lane of arrays, given by position in ``way.row_shapes`` and kept until the batch has run.

        Args:
            held_bytes: that they keep.
        """
        self._add_pieces(way, rows, context, arrays, held_bytes)

    def _add_pieces(self, way: GatheredLane, rows: int, context: Any, arrays: Sequence[Piece], held_bytes: int) -> None:
        try:
            parts = self._reserve_parts(way, rows, held_bytes)
            for part in parts:
                # Appended without the lock: a list takes appends of several threads on every build of CPython.
                whole = part.rows == rows
                rows_of_part = slice(part.offset, part.offset + part.rows)
                own = arrays if whole else [array[rows_of_part] for array in arrays]
                part.batch.pieces.append((part.first, part.rows, own))
            split: Split | None = None
            if len(parts) > 1:
                split = Split(len(parts))
                if self._supertensor.keeps_split:
                    split = KeptSplit(len(parts), partial(batch_of_pieces, way, rows, arrays), held_bytes)
                    parts[-1].batch.held_bytes -= held_bytes  # this batch may have run before another part
            self._enter(parts, context, split)
        finally:
            self._after_adding(full=True)

    def commit(self, *, inline: bool = True) -> None:
        """The rows added so far are written: executors may have them. A quick batch is run here, if it may be."""
        touched, self._touched = self._touched, set()
        own, self._own = self._own, []
        for writer in own:
            writer.batch = None
        if touched:
            run = self._supertensor.commit(touched, inline=inline)
            if run is not None:
                executor, batch = run
                executor.run_inline(batch, self._deliver)

    def _deliver(self, port: int, result: BatchResult) -> None:
        if port == self._port:
            self._finish_here(result)
        else:
            self._supertensor.deliver(port, result)

    def _commit_round(self) -> None:
        self._commit_asked = False
        self.commit()

    def _after_adding(self, *, full: bool) -> None:
        """See that the rows get committed: at the round's end, or now if a batch is full and could run meanwhile.

        ``batch.rows`` is read without the lock. This worker's own rows are in it; what another one adds at this moment
        may be missed, and then the batch waits for the end of the round.
        """
        if full and any(batch.rows >= batch.room for batch in self._touched):
            self.commit()
        if not self._commit_asked and self._touched:
            self._commit_asked = True
            self._at_round_end(self._commit_round)

    def _reserve(self, batch: Batch, end: int) -> None:
        """Rows up to ``end`` are this worker's. Call with the lock held."""
        batch.rows = end
        if batch not in self._touched:
            self._touched.add(batch)
            batch.busy += 1
        if end >= batch.room:
            self._supertensor.seal(batch)

    def _reserve_parts(self, lane: Lane, rows: int, held_bytes: int = 0) -> list[Part]:
        """Reserve rows in as many batches as it takes, all or none unless memory runs out."""
        parts: list[Part] = []
        supertensor = self._supertensor
        with self._lock:
            supertensor.check_fit(lane, rows, held_bytes + self._kept_bytes(lane, rows))
            offset = 0
            while offset < rows or not parts:
                batch = self._open.get(lane)
                if batch is None:
                    batch = supertensor.open_batch(lane, min(rows - offset, lane.batch_rows))
                first = batch.rows
                taken = min(rows - offset, batch.room - first)
                if first + taken > batch.counted:
                    self._budget.count_more(batch, taken)
                self._reserve(batch, first + taken)
                parts.append(Part(batch, first, taken, offset))
                offset += taken
            supertensor.note_request(parts[0].batch, parts[-1].batch, held_bytes)
        return parts

    def _kept_bytes(self, lane: Lane, rows: int) -> int:
        """Bytes of the copy that ``_split`` makes of rows that are about to be reserved. Call with the lock held."""
        if not self._supertensor.keeps_split or not isinstance(lane, PackedLane):
            return 0
        batch = self._open.get(lane)
        room = lane.batch_rows if batch is None else batch.room - batch.rows
        return rows * sum(lane.row_bytes) if rows > room else 0

    def _enter(self, parts: Sequence[Part], context: Any, split: Split | None) -> None:
        """List a request in each of its batches, once all of its rows are there: until then nobody gets what they hold.

        A batch may run on this worker's thread, and be answered, before an error of the copy has reached the caller.
        """
        for index, part in enumerate(parts):
            request = (context, part.first, part.rows, (split, index) if split is not None else None)
            if split is not None:
                part.batch.has_parts = True
            part.batch.pending[self._port].append(request)

    def _split(self, lane: PackedLane, rows: int, contents: Sequence[Content], parts: int) -> Split | None:
        """What joins the parts of a request, if there are several; with a copy of the rows, where the version wants it.

        Args:
            lane: of the rows.
            rows: how many.
            contents: bytes of each input.
            parts: batches that have the rows.
        """
        if parts == 1 or not self._supertensor.keeps_split:
            return Split(parts) if parts > 1 else None
        own = [bytes(view_of(content)) for content in contents]
        split = KeptSplit(parts, partial(batch_of_contents, lane, rows, own), sum(map(len, own)))
        with self._lock:
            self._budget.memory_bytes += split.byte_size
        return split

    def _copy(
        self, batch: Batch, lane: PackedLane, first: int, rows: int, buffer: Buffer, spans: Sequence[int], offset: int
    ) -> None:
        """Copy ``rows`` rows of each input, leaving out ``offset`` rows of the request, into the batch at ``first``."""
        at = 0
        whole = memoryview(buffer)
        for view, row_bytes in zip(batch.views[self._port], lane.row_bytes, strict=True):
            start = spans[at] + offset * row_bytes
            content = whole[start : start + rows * row_bytes]
            if rows * row_bytes <= STEP_BYTES:  # as ``_write``, without a call
                view[first * row_bytes : (first + rows) * row_bytes] = content
            else:
                self._write(batch, first, view[first * row_bytes : (first + rows) * row_bytes], content)
            at += 2

    def _write(self, batch: Batch, first: int, target: memoryview, content: memoryview) -> None:
        """Copy a content into a batch; one that takes long in steps, which end in a later round."""
        if len(content) <= STEP_BYTES or not may_be_kept(content):
            target[:] = content
        else:
            self._long_copies.begin(batch, first, target, content)


class StringPort:
    """A ``Submitter`` whose packed requests are BYTES (``Submitter.add_strings``).

    Args:
        submitter: takes the requests.
    """

    def __init__(self, submitter: Submitter) -> None:
        self.counters = submitter.counters
        self.way = submitter.way
        self.add_packed = submitter.add_strings
        self.add_contents = submitter.add_contents
        self.add_gathered = submitter.add_gathered
        self.commit = submitter.commit
