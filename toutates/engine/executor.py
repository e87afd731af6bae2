"""An executor takes batches, runs them with its own backend, and hands them back.

It does so in a loop of a thread of its own (``Executor.run``), or in threads of the pool, which it has only while there
is a batch (``Executor.work``).

Where models have latency targets, or runs are rated, it waits for its turn before a run (``turns``).

While it is idle a worker may claim it, and run a quick batch inline, on the worker's thread (``dispatcher``).

**Deadlines.** A batch that nobody waits for any more is not run. While others wait behind it, neither is one whose
callers will all have given up before it is done, by what such batches have taken lately. Without that, a server with
more to do than it can would spend its time on answers that come too late: a queue that is full makes every request as
old as those that just expire. The callers of such a batch hear at once that their deadline cannot be met.

**Faults.** Whatever goes wrong with a batch, each of its callers is told, its memory is free again, and the executor is
idle or has the next batch. What a run raises fails the requests that raise it by themselves, and no others. What is no
``Exception`` also ends the executor's thread, for then nobody knows what state it is in; another thread is started. An
inline run does not end its thread, which is a worker's and has more to do than this batch.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final, Protocol

from toutates.engine.dispatcher import LOOK, MAX_INLINE_BATCHES, Deliver, ExecutorHandle
from toutates.engine.lane import NEVER_DOUBTED, Batch
from toutates.engine.packing import OtherRows
from toutates.engine.poisoned import PoisonedBackend
from toutates.engine.pool import ExecutorPool, PoolShare
from toutates.engine.result import BatchResult, Outputs, PendingRequest, Separate, Timing
from toutates.engine.servable import Backend
from toutates.engine.splits import Outcome, settled
from toutates.engine.supertensor import SuperTensor
from toutates.engine.turns.arbiter import TakesTurns, Turn
from toutates.system.errors import ExecutionFailed, RequestError, TooLate, anew
from toutates.system.inline_time import INLINE_TIME
from toutates.system.logs.limit import LineLimit
from toutates.system.poison import current

__all__ = ["Executor", "Owner"]

logger = logging.getLogger(__name__)

#: Runs on workers' threads that are measured by CPU time after one that took long, where they may last so long that the
#: system interrupts them. The others are by the clock, which is read in a tenth of the time, and says as well that a
#: run is quick.
DOUBTS: Final = 64


class Owner(Protocol):
    """Hears what becomes of an executor in the pool."""

    def end(self) -> None:
        """The executor has ended. Called in any thread."""
        ...

    def die(self, executor: Executor, death: BaseException) -> None:
        """A thread has died in the executor's run. Called in that thread; the executor waits for ``Executor.look``."""
        ...


class _TooManyToTry(Exception):
    """A batch is to be run request by request, and has more of them than a worker runs one by one."""


class _RunAlone(RequestError):
    """The requests of a batch are to be run by themselves."""


class _PoolInbox:
    """Brings an executor into the pool."""

    def __init__(self, executor: Executor, pool: ExecutorPool) -> None:
        self._executor = executor
        self._pool = pool

    def put(self, item: Batch | None, /) -> None:
        """See ``Inbox``."""
        self._executor.give(item)
        self._pool.put(self._executor)

    def get(self, block: bool = True, timeout: float | None = None) -> Batch | None:
        """Never called: no thread waits for it."""
        raise NotImplementedError


