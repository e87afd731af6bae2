"""A model version with sequences (``engine.servable.Servable``): a scheduler before the version that computes.

    port ──▶ scheduler ──(a batch of one request of each of several sequences)──▶ instance ──▶ port

An instance is a servable of its own, with one batch under way. Each row gets the control inputs, and the state that the
last request of its sequence has left; what it leaves is kept beside the sequence, and dies with it. A batch is one call
of its instance, or, of a model that keeps its own states, a call for each row (``row_calls``).
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any, Final
from weakref import WeakMethod

import trio

from toutates.engine.alarm import Alarm
from toutates.engine.calls import Calls, ModelCall, Outcome
from toutates.engine.counters import VersionCounters
from toutates.engine.lane import RowShapes
from toutates.engine.poisoned import forgetting
from toutates.engine.result import BatchResult, Outputs, PendingRequest, Timing
from toutates.engine.sequences.port import SequencePort, SequenceRequest, SequenceWay
from toutates.engine.sequences.row_calls import RowBatch, deliver, row_calls
from toutates.engine.sequences.rules import SequenceRules
from toutates.engine.sequences.scheduler import Given, Identifier, Scheduler
from toutates.engine.sequences.scheduler import Sequence as Running
from toutates.engine.sequences.tensors import NO_STATES, Control, ControlKind, RowStates, SequenceTensors
from toutates.engine.servable import Consumer, Host, Servable
from toutates.engine.statistics import Occupancy, VersionStatistics
from toutates.protocol.signature import Signature
from toutates.system.errors import (
    Cancelled,
    ExecutionFailed,
    InvalidRequest,
    ModelNotReady,
    Overloaded,
    QueueTimeout,
    RequestError,
    Rescheduled,
    TooLate,
    Unavailable,
)
from toutates.system.poison import current
from toutates.system.text import shown

__all__ = ["SequenceBounds", "SequenceServable"]

logger = logging.getLogger(__name__)

Rows = list[Given[SequenceRequest] | None]

#: How soon after each other idle sequences are looked for, nanoseconds.
_SWEEP_NS: Final = 50_000_000
#: Idle sequences that are given up at once: by who keeps time, half a millisecond, and by each request that comes.
_SWEPT_AT_ONCE: Final = 256
_GIVEN_UP_BY_ONE: Final = 8
_NEVER_NS: Final = 2**62
#: At most one warning of a model in so long, nanoseconds: clients send whatever they like.
_WARNING_NS: Final = 60_000_000_000


class SequenceBounds:
    """How much a model with sequences may hold.

    Args:
        requests: that wait.
        request_bytes: of their tensors.
        state_bytes: of the states of all sequences.
    """

    def __init__(self, requests: int, request_bytes: int, state_bytes: int) -> None:
        self.requests, self.request_bytes, self.state_bytes = requests, request_bytes, state_bytes


class SequenceServable:
    """A model version whose requests belong to sequences.

    Args:
        model: its name.
        version: its number.
        tensors: what clients see, and what the instances compute.
        rules: of the scheduler.
        instances: compute batches; ``rules.instances`` of them, each with the whole signature.
        bounds: see ``SequenceBounds``.
        by_row: whether the model sees each row as a request of its own.
        on_end: called when no worker is left, and no batch should take long any more.
    """

    def __init__(
        self,
        model: str,
        version: int,
        tensors: SequenceTensors,
        rules: SequenceRules,
        instances: Sequence[Servable],
        bounds: SequenceBounds,
        *,
        by_row: bool = False,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        self._model = model
        self._by_row, self._on_end = by_row, on_end
        #: whether rows of several sequences may share a run
        self._joins = all([instance.joins for instance in instances])
        self._tensors = tensors
        self._bounds = bounds
        self._instances = list(instances)
        self._calls = [Calls(model, version, instance) for instance in instances]
        executors = [executor for instance in instances for executor in instance.counters.executors]
        self.counters = VersionCounters([], executors)
        #: guards the scheduler and what follows
        self._lock = threading.Lock()
        key = _key_with_states if tensors.has_open_states else None
        self._scheduler: Scheduler[SequenceRequest] = Scheduler(model, rules, key)
        self._is_busy = [False] * len(self._instances)
        #: by instance, batches of one request each that are run before all others: those of a batch that has failed
        self._alone: list[deque[Rows]] = [deque() for _ in self._instances]
        self._request_bytes = 0
        self._state_bytes = 0
        #: no warning is logged before, monotonic
        self._warns_from_ns = 0
        self._is_closed = False
        self._workers_ended = False
        #: wakes the task that keeps time; None while there is none
        self._wake: Callable[[], None] | None = None
        self._sleeps_until_ns = 0
        self._model_keeps_states = tensors.model_keeps_states
        self._corrid = next((c for c in tensors.controls if c.kind is ControlKind.CORRID), None)
        poison = current()
        if poison is not None:
            self._keep = forgetting(WeakMethod(self._keep), poison)  # type: ignore[method-assign, assignment]

    # --- requests in -------------------------------------------------------------------------------------------------

    def way(self, row_shapes: RowShapes) -> SequenceWay:
        """See ``SequencePort``."""
        inputs = self._tensors.whole.inputs
        shapes = tuple([(index, inputs[index].to_wire(shape)) for index, shape in row_shapes])
        packed = all(inputs[index].datatype.size for index, _ in row_shapes)
        return SequenceWay(packed, shapes)

    @property
    def instances(self) -> Sequence[Servable]:
        """What computes the batches."""
        return tuple(self._instances)

    @property
    def gives_ids(self) -> bool:
        """See ``Batcher``."""
        return self._scheduler.rules.iterative

    def add(self, request: SequenceRequest, identifier: Identifier, *, start: bool, end: bool, timeout_us: int) -> None:
        """See ``Batcher``."""
        corrid = self._corrid
        if corrid is not None and isinstance(identifier, str) is not (not corrid.datatype.size):
            kind = "BYTES" if isinstance(identifier, str) else "UINT64"
            name = self._tensors.whole.inputs[corrid.index].name
            raise InvalidRequest(
                f"sequence batching control '{name}' data-type is '{kind}', but model '{self._model}' expects "
                f"'{corrid.datatype.name}'"
            )
        start = start or not identifier
        now_ns = time.monotonic_ns()
        idle: list[RowStates | None] | None = None
        with self._lock:
            scheduler, bounds = self._scheduler, self._bounds
            if self._is_closed and start:
                raise Unavailable(
                    "Server is stopping, scheduler for model has stopped accepting new inference requests"
                )
            if scheduler.requests >= bounds.requests or self._request_bytes + request.size > bounds.request_bytes:
                raise Overloaded(
                    f"model '{self._model}': {scheduler.requests} requests of sequences wait, with "
                    f"{self._request_bytes} bytes; try again later, or raise 'capacity' in its configuration"
                )
            if start and self._state_bytes > bounds.state_bytes:
                raise Overloaded(
                    f"model '{self._model}': the states of {len(scheduler)} sequences take {self._state_bytes} bytes, "
                    f"and may take {bounds.state_bytes}; try again when some have ended"
                )
            if now_ns > scheduler.idle_from_ns:
                idle = self._give_up_idle(now_ns, _GIVEN_UP_BY_ONE, identifier)
            is_conflict = start and scheduler.knows(identifier) and now_ns >= self._warns_from_ns
            if is_conflict:
                self._warns_from_ns = now_ns + _WARNING_NS
            due_ns = now_ns + timeout_us * 1_000 if timeout_us else 0
            scheduler.add(
                request,
                identifier,
                now_ns,
                shapes=request.way.shapes,
                start=start,
                end=end,
                due_ns=due_ns,
            )
            self._request_bytes += request.size
            wake_ns = min(now_ns + scheduler.rules.idle_ns, due_ns or _NEVER_NS)
            if wake_ns < self._sleeps_until_ns:
                self._wake_at(wake_ns)
        del idle  # their states, which are freed when nobody waits for the lock
        if is_conflict:
            logger.warning(
                "model '%s': sequence %s has begun again before it has ended; its state is made fresh",
                self._model,
                shown(str(identifier)),
                extra={"model": self._model},
            )

    def commit(self) -> None:
        """See ``Batcher``."""
        for instance in range(len(self._instances)):
            self._pump(instance)

    # --- batches -----------------------------------------------------------------------------------------------------

    def _pump(self, instance: int) -> None:
        """Have an instance run its next batch, if it is free and has one that is due."""
        while True:
            with self._lock:
                if self._is_busy[instance]:
                    return
                if self._alone[instance]:
                    rows = self._alone[instance].popleft()
                else:
                    due_ns = self._scheduler.due_ns(instance)
                    if due_ns is None:
                        return
                    if self._scheduler.rules.delay_ns and due_ns > time.monotonic_ns() and not self._is_closed:
                        self._wake_at(due_ns)
                        return
                    rows = self._scheduler.choose(instance)
                    if not self._joins and sum([row is not None for row in rows]) > 1:
                        self._alone[instance].extend(self._by_itself(rows, at) for at, row in enumerate(rows) if row)
                        rows = self._alone[instance].popleft()
                self._is_busy[instance] = True
            if self._run(instance, rows):
                return

    def _run(self, instance: int, rows: Rows) -> bool:
        """Run a batch; returns whether it is under way, or was and is done with."""
        now_ns = time.monotonic_ns()
        left: Rows = [row if row is not None and _is_wanted(row, now_ns) else None for row in rows]
        unwanted = [row for row, still in zip(rows, left, strict=True) if row is not None and still is None]
        for row in unwanted:
            self._cancel(row)
        if not (self._scheduler.rules.by_slot and self._joins):
            left = [row for row in left if row is not None]
        while left and left[-1] is None:
            left.pop()
        if not left:
            with self._lock:
                self._is_busy[instance] = False
            return False
        wanted = [row for row in left if row is not None]
        if self._by_row:
            self._run_rows(instance, left, wanted)
            return True
        call = ModelCall(
            len(left),
            partial(self._finish, instance, left),
            is_wanted=lambda by_ns: any(_is_wanted(row, by_ns) for row in wanted),
            requests=((1, len(wanted)),),
        )
        try:
            self._calls[instance].submit(call, *self._inputs(left, wanted[0]))
        except RequestError as error:
            self._finish(instance, left, _failure(error))
        except Exception:  # such as MemoryError; the instance has to be free again
            logger.exception("making a batch of sequences of model '%s' failed", self._model)
            self._finish(instance, left, _failure(ExecutionFailed("internal error")))
        return True

    def _run_rows(self, instance: int, rows: Rows, wanted: list[Given[SequenceRequest]]) -> None:
        """Run a batch whose rows are requests of their own."""
        batch, first, controls = RowBatch(instance, wanted), wanted[0], self._tensors.controls
        now_ns = time.monotonic_ns()
        for row in wanted:
            row.arrived_ns = now_ns
        try:
            calls = row_calls(batch, rows, self._row_done)
            shapes = (*first.own.way.shapes, *[(control.index, (1,)) for control in controls])
            nulls = self._nulls(first)
            contents = [
                (*(nulls if row is None else row.own.contents), *[_control(control, [row]) for control in controls])
                for row in rows
            ]
        except Exception:  # such as MemoryError; the instance has to be free again
            logger.exception("making a batch of sequences of model '%s' failed", self._model)
            for row in wanted:
                self._row_done(batch, row, _failure(ExecutionFailed("internal error")))
            return
        self._calls[instance].submit_each(calls, shapes, contents)

    def _row_done(self, batch: RowBatch, row: Given[SequenceRequest], outcome: Outcome | None) -> None:
        """See ``row_calls.OnDone``."""
        scheduler = self._scheduler
        is_iterative = scheduler.rules.iterative
        left: list[Given[SequenceRequest]] = []
        with self._lock:
            is_done = row not in batch.left
            comes_again = False
            if not is_done:
                batch.left.discard(row)
                if is_iterative and outcome is not None and isinstance(outcome.error, Rescheduled):
                    try:
                        scheduler.again(row, time.monotonic_ns())
                        comes_again = True
                    except RequestError as error:
                        outcome = _failure(error)
                if not comes_again:
                    self._request_bytes -= row.own.size
                    scheduler.done(row)
                    if is_iterative:
                        left = self._give_up(row.sequence)
            is_over = not is_done and not batch.left
            if is_over:
                self._is_busy[batch.instance] = False
        if outcome is not None and not comes_again:
            deliver(row, outcome)
        if left:
            _deliver(left, _failure(Cancelled("the sequence has ended with the request before this one")))
        if is_over:
            self._pump(batch.instance)
            if self._is_closed:
                with self._lock:
                    self._wake_at(0)

    def _nulls(self, first: Given[SequenceRequest]) -> tuple[bytes, ...]:
        """The contents of a null row beside a request: zeros, and empty texts."""
        inputs = self._tensors.whole.inputs
        return tuple(
            bytes(len(content)) if inputs[index].datatype.size else bytes(4 * prod(shape))
            for (index, shape), content in zip(first.own.way.shapes, first.own.contents, strict=True)
        )

    def _inputs(self, rows: Rows, first: Given[SequenceRequest]) -> tuple[RowShapes, list[bytes]]:
        """The shapes and the bytes of all inputs of a batch."""
        tensors = self._tensors
        shapes = list(first.own.way.shapes)
        nulls = self._nulls(first)
        given = [nulls if row is None else row.own.contents for row in rows]
        contents = [b"".join([own[at] for own in given]) for at in range(len(shapes))]
        for control in tensors.controls:
            shapes.append((control.index, (1,)))
            contents.append(_control(control, rows))
        if tensors.states:
            null = self._states_before(first)
            states = [null if row is None else self._states_before(row) for row in rows]
            for at, state in enumerate(tensors.states):
                shapes.append((state.input, null.shapes[at]))
                contents.append(b"".join([own.contents[at] for own in states]))
        return tuple(shapes), contents

    def _states_before(self, row: Given[SequenceRequest]) -> RowStates:
        """The states that a request is given. A null row has those of another one, which does no harm."""
        if row.start:
            return self._tensors.initial
        before: RowStates | None = row.sequence.state
        return before or self._tensors.initial

    def _finish(self, instance: int, rows: Rows, outcome: Outcome) -> None:
        """A batch has run, or failed. In the thread that has run it."""
        outputs = outcome.outputs
        wanted = [row for row in rows if row is not None]
        many = len(wanted) > 1
        if outputs is not None and outputs.forms is not None:
            outcome = self._other_rows(rows, outcome)
            outputs, many = outcome.outputs, len(rows) > 1
        alone = outcome.error is not None and many and not isinstance(outcome.error, Overloaded | TooLate)
        states: list[RowStates] = []
        sizes: list[int] = []
        if outputs is not None and self._tensors.states:
            try:
                before = [NO_STATES if row is None or row.end else row.sequence.state for row in rows]
                sizes = [0 if one is None else one.size for one in before]
                states = self._tensors.states_of(outputs, outcome.first, before)
            except Exception:
                logger.exception("keeping the states of model '%s' failed", self._model)
                outcome = _failure(ExecutionFailed("internal error"))
        overgrown: list[Given[SequenceRequest]] = []
        with self._lock:
            if alone:
                # Only those fail that cause the failure.
                self._alone[instance].extend(self._by_itself(rows, at) for at, row in enumerate(rows) if row)
            else:
                for at, row in enumerate(rows):
                    if row is not None:
                        grown = 0
                        if row.end or row.sequence.is_given_up:
                            self._keep(row.sequence, None)
                        elif states:
                            # A first state was let in with its sequence.
                            grown = states[at].size - sizes[at] if sizes[at] else 0
                            self._keep(row.sequence, states[at])
                        elif self._model_keeps_states and (row.start or outcome.error is None):
                            # Without a first run that succeeds, the slot has what its last sequence has left.
                            self._keep(row.sequence, NO_STATES if outcome.error is None else None)
                        self._request_bytes -= row.own.size
                        self._scheduler.done(row)
                        if grown > 0 and self._state_bytes > self._bounds.state_bytes:
                            overgrown += self._give_up(row.sequence)
            self._is_busy[instance] = False
        if not alone:
            _deliver(rows, outcome)
        if overgrown:
            most = self._bounds.state_bytes
            text = f"model '{self._model}': the sequence has ended, because states take more than {most} bytes"
            _deliver(overgrown, _failure(Overloaded(text)))
        self._pump(instance)
        if self._is_closed:
            with self._lock:
                self._wake_at(0)

    def _other_rows(self, rows: Rows, outcome: Outcome) -> Outcome:
        """What becomes of a batch that has given another number of rows than went in.

        One of a single row is that row's; others are run again row by row, as all are from now on.
        """
        assert outcome.outputs is not None
        if len(rows) == 1:
            forms = outcome.outputs.forms or {}
            if not any([own.output in forms for own in self._tensors.states]):
                return outcome
            return _failure(ExecutionFailed(f"model '{self._model}' gives states of another number of rows than 1"))
        with self._lock:
            was_joined, self._joins = self._joins, False
        if was_joined:
            logger.warning(
                "model '%s': a run of %d rows of sequences has given another number of rows; sequences do not share "
                "runs any more",
                self._model,
                len(rows),
                extra={"model": self._model},
            )
        return _failure(ExecutionFailed(f"model '{self._model}' gives another number of rows than it gets"))

    def _by_itself(self, rows: Rows, at: int) -> Rows:
        return [*([None] * at), rows[at]] if self._scheduler.rules.by_slot and self._joins else [rows[at]]

    def _keep(self, sequence: Running[SequenceRequest], states: RowStates | None) -> None:
        """Keep the states of a sequence, None for none. With the lock held."""
        before: RowStates | None = sequence.state
        self._state_bytes += (states.size if states is not None else 0) - (before.size if before is not None else 0)
        sequence.state = states

    # --- the end of sequences ----------------------------------------------------------------------------------------

    def _cancel(self, row: Given[SequenceRequest]) -> None:
        """Nobody waits for a request any more: its sequence ends, and so do the requests behind it."""
        with self._lock:
            self._request_bytes -= row.own.size
            left = self._give_up(row.sequence)
            self._scheduler.done(row)
        _deliver([row], _failure(TooLate("Deadline Exceeded")))
        if left:
            text = "the sequence has ended, because the caller of the request before this one does not wait any more"
            _deliver(left, _failure(Cancelled(text)))

    def _give_up(self, sequence: Running[SequenceRequest]) -> list[Given[SequenceRequest]]:
        """End a sequence, and return its requests that have not run. With the lock held."""
        left = self._scheduler.give_up(sequence)
        self._request_bytes -= sum(request.own.size for request in left)
        self._keep(sequence, None)
        return left

    def _give_up_idle(self, now_ns: int, most: int, asked: Identifier | None = None) -> list[RowStates | None]:
        """Give up idle sequences (``Scheduler.give_up_idle``), and return their states. With the lock held."""
        states: list[RowStates | None] = []
        for sequence in self._scheduler.give_up_idle(now_ns, most, asked):
            states.append(sequence.state)
            self._keep(sequence, None)
        return states

    def forget(self, instance: int) -> None:
        """End the sequences of an instance that has lost what its model kept of them. Those that begin now go on."""
        left: list[Given[SequenceRequest]] = []
        with self._lock:
            for sequence in list(self._scheduler):
                first = sequence.first
                begins = not sequence.under_way and first is not None and first.start
                if sequence.slot >= 0 and sequence.instance == instance and not begins:
                    left += self._give_up(sequence)
        if left:
            _deliver(
                left, _failure(Unavailable("the sequence has ended, because the process that had its state is gone"))
            )

    def _sweep(self) -> int:
        """Give up what is idle or was in the backlog for too long; returns when to look again, monotonic ns."""
        now_ns = time.monotonic_ns()
        failed: list[Given[SequenceRequest]] = []
        with self._lock:
            scheduler = self._scheduler
            idle = self._give_up_idle(now_ns, _SWEPT_AT_ONCE)
            for late in scheduler.expired(now_ns, _SWEPT_AT_ONCE):
                failed += self._give_up(late)
            again = [_NEVER_NS]
            idle_ns = scheduler.next_idle_ns()
            if idle_ns is not None:
                # What is idle still is given up at once, when others have had the lock.
                again.append(idle_ns + 1 if len(idle) == _SWEPT_AT_ONCE else max(idle_ns + 1, now_ns + _SWEEP_NS))
            due_ns = scheduler.next_expired_ns()
            if due_ns is not None:
                again.append(max(due_ns, now_ns + 10**6))
            again += [
                due
                for instance, is_busy in enumerate(self._is_busy)
                if not is_busy and (due := scheduler.due_ns(instance)) is not None and due > now_ns
            ]
            self._sleeps_until_ns = min(again)
        if failed:
            _deliver(failed, _failure(QueueTimeout("timeout of the corresponding sequence has been expired")))
        given_up = bool(idle)
        del idle  # see ``add``
        if (
            given_up or scheduler.rules.delay_ns
        ):  # else nothing can run that could not before; ports commit what they add
            self.commit()
        return self._sleeps_until_ns

    def _wake_at(self, when_ns: int) -> None:
        """Have the task that keeps time look by then. With the lock held."""
        if when_ns < self._sleeps_until_ns and self._wake is not None:
            self._sleeps_until_ns = when_ns
            self._wake()

    # --- Servable ----------------------------------------------------------------------------------------------------

    @property
    def signature(self) -> Signature:
        """See ``Servable``: what clients see."""
        return self._tensors.signature

    @property
    def joins(self) -> bool:
        """See ``Servable``. Requests of one sequence never do."""
        return self._joins

    @property
    def ready(self) -> bool:
        """See ``Servable``."""
        return all(instance.ready for instance in self._instances)

    def port(self, consumer: Consumer) -> SequencePort:
        """See ``Servable``."""
        self.counters.workers.append(consumer.counters)
        return SequencePort(self, self._model, consumer)

    def statistics(self) -> VersionStatistics:
        """See ``Servable``."""
        own = [instance.statistics() for instance in self._instances]
        with self._lock:
            waiting = self._scheduler.requests
            held_bytes = self._request_bytes + self._state_bytes
        occupancy = Occupancy(
            **{
                name: sum(getattr(one.occupancy, name) for one in own)
                for name in Occupancy.__slots__
                if name not in ("waiting", "row_capacity", "in_flight_bytes", "capacity_bytes")
            },
            waiting=waiting,
            row_capacity=self._bounds.requests,
            in_flight_bytes=held_bytes + sum(one.occupancy.in_flight_bytes for one in own),
            capacity_bytes=self._bounds.request_bytes + self._bounds.state_bytes,
        )
        return VersionStatistics(
            requests=self.counters.requests(),
            batches=self.counters.batches(),
            batch_durations=self.counters.batch_durations(),
            batch_runs=self.counters.batch_runs(),
            occupancy=occupancy,
            batch_size=own[0].batch_size,
            executors=sum(one.executors for one in own),
            pool_threads=sum(one.pool_threads for one in own),
            memory_kind=own[0].memory_kind,
            # What the code of a model counts is the same for all of its instances.
            own_metrics=own[0].own_metrics,
            responses=own[0].responses,
        )

    def describe(self, most: int) -> list[str]:
        """See ``Servable``: the sequences, and what the instances say."""
        with self._lock:
            scheduler = self._scheduler
            lines = [
                f"{len(scheduler)} sequences, {scheduler.backlog} of them in the backlog; {scheduler.requests} "
                f"requests wait with {self._request_bytes} bytes; states take {self._state_bytes} bytes"
            ]
        for instance in self._instances:
            lines += instance.describe(most)
        return lines

    async def run(self, host: Host) -> None:
        """See ``Servable``."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep_time)
            async with trio.open_nursery() as instances:
                for instance in self._instances:
                    instances.start_soon(instance.run, host)
            nursery.cancel_scope.cancel()

    async def _keep_time(self) -> None:
        """Look after what is due, and close the instances once there is nothing left for them to run."""
        alarm = Alarm()
        with self._lock:
            self._wake = alarm.ring
        try:
            while True:
                until_ns = self._sweep()
                with self._lock:
                    is_drained = self._is_drained
                    workers_ended = self._workers_ended
                if is_drained:
                    # Here, because an instance is closed in its own event loop.
                    for instance in self._instances:
                        instance.close(workers_ended=workers_ended)
                    if workers_ended:
                        return
                await alarm.wait(until_ns)
        finally:
            with self._lock:
                self._wake = None

    def close(self, *, workers_ended: bool = False) -> None:
        """See ``Servable``. Sequences of the backlog end; what waits in slots is answered."""
        if workers_ended:
            self._on_end()
        with self._lock:
            self._is_closed = True
            self._workers_ended = self._workers_ended or workers_ended
            left: list[Given[SequenceRequest]] = []
            for sequence in list(self._scheduler):
                if sequence.slot < 0:
                    left += self._give_up(sequence)
        error = ModelNotReady("Server is stopping, scheduler for model has stopped accepting new inference requests")
        _deliver(left, _failure(error))
        self.commit()
        with self._lock:
            self._wake_at(0)

    @property
    def _is_drained(self) -> bool:
        """Whether no request will come or is left. With the lock held."""
        return self._is_closed and not (self._scheduler.requests or any(self._is_busy) or any(self._alone))

    def free(self) -> None:
        """See ``Servable``."""
        with self._lock:
            for sequence in list(self._scheduler):
                self._give_up(sequence)
        for instance in self._instances:
            instance.free()


