"""The SuperTensor: the batches of one model version, shared by every worker and every executor.

A worker *reserves* rows in the open batch of their lane, copies its request into them, and *commits* at the end of its
round (``submitter``). An executor that is idle gets the next batch at once: no request waits for a timer while an
executor is free, and under load batches grow by themselves while the executors are busy.

The parts:

- ``lane_table``: the lanes of all row shapes, and the spare batches whose buffers are used again;
- ``budget``: how many rows, bytes and requests may be under way; above that ``Overloaded`` is raised at once, because
  there is no hidden queue;
- ``batch_queue``: the batches under way, and which of them runs next;
- ``dispatcher``: the executors, and which of them, or which worker, runs the next batch.

One lock guards all of them; it is held for constant time, never while rows are copied.

As long as a lane is quick and executors are idle, each worker has batches of its own, sealed from birth, into which it
writes without the lock and which wait for nobody else's round to end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from itertools import islice
from typing import Final
from weakref import WeakMethod

from toutates.engine.batch_queue import BatchQueue
from toutates.engine.budget import YAML_KEYS, Bounds, Budget, Keys
from toutates.engine.dispatcher import Dispatcher, ExecutorHandle, InlineRun
from toutates.engine.lane import MAX_BATCH_BYTES, Allocate, Batch, Lane, LaneState, Pin, RowShapes
from toutates.engine.lane_table import LaneTable
from toutates.engine.padded.lanes import PaddedLanes
from toutates.engine.padded.padding import Padding
from toutates.engine.padded.queue import PaddedQueue
from toutates.engine.poisoned import filling
from toutates.engine.policies.queue import PolicyLanes, PolicyQueue
from toutates.engine.policies.rules import BatchingRules
from toutates.engine.ragged.lanes import RaggedLanes
from toutates.engine.ragged.ragged import Ragged
from toutates.engine.result import BatchResult
from toutates.engine.servable import Consumer
from toutates.engine.statistics import Occupancy
from toutates.protocol.signature import Signature
from toutates.system.errors import InvalidRequest, ModelNotReady, Overloaded
from toutates.system.inline_time import INLINE_TIME
from toutates.system.poison import current

__all__ = ["QUICK_NS", "SuperTensor"]

#: A run that takes less is quicker than the way to an executor's thread and back, about 50 us.
QUICK_NS: Final = 50_000
#: More memory than there is.
NO_BOUND_BYTES: Final = 2**62


class SuperTensor:
    """Takes rows from workers, and batches of them to executors and back.

    Args:
        name: the model's, for errors.
        signature: the model's tensors.
        batch_size: most rows that are run together.
        capacity: full batches that may be in flight; so many times ``batch_size`` rows may.
        capacity_bytes: memory that batches in flight may take.
        max_queue_size: requests that may wait; 0 for as many as there are rows.
        keys: what sets these, for errors.
        pin: makes the memory of batches page-locked (``allocator: cuda_pinned``); None for ordinary memory.
        allocate: makes the memory of batches; None for ordinary memory.
        lends: whether the backends read any memory, so that large rows may be run where they were received.
        quick_ns: batches whose runs take less may be run by workers; 0 leaves all to the executors' threads.
        delay_ns: how long an open batch may wait for more rows; 0 for not at all.
        enough_rows: a batch of so many rows does not wait.
        padding: of a version whose rows may differ in length; None where those of one batch have one shape. Its ports
            are ``padded.port.PaddedPort``, and its backends ``padded.backend.PaddedBackend``. Where rows are joined
            without padding, they are those of ``engine.ragged``.
        keeps_whole: whether the rows of a request are all in one batch, because the model sees requests.
        splits_large: whether those are in several that no batch has room for; else such a request is refused.
        keeps_split: whether runs may give another number of rows than went in, so that the rows of a request that are
            in several batches are kept until all of these have run (``splits``).
        grows: whether a batch has room for few rows at first, and for more when they come.
        make_queue: makes the queue of a version with ``padding``, of what a ``PaddedQueue`` takes.
        joins: whether rows of several requests may share a run; else each request is run by itself, whole.
        rules: of a version with priorities, queue policies or preferred sizes, whose ports are those of
            ``engine.policies``, and which are given no ``delay_ns`` and no ``max_queue_size``. None for others.

    Attributes:
        lock: guards the parts.
        lanes, budget, queue, executors: the parts. Used with the lock held.
        keeps_whole, joins: as given, until ``run_alone``.
        ports: the consumers, by number of their port.
        keeps_split, padding, quick_ns: as given.
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
        allocate: Allocate | None = None,
        lends: bool = False,
        quick_ns: int = QUICK_NS,
        delay_ns: int = 0,
        enough_rows: int = 1,
        padding: Padding | Ragged | None = None,
        keeps_whole: bool = False,
        splits_large: bool = False,
        keeps_split: bool = False,
        grows: bool = True,
        make_queue: Callable[..., PaddedQueue] = PaddedQueue,
        rules: BatchingRules | None = None,
        joins: bool = True,
    ) -> None:
        self.name = name
        self.keeps_whole, self._splits_large = keeps_whole, splits_large
        self.keeps_split = keeps_split
        self.joins = True
        self.signature = signature
        self.batch_size = batch_size
        self.capacity = capacity
        self.padding = padding
        self.quick_ns = quick_ns
        self.lock = threading.Lock()
        rows = (batch_size if signature.batched else 1) * capacity
        open_batches: dict[Lane, Batch] = {}
        self.budget = Budget(name, Bounds(rows, capacity_bytes, max_queue_size, keys), open_batches)
        # A full batch does not wait, so where batches wait there is room for all rows from the beginning.
        row_share_bytes = None if delay_ns or not grows else self.budget.share_bytes
        self.lanes: LaneTable
        self.queue: BatchQueue
        self.ports: list[Consumer] = []
        if rules is not None:
            most_size = MAX_BATCH_BYTES
            if isinstance(padding, Ragged):
                self.lanes = RaggedLanes(signature, batch_size, padding)
                most_size = padding.most_elements
            else:
                self.lanes = PolicyLanes(signature, batch_size)
            self.queue = PolicyQueue(open_batches, self.budget, self.lanes, rules, signature, self.ports, most_size)
            delay_ns = rules.delay_ns
        elif padding is None:
            self.lanes = LaneTable(
                signature, batch_size, row_share_bytes=row_share_bytes, pin=pin, allocate=allocate, lends=lends
            )
            self.queue = BatchQueue(open_batches, self.budget, delay_ns=delay_ns, enough_rows=enough_rows)
        else:
            if isinstance(padding, Ragged):
                self.lanes = RaggedLanes(signature, batch_size, padding)
            else:
                self.lanes = PaddedLanes(signature, batch_size, padding)
            self.queue = make_queue(open_batches, self.budget, self.lanes, delay_ns=delay_ns, enough_rows=enough_rows)
        self.executors = Dispatcher(self.lock, self.queue, quick_ns=quick_ns, keeps_time=delay_ns > 0)
        #: what a lane's runs must take less than, for workers to have batches of their own
        self._own_batch_ns = 0 if delay_ns or max_queue_size else quick_ns
        self._opened = 0
        poison = current()
        if poison is not None:
            self._new_batch = filling(WeakMethod(self._new_batch), poison)  # type: ignore[method-assign, assignment]
        if not joins:
            self.run_alone()

    def run_alone(self) -> bool:
        """Run each request by itself from now on. Returns whether that is new.

        A batch that has several requests already is divided by its executor.
        """
        with self.lock:
            if not self.joins:
                return False
            self.joins = False
            self.keeps_whole = True
            self._own_batch_ns = 0
            # All of the rows that may be under way: a request that was divided until now is not refused.
            self.lanes.take_whole(self.budget.bounds.rows if self.signature.batched else 1)
            if not isinstance(self.queue, PaddedQueue):  # whose open batches are what waits
                for batch in list(self.queue.open.values()):
                    self.queue.seal(batch)
            return True

    def lane(self, row_shapes: RowShapes) -> Lane:
        """The lane of these row shapes, made if need be. Not for every request: keep it."""
        with self.lock:
            return self.lanes.find(row_shapes)

    # --- rows in -----------------------------------------------------------------------------------------------------

    def open_batch(self, lane: Lane, rows: int, *, new_request: bool = False) -> Batch:
        """A batch of ``lane`` that takes any worker's rows, with ``rows`` counted. Call with the lock held.

        Args:
            lane: which has no open batch.
            rows: how many are about to be reserved; no more than a batch takes.
            new_request: whether they are a whole request, for which ``check_fit`` was not called.

        Raises:
            Overloaded: too much is under way.
            ModelNotReady: the model version is being unloaded.
        """
        bounded = new_request and self.budget.bounds.waiting
        if bounded:
            self._check_waiting()
        batch = self._new_batch(lane, rows)
        self.budget.count(batch, rows, rows)
        self.queue.add_open(batch)
        if bounded:
            self.budget.count_waiting(batch)
        return batch

    def join(self, batch: Batch, rows: int) -> None:
        """Count ``rows`` more rows, one whole request, of an open batch that has room for them. With the lock held.

        Raises:
            Overloaded: too much is under way.
        """
        if self.budget.bounds.waiting:
            self._check_waiting()
            self.budget.count_more(batch, rows)
            self.budget.count_waiting(batch)
        else:
            self.budget.count_more(batch, rows)

    def open_own_batch(self, lane: Lane, rows: int) -> Batch | None:
        """A batch for the rows of one worker alone, who has reserved ``rows`` of it and is to commit it.

        Call with the lock held. None where a shared one is better: runs take long, executors are busy, or requests
        that wait are to be counted.

        Raises:
            Overloaded: too much is under way.
            ModelNotReady: the model version is being unloaded.
        """
        if not self.executors.idle or lane.run_ns[rows.bit_length()] >= self._own_batch_ns:
            return None
        batch = self._new_batch(lane, rows)
        batch.rows = batch.counted = rows
        batch.busy = 1
        self.budget.rows += rows
        self.queue.sealed.append(batch)
        return batch

    def claim_own(self, lane: Lane, rows: int) -> InlineRun | None:
        """Claim an executor for a new batch of ``rows`` rows, which the calling thread writes and runs at once.

        Call with the lock held. None where it is better to add the rows as any others: as ``open_own_batch``, and where
        others share the open batch.

        Raises:
            Overloaded, ModelNotReady: as of ``open_own_batch``.
        """
        queue, executors = self.queue, self.executors
        if not executors.idle or rows > lane.batch_rows or lane in queue.open:
            return None
        if lane.run_ns[rows.bit_length()] >= self._own_batch_ns or INLINE_TIME.left_ns <= 0:
            return None
        batch = self._new_batch(lane, rows)
        batch.rows = batch.counted = rows
        self.budget.rows += rows
        queue.running.add(batch)
        return executors.idle.pop(), batch

    def claim_lent(self, lane: Lane, rows: int, address: int, held_bytes: int = 0) -> InlineRun | None:
        """Claim an executor for the rows of one request, which stay where they are.

        Call with the lock held. The worker runs the batch at once, so that it never waits in the queue. None where
        copying the rows is better: as ``open_own_batch``, where others share the open batch, and where the round has no
        time left for inline runs.

        Args:
            lane: of the rows.
            rows: how many.
            address: see ``Batch.lent_at``.
            held_bytes: of rows whose size the lane does not know.

        Raises:
            InvalidRequest, Overloaded, ModelNotReady: as for any batch.
        """
        idle = self.executors.idle
        if rows > lane.batch_rows or not idle or lane in self.queue.open or INLINE_TIME.left_ns <= 0:
            return None
        if lane.run_ns[rows.bit_length()] >= self._own_batch_ns:
            return None
        self._check_open()
        budget = self.budget
        more = rows * lane.row_memory + held_bytes
        if budget.rows + rows > budget.most_rows or budget.memory_bytes + more > budget.easy_bytes:
            budget.check_fit(lane, rows, held_bytes)
        batch = self.lanes.take_lent(lane, len(self.ports), rows, address)
        if len(batch.pending) < len(self.ports):
            batch.add_ports(len(self.ports))
        self.queue.running.add(batch)
        budget.rows += rows
        budget.memory_bytes += more
        batch.rows = batch.counted = rows
        batch.held_bytes = held_bytes
        return idle.pop(), batch

    def claim(self, batch: Batch) -> ExecutorHandle | None:
        """Claim an executor for a batch that was never open; the worker runs it at once. Call with the lock held.

        None where its rows had better be added as others: these wait, or runs take long, or there is no room, or the
        round has no time left for inline runs.
        """
        executors, budget, queue, rows = self.executors, self.budget, self.queue, batch.rows
        if (
            not executors.idle
            or queue.open
            or queue.sealed
            or queue.closed
            or batch.lane.run_ns[rows.bit_length()] >= self.quick_ns
            or budget.rows + rows > budget.most_rows
            or budget.memory_bytes + batch.held_bytes > budget.easy_bytes
            or INLINE_TIME.left_ns <= 0
        ):
            return None
        queue.running.add(batch)
        budget.rows += rows
        budget.memory_bytes += batch.held_bytes
        batch.counted = rows
        return executors.idle.pop()

    def _check_open(self) -> None:
        if self.queue.closed:
            raise ModelNotReady("Server is stopping, scheduler for model has stopped accepting new inference requests")

    def _new_batch(self, lane: Lane, rows: int) -> Batch:
        budget, spare = self.budget, lane.spare
        if (
            spare
            and rows <= lane.room
            and budget.rows + rows <= budget.most_rows
            and budget.memory_bytes + spare[-1].memory_bytes <= budget.easy_bytes
            and not self.queue.closed
        ):
            batch = spare.pop()  # what ``_find_memory`` comes to, without its calls
            self.lanes.spare_bytes -= batch.memory_bytes
        else:
            batch = self._find_memory(lane, rows)
        if len(batch.pending) < len(self.ports):
            batch.add_ports(len(self.ports))
        budget.memory_bytes += batch.memory_bytes
        self._opened = batch.order = self._opened + 1
        return batch

    def _find_memory(self, lane: Lane, rows: int) -> Batch:
        self._check_open()
        self.budget.check_rows(rows)
        if rows > lane.room:
            self.lanes.widen(lane, rows)
        room = self.budget.buffer_rows(lane, rows)
        if not self.joins:
            room = rows
        if room == lane.room and lane.spare:
            return self.lanes.take_spare(lane)
        try:
            return lane.new_batch(len(self.ports), room)
        except MemoryError:
            raise Overloaded(
                f"model '{self.name}': no memory for one more batch of {room} rows, which takes "
                f"{room * lane.row_memory} bytes; try again later, or lower 'batch_size' or 'capacity' in its "
                f"{self.budget.bounds.keys.file}"
            ).after(self.budget.wait_s(rows)) from None

    def check_fit(self, lane: Lane, rows: int, held_bytes: int) -> None:
        """Check that one request that may need several batches fits in now. Call with the lock held.

        Args:
            lane: of its rows.
            rows: how many.
            held_bytes: of arrays that are kept for it.

        Raises:
            InvalidRequest: it is larger than the bounds.
            Overloaded: too much is under way now.
        """
        if self.keeps_whole and rows > lane.batch_rows and not self._splits_large:
            raise InvalidRequest(f"inference request batch-size must be <= {lane.batch_rows} for '{self.name}'")
        if self.budget.bounds.waiting:
            self._check_waiting()
        self.budget.check_fit(lane, rows, held_bytes)
        batch = self.queue.open.get(lane)
        if self.keeps_whole and batch is not None and batch.rows + rows > batch.room:
            self.seal(batch)

    def let_in(self, lane: Lane, rows: int, held_bytes: int) -> None:
        """Count the rows of a request, which wait in a pool, until they have run. Call with the lock held.

        Args:
            lane: of its rows.
            rows: how many.
            held_bytes: of what is kept for it.

        Raises:
            InvalidRequest: it is larger than the bounds.
            Overloaded: too much is under way now.
            ModelNotReady: the model version is being unloaded.
        """
        budget = self.budget
        if (
            budget.bounds.waiting
            or budget.rows + rows > budget.most_rows
            or budget.memory_bytes + rows * lane.row_memory + held_bytes > budget.easy_bytes
            or self.queue.closed
        ):
            self._check_open()
            if budget.bounds.waiting:
                # What idle executors take at the commit does not wait.
                budget.check_waiting(len(self.executors.idle) * lane.batch_rows)
            budget.check_fit(lane, rows, held_bytes)
        budget.rows += rows
        budget.memory_bytes += held_bytes

    def note_request(self, first: Batch, last: Batch, held_bytes: int) -> None:
        """A request that ``check_fit`` let in has its rows reserved from the first to the last of these batches.

        Call with the lock held.
        """
        last.held_bytes += held_bytes
        self.budget.memory_bytes += held_bytes
        if self.budget.bounds.waiting:
            self.budget.count_waiting(first)

    def _check_waiting(self) -> None:
        # What idle executors will take as soon as it is committed does not wait.
        self.budget.check_waiting(self.queue.requests_of_next(len(self.executors.idle)))

    def seal(self, batch: Batch) -> None:
        """A batch is full: it takes no more rows, and the next ones have room for more. Call with the lock held."""
        self.queue.seal(batch)
        self.lanes.widen_after(batch)

    def commit(self, batches: Collection[Batch], *, inline: bool = True) -> InlineRun | None:
        """A worker's rows in these batches are written.

        Args:
            batches: with its rows.
            inline: whether it may run a quick batch itself, if its round has time left for that.

        Returns:
            What the worker itself is to run next, if there is a quick batch for an idle executor.
        """
        executors = self.executors
        with self.lock:
            for batch in batches:
                batch.busy -= 1
                if batch.rows > batch.counted:  # a worker's own
                    self.budget.count_exactly(batch)
            run = executors.dispatch(inline=inline and INLINE_TIME.left_ns > 0)
        if executors.handed:
            executors.hand_over()
        return run

    # --- batches out -------------------------------------------------------------------------------------------------

    def release(self, batch: Batch) -> None:
        """A batch has run in an executor's thread: its memory is free for others."""
        with self.lock:
            self._release(batch)
            if self.queue.closed:
                self._dismiss_executors()

    def release_inline(self, batch: Batch, executor: ExecutorHandle, *, more: bool) -> Batch | None:
        """``release`` for a batch that a worker ran, with the executor that it had claimed.

        Args:
            batch: that has run.
            executor: that was claimed.
            more: whether the worker would run another batch with it, if its round has time left for that.

        Returns:
            The batch that the worker is to run next.
        """
        with self.lock:
            self._release(batch)
            following = self.executors.end_inline(executor, more=more and INLINE_TIME.left_ns > 0)
            if self.queue.closed:
                self._dismiss_executors()
        if self.executors.handed:
            self.executors.hand_over()
        return following

    def _release(self, batch: Batch) -> None:
        budget = self.budget
        self.queue.running.discard(batch)
        budget.rows -= batch.counted
        budget.left += batch.counted
        if batch.lane.computes:
            budget.wall_ns = batch.lane.wall_ns
        budget.memory_bytes -= batch.memory_bytes
        if batch.rows >= batch.room and not batch.lent_at:
            self.lanes.widen_after(batch)
        batch.rows = 0
        if batch.pieces or batch.held_bytes:
            if batch.lent_at:
                batch.let_go()
            batch.pieces = []
            budget.memory_bytes -= batch.held_bytes
            batch.held_bytes = 0
        if batch.lane is not self.lanes.last:
            self.lanes.note_use(batch.lane)  # plans look a lane up only once, so what counts is that its batches run
        self.lanes.keep_spare(batch)

    # --- life --------------------------------------------------------------------------------------------------------

    def connect(self, consumer: Consumer) -> int:
        """Add a port; returns its number, from 0."""
        with self.lock:
            # Executors read the list without the lock, which lists allow on every build of CPython.
            self.ports.append(consumer)
            # A batch that one port has to itself may get rows by another one of the same worker: they share its writer.
            for batch in self.queue.waiting():  # the others get theirs before they take rows again
                batch.add_ports(len(self.ports))
            return len(self.ports) - 1

    def deliver(self, port: int, result: BatchResult) -> None:
        """Hand a batch's outcome to a port that has rows in it, from any thread."""
        self.ports[port].finish(result)

    def close(self, *, workers_ended: bool = False) -> None:
        """Take no more rows; executors end once what is in flight has run.

        Args:
            workers_ended: no worker's thread is left. Rows that one of them reserved and did not come to commit,
                because it failed or was stopped in the middle of a round, are then committed in its place: nobody
                waits for them, and without this the executors would, for ever.
        """
        with self.lock:
            self.queue.closed = True
            if workers_ended:
                for batch in self.queue.waiting():
                    batch.busy = 0
            # What was not ready before: such batches, and those that waited for more rows.
            self.dispatch()
        self.executors.hand_over()

    def dispatch(self) -> None:
        """Find what idle executors can run by now, and end them if nothing is left.

        Call with the lock held, and then ``Dispatcher.hand_over`` without it.
        """
        self.executors.dispatch(inline=False)
        self._dismiss_executors()

    def _dismiss_executors(self) -> None:
        if self.queue.finished:
            self.executors.dismiss()

    def free(self) -> None:
        """Let go of all memory, once every executor has ended; nobody may use it any more.

        By hand, because lanes and their batches refer to each other, and with them buffers, bindings and sessions would
        wait for a garbage collector that may have been told to leave them alone.
        """
        with self.lock:
            self.lanes.clear()
            self.queue.clear()
            self.executors.clear()

    # --- what can be read --------------------------------------------------------------------------------------------

    def occupancy(self) -> Occupancy:
        """How full the SuperTensor is now."""
        with self.lock:
            waiting = list(self.queue.waiting())
            in_flight = (*waiting, *self.queue.running)
            return Occupancy(
                in_flight=len(in_flight),
                running=len(self.queue.running),
                capacity=self.capacity,
                waiting=self.queue.waiting_requests(),
                rows=sum(batch.rows for batch in in_flight),
                row_capacity=self.budget.bounds.rows,
                in_flight_bytes=self.budget.memory_bytes,
                capacity_bytes=self.budget.bounds.memory_bytes,
                idle_executors=len(self.executors.idle),
                lanes=len(self.lanes),
                spare_bytes=self.lanes.spare_bytes,
                buffer_bytes=self.lanes.spare_bytes + sum(batch.memory_bytes for batch in in_flight),
            )

    def lane_states(self, most: int) -> list[LaneState]:
        """What can be said of the lanes used last, ``most`` of them, the last one first."""
        with self.lock:
            return [lane.state(self.queue.open.get(lane)) for lane in islice(self.lanes, most)]
