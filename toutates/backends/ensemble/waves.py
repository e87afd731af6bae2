"""A request on its way through an ensemble with decoupled steps: each response of such a step begins a *wave*.

A wave is what runs between two decoupled steps, or behind the last one, for one response: a group of one request
(``group``) that begins with the tensors of the wave before. The request's own tensors are the first wave. What a wave
behind the last decoupled step comes to is one response of the ensemble. See ``levels`` for which step runs in which.

**Order.** Responses are sent in the order of the waves. Behind the last decoupled step up to ``MAX_WAVES`` waves of a
request run side by side, so that they share batches; those behind the others run one after the other, because all
responses of one come before those of the next.

**Memory.** A response of a member counts against what the member may have handed over (``engine.open_request``) until
its wave is over and what came of it was taken. So a member that is faster than the steps behind it, or than whoever
reads, waits when it sends.

**The end.** The first error in the order of the responses ends the request, as does a caller who has left. The
responses that the members send then are dropped, and they find that nobody wants them.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Final

from toutates.backends.ensemble.binding import Binding, BoundStep, Value
from toutates.backends.ensemble.group import ABANDONED, INTERNAL_ERROR, Group, error_of_step
from toutates.backends.ensemble.state import EnsembleState
from toutates.backends.ensemble.values import outputs_of_step
from toutates.engine.calls import THREAD, ModelCall, Outcome
from toutates.engine.response_counters import Kind
from toutates.engine.result import BatchResult, Outputs, PendingRequest, StepTiming, Timing
from toutates.engine.servable import Consumer
from toutates.system.errors import RequestError, anew

__all__ = ["MAX_WAVES", "Waves"]

logger = logging.getLogger(__name__)

#: Waves of one request that run side by side.
MAX_WAVES: Final = 16
#: Steps of one request that are kept for its trace.
_MAX_STEPS: Final = 64
#: How much of a request one thread does at once.
_MAX_ACTIONS: Final = 64


class Wave(Group):
    """The steps of one level, for one response of the decoupled step below.

    Args:
        waves: of the request.
        level: of its steps.
        values, rows, held_bytes: see ``Group``.
        source: the response; None for the request itself.

    Attributes:
        level: as given.
        is_over: whether its steps have ended.
        answer: what it has come to, behind the last decoupled step; None if it failed.
    """

    __slots__ = ("_source", "_waves", "answer", "is_over", "level")

    def __init__(
        self,
        waves: Waves,
        level: int,
        values: list[Value | None],
        rows: int,
        held_bytes: int = 0,
        source: Outcome | None = None,
    ) -> None:
        super().__init__(
            waves.state,
            waves.binding,
            [(waves.context, 0, rows, None)],
            rows,
            ((rows, 1),),
            values,
            waves.outputs,
            waves.steps[level],
            waves.read,
            waves.consumer,
            waves.consumer.finish,
            held_bytes,
        )
        self._waves = waves
        self._source = source
        self.level = level
        self.is_over = False
        self.answer: Outputs | None = None

    @classmethod
    def of_response(cls, below: Wave, step: BoundStep, response: Outcome) -> Wave:
        """The wave of a response to a wave's tensors."""
        waves = below._waves
        rows = response.rows if step.batched else below._rows
        wave = cls(waves, below.level + 1, list(below._values), rows, source=response)
        wave._resolved = below._resolved | step.writes
        return wave

    def begin(self, step: BoundStep | None) -> None:
        """Take what the response has brought, and begin the steps; ``step`` is what it is of."""
        self.caller = self._waves.caller
        if step is not None and self._source is not None:
            try:
                values = outputs_of_step(step, step.asked(self._read), self._source)
                held_bytes = sum([len(content) for _, (_, content, _) in values])
                self._state.hold(held_bytes)
                self._held_bytes = held_bytes
                for tensor, value in values:
                    self._values[tensor] = value
            except RequestError as error:
                self._error = anew(error)
            except Exception:
                logger.exception("a response for ensemble '%s' could not be read", self._state.graph.model)
                self._error = INTERNAL_ERROR
        self.advance()

    def _wanted(self, by_ns: int) -> bool:
        return self._waves.wanted(by_ns)

    def _end(self) -> None:
        if self._error is None and self.level == len(self._waves.sources):
            try:
                self._count_rows()
                self.answer = self._outputs_of_all(may_lack=True)
            except RequestError as error:
                self._error = anew(error)
            except Exception:
                logger.exception("the outputs of ensemble '%s' could not be read", self._state.graph.model)
                self._error = INTERNAL_ERROR
        self._waves.ended(self)

    def _count_rows(self) -> None:
        """Find the rows of the answer, which need not be as many as those of the request."""
        graph = self._state.graph
        if graph.signature.batched:
            for index in self._outputs:
                spec = graph.signature.outputs[index]
                value = self._values[graph.tensors.index(spec.name)]
                if value is not None:
                    self._rows = value[0][0] if len(value[0]) > len(spec.graph_shape) else 1
                    return

    @property
    def error(self) -> RequestError | None:
        """Why it failed."""
        return self._error

    @property
    def rows(self) -> int:
        """Rows of the answer."""
        return self._rows

    @property
    def steps(self) -> Sequence[StepTiming]:
        """What its steps have done."""
        return self._timings

    def call(self, step: BoundStep, on_done: Callable[[Outcome], object]) -> None:
        """Call the member of a decoupled step with its tensors.

        Raises:
            RequestError: it does not take them. ``on_done`` is not called then.
        """
        rows, shapes, contents = step.inputs(self._values)
        rows = rows if rows >= 0 else self._rows
        waves = self._waves
        wanted = step.asked(self._read).wanted
        call = _SourceCall(rows, on_done, wanted, waves.wanted, about=self._about, caller=self.caller, waves=waves)
        step.calls.submit(call, shapes, contents)

    def forget(self) -> None:
        """Let go of its tensors, and of the response that it is of."""
        held_bytes, self._held_bytes, self._values = self._held_bytes, 0, []
        self._state.release(held_bytes)
        if self._source is not None and self._source.taken is not None:
            self._source.taken()