def _is_wanted(row: Given[SequenceRequest], by_ns: int) -> bool:
    return row.own.port.consumer.is_wanted(row.own.context, by_ns)


def _key_with_states(request: Given[SequenceRequest]) -> Any:
    """What requests have to have in common to share a batch, where the shapes of states change."""
    states: RowStates | None = None if request.start else request.sequence.state
    return request.shapes, None if states is None else states.shapes


def _control(control: Control, rows: Rows) -> bytes:
    """The bytes of a control input of a batch."""
    false, true = control.false, control.true
    match control.kind:
        case ControlKind.START:
            return b"".join([true if row is not None and row.start else false for row in rows])
        case ControlKind.END:
            return b"".join([true if row is not None and row.end else false for row in rows])
        case ControlKind.READY:
            return b"".join([false if row is None else true for row in rows])
        case ControlKind.SLOT:
            return b"".join([b"" if row is None else _slot(row) for row in rows])
    return b"".join([false if row is None else control.corrid(row.sequence.identifier) for row in rows])


def _slot(row: Given[SequenceRequest]) -> bytes:
    """The slot of a sequence; its complement, which is negative, where its state has to be a fresh one."""
    slot = row.sequence.slot
    return (~slot if row.start or row.sequence.state is None else slot).to_bytes(4, "little", signed=True)


