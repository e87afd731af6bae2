"""The SuperTensor: the batches of one model version, shared by every worker and every executor.

A worker *reserves* rows in the open batch of their lane, copies its request into them, and *commits* at the end of its
round (``submitter``). An executor that is idle gets the next batch at once: no request waits for a timer while an
executor is free, and under load batches grow by themselves while the executors are busy.

    open ──(full, or an executor is free)──▶ sealed ──(every worker has committed)──▶ running ──▶ spare

One lock guards the states; it is held for constant time, never while rows are copied. At most ``batch_size`` x
``capacity`` rows are reserved, waiting or running, of all shapes together; then ``Overloaded`` is raised at once, never
a hidden queue (``room``). The next batch to run is the one that was sealed first, or an open one that was opened before
it: no shape waits for ever behind another that fills batch after batch.

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
from itertools import chain, islice
from queue import Empty, SimpleQueue
from typing import Any, Final
from weakref import WeakValueDictionary

from toutates.engine.lane import Batch, GatheredLane, Lane, LaneState, PackedLane, Pin, RowShapes
from toutates.engine.result import BatchResult
from toutates.engine.room import YAML_KEYS, Bounds, Keys, Room
from toutates.engine.statistics import Occupancy
from toutates.protocol.signature import Signature
from toutates.system.errors import ModelNotReady, Overloaded

__all__ = ["QUICK_NS", "Deliver", "Loan", "Seat", "SuperTensor"]

#: A run that takes less is quicker than the way to an executor's thread and back, about 50 us.
QUICK_NS: Final = 50_000
#: Lanes kept; beyond it the one not used for longest is forgotten, with its spare batches.
MAX_LANES: Final = 256
#: Memory that batches waiting to be used again may hold.
MAX_SPARE_BYTES: Final = 256 * 1024 * 1024


#: More than there is.
NO_BOUND_BYTES: Final = 2**62
#: In an executor's inbox: no batch, but a reason to look again. Never run.
LOOK: Final = Batch.__new__(Batch)


#: Takes the outcome of a batch for the port of this number.
Deliver = Callable[[int, BatchResult], None]


class Seat:
    """An executor as the SuperTensor knows it.

    Attributes:
        inbox: where its thread waits for the next batch while the executor is idle; None ends it.
        waits_for_inbox: whether it is idle, on loan, or has something in its inbox. For the SuperTensor alone, whose
            lock guards the change to True; back to False it is changed by the executor's own thread.
    """

    def __init__(self) -> None:
        self.inbox: SimpleQueue[Batch | None] = SimpleQueue()
        self.waits_for_inbox = False

    def lend(self, batch: Batch, deliver: Deliver) -> None:
        """Run ``batch``, and what comes meanwhile, on the calling thread, for which ``SuperTensor.commit`` lent it."""
        raise NotImplementedError


#: An idle executor, and the batch to run with it.
Loan = tuple[Seat, Batch]


class SuperTensor:
    """See the module.

    Args:
        name: the model's, for errors.
        signature: the model's tensors.
        batch_size: most rows that are run together.
        capacity: full batches that may be in flight; so many times ``batch_size`` rows may.
        capacity_bytes: memory that batches in flight may take.
        max_queue_size: requests that may wait; 0 for as many as there are rows.
        keys: what sets these, for errors.
        pin: makes the memory of batches page-locked (``allocator: cuda_pinned``); None for ordinary memory.
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
        capacity_bytes: int = NO_BOUND_BYTES,
        max_queue_size: int = 0,
        keys: Keys = YAML_KEYS,
        pin: Pin | None = None,
        quick_ns: int = QUICK_NS,
        delay_ns: int = 0,
        enough_rows: int = 1,
    ) -> None:
        self.name = name
        self.signature = signature
        self.batch_size = batch_size
        self.capacity = capacity
        self._pin = pin
        self._quick_ns = quick_ns
        self._delay_ns = delay_ns
        self._enough_rows = enough_rows
        #: whether workers may have batches of their own
        self._lends = not delay_ns and not max_queue_size
        #: the idle executor that wakes up by itself, and when it will
        self._timekeeper: Seat | None = None
        self._wakes_ns = 0
        self.lock = threading.Lock()
        #: the lanes that are kept, the one used last last
        self._lanes: OrderedDict[RowShapes, Lane] = OrderedDict()
        #: these, and those that plans still hold: two lanes of one shape would take each other's place for ever
        self._known: WeakValueDictionary[RowShapes, Lane] = WeakValueDictionary()
        self._last_lane: Lane | None = None
        #: batches that still take rows, the one opened first first; used with the lock held
        self.open_batches: dict[Lane, Batch] = {}
        #: used with the lock held
        self.room = Room(
            name,
            Bounds((batch_size if signature.batched else 1) * capacity, capacity_bytes, max_queue_size, keys),
            self.open_batches,
        )
        self._sealed: deque[Batch] = deque()
        self._running: set[Batch] = set()
        self._idle: list[Seat] = []
        self._in_flight = 0
        self._opened = 0
        self._spare_bytes = 0
        #: by port: what takes the outcomes of its rows, and tells whether the request of a context still has a caller
        self._finish: list[Callable[[BatchResult], None]] = []
        self.wanted: list[Callable[[Any, int], bool]] = []
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
            self._spare_bytes -= sum(batch.memory_bytes for batch in forgotten.spare)
            forgotten.spare = []

    def _make_lane(self, row_shapes: RowShapes) -> Lane:
        for index, shape in row_shapes:
            if not self.signature.inputs[index].datatype.size or 0 in shape:
                return GatheredLane(self.signature, row_shapes, self.batch_size)
        if not row_shapes:
            return GatheredLane(self.signature, row_shapes, self.batch_size)
        lane = PackedLane(self.signature, row_shapes, self.batch_size, self._pin)
        if not self._delay_ns:  # which a batch would not wait for once it is full
            lane.room = max(1, min(lane.batch_rows, self.room.share_bytes // lane.row_memory))
        return lane

    # --- rows in -----------------------------------------------------------------------------------------------------

    def open_batch(self, lane: Lane, rows: int, *, new_request: bool = False) -> Batch:
        """A batch of ``lane`` that takes any worker's rows, with ``rows`` counted. Call with the lock held.

        Args:
            lane: which has no open batch.
            rows: that are about to be reserved; no more than a batch takes.
            new_request: whether they are all of a request, for which nothing was looked at yet.

        Raises:
            Overloaded: too much is under way.
            ModelNotReady: the model version is being unloaded.
        """
        if new_request and self.room.bounds.waiting:
            self.room.check_waiting(self._starting())
        batch = self._new_batch(lane, rows)
        self.room.count(batch, rows, rows)
        self.open_batches[lane] = batch
        if new_request and self.room.bounds.waiting:
            self.room.count_waiting(batch)
        if self._delay_ns:
            batch.due_ns = time.monotonic_ns() + self._delay_ns
        return batch

    def join(self, batch: Batch, rows: int) -> None:
        """Count ``rows`` more rows, one whole request, of an open batch that has room for them. With the lock held.

        Raises:
            Overloaded: too much is under way.
        """
        if self.room.bounds.waiting:
            self.room.check_waiting(self._starting())
            self.room.count_more(batch, rows)
            self.room.count_waiting(batch)
        else:
            self.room.count_more(batch, rows)

    def open_own_batch(self, lane: Lane, rows: int) -> Batch | None:
        """A batch for the rows of one worker alone, who has reserved ``rows`` of it and is to commit it.

        Call with the lock held. None where a shared one is better: runs take long, executors are busy, or requests
        that wait are to be counted.

        Raises:
            Overloaded: too much is under way.
            ModelNotReady: the model version is being unloaded.
        """
        # ``Lane.is_quick`` written out, here and where batches are lent, which saves the call.
        if not self._idle or not self._lends or lane.run_ns[rows.bit_length()] >= self._quick_ns:
            return None
        batch = self._new_batch(lane, rows)
        batch.rows = batch.counted = rows
        batch.busy = 1
        self.room.rows += rows
        self._sealed.append(batch)
        return batch

    def _new_batch(self, lane: Lane, rows: int) -> Batch:
        room, spare = self.room, lane.spare
        if (
            spare
            and rows <= lane.room
            and room.rows + rows <= room.most_rows
            and room.memory_bytes + spare[-1].memory_bytes <= room.easy_bytes
            and not self._closed
        ):
            batch = spare.pop()  # what ``_find_memory`` comes to, without its calls
            self._spare_bytes -= batch.memory_bytes
        else:
            batch = self._find_memory(lane, rows)
        if len(batch.pending) < len(self._finish):
            batch.add_ports(len(self._finish))
        room.memory_bytes += batch.memory_bytes
        self._opened = batch.order = self._opened + 1
        self._in_flight += 1
        return batch

    def _find_memory(self, lane: Lane, rows: int) -> Batch:
        if self._closed:
            raise ModelNotReady("Server is stopping, scheduler for model has stopped accepting new inference requests")
        self.room.check_rows(rows)
        if rows > lane.room:
            self._widen(lane, rows)
        room = self.room.buffer_rows(lane, rows)
        if room == lane.room and lane.spare:
            batch = lane.spare.pop()
            self._spare_bytes -= batch.memory_bytes
            return batch
        try:
            return lane.new_batch(len(self._finish), room)
        except MemoryError:
            raise Overloaded(
                f"model '{self.name}': no memory for one more batch of {room} rows, which takes "
                f"{room * lane.row_memory} bytes; try again later, or lower 'batch_size' or 'capacity' in its "
                f"{self.room.bounds.keys.file}"
            ) from None

    def _widen(self, lane: Lane, rows: int) -> None:
        self._spare_bytes -= sum(batch.memory_bytes for batch in lane.spare)
        lane.widen(rows)

    def check_fit(self, lane: Lane, rows: int, held_bytes: int) -> None:
        """See that one request that may need several batches fits in now. Call with the lock held.

        Args:
            lane: of its rows.
            rows: how many.
            held_bytes: of arrays that are kept for it.

        Raises:
            InvalidRequest: it never will.
            Overloaded: not now.
        """
        if self.room.bounds.waiting:
            self.room.check_waiting(self._starting())
        self.room.check_fit(lane, rows, held_bytes)

    def note_request(self, first: Batch, last: Batch, held_bytes: int) -> None:
        """A request that ``check_fit`` let in has its rows reserved from the first to the last of these batches.

        Call with the lock held.
        """
        last.held_bytes += held_bytes
        self.room.memory_bytes += held_bytes
        if self.room.bounds.waiting:
            self.room.count_waiting(first)

    def _starting(self) -> int:
        """Requests of batches that idle executors will take as soon as they are committed."""
        ready = (batch for batch in self.open_batches.values() if not self._delay_ns or self._is_due(batch))
        return sum(batch.requests for batch in islice(chain(self._sealed, ready), len(self._idle)))

    def seal(self, batch: Batch) -> None:
        """Take no more rows. Call with the lock held."""
        lane = batch.lane
        del self.open_batches[lane]
        self._sealed.append(batch)
        self.room.settle(batch)
        if batch.rows >= batch.room >= lane.room < lane.batch_rows:
            self._widen(lane, 0)

    def commit(self, batches: Collection[Batch]) -> Loan | None:
        """A worker's rows in these batches are written.

        Returns:
            What the worker itself is to run next, if there is a quick batch for an idle executor: ``Executor.lend``.
        """
        with self.lock:
            for batch in batches:
                batch.busy -= 1
                if batch.rows > batch.counted:  # a worker's own
                    self.room.settle(batch)
            return self._employ_executors(lend=True)

    def _employ_executors(self, *, lend: bool) -> Loan | None:
        """Give idle executors what is ready; one of them to the caller, if he may borrow it."""
        loan: Loan | None = None
        while self._idle:
            batch = self._next(seal_busy=True)
            if batch is None:
                break
            executor = self._idle.pop()
            if lend and loan is None and batch.lane.run_ns[batch.rows.bit_length()] < self._quick_ns:
                loan = executor, batch
            else:
                executor.inbox.put(batch)
        if self._delay_ns:
            self._keep_time()
        return loan

    # --- batches out -------------------------------------------------------------------------------------------------

    def _next(self, *, seal_busy: bool) -> Batch | None:
        """The batch to run next: the first that was sealed, or the first that is open if it was opened before."""
        found = None
        for batch in self._sealed:
            if not batch.busy:
                found = batch
                break
        first = self._next_open(found, seal_busy=seal_busy) if self.open_batches else None
        if first is not None:
            found = first
            del self.open_batches[found.lane]
        elif found is not None:
            self._sealed.remove(found)
        else:
            return None
        if first is not None or found.requests:
            self.room.start(found)
        self._running.add(found)
        return found

    def _next_open(self, sealed: Batch | None, *, seal_busy: bool) -> Batch | None:
        """The first open batch that may run, if it was opened before ``sealed``."""
        busy = []
        found = None
        for batch in self.open_batches.values():
            if sealed is not None and sealed.order < batch.order:
                break
            if self._delay_ns and not self._is_due(batch):
                continue
            if not batch.busy:
                found = batch
                break
            if seal_busy and sealed is None:
                busy.append(batch)
        for batch in busy:
            self.seal(batch)
        return found

    def take(self, executor: Seat) -> Batch | None:
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

    def _take_in_time(self, executor: Seat) -> Batch | None:
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

    def _wait(self, executor: Seat, timeout_s: float | None) -> Batch | None:
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

    def end_loan(self, batch: Batch, executor: Seat, *, more: bool) -> Batch | None:
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
        room = self.room
        room.rows -= batch.counted
        room.memory_bytes -= batch.memory_bytes
        if batch.rows >= batch.room >= lane.room < lane.batch_rows:
            self._widen(lane, 0)
        batch.rows = 0
        if batch.pieces or batch.held_bytes:
            batch.pieces = []
            room.memory_bytes -= batch.held_bytes
            batch.held_bytes = 0
        self._in_flight -= 1
        if lane is not self._last_lane:
            self._note_use(lane)  # plans look a lane up only once, so what counts is that its batches run
        if batch.room == lane.room and batch.memory_bytes <= MAX_SPARE_BYTES:
            if self._spare_bytes + batch.memory_bytes > MAX_SPARE_BYTES:
                self._make_room_for_spare(batch.memory_bytes)
            lane.spare.append(batch)
            self._spare_bytes += batch.memory_bytes

    def _make_room_for_spare(self, memory_bytes: int) -> None:
        """Drop spare batches of the lanes not used for longest until one more fits."""
        for lane in list(self._lanes.values()):
            while self._spare_bytes + memory_bytes > MAX_SPARE_BYTES and lane.spare:
                self._spare_bytes -= lane.spare.pop().memory_bytes

    def deliver(self, port: int, result: BatchResult) -> None:
        """Hand a batch's outcome to a port that has rows in it, from any thread."""
        # Read without the lock while another port may be added: a list takes that on every build of CPython.
        self._finish[port](result)

    # --- life --------------------------------------------------------------------------------------------------------

    def connect(self, finish: Callable[[BatchResult], None], is_wanted: Callable[[Any, int], bool]) -> int:
        """Add a port.

        Args:
            finish: takes the outcomes of its rows, in the threads that have run them.
            is_wanted: see ``Consumer``.

        Returns:
            Its number, from 0.
        """
        with self.lock:
            self.wanted.append(is_wanted)
            self._finish.append(finish)
            for batch in self.open_batches.values():  # the others get theirs before they take rows again
                batch.add_ports(len(self._finish))
            return len(self._finish) - 1

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
            self._timekeeper = None

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
                waiting=sum(len(own) for batch in waiting for own in batch.pending),
                rows=sum(batch.rows for batch in in_flight),
                row_capacity=self.room.bounds.rows,
                in_flight_bytes=self.room.memory_bytes,
                capacity_bytes=self.room.bounds.memory_bytes,
                idle_executors=len(self._idle),
                lanes=len(self._lanes),
                spare_bytes=self._spare_bytes,
                buffer_bytes=self._spare_bytes + sum(batch.memory_bytes for batch in in_flight),
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
                        room=lane.room,
                        batch_bytes=lane.room * lane.row_memory,
                        spare=len(lane.spare),
                        open_rows=batch.rows if batch is not None else None,
                        writing=batch.busy if batch is not None else 0,
                        run_ns=tuple(lane.run_ns),
                    )
                )
        return states
