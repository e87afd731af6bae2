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

**Loans.** Where the model is small, handing a batch to another thread and its outcome back costs more than running it.
A worker whose batch is *quick* (``Lane.is_quick``: by what such runs have taken, below ``quick_ns``) therefore borrows
an idle executor and runs the batch on its own thread, with that executor's session, while the executor's thread sleeps.
No session is ever used by two threads, no more than ``num_executors`` run at a time, and with no executor idle a batch
waits as any other. As long as a lane is quick and executors are idle, each worker has batches of its own, sealed from
birth, into which it writes without the lock and which wait for nobody else's round to end.

**Delay.** Only where the model asks for it (``delay_ns``), an open batch waits for more rows though an executor idles:
until it has ``enough_rows``, is full, or has been open for so long. One of the idle executors, the *timekeeper*, then
sleeps no longer than until the first such batch is due; no other thread has a timer. Without a delay, nothing of this
happens.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from itertools import islice
from queue import Empty
from typing import TYPE_CHECKING, Final
from weakref import WeakValueDictionary

from toutates.batching.lane import Batch, GatheredLane, Lane, PackedLane, RowShapes
from toutates.batching.pinned import PinnedMemory
from toutates.batching.result import BatchResult
from toutates.errors import InvalidRequest, ModelNotReady, Overloaded
from toutates.protocol.signature import Signature

if TYPE_CHECKING:
    from toutates.batching.executor import Executor

__all__ = ["QUICK_NS", "LaneState", "Loan", "Occupancy", "SuperTensor"]

#: An idle executor, and the batch to run with it.
Loan = tuple["Executor", Batch]

#: A run that takes less is quicker than the way to an executor's thread and back, about 50 us.
QUICK_NS: Final = 50_000
#: Lanes kept; beyond it the one not used for longest is forgotten, with its spare batches.
MAX_LANES: Final = 256
#: Memory that batches waiting to be used again may hold.
MAX_SPARE_BYTES: Final = 256 * 1024 * 1024


#: In an executor's inbox: no batch, but a reason to look again. Never run.
LOOK: Final = Batch.__new__(Batch)


@dataclass(frozen=True, slots=True)
class Occupancy:
    """How full a SuperTensor is.

    Attributes:
        in_flight: batches open, sealed or running.
        running: those of them that an executor has, or is about to have.
        capacity: the most there can be.
        waiting: requests whose batch is not running; one whose rows were split counts in each of its batches.
        rows: of all batches in flight.
        idle_executors: executors that wait for a batch.
        lanes: shapes of rows that have a lane.
        spare_bytes: memory of batches that wait to be used again.
        buffer_bytes: memory of these and of the batches in flight.
    """

    in_flight: int
    running: int
    capacity: int
    waiting: int
    rows: int
    idle_executors: int
    lanes: int
    spare_bytes: int
    buffer_bytes: int


@dataclass(frozen=True, slots=True)
class LaneState:
    """A lane at one moment, for those who look for what is wrong.

    Attributes:
        row_shapes: of its rows, by input.
        batch_rows: rows that one batch takes.
        batch_bytes: memory of one batch.
        spare: batches that wait to be used again.
        open_rows: rows in the batch that still takes some; None if there is none.
        writing: workers that have not committed to that one.
        run_ns: how long runs take, by the bit length of their rows; see ``Lane``.
    """

    row_shapes: RowShapes
    batch_rows: int
    batch_bytes: int
    spare: int
    open_rows: int | None
    writing: int
    run_ns: tuple[int, ...]