@dataclass(slots=True, eq=False, kw_only=True)
class _SourceCall(ModelCall):
    """The call of a decoupled step."""

    waves: Waves

    passes_on: ClassVar[bool] = True

    def may_have_left(self) -> bool:
        """See ``Consumer``."""
        return self.waves.may_have_left()

    def unread_bytes(self) -> int:
        """See ``Consumer``."""
        return self.waves.unread_bytes()


class _Source:
    """A decoupled step that was begun with the tensors of a wave.

    Attributes:
        step: which.
        wave: whose tensors.
        waiting: its responses, and its error, that no wave was begun for.
        has_ended: whether there is nothing more to come.
    """

    __slots__ = ("has_ended", "step", "waiting", "wave")

    def __init__(self, step: BoundStep, wave: Wave) -> None:
        self.step = step
        self.wave = wave
        self.waiting: deque[Outcome] = deque()
        self.has_ended = False


class Waves:
    """One request on its way.

    Args:
        state: of the ensemble; the request has entered it.
        binding: the members.
        request: as it stands in its group.
        values: of the ensemble's inputs, by index.
        outputs: indices of the outputs that are wanted.
        needed: bits of the steps that these need.
        read: bits of the ensemble tensors that somebody reads.
        consumer: whose request it is.
        held_bytes: counted for its tensors.

    Attributes:
        state, binding, outputs, read, consumer: as given.
        context: of the request.
        sources: numbers of the decoupled steps that are needed, the lowest level first.
        steps: bits of the other steps that are needed, by level.
        caller: see ``Group``.
    """

    def __init__(
        self,
        state: EnsembleState,
        binding: Binding,
        request: PendingRequest,
        values: list[Value | None],
        outputs: Sequence[int],
        needed: int,
        read: int,
        consumer: Consumer,
        held_bytes: int,
    ) -> None:
        self.state = state
        self.read = read
        self.binding = binding
        self.outputs = outputs
        self.consumer = consumer
        self.context, _, self._rows, _ = request
        self.caller: object = None
        self.sources = [number for number in binding.levels.sources if needed >> number & 1]
        self.steps = [bits & needed for bits in binding.levels.steps]
        self._begun_ns = self._last_ns = time.monotonic_ns()
        self._lock = threading.Lock()
        #: a thread is acting; others leave it what is to be done
        self._is_acting = False
        self._left = 0
        #: the decoupled steps under way, the lowest level first
        self._open: list[_Source] = []
        #: the wave before the next decoupled step, while its steps run
        self._opening: Wave | None = None
        #: waves behind the last decoupled step that have begun, in their order
        self._begun: deque[Wave] = deque()
        #: waves whose steps run; the first one does from the beginning
        self._running = 1
        #: whether the last response is known
        self._is_over = False
        self._sent = 0
        #: of all steps so far: of waiting, of computing, and of outputs, nanoseconds
        self._durations = [0, 0, 0]
        self._steps: list[StepTiming] = []
        first = Wave(self, 0, values, self._rows, held_bytes)
        if self.sources:
            self._opening = first
        else:
            self._begun.append(first)
        self._first = first

    def begin(self) -> None:
        """Begin. On a thread that has entered THREAD, like all that follows."""
        self._first.begin(None)

    def wanted(self, by_ns: int) -> bool:
        """Whether somebody waits for more responses at a time, monotonic nanoseconds. Any thread may ask."""
        return not self._is_over and self.consumer.is_wanted(self.context, by_ns)

    def may_have_left(self) -> bool:
        """See ``Consumer``."""
        return self.consumer.may_have_left(self.context)

    def unread_bytes(self) -> int:
        """See ``Consumer``."""
        return self.consumer.unread_bytes(self.context)

    # --- what happens ------------------------------------------------------------------------------------------------

    def ended(self, wave: Wave) -> None:
        """The steps of a wave have ended, well or not."""
        with self._lock:
            self._running -= 1
            wave.is_over = True
            self._note(wave.steps)
            is_late, is_last = self._is_over, not self._running
        if not is_late:
            self._act()
            return
        wave.forget()
        if is_last:
            self._leave(self._timing(), ())

    def _responded(self, source: _Source, outcome: Outcome) -> None:
        """A decoupled step has sent something. On whatever thread has brought it."""
        if not outcome.more and self.state.graph.max_inflight:
            for begin in self.state.end_step(source.step, 1):
                begin()
        is_empty = outcome.outputs is None and outcome.error is None
        with self._lock:
            is_late = self._is_over
            if not is_late:
                source.has_ended = not outcome.more
                if not is_empty:
                    source.waiting.append(outcome)
                if source.has_ended:
                    calls = source.step.calls
                    self._note([StepTiming(calls.model, calls.number, outcome.begun_ns, outcome.timing)])
        if is_late or is_empty:
            _take(outcome)
        if not is_late:
            self._act()

    def _note(self, steps: Sequence[StepTiming]) -> None:
        for step in steps:
            timing, sums = step.timing, self._durations
            sums[0] += timing.started_ns - timing.taken_ns
            sums[1] += timing.ended_ns - timing.started_ns
            sums[2] += timing.done_ns - timing.ended_ns
            if len(self._steps) < _MAX_STEPS:
                self._steps.append(step)

    # --- what follows ------------------------------------------------------------------------------------------------

    def _act(self) -> None:
        """Do what is to be done, one thing after the other, unless another thread is at it."""
        with self._lock:
            if self._is_acting:
                return
            action = self._next()
            if action is None:
                return
            self._is_acting = True
        self._left = _MAX_ACTIONS
        self._do(action)

    def _do(self, action: Callable[[], object]) -> None:
        try:
            action()
        except Exception:
            logger.exception("a request to ensemble '%s' could not go on", self.state.graph.model)
            with self._lock:
                failing = self._fail(INTERNAL_ERROR) if not self._is_over else None
            if failing is not None:
                failing()
        # Behind what has been put there meanwhile: a response that another model takes has to be taken before the next
        # one is sent, maybe by another thread.
        THREAD.put(self._go_on, None)

    def _go_on(self, _: object) -> None:
        self._left -= 1
        with self._lock:
            # A wave that runs has this called again, maybe by a thread that has more time.
            action = self._next() if self._left > 0 or not self._running else None
            self._is_acting = action is not None
        if action is not None:
            self._do(action)

    def _next(self) -> Callable[[], object] | None:
        """What is to be done next; None while something has to happen first. The lock is held."""
        if self._is_over:
            return None
        begun, opening = self._begun, self._opening
        if begun and begun[0].is_over:
            return self._send_first()
        if opening is not None:
            return self._begin_source(opening) if opening.is_over else None
        if not self._open:
            return None
        last = self._open[-1]
        is_innermost = len(self._open) == len(self.sources)
        if last.waiting and (len(begun) < MAX_WAVES if is_innermost else not begun):
            return self._begin_next(last)
        if last.has_ended and not last.waiting and not begun:
            if len(self._open) == 1:
                return self._finish(None)
            self._open.pop()
            return last.wave.forget
        return None

    def _begin_source(self, wave: Wave) -> Callable[[], object]:
        """Begin the decoupled step behind a wave."""
        self._opening = None
        if wave.error is not None:
            return self._fail(wave.error, wave)
        source = _Source(self.binding.steps[self.sources[wave.level]], wave)
        self._open.append(source)
        return partial(self._call_in_turn, source)

    def _begin_next(self, source: _Source) -> Callable[[], object] | None:
        """Begin the wave of the next response. An error waits until what was sent before it has gone."""
        error = source.waiting[0].error
        if error is None and not self.wanted(time.monotonic_ns()):
            error = ABANDONED
        if error is not None:
            return None if self._begun else self._fail(error)
        wave = Wave.of_response(source.wave, source.step, source.waiting.popleft())
        self._running += 1
        if wave.level < len(self.sources):
            self._opening = wave
        else:
            self._begun.append(wave)
        return partial(wave.begin, source.step)

    def _call_in_turn(self, source: _Source) -> None:
        """Call the member of a decoupled step, once ``max_inflight_requests`` allows it."""
        begin = partial(self._call, source)
        if not self.state.graph.max_inflight or self.state.begin_step(source.step, 1, begin):
            begin()

    def _call(self, source: _Source) -> None:
        error: RequestError = ABANDONED
        try:
            if self.wanted(time.monotonic_ns()):
                source.wave.call(source.step, partial(self._responded, source))
                return
        except RequestError as refusal:
            error = anew(refusal)
        except Exception:
            logger.exception("a step of ensemble '%s' could not be begun", self.state.graph.model)
            error = INTERNAL_ERROR
        now_ns = time.monotonic_ns()
        self._responded(source, Outcome(None, 0, 0, error, Timing(now_ns, now_ns, now_ns, now_ns), now_ns))

    # --- what is sent ------------------------------------------------------------------------------------------------

    def _send_first(self) -> Callable[[], object]:
        """Send what the first wave has come to that was begun."""
        wave = self._begun.popleft()
        if wave.error is not None:
            return self._fail(wave.error, wave)
        if not self._begun and all(source.has_ended and not source.waiting for source in self._open):
            return self._finish(wave)
        return partial(self._send, wave, self._timing())

    def _send(self, wave: Wave, timing: Timing, *, more: bool = True) -> None:
        self._count("success")
        result = BatchResult([(self.context, 0, wave.rows, None)], wave.answer, None, timing)
        result.more = more
        result.taken = wave.forget
        self.consumer.finish(result)

    def _finish(self, last: Wave | None) -> Callable[[], object]:
        """The request is answered fully: with what ``last`` has come to, or with nothing more."""
        self._is_over = True
        timing = self._timing()
        waves = [source.wave for source in self._open]

        def finish() -> None:
            # Before the delivery: who has heard the outcome must find the rows free again.
            self._leave(timing, ((self._rows, 1),))
            for wave in waves:
                wave.forget()
            if last is not None:
                self._send(last, timing, more=False)
            else:
                self._count("empty")
                self.consumer.finish(BatchResult([(self.context, 0, 0, None)], None, None, timing))

        return finish

    def _fail(self, error: RequestError, failed: Wave | None = None) -> Callable[[], object]:
        """The request ends with an error. What runs ends by itself, and what waits is dropped."""
        self._is_over = True
        timing = self._timing()
        waves = [source.wave for source in self._open] + [wave for wave in self._begun if wave.is_over]
        if failed is not None:
            waves.append(failed)
        responses = [outcome for source in self._open for outcome in source.waiting]
        is_last = not self._running
        self._open.clear()
        self._begun.clear()
        error = error_of_step(self.state.graph.model, error)

        def fail() -> None:
            if is_last:
                self._leave(timing, ())
            for wave in waves:
                wave.forget()
            for outcome in responses:
                _take(outcome)
            self._count("fail")
            self.consumer.finish(BatchResult([(self.context, 0, self._rows, None)], None, error, timing))

        return fail

    def _leave(self, timing: Timing, answered: Sequence[tuple[int, int]]) -> None:
        self.state.leave(self.binding, self._rows, 0, answered, timing)

    def _count(self, kind: Kind) -> None:
        """Count a response, by its place."""
        now_ns = time.monotonic_ns()
        if not self.consumer.is_wanted(self.context, now_ns):
            kind = "cancel"
        self.state.responses.add(self._sent, kind, now_ns - self._last_ns)
        self._sent += 1
        self._last_ns = now_ns

    def _timing(self) -> Timing:
        """The sums over all steps so far, from the beginning on."""
        begun_ns = self._begun_ns
        started_ns = begun_ns + self._durations[0]
        ended_ns = started_ns + self._durations[1]
        return Timing(begun_ns, started_ns, ended_ns, ended_ns + self._durations[2], tuple(self._steps))


def _take(outcome: Outcome) -> None:
    """Let go of a response that nothing is begun for."""
    if outcome.taken is not None:
        outcome.taken()
