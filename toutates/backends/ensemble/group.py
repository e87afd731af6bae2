"""Requests on their way through an ensemble, together: each step is one call of its member, with the rows of all.

A group is whatever its threads make of it: whoever has run a step's batch puts the outputs into the next step's. Steps
that do not need each other run at the same time, so the group has a lock.

**Faults.** When a step fails for several requests, each of them goes on by itself, so that only those fail that cause
it. The first error of a request decides; it is told once what runs already has ended.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from toutates.backends.ensemble.binding import Binding, BoundStep, Value, moved
from toutates.backends.ensemble.state import EnsembleState
from toutates.backends.ensemble.values import encoded_strings, outputs_of_step, rows_of, whole_strings
from toutates.engine.calls import THREAD, ModelCall, Outcome
from toutates.engine.result import BatchResult, Form, Outputs, PendingRequest, StepTiming, Timing
from toutates.engine.servable import Consumer, RequestAbout
from toutates.system.errors import (
    ExecutionFailed,
    InvalidRequest,
    ModelNotReady,
    QueueTimeout,
    RequestError,
    TooLate,
    Unavailable,
    anew,
)

__all__ = ["ABANDONED", "INTERNAL_ERROR", "Group", "error_of_step", "requests_of"]

logger = logging.getLogger(__name__)

#: What those are told whom nobody waits for, and what is told of a bug of this package.
ABANDONED: Final = TooLate("Deadline Exceeded")
INTERNAL_ERROR: Final = ExecutionFailed("internal error")
#: Errors that each request of a group would meet by itself too.
_OF_ALL: Final = (ModelNotReady, TooLate)


class Group:
    """Requests that go through an ensemble together.

    Args:
        state: of the ensemble; the group has entered it.
        binding: the members.
        pending: the requests, with their first rows in the group.
        rows: of all of them.
        requests: the same requests by their rows: (rows, how many requests).
        values: of the ensemble tensors, by index; None for those that are not there yet, or never.
        outputs: indices of the outputs that are wanted.
        needed: bits of the steps that these need.
        read: bits of the ensemble tensors that somebody reads.
        consumer: whose requests they are.
        deliver: takes the result.
        held_bytes: counted for its tensors.

    Attributes:
        caller: whose the requests are, where a member has to know; None for none or several.
    """

    __slots__ = (
        "_begun_ns",
        "_binding",
        "_consumer",
        "_deliver",
        "_error",
        "_held_bytes",
        "_is_over",
        "_is_wanted",
        "_lock",
        "_needed",
        "_outputs",
        "_pending",
        "_read",
        "_requests",
        "_resolved",
        "_rows",
        "_running",
        "_started",
        "_state",
        "_timings",
        "_values",
        "caller",
    )

    def __init__(
        self,
        state: EnsembleState,
        binding: Binding,
        pending: list[PendingRequest],
        rows: int,
        requests: Sequence[tuple[int, int]],
        values: list[Value | None],
        outputs: Sequence[int],
        needed: int,
        read: int,
        consumer: Consumer,
        deliver: Callable[[BatchResult], None],
        held_bytes: int,
    ) -> None:
        self._state = state
        self._binding = binding
        self._pending = pending
        self._rows = rows
        self._requests = requests
        self._values = values
        self._outputs = outputs
        self._needed = needed
        self._read = read
        self._consumer = consumer
        self._is_wanted = consumer.is_wanted
        self._deliver = deliver
        self._held_bytes = held_bytes
        self._lock = threading.Lock()
        #: bits of the ensemble tensors that are there, or never will be
        self._resolved = (1 << len(state.graph.signature.inputs)) - 1
        self._started = 0
        self._running = 0
        self._is_over = False
        self._error: RequestError | None = None
        self._timings: list[StepTiming] = []
        self._begun_ns = time.monotonic_ns()
        self.caller: object = None

    def advance(self) -> None:
        """Begin every step that can be begun; end the group if none is left. On any thread that has entered THREAD."""
        ready: list[BoundStep] = []
        with self._lock:
            if self._error is None:
                left = self._needed & ~self._started
                for step in self._binding.steps:
                    if step.bit & left and not step.needs & ~self._resolved:
                        ready.append(step)
                        self._started |= step.bit
                self._running += len(ready)
            # Two threads may come here when the last two steps have ended; one of them ends the group.
            is_over = not self._running and not self._is_over
            self._is_over |= is_over
        if is_over:
            self._end()
        for step in ready:
            bounded = self._state.graph.max_inflight > 0
            if not bounded or self._state.begin_step(step, len(self._pending), partial(self._begin, step)):
                self._begin(step)

    def _begin(self, step: BoundStep) -> None:
        try:
            if self._error is not None:  # of a step that ran while this one had to wait
                self._step_failed(step, self._error)
                return
            if not self._wanted(time.monotonic_ns()):
                self._step_failed(step, ABANDONED)
                return
            rows, shapes, contents = step.inputs(self._values)
            rows = rows if rows >= 0 else self._rows
            wanted = step.asked(self._read).wanted
            of_requests = self._wanted, self._requests, 0, self._about, self.caller
            call = ModelCall(rows, partial(self._done, step), wanted, *of_requests)
            step.calls.submit(call, shapes, contents)
        except RequestError as error:
            self._step_failed(step, error)
        except Exception:
            logger.exception("a step of ensemble '%s' could not be begun", self._state.graph.model)
            self._step_failed(step, INTERNAL_ERROR)

    def _wanted(self, by_ns: int) -> bool:
        """Whether any of the requests has a caller who waits until then."""
        is_wanted = self._is_wanted
        for request in self._pending:  # noqa: SIM110 - a generator takes longer than the first request, who decides
            if is_wanted(request[0], by_ns):
                return True
        return False

    def _about(self) -> RequestAbout:
        """What the requests say beside their tensors: all of a group say the same, where a member asks."""
        return self._consumer.about(self._pending[0][0])

    def _step_failed(self, step: BoundStep, error: RequestError) -> None:
        now_ns = time.monotonic_ns()
        THREAD.put(
            partial(self._done, step), Outcome(None, 0, 0, error, Timing(now_ns, now_ns, now_ns, now_ns), now_ns)
        )

    def _done(self, step: BoundStep, outcome: Outcome) -> None:
        """A step has ended, well or not."""
        error = outcome.error
        values: list[tuple[int, Value]] = []
        held_bytes = 0
        if error is None:
            try:
                values = outputs_of_step(step, step.asked(self._read), outcome)
                if len(self._pending) > 1 and not self._may_divide(step, outcome):
                    raise self._indivisible(
                        f"model '{step.calls.model}' has given an output whose first dimension is not {outcome.rows}"
                    )
                held_bytes = sum([len(content) for _, (_, content, _) in values])
                self._state.hold(held_bytes)
            except RequestError as refusal:
                error, held_bytes = anew(refusal), 0
            except Exception:
                logger.exception("a step of ensemble '%s' failed", self._state.graph.model)
                error, held_bytes = INTERNAL_ERROR, 0
        with self._lock:
            self._running -= 1
            self._held_bytes += held_bytes
            if error is None:
                for tensor, value in values:
                    self._values[tensor] = value
                self._resolved |= step.writes
                calls = step.calls
                self._timings.append(StepTiming(calls.model, calls.number, outcome.begun_ns, outcome.timing))
            else:
                self._started &= ~step.bit
                self._error = self._error or error
        if self._state.graph.max_inflight:
            for begin in self._state.end_step(step, len(self._pending)):
                begin()
        self.advance()

    # --- the end -----------------------------------------------------------------------------------------------------

    def _end(self) -> None:
        error = self._error
        if error is not None and len(self._pending) > 1 and not isinstance(error, _OF_ALL):
            self._go_on_one_by_one()
            return
        outputs: Outputs | None = None
        timing = self._timing()
        if error is None:
            try:
                outputs = self._outputs_of_all()
            except RequestError as refusal:
                error = anew(refusal)
            except Exception:
                logger.exception("the outputs of ensemble '%s' could not be read", self._state.graph.model)
                error = INTERNAL_ERROR
        if error is not None:
            error = error_of_step(self._state.graph.model, error)
        # Before the delivery: who has heard the outcome must find the rows free again.
        answered = self._requests if error is None else ()
        self._state.leave(self._binding, self._rows, self._held_bytes, answered, timing)
        self._values = []
        if outputs is None or outputs.forms is None or len(self._pending) == 1:
            self._deliver(BatchResult(self._pending, outputs, error, timing))
            return
        for context, first, rows, part in self._pending:
            own = outputs.part(first, rows, self._rows)
            self._deliver(BatchResult([(context, 0, rows, part)], own, None, timing))

    def _timing(self) -> Timing:
        """The sums over all steps, from the beginning of the group on."""
        started_ns = self._begun_ns + sum([one.timing.started_ns - one.timing.taken_ns for one in self._timings])
        ended_ns = started_ns + sum([one.timing.ended_ns - one.timing.started_ns for one in self._timings])
        done_ns = ended_ns + sum([one.timing.done_ns - one.timing.ended_ns for one in self._timings])
        return Timing(self._begun_ns, started_ns, ended_ns, done_ns, tuple(self._timings))

    def _outputs_of_all(self, *, may_lack: bool = False) -> Outputs:
        """The wanted outputs; ``may_lack`` says whether some of them may be missing."""
        graph = self._state.graph
        signature = graph.signature
        count = len(signature.outputs)
        forms: dict[int, Form] = {}
        data: list[Any] = [b""] * count
        row_bytes = [0] * count
        row_shapes: list[tuple[int, ...]] = [()] * count
        missing: list[int] = []
        for index in self._outputs:
            spec = signature.outputs[index]
            tensor = graph.tensors.index(spec.name)
            value = self._values[tensor]
            if value is None:
                missing.append(index)
                continue
            shape, content, datatype = value
            if self._binding.batched[tensor] is not signature.batched:
                shape = moved(shape, spec.graph_shape, batched=signature.batched)
            regular = datatype is spec.datatype or datatype.name == spec.datatype.name
            if signature.batched:
                regular = regular and shape[:1] == (self._rows,)
                row_shapes[index] = shape[1:]
                row_bytes[index] = len(content) // (self._rows or 1)
            else:
                row_shapes[index] = shape
                row_bytes[index] = len(content)
            if not regular:
                forms[index] = datatype, shape
            if datatype.size:
                data[index] = content
            else:
                data[index] = (
                    whole_strings(content, shape) if len(self._pending) == 1 else encoded_strings(content, shape)
                )
        if missing and not may_lack:
            if len(missing) == len(self._outputs):
                raise InvalidRequest(
                    "unexpected deadlock, at least one output is not set while no more ensemble steps can be made"
                )
            self._state.note_missing([signature.outputs[index].name for index in missing])
        outputs = Outputs(
            tuple(data),
            tuple(row_bytes),
            tuple(row_shapes),
            in_arrays=any(isinstance(content, np.ndarray) for content in data),
            missing=missing,
            forms=forms or None,
        )
        if len(self._pending) > 1 and not outputs.is_divisible(self._rows):
            names = ", ".join(f"'{signature.outputs[index].name}' {list(forms[index][1])}" for index in forms)
            raise self._indivisible(f"of its outputs {names} the first dimension is not {self._rows}")
        return outputs

    def _may_divide(self, step: BoundStep, outcome: Outcome) -> bool:
        """Whether what a step has given for several requests has the rows of each."""
        forms = None if outcome.outputs is None else outcome.outputs.forms
        if forms is None:
            return True
        asked = [index for index in step.asked(self._read).wanted if index in forms]
        return all(step.batched and forms[index][1][:1] == (outcome.rows,) for index in asked)

    def _indivisible(self, why: str) -> ExecutionFailed:
        """The error of requests that went together, and of which the outputs are not each one's own: each goes alone
        then, and so do those that come later."""
        self._state.join_no_more(self._binding, why)
        return ExecutionFailed(f"the outputs for {len(self._pending)} requests cannot be divided among them: {why}")

    def _go_on_one_by_one(self) -> None:
        """Let each request go on by itself, from the steps that have ended well. All tensors have one row per row."""
        state, binding = self._state, self._binding
        state.split(binding, len(self._pending) - 1)
        done = self._started
        for number, (context, first, rows, _) in enumerate(self._pending):
            values = [rows_of(value, first, rows) for value in self._values]
            group = Group(
                state,
                binding,
                [(context, 0, rows, None)],
                rows,
                _requests_of(context, rows),
                values,
                self._outputs,
                self._needed,
                self._read,
                self._consumer,
                self._deliver,
                0 if number else self._held_bytes,
            )
            group._begun_ns = self._begun_ns
            group._resolved = self._resolved
            group._started = done
            group._timings = list(self._timings)
            group.advance()


def error_of_step(ensemble: str, error: RequestError) -> RequestError:
    """What a client of an ensemble is told of the error of a step."""
    if isinstance(error, TooLate):
        return error
    # It was the member's queue in which the request has waited for too long.
    kind = Unavailable if isinstance(error, QueueTimeout) else type(error)
    return kind(f"in ensemble '{ensemble}', {error}")


def requests_of(pending: Sequence[PendingRequest]) -> Sequence[tuple[int, int]]:
    """Requests by their rows: (rows, how many requests). A call of another model may stand for several."""
    first = pending[0]
    if isinstance(first[0], ModelCall):
        return [pair for context, _, rows, _ in pending for pair in _requests_of(context, rows)]
    rows = first[2]
    if len(pending) == 1:
        return ((rows, 1),)
    found: dict[int, int] = {}
    for request in pending:
        rows = request[2]
        found[rows] = found.get(rows, 0) + 1
    return tuple(found.items())


def _requests_of(context: Any, rows: int) -> Sequence[tuple[int, int]]:
    return (context.requests if isinstance(context, ModelCall) else ()) or ((rows, 1),)