class SuperTensor:
    """See the module.

    Args:
        name: the model's, for errors.
        signature: the model's tensors.
        batch_size: most rows that are run together.
        capacity: most batches in flight.
        workers: how many workers there will be.
        pinned: pins the memory of batches (``allocator: cuda_pinned``); None for ordinary memory.
        quick_ns: batches whose runs take less may be run by workers; 0 leaves all to the executors' threads.
        delay_ns: how long an open batch may wait for more rows; 0 for not at all.
        enough_rows: with so many it does not wait.
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
        quick_ns: int = QUICK_NS,
        delay_ns: int = 0,
        enough_rows: int = 1,
    ) -> None:
        self.name = name
        self.signature = signature
        self.batch_size = batch_size
        self.capacity = capacity
        self.workers = workers
        self._pinned = pinned
        self._quick_ns = quick_ns
        self._delay_ns = delay_ns
        self._enough_rows = enough_rows
        #: the idle executor that wakes up by itself, and when it will
        self._timekeeper: Executor | None = None
        self._wakes_ns = 0
        self.lock = threading.Lock()
        #: the lanes that are kept, the one used last last
        self._lanes: OrderedDict[RowShapes, Lane] = OrderedDict()
        #: these, and those that plans still hold: two lanes of one shape would take each other's place for ever
        self._known: WeakValueDictionary[RowShapes, Lane] = WeakValueDictionary()
        self._last_lane: Lane | None = None
        #: batches that still take rows, the one opened first first; used with the lock held
        self.open_batches: dict[Lane, Batch] = {}
        self._sealed: deque[Batch] = deque()
        self._running: set[Batch] = set()
        self._idle: list[Executor] = []
        self._in_flight = 0
        self._spare_bytes = 0
        self._finish: dict[int, Callable[[BatchResult], None]] = {}
        self._closed = False

    # --- lanes -------------------------------------------------------------------------------------------------------

    def lane(self, row_shapes: RowShapes) -> Lane:
        """The lane of these row shapes, made if need be. Not for every request: keep it."""
        with self.lock:
            lane = self._known.get(row_shapes)
            if lane is None:
                lane = self._known[row_shapes] = self._make_lane(row_shapes)
            self._note_use(lane)
            return lane

    def _note_use(self, lane: Lane) -> None:
        """Keep a lane, as the last to be forgotten. Call with the lock held."""
        self._last_lane = lane
        self._lanes[lane.row_shapes] = lane
        self._lanes.move_to_end(lane.row_shapes)
        if len(self._lanes) > MAX_LANES:
            _, forgotten = self._lanes.popitem(last=False)
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
        """A batch of ``lane`` that takes any worker's rows. Call with the lock held.

        Raises:
            Overloaded: ``capacity`` batches are in flight.
            ModelNotReady: the model version is being unloaded.
        """
        batch = self.open_batches[lane] = self._new_batch(lane)
        if self._delay_ns:
            batch.due_ns = time.monotonic_ns() + self._delay_ns
        return batch

    def open_own_batch(self, lane: Lane, rows: int) -> Batch | None:
        """A batch for the rows of one worker alone, who has reserved ``rows`` of it and is to commit it.

        Call with the lock held. None where a shared one is better: runs take long, or executors are busy.

        Raises:
            Overloaded: ``capacity`` batches are in flight.
            ModelNotReady: the model version is being unloaded.
        """
        if not self._idle or self._delay_ns or not lane.is_quick(rows, self._quick_ns):
            return None
        batch = self._new_batch(lane)
        batch.rows = rows
        batch.busy = 1
        self._sealed.append(batch)
        return batch

    def _new_batch(self, lane: Lane) -> Batch:
        if self._closed:
            raise ModelNotReady("Server is stopping, scheduler for model has stopped accepting new inference requests")
        if self._in_flight >= self.capacity:
            raise self._overloaded(lane)
        if lane.spare:
            batch = lane.spare.pop()
            self._spare_bytes -= lane.batch_bytes
        else:
            try:
                batch = lane.new_batch(self.workers)
            except MemoryError:
                raise Overloaded(
                    f"model '{self.name}': no memory for one more batch of {lane.batch_rows} rows, which takes "
                    f"{lane.batch_bytes} bytes; try again later, or lower 'batch_size' or 'capacity' in its config.yaml"
                ) from None
        self._in_flight += 1
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

    def commit(self, batches: Collection[Batch]) -> Loan | None:
        """A worker's rows in these batches are written.

        Returns:
            What the worker itself is to run next, if there is a quick batch for an idle executor: ``Executor.lend``.
        """
        with self.lock:
            for batch in batches:
                batch.busy -= 1
            return self._employ_executors(lend=True)

    def _employ_executors(self, *, lend: bool) -> Loan | None:
        """Give idle executors what is ready; one of them to the caller, if he may borrow it."""
        loan: Loan | None = None
        while self._idle:
            batch = self._next(seal_busy=True)
            if batch is None:
                break
            executor = self._idle.pop()
            if lend and loan is None and batch.lane.is_quick(batch.rows, self._quick_ns):
                loan = executor, batch
            else:
                executor.inbox.put(batch)
        if self._delay_ns:
            self._keep_time()
        return loan

    # --- batches out -------------------------------------------------------------------------------------------------

    def _next(self, *, seal_busy: bool) -> Batch | None:
        for batch in self._sealed:
            if not batch.busy:
                self._sealed.remove(batch)
                self._running.add(batch)
                return batch
        for batch in list(self.open_batches.values()):
            if self._delay_ns and not self._is_due(batch):
                continue
            if not batch.busy:
                del self.open_batches[batch.lane]
                self._running.add(batch)
                return batch
            if seal_busy:
                self.seal(batch)
        return None

    def take(self, executor: Executor) -> Batch | None:
        """The next batch for an executor; blocks until there is one. None: the executor ends.

        An executor whose last thread ended while it waited is idle, on loan or provided for still, and waits on.
        """
        if self._delay_ns:
            return self._take_in_time(executor)
        with self.lock:
            batch = None
            if not executor.waits_for_inbox:
                batch = self._next(seal_busy=False)
                if batch is None and self._closed and not self._in_flight:
                    return None
                if batch is None:
                    self._idle.append(executor)
                    executor.waits_for_inbox = True
        if batch is None:
            batch = executor.inbox.get()
            executor.waits_for_inbox = False
        return batch

    # --- batches that wait for more rows -----------------------------------------------------------------------------

    def _is_due(self, batch: Batch) -> bool:
        return batch.rows >= self._enough_rows or self._closed or time.monotonic_ns() >= batch.due_ns

    def _next_due_ns(self) -> int:
        """When the first open batch is due that nobody writes into; 0 if there is none. Commits see to the others."""
        return min((batch.due_ns for batch in self.open_batches.values() if not batch.busy), default=0)

    def _keep_time(self) -> None:
        """See that an idle executor, if there is one, wakes up in time. Call with the lock held."""
        due_ns = self._next_due_ns()
        keeper = self._timekeeper
        if keeper is None:
            if due_ns and self._idle:
                keeper = self._idle[0]
        elif due_ns >= self._wakes_ns or not due_ns or keeper not in self._idle:
            keeper = None
        if keeper is not None:
            self._idle.remove(keeper)
            self._timekeeper, self._wakes_ns = keeper, due_ns
            keeper.inbox.put(LOOK)

    def _take_in_time(self, executor: Executor) -> Batch | None:
        """``take`` where batches may wait."""
        while True:
            timeout_s: float | None = None
            with self.lock:
                if self._timekeeper is executor:
                    self._timekeeper = None
                if not executor.waits_for_inbox:
                    batch = self._next(seal_busy=False)
                    if batch is not None:
                        self._keep_time()
                        return batch
                    if self._closed and not self._in_flight:
                        return None
                    self._idle.append(executor)
                    executor.waits_for_inbox = True
                    due_ns = self._next_due_ns()
                    if due_ns and self._timekeeper is None:
                        self._timekeeper, self._wakes_ns = executor, due_ns
                        timeout_s = max(0.0, (due_ns - time.monotonic_ns()) / 1e9)
            found = self._wait(executor, timeout_s)
            executor.waits_for_inbox = False
            if found is not LOOK:
                with self.lock:
                    if self._timekeeper is executor:
                        self._timekeeper = None
                    self._keep_time()
                return found

    def _wait(self, executor: Executor, timeout_s: float | None) -> Batch | None:
        """What is in the inbox; LOOK if there is nothing when time is up."""
        try:
            return executor.inbox.get(timeout=timeout_s)
        except Empty:
            with self.lock:
                if self._timekeeper is executor:
                    self._timekeeper = None
                if executor in self._idle:
                    self._idle.remove(executor)
                    return LOOK
        return executor.inbox.get()  # on loan, or just provided for

    @property
    def has_backlog(self) -> bool:
        """Whether batches wait for an executor. Read without the lock: a guess, and good enough for one."""
        return bool(self._sealed or self.open_batches)

    def release(self, batch: Batch) -> None:
        """An executor is done with a batch: its memory is free for others."""
        with self.lock:
            self._release(batch)
            if self._closed and not self._in_flight:
                self._dismiss_executors()

    def end_loan(self, batch: Batch, executor: Executor, *, more: bool) -> Batch | None:
        """``release``, and the borrowed executor is idle again or has what came meanwhile.

        Args:
            batch: that has run.
            executor: that was borrowed for it.
            more: whether the borrower would run another batch; else the executor's own thread gets it.

        Returns:
            The next batch, if it is quick, for the borrower to run with the same executor.
        """
        with self.lock:
            self._release(batch)
            following = self._next(seal_busy=False)
            if following is not None and more and following.lane.is_quick(following.rows, self._quick_ns):
                return following
            if following is not None:
                executor.inbox.put(following)
            else:
                self._idle.append(executor)
                if self._closed and not self._in_flight:
                    self._dismiss_executors()
                elif self._delay_ns:
                    self._keep_time()
            return None

    def _release(self, batch: Batch) -> None:
        lane = batch.lane
        self._running.discard(batch)
        batch.rows = 0
        if batch.pieces:
            batch.pieces = []
        self._in_flight -= 1
        if lane is not self._last_lane:
            self._note_use(lane)  # plans look a lane up only once, so what counts is that its batches run
        if lane.batch_bytes <= MAX_SPARE_BYTES:
            if self._spare_bytes + lane.batch_bytes > MAX_SPARE_BYTES:
                self._make_room_for_spare(lane)
            lane.spare.append(batch)
            self._spare_bytes += lane.batch_bytes

    def _make_room_for_spare(self, keeper: Lane) -> None:
        """Drop spare batches of the lanes not used for longest until one more fits."""
        for lane in list(self._lanes.values()):
            while self._spare_bytes + keeper.batch_bytes > MAX_SPARE_BYTES and lane.spare:
                lane.spare.pop()
                self._spare_bytes -= lane.batch_bytes

    def deliver(self, worker: int, result: BatchResult) -> None:
        """Hand a batch's outcome to a worker that has rows in it, from any thread."""
        # Read without the lock while another worker may add itself: a dict takes that on every build of CPython, and a
        # worker is there before its first rows are.
        self._finish[worker](result)

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
                self._employ_executors(lend=False)
            elif self._delay_ns:
                self._employ_executors(lend=False)  # what waits for more rows will not get them
            if not self._in_flight:
                self._dismiss_executors()

    def _dismiss_executors(self) -> None:
        while self._idle:
            self._idle.pop().inbox.put(None)

    def free(self) -> None:
        """Let go of all memory, once every executor has ended; nobody may use it any more.

        By hand, because lanes and their batches refer to each other, and with them buffers, bindings and sessions would
        wait for a garbage collector that may have been told to leave them alone.
        """
        with self.lock:
            for lane in self._lanes.values():
                lane.spare = []
            self._lanes.clear()
            self._last_lane = None
            self._spare_bytes = 0
            self.open_batches.clear()
            self._sealed.clear()
            self._running.clear()

    def occupancy(self) -> Occupancy:
        """How full the ring is now."""
        with self.lock:
            waiting = [*self._sealed, *self.open_batches.values()]
            in_flight = (*waiting, *self._running)
            return Occupancy(
                in_flight=self._in_flight,
                running=len(self._running),
                capacity=self.capacity,
                # Workers may add more at this moment; a list's length can be read in any thread.
                waiting=sum(len(own) for batch in waiting for own in batch.waiters),
                rows=sum(batch.rows for batch in in_flight),
                idle_executors=len(self._idle),
                lanes=len(self._lanes),
                spare_bytes=self._spare_bytes,
                buffer_bytes=self._spare_bytes + sum(batch.lane.batch_bytes for batch in in_flight),
            )

    def lane_states(self, most: int) -> list[LaneState]:
        """What can be said of the lanes used last, ``most`` of them, the last one first."""
        states = []
        with self.lock:
            for lane in islice(reversed(self._lanes.values()), most):
                batch = self.open_batches.get(lane)
                states.append(
                    LaneState(
                        row_shapes=lane.row_shapes,
                        batch_rows=lane.batch_rows,
                        batch_bytes=lane.batch_bytes,
                        spare=len(lane.spare),
                        open_rows=batch.rows if batch is not None else None,
                        writing=batch.busy if batch is not None else 0,
                        run_ns=tuple(lane.run_ns),
                    )
                )
        return states