def _failure(error: RequestError) -> Outcome:
    """The outcome of requests that have not run."""
    now_ns = time.monotonic_ns()
    return Outcome(None, 0, 0, error, Timing(now_ns, now_ns, now_ns, now_ns), now_ns)


def _deliver(rows: Sequence[Given[SequenceRequest] | None], outcome: Outcome) -> None:
    """Hand the outcome of a batch to the ports of its requests."""
    pending: dict[SequencePort, list[PendingRequest]] = {}
    for at, row in enumerate(rows):
        if row is not None:
            own = row.own
            pending.setdefault(own.port, []).append((own.context, outcome.first + at, 1, None))
    outputs = outcome.outputs
    if outputs is not None and outputs.forms is not None and len(rows) > 1:
        for port, requests in pending.items():
            _deliver_each(port, requests, outcome, outputs)
        return
    for port, requests in pending.items():
        try:
            port.finish(BatchResult(requests, outcome.outputs, outcome.error, outcome.timing))
        except Exception:
            logger.exception("handing the outcome of a batch of sequences to its port failed")


def _deliver_each(port: SequencePort, requests: list[PendingRequest], outcome: Outcome, outputs: Outputs) -> None:
    """Hand rows to the port of their requests one by one, because the model gives other outputs than it declares."""
    error: RequestError | None = None
    if not outputs.is_divisible(outcome.rows):
        error = ExecutionFailed(
            f"the model returned outputs for {outcome.rows} rows, which it sees as one request, that cannot be divided "
            f"among them: the first dimension of each has to be {outcome.rows}"
        )
    for context, first, rows, part in requests:
        own = outputs.part(first, rows, outcome.rows) if error is None else None
        try:
            port.finish(BatchResult([(context, 0, rows, part)], own, error, outcome.timing))
        except Exception:
            logger.exception("handing the outcome of a row of a sequence to its port failed")
