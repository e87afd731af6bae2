"""The SuperTensor: the batches of one model version, shared by every worker and every executor.

A worker *reserves* rows in the open batch of their lane, copies its request into them, and *commits* at the end of its
round (``submitter``). An executor that is idle gets the next batch at once: no request waits for a timer while an
executor is free, and under load batches grow by themselves while the executors are busy.

    open ──(full, or an executor is free)──▶ sealed ──(every worker has committed)──▶ running ──▶ spare

One lock guards the states; it is held for constant time, never while rows are copied. At most ``capacity`` batches are
open, sealed or running; then ``Overloaded`` is raised at once, never a hidden queue.

An open batch is not taken from a worker in the middle of its round: the rows that are about to come are better run
together. Only when another worker commits while an executor idles is the batch sealed over the first one's head, so
that two workers whose rounds always overlap cannot keep it open for ever.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Final

from toutates.batching.lane import Batch, GatheredLane, Lane, PackedLane, RowShapes
from toutates.batching.pinned import PinnedMemory
from toutates.batching.result import BatchResult, Outputs, Timing, Waiter
from toutates.errors import InvalidRequest, ModelNotReady, Overloaded, RequestError
from toutates.protocol.signature import Signature

__all__ = ["Inbox", "Occupancy", "SuperTensor"]

#: Where an idle executor waits for its next batch; None ends it.
Inbox = SimpleQueue[Batch | None]

#: Lanes kept; beyond it the one not looked up for longest is forgotten, with its spare batches.
MAX_LANES: Final = 256
#: Memory that batches waiting to be used again may hold.
MAX_SPARE_BYTES: Final = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Occupancy:
    """How full a SuperTensor is.

    Attributes:
        in_flight: batches open, sealed or running.
        capacity: the most there can be.
        idle_executors: executors that wait for a batch.
        lanes: shapes of rows that have a lane.
        spare_bytes: memory of batches that wait to be used again.
    """

    in_flight: int
    capacity: int
    idle_executors: int
    lanes: int
    spare_bytes: int


class SuperTensor:
    """See the module.

    Args:
        name: the model's, for errors.
        signature: the model's tensors.
        batch_size: most rows that are run together.
        capacity: most batches in flight.
        workers: how many workers there will be.
        pinned: pins the memory of batches (``allocator: cuda_pinned``); None for ordinary memory.
    """

    def __init__(
        self,
        name: str,
        signature: Signature,
        *,
        batch_size: int,
        capacity: int,
        workers: int,
        pinned: PinnedMemory | None = None,
    ) -> None:
        self.name = name
        self.signature = signature
        self.batch_size = batch_size
        self.capacity = capacity
        self.workers = workers
        self._pinned = pinned
        self.lock = threading.Lock()
        self._lanes: OrderedDict[RowShapes, Lane] = OrderedDict()
        #: batches that still take rows, the one opened first first; used with the lock held
        self.open_batches: dict[Lane, Batch] = {}
        self._sealed: deque[Batch] = deque()
        self._idle: list[Inbox] = []
        self._in_flight = 0
        self._spare_bytes = 0
        self._finish: dict[int, Callable[[BatchResult], None]] = {}
        self._closed = False

    # --- lanes -------------------------------------------------------------------------------------------------------

    def lane(self, row_shapes: RowShapes) -> Lane:
        """The lane of these row shapes, made if need be. Not for every request: keep it."""
        with self.lock:
            lane = self._lanes.get(row_shapes)
            if lane is None:
                lane = self._make_lane(row_shapes)
                self._keep(lane)
            else:
                self._lanes.move_to_end(row_shapes)
            return lane

    def _keep(self, lane: Lane) -> None:
        lane.kept = True
        self._lanes[lane.row_shapes] = lane
        if len(self._lanes) > MAX_LANES:
            _, forgotten = self._lanes.popitem(last=False)
            forgotten.kept = False
            self._spare_bytes -= forgotten.batch_bytes * len(forgotten.spare)
            forgotten.spare = []

    def _make_lane(self, row_shapes: RowShapes) -> Lane:
        for index, shape in row_shapes:
            if not self.signature.inputs[index].datatype.size or 0 in shape:
                return GatheredLane(self.signature, row_shapes, self.batch_size)
        if not row_shapes:
            return GatheredLane(self.signature, row_shapes, self.batch_size)
        return PackedLane(self.signature, row_shapes, self.batch_size, self._pinned)

    # --- rows in -----------------------------------------------------------------------------------------------------

    def open_batch(self, lane: Lane) -> Batch:
        """A batch of ``lane`` that takes rows. Call with the lock held.

        Raises:
            Overloaded: ``capacity`` batches are in flight.
            ModelNotReady: the model version is being unloaded.
        """
        if self._closed:
            raise ModelNotReady("Server is stopping, scheduler for model has stopped accepting new inference requests")
        if self._in_flight >= self.capacity:
            raise self._overloaded(lane)
        if lane.spare:
            batch = lane.spare.pop()
            self._spare_bytes -= lane.batch_bytes
        else:
            batch = lane.new_batch(self.workers)
        self._in_flight += 1
        self.open_batches[lane] = batch
        return batch

    def check_room(self, lane: Lane, rows: int) -> None:
        """See that ``rows`` rows fit into the ring now. Call with the lock held.

        Raises:
            InvalidRequest: they never will.
            Overloaded: not now.
        """
        if rows > lane.batch_rows * self.capacity:
            raise InvalidRequest(
                f"inference request batch-size must be <= {lane.batch_rows * self.capacity} for '{self.name}'"
            )
        batch = self.open_batches.get(lane)
        left = lane.batch_rows - batch.rows if batch is not None else 0
        if rows > left + (self.capacity - self._in_flight) * lane.batch_rows:
            raise self._overloaded(lane)

    def _overloaded(self, lane: Lane) -> Overloaded:
        return Overloaded(
            f"model '{self.name}' has all {self.capacity} batches of up to {lane.batch_rows} rows in flight; "
            "try again later, or raise 'capacity' or 'num_executors' in its config.yaml"
        )

    def seal(self, batch: Batch) -> None:
        """Take no more rows. Call with the lock held."""
        del self.open_batches[batch.lane]
        self._sealed.append(batch)

    def commit(self, batches: Collection[Batch]) -> None:
        """A worker's rows in these batches are written."""
        with self.lock:
            for batch in batches:
                batch.busy -= 1
            self._wake_executors()

    def _wake_executors(self) -> None:
        while self._idle:
            batch = self._next(seal_busy=True)
            if batch is None:
                return
            self._idle.pop().put(batch)

    # --- batches out -------------------------------------------------------------------------------------------------

    def _next(self, *, seal_busy: bool) -> Batch | None:
        for batch in self._sealed:
            if not batch.busy:
                self._sealed.remove(batch)
                return batch
        for batch in list(self.open_batches.values()):
            if not batch.busy:
                del self.open_batches[batch.lane]
                return batch
            if seal_busy:
                self.seal(batch)
        return None

    def take(self, inbox: Inbox) -> Batch | None:
        """The next batch for an executor; blocks until there is one. None: the executor ends."""
        with self.lock:
            batch = self._next(seal_busy=False)
            if batch is None and self._closed and not self._in_flight:
                return None
            if batch is None:
                self._idle.append(inbox)
        return inbox.get() if batch is None else batch

    def release(self, batch: Batch) -> None:
        """An executor is done with a batch: its memory is free for others."""
        lane = batch.lane
        batch.rows = 0
        batch.pieces = []
        with self.lock:
            self._in_flight -= 1
            if not lane.kept and lane.row_shapes not in self._lanes:
                self._keep(lane)  # forgotten for not being looked up, and yet in use: plans look a lane up only once
            if lane.kept and lane.batch_bytes <= MAX_SPARE_BYTES:
                if self._spare_bytes + lane.batch_bytes > MAX_SPARE_BYTES:
                    self._make_room_for_spare(lane)
                lane.spare.append(batch)
                self._spare_bytes += lane.batch_bytes
            if self._closed and not self._in_flight:
                self._dismiss_executors()

    def _make_room_for_spare(self, keeper: Lane) -> None:
        """Drop spare batches of the lanes not used for longest until one more fits."""
        for lane in list(self._lanes.values()):
            while self._spare_bytes + keeper.batch_bytes > MAX_SPARE_BYTES and lane.spare:
                lane.spare.pop()
                self._spare_bytes -= lane.batch_bytes

    def deliver(
        self, waiters: list[list[Waiter]], outputs: Outputs | None, error: RequestError | None, timing: Timing
    ) -> None:
        """Hand a batch's outcome to every worker that has rows in it."""
        for worker, own in enumerate(waiters):
            if own:
                # Read without the lock while another worker may add itself: a dict takes that on every build of
                # CPython, and a worker is there before its first rows are.
                self._finish[worker](BatchResult(own, outputs, error, timing))

    # --- life --------------------------------------------------------------------------------------------------------

    def connect(self, worker: int, finish: Callable[[BatchResult], None]) -> None:
        """Name what takes the outcomes for worker number ``worker``, from 0; before its first rows (``Submitter``)."""
        self._finish[worker] = finish

    def close(self, *, workers_ended: bool = False) -> None:
        """Take no more rows; executors end once what is in flight has run.

        Args:
            workers_ended: no worker's thread is left. Rows that one of them reserved and did not come to commit,
                because it failed or was stopped in the middle of a round, are then committed in its place: nobody
                waits for them, and without this the executors would, for ever.
        """
        with self.lock:
            self._closed = True
            if workers_ended:
                for batch in (*self._sealed, *self.open_batches.values()):
                    batch.busy = 0
                self._wake_executors()
            if not self._in_flight:
                self._dismiss_executors()

    def _dismiss_executors(self) -> None:
        while self._idle:
            self._idle.pop().put(None)

    def occupancy(self) -> Occupancy:
        """How full the ring is now."""
        with self.lock:
            return Occupancy(self._in_flight, self.capacity, len(self._idle), len(self._lanes), self._spare_bytes)