class Executor(ExecutorHandle, TakesTurns):
    """Runs batches with one backend. ``run`` blocks its thread until the SuperTensor is closed and empty.

    Instead of ``run``, ``join_pool`` leaves the thread to a pool.

    Args:
        supertensor: where batches come from.
        backend: used by this executor alone.
        on_batch: takes the rows, requests and timing of every batch that ran. Called in the thread that ran it.
    """

    def __init__(
        self,
        supertensor: SuperTensor,
        backend: Backend,
        *,
        on_batch: Callable[[int, int, Timing], None] = lambda rows, requests, timing: None,
    ) -> None:
        super().__init__()
        self._supertensor = supertensor
        poison = current()
        self._backend = backend if poison is None else PoisonedBackend(backend, poison)
        self._on_batch = on_batch
        self._limit: LineLimit[str] = LineLimit()
        self.share = PoolShare()
        #: runs on workers' threads that are still to be measured by CPU time
        self._doubts = 0
        #: in the pool: what to do, the turn that has come for it, and what hears of its end
        self._given: Batch | None = None
        self._held: Turn | None = None
        self._owner: Owner | None = None

    @property
    def on_cpu(self) -> bool:
        """Whether its runs are on the CPU."""
        return self._backend.on_cpu

    def run(self) -> None:
        """Run batches until there will be no more. No ``Exception`` of a batch ends the loop.

        Raises:
            BaseException: what is no ``Exception``. ``run`` is then to be called again, in another thread.
        """
        supertensor = self._supertensor
        while (batch := supertensor.executors.take(self)) is not None:
            turn = self.turn
            if turn is not None:
                turn.begin(batch)
            fatal = self._run_taken(batch, turn)
            if fatal is not None:
                raise anew(fatal)
            del batch  # while an executor waits for the next batch, it keeps no memory of the last
        self._backend.close()

    def _run_taken(self, batch: Batch, turn: Turn | None) -> BaseException | None:
        """Run a batch whose turn it is, and tell its callers; returns what is to end the thread."""
        fatal: BaseException | None = None
        supertensor = self._supertensor
        try:
            # A run of 5 us may wait a thousand times as long for the GIL before it can return.
            outcomes = self._run(batch, by_cpu=self._backend.one_thread)
        except BaseException as error:
            outcomes = self._fail(batch, error)
            if not isinstance(error, Exception):
                fatal = anew(error)
        if batch.has_parts:
            outcomes = self._settled(outcomes, supertensor.deliver)
        if turn is not None:
            turn.end()
        batch.drop_pending()
        # Before the delivery: who has heard the outcome must find the rows free again.
        supertensor.release(batch)
        _deliver(outcomes, supertensor.deliver)
        return fatal

    # --- in the pool -------------------------------------------------------------------------------------------------

    def join_pool(self, pool: ExecutorPool, share: PoolShare, owner: Owner) -> None:
        """Have batches run by threads of a pool, from now on and until there will be no more.

        Args:
            pool: of threads.
            share: of the version.
            owner: hears of its end, and of threads that die.
        """
        self.share, self._owner = share, owner
        self.inbox = _PoolInbox(self, pool)
        self._supertensor.executors.join(self, pool, share)

    def look(self) -> None:
        """Go on after a thread has died."""
        self.inbox.put(LOOK)

    def die(self, death: BaseException) -> None:
        """See ``Pooled``."""
        assert self._owner is not None
        self._owner.die(self, death)

    def give(self, batch: Batch | None) -> None:
        """Set what the executor does when it has a thread: run a batch, look for one (``LOOK``), or end (None)."""
        self._given = batch

    def work_with(self, batch: Batch, pool: ExecutorPool) -> Callable[[], object] | None:
        """See ``ExecutorHandle``."""
        self._given = batch
        try:
            return self.work(pool)
        except BaseException as death:
            self.die(death)
            raise

    def work(self, pool: ExecutorPool) -> Callable[[], object] | None:
        """See ``Pooled``."""
        batch, self._given = self._given, None
        turn, self._held = self._held, None
        if batch is None:
            return self._end()
        dispatcher = self._supertensor.executors
        if batch is LOOK:
            batch = dispatcher.take_now(self, first=True, waits=False)
        while batch is not None:
            if turn is None and (turn := self.turn) is not None and not self._ask(turn, batch, pool):
                return None
            # Its turn goes on until it is known what follows, so that this waits for a turn before others get one.
            held, turn = turn, None
            try:
                began_ns = time.monotonic_ns()
                fatal = self._run_taken(batch, None)
                pool.charge(self.share, time.monotonic_ns() - began_ns)
                if fatal is not None:
                    raise anew(fatal)
                waits = pool.is_wanted
                batch = dispatcher.take_now(self, first=False, waits=waits)
                if batch is LOOK or (waits and batch is not None):
                    self._wait_with(batch, pool)
                    return None
                if batch is not None and held is not None and held is self.turn:
                    turn, held = held, None
                    if not self._ask(turn, batch, pool):
                        return None
            finally:
                if held is not None:
                    held.end()
        return None

    def _wait_with(self, batch: Batch, pool: ExecutorPool) -> None:
        """Go to where others wait for a thread."""
        self._given = batch
        pool.put(self)

    def _ask(self, turn: Turn, batch: Batch, pool: ExecutorPool) -> bool:
        """Whether a batch may run at once. If not, the executor comes into the pool again when it is its turn."""
        self._given = batch

        def wait(look: Callable[[], None], every_s: float) -> None:
            pool.wait_for_turn(self, look, every_s)

        def granted() -> None:
            self._held = turn
            pool.has_turn(self)
            pool.put(self)

        may_begin = turn.ask(batch, wait, granted)
        if may_begin:
            self._given = None
        return may_begin

    def _end(self) -> Callable[[], object]:
        """Close the backend, because there will be no more batches; returns what tells the owner."""
        assert self._owner is not None
        on_end = self._owner.end
        self.inbox = SimpleQueue()  # the other one refers to the executor
        self._backend.close()
        return on_end

    def run_inline(self, batch: Batch, deliver: Deliver, most: int = MAX_INLINE_BATCHES) -> None:
        """See ``ExecutorHandle``."""
        following: Batch | None = batch
        left = most
        turn = self.turn
        while following is not None:
            batch = following
            if (batch.pieces and batch.is_long) or (turn is not None and turn.is_strict):
                self.inbox.put(batch)  # as if the executor had not been claimed
                return
            left -= 1
            try:
                if (batch.lent_at or batch.lane.lasts) and self._backend.one_thread:
                    outcomes = self._run_in_doubt(batch)
                else:
                    outcomes = self._run(batch, by_cpu=False, inline=True)
            except _TooManyToTry:
                self.inbox.put(batch)  # which runs it again, to try its requests
                return
            except BaseException as error:
                outcomes = self._fail(batch, error)
            if outcomes:
                timing = outcomes[-1][3]  # the last one ends when all have run
                INLINE_TIME.left_ns -= timing.done_ns - timing.taken_ns
            if batch.has_parts:
                outcomes = self._settled(outcomes, deliver)
            batch.drop_pending()
            following = self._supertensor.release_inline(batch, self, more=left > 0)
            _deliver(outcomes, deliver)

    def run_claimed(self, batch: Batch) -> Timing | None:
        """See ``ExecutorHandle``."""
        turn = self.turn
        if turn is not None and turn.is_strict:
            return None
        backend, lane = self._backend, batch.lane
        by_cpu = self._doubts > 0
        began_ns = time.thread_time_ns() if by_cpu else 0
        taken_ns = time.monotonic_ns()
        try:
            backend.run(batch, 0, batch.rows)
        except BaseException:  # a panic of a library in Rust is no ``Exception``, and the thread is a worker's
            return None
        done_ns, rows = time.monotonic_ns(), batch.rows
        INLINE_TIME.left_ns -= done_ns - taken_ns
        took_ns = time.thread_time_ns() - began_ns if by_cpu else done_ns - taken_ns
        is_long = took_ns >= self._supertensor.quick_ns
        if by_cpu or not (is_long and lane.lasts and backend.one_thread):
            lane.note_run(rows, took_ns)
        # Else it may have been interrupted, and is not noted.
        self._doubts = DOUBTS if is_long and backend.one_thread else max(self._doubts - 1, 0)
        timing = Timing(taken_ns, backend.started_ns, backend.ended_ns, done_ns)
        lane.note_wall(rows, done_ns - taken_ns)
        self._on_batch(rows, rows, timing)
        return timing

    def _run_in_doubt(self, batch: Batch) -> list[Outcome]:
        """``_run`` on a worker's thread, of a batch that lasts so long that the system may interrupt it."""
        if not self._doubts:
            return self._run(batch, by_cpu=False, doubted_ns=self._supertensor.quick_ns, inline=True)
        self._doubts -= 1
        return self._run(batch, by_cpu=True, inline=True)

    def _run(
        self, batch: Batch, *, by_cpu: bool, doubted_ns: int = NEVER_DOUBTED, inline: bool = False
    ) -> list[Outcome]:
        """Run a batch that nobody else touches any more.

        Args:
            batch: to be run.
            by_cpu: whether CPU time measures the run for ``Lane.note_run``, or the clock.
            doubted_ns: see ``Lane.note_run``; after such a run others are measured by CPU time.
            inline: whether the thread is a worker's.

        Returns:
            What the callers get. The requests stay in the batch until ``Batch.drop_pending``, in case this raises.

        Raises:
            _TooManyToTry: see there. Nothing has become of the batch.
        """
        taken_ns = time.monotonic_ns()
        pending = batch.pending
        queue = self._supertensor.queue
        # Whether others wait is read without the lock, as a guess.
        by_ns = taken_ns + self._usual_ns(batch) if queue.sealed or queue.open else taken_ns
        if not self._is_wanted(pending, by_ns):
            return [(pending, None, _ABANDONED, Timing(taken_ns, taken_ns, taken_ns, taken_ns))]
        backend = self._backend
        began_ns = time.thread_time_ns() if by_cpu else taken_ns
        outputs: Outputs | Separate
        try:
            if not self._supertensor.joins and sum(map(len, pending)) > 1:
                raise _RunAlone
            outputs = backend.run(batch, 0, batch.rows)
        except Exception as error:
            whole = self._whole_of(error, batch)
            if whole is None:
                if inline and sum(map(len, pending)) > MAX_INLINE_BATCHES:
                    INLINE_TIME.left_ns -= time.monotonic_ns() - taken_ns
                    raise _TooManyToTry from None
                return self._run_one_by_one(batch, pending, error, taken_ns)
            outputs = whole
        rows, done_ns = batch.rows, time.monotonic_ns()
        timing = Timing(taken_ns, backend.started_ns, backend.ended_ns, done_ns)
        if backend.on_cpu:
            took_ns = (time.thread_time_ns() if by_cpu else done_ns) - began_ns
            large = outputs if isinstance(outputs, Outputs) and outputs.in_arrays else None
            moved_bytes = batch.held_bytes if large is None else batch.held_bytes + rows * sum(large.row_bytes)
            if not batch.lane.note_run(rows, took_ns, moved_bytes, doubted_ns):
                self._doubts = DOUBTS
        batch.lane.note_wall(rows, done_ns - taken_ns)
        if batch.lane.computes:
            self._on_batch(rows, sum(map(len, pending)), timing)
        if isinstance(outputs, Separate):
            return _separate(outputs, len(pending), timing)
        return [(pending, outputs, None, timing)]

    def _is_wanted(self, pending: list[list[PendingRequest]], by_ns: int) -> bool:
        """Whether any of these requests still has a caller at a time."""
        for consumer, own in zip(self._supertensor.ports, pending, strict=False):
            is_wanted = consumer.is_wanted
            for request in own:
                if is_wanted(request[0], by_ns):
                    return True
        return False

    @staticmethod
    def _usual_ns(batch: Batch) -> int:
        """How long the batch may take from now, nanoseconds: 1.5 times what such batches take on average."""
        usual_ns = batch.lane.wall_ns[batch.rows.bit_length()]
        return usual_ns + (usual_ns >> 1)

    def _whole_of(self, error: Exception, batch: Batch) -> Outputs | None:
        """The outputs of a run that has given another number of rows than went in, if all of them are one request's.

        Where they are of several, requests are not joined from now on.
        """
        if not isinstance(error, OtherRows):
            return None
        requests = [request for own in batch.pending for request in own]
        if [(rows, part) for _, _, rows, part in requests] == [(batch.rows, None)]:
            return error.outputs
        if self._supertensor.run_alone():
            logger.warning(
                "%s; its requests are not joined any more, and each runs alone: rows depend on each other. Write "
                "`batching: false` in config.yaml (`max_batch_size: 0` in config.pbtxt), and clients see the model as "
                "it is",
                error,
                extra={"model": self._supertensor.name},
            )
        return None

    def _run_one_by_one(
        self, batch: Batch, pending: list[list[PendingRequest]], error: Exception, taken_ns: int
    ) -> list[Outcome]:
        """Run each request of a batch by itself: of one that has failed, so that only those fail that cause it."""
        failure = error if isinstance(error, _RunAlone) else self._as_failure(error)
        # The batch may also have rows that were reserved for a request whose copy failed.
        alone = [rows for own in pending for _, _, rows, _ in own] == [batch.rows]
        outcomes: list[Outcome] = []
        for port, own in enumerate(pending):
            is_wanted = self._supertensor.ports[port].is_wanted
            for context, first, rows, part in own:
                outputs: Outputs | None = None
                outcome: RequestError | None = failure
                if not alone:
                    if is_wanted(context, time.monotonic_ns()):
                        outputs, outcome = self._try_rows(batch, first, rows, part=part is not None)
                    else:
                        outcome = _ABANDONED  # a caller that is late and still there must not hear of another's fault
                timing = Timing(taken_ns, self._backend.started_ns, self._backend.ended_ns, time.monotonic_ns())
                if outputs is not None:
                    self._on_batch(rows, 1, timing)
                    # These outputs hold the rows of this request alone.
                    first = 0
                one: list[list[PendingRequest]] = [[] for _ in pending]
                one[port] = [(context, first, rows, part)]
                outcomes.append((one, outputs, outcome, timing))
        return outcomes

    def _try_rows(
        self, batch: Batch, first: int, rows: int, *, part: bool
    ) -> tuple[Outputs | None, RequestError | None]:
        """Run one request, or a ``part`` of one."""
        try:
            outputs = self._backend.run(batch, first, rows)
            assert isinstance(outputs, Outputs)
            return outputs, None
        except Exception as error:
            if isinstance(error, OtherRows) and not part:
                return error.outputs, None
            return None, self._as_failure(error)

    def _settled(self, outcomes: list[Outcome], deliver: Deliver) -> list[Outcome]:
        return settled(outcomes, self._supertensor, lambda told: _deliver(told, deliver), self._run_whole)

    def _run_whole(self, port: int, context: object, make: Callable[[], Batch]) -> Outcome:
        """See ``splits.RunWhole``."""
        supertensor = self._supertensor
        taken_ns = time.monotonic_ns()
        outputs, rows = None, 0
        error: RequestError | None = _ABANDONED
        try:
            if supertensor.ports[port].is_wanted(context, taken_ns):
                batch = make()
                rows = batch.rows
                size = batch.memory_bytes + batch.held_bytes
                with supertensor.lock:
                    supertensor.budget.memory_bytes += size
                try:
                    outputs, error = self._try_rows(batch, 0, rows, part=False)
                finally:
                    with supertensor.lock:
                        supertensor.budget.memory_bytes -= size
        except BaseException as failure:  # others of the batch are still to be told
            error = self._as_failure(failure)
        timing = Timing(taken_ns, self._backend.started_ns, self._backend.ended_ns, time.monotonic_ns())
        INLINE_TIME.left_ns -= timing.done_ns - taken_ns
        if outputs is not None:
            self._on_batch(rows, 1, timing)
        pending: list[list[PendingRequest]] = [[] for _ in supertensor.ports]
        pending[port] = [(context, 0, rows, None)]
        return pending, outputs, error, timing

    def _fail(self, batch: Batch, error: BaseException) -> list[Outcome]:
        """The outcome of a batch in which something unexpected was raised: all callers get the same error."""
        now_ns = time.monotonic_ns()
        return [(batch.pending, None, self._as_failure(error), Timing(now_ns, now_ns, now_ns, now_ns))]

    def _as_failure(self, error: BaseException) -> RequestError:
        if isinstance(error, RequestError):
            return anew(error)  # it waits for its callers
        if not self._limit.count("", time.monotonic_ns()):
            logger.error(
                "running a batch of model '%s' failed outside ONNX Runtime",
                self._supertensor.name,
                exc_info=error,
                extra={"model": self._supertensor.name},
            )
        return ExecutionFailed(f"running the batch failed: {type(error).__name__}")


def _separate(separate: Separate, ports: int, timing: Timing) -> list[Outcome]:
    """An outcome for each request of a batch."""
    outcomes: list[Outcome] = []
    for port, (context, _, rows, part), result in separate.outcomes:
        one: list[list[PendingRequest]] = [[] for _ in range(ports)]
        # Its outputs hold the rows of this request alone.
        one[port] = [(context, 0, rows, part)]
        if isinstance(result, RequestError):
            outcomes.append((one, None, result, timing))
        else:
            outcomes.append((one, result, None, timing))
    return outcomes


def _deliver(outcomes: list[Outcome], deliver: Deliver) -> None:
    for pending, outputs, error, timing in outcomes:
        for port, own in enumerate(pending):
            if own:
                try:
                    deliver(port, BatchResult(own, outputs, error, timing))
                except Exception:
                    logger.exception("handing a batch's outcome to port %d failed", port)
                    _deliver_failure(port, own, timing, deliver)


def _deliver_failure(port: int, own: list[PendingRequest], timing: Timing, deliver: Deliver) -> None:
    """Hand over an error in place of the outcome, which takes less memory."""
    try:
        deliver(port, BatchResult(own, None, _UNDELIVERED, timing))
    except Exception:
        logger.exception("handing an error to port %d failed; %d requests wait for nothing", port, len(own))


#: What callers get whose batch was not run. It has the text of a deadline that has passed.
_ABANDONED: Final = TooLate("Deadline Exceeded")
_UNDELIVERED: Final = ExecutionFailed("internal error")
